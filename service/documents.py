"""YAML text to plain data, and overrides of single values in it."""

from __future__ import annotations

import re

import yaml

from service.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: 1e-3 is a number, and a key written twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Build a dict, refusing duplicate keys."""
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<: *anchor`: keys beside it override the merged ones
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str | int | float):
                if key in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is written twice", key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))


def parse_yaml(text: str, place: str) -> object:
    """Plain data of a YAML text. Raises ConfigError with `place` and the line."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{place}:{mark.line + 1}" if mark else place
        raise ConfigError(f"{where}: {getattr(error, 'problem', None) or 'is not YAML'}") from None


def override(document: dict[object, object], assignment: str) -> None:
    """Carry out one `a.b=value` in place; steps through lists are numbers (`models.0.mode` or `models[0].mode`). Raises ConfigError."""
    path, equals, text = assignment.partition("=")
    steps = re.sub(r"\[(\d+)\]", r".\1", path.strip()).split(".")
    if not equals or not all(steps):
        raise ConfigError(f"--set {assignment}: must look like a.b=value")
    value = parse_yaml(text, f"--set {path}") if text else ""
    node: object = document
    for depth, step in enumerate(steps[:-1]):
        node = node.setdefault(step, {}) if isinstance(node, dict) else _list_at(node, step, path, steps[:depth])[int(step)]
    if isinstance(node, dict):
        node[steps[-1]] = value
    else:
        _list_at(node, steps[-1], path, steps[:-1])[int(steps[-1])] = value


def _list_at(node: object, step: str, path: str, above: list[str]) -> list[object]:
    if not isinstance(node, list):
        raise ConfigError(f"--set {path}: {'.'.join(above)} is not a section")
    if not step.isdecimal() or int(step) >= len(node):
        raise ConfigError(f"--set {path}: {'.'.join(above)} has no element {step}")
    return node
