from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.errors import ConfigError
from service.models.allowlist import allowed_file
from service.models.loaded import LoadedModel
from service.models.place import Place

Load = Callable[..., LoadedModel]
PLACE = Place("models[0] (m).factory")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A configuration's folder `base` with models, and a file beside it that nobody allowed."""
    base = tmp_path / "base"
    (base / "models" / "deep").mkdir(parents=True)
    for path in (base / "models" / "a.py", base / "models" / "deep" / "b.py", base / "private.py", tmp_path / "outside.py"):
        path.write_text("", encoding="utf-8")
    (base / "models" / "inside.py").symlink_to("deep/b.py")
    (base / "models" / "escape.py").symlink_to(tmp_path / "outside.py")
    (base / "models" / "up").symlink_to("..")
    return base


@pytest.mark.parametrize(
    ("factory", "pattern", "real"),
    [
        ("file:models/a.py", "file:models/*.py", "models/a.py"),
        ("file:models/a.py", "file:models/a.py", "models/a.py"),
        ("file:./models/deep/../a.py", "file:models/*.py", "models/a.py"),
        ("file:models/deep/b.py", "file:models/**/*.py", "models/deep/b.py"),
        ("file:models/a.py", "file:models/**/*.py", "models/a.py"),
        ("file:models/inside.py", "file:models/*.py", "models/deep/b.py"),
        ("file:{base}/models/a.py", "file:models/?.py", "models/a.py"),
        ("file:models/a.py", "file:{base}/models/*.py", "models/a.py"),
    ],
)
def test_a_file_that_a_glob_names_is_allowed(tree: Path, factory: str, pattern: str, real: str) -> None:
    """Relative and absolute, through links that stay inside."""
    patterns = ["some.module:*", pattern.format(base=tree)]
    assert allowed_file(factory.format(base=tree), patterns, tree, PLACE) == tree / real


@pytest.mark.parametrize(
    ("factory", "pattern", "problem"),
    [
        ("file:private.py", "file:models/*.py", "is not in worker.allowed_factories"),
        ("file:models/../private.py", "file:models/*.py", "is not in worker.allowed_factories"),
        ("file:models/../../outside.py", "file:models/**", "is not in worker.allowed_factories"),
        ("file:models/deep/b.py", "file:models/*.py", "is not in worker.allowed_factories"),
        ("file:models/up/private.py", "file:models/*/*.py", "leads out of file:models/*/*.py"),
        ("file:models/escape.py", "file:models/*.py", "leads out of file:models/*.py"),
        ("file:models/none.py", "file:models/*.py", "no such file"),
        ("file:models/deep", "file:models/*", "no such file"),
        ("file:models/a.py", "models.a:*", "is not in worker.allowed_factories"),
    ],
)
def test_no_path_leads_to_another_file(tree: Path, factory: str, pattern: str, problem: str) -> None:
    """Neither `..` nor links, nor a `*` that crosses folders."""
    with pytest.raises(ConfigError, match=r"^models\[0\] \(m\)\.factory: ") as caught:
        allowed_file(factory, [pattern], tree, PLACE)
    assert problem in str(caught.value)


@pytest.mark.parametrize("pattern", ["service.models.demo:mlp", "service.models.demo:*"])
def test_a_function_is_allowed_by_name_or_with_its_module(load: Load, pattern: str) -> None:
    """The two forms of the allowlist for importable code."""
    inputs = {"x": {"datatype": "FP32", "shape": ["batch", 256]}}
    assert load(factory="service.models.demo:mlp", inputs=inputs, allowed=(pattern,)).spec.outputs[0].name == "y"


@pytest.mark.parametrize(
    ("factory", "problem"),
    [
        ("antigravity:fly", "antigravity:fly is not in worker.allowed_factories (service.models.demo:*)"),
        ("service.models.demo:DecodeStep", "service.models.demo defines no function DecodeStep"),
        ("service.models.demo:torch", "service.models.demo defines no function torch"),
        ("service.models.demo:_linear", "must be module:function or file:PATH.py, not 'service.models.demo:_linear'"),
        ("service.models.demo:none", "service.models.demo defines no function none"),
        ("service.models.demo", "must be module:function or file:PATH.py, not 'service.models.demo'"),
        ("service.models.demo:mlp.__class__", "must be module:function or file:PATH.py, not 'service.models.demo:mlp.__class__'"),
    ],
)
def test_other_code_is_neither_imported_nor_called(load: Load, factory: str, problem: str) -> None:
    """`module:*` covers what the module defines itself; private and imported names are not offered."""
    with pytest.raises(ConfigError) as caught:
        load(factory=factory, allowed=("service.models.demo:*",))
    assert str(caught.value) == f"models[1] (m).factory: {problem}"
    assert "antigravity" not in sys.modules


def test_a_module_that_can_t_be_imported_is_named(load: Load) -> None:
    """The import's own error is told."""
    with pytest.raises(
        ConfigError, match=r"factory: importing no_such_module raised ModuleNotFoundError: No module named 'no_such_module'"
    ):
        load(factory="no_such_module:f", allowed=("no_such_module:f",))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x = (", "running m.py raised SyntaxError"),
        ("raise OSError('disk')", "running m.py raised OSError: disk"),
        ("raise SystemExit", "running m.py raised SystemExit"),
        ("make_model = 3", "m.py has no make_model()"),
        ("def make_model(): pass\nMIN_BATCH = 'two'", "m.py: MIN_BATCH must be a positive integer"),
    ],
)
def test_a_file_that_is_no_model_is_named(load: Load, tmp_path: Path, source: str, problem: str) -> None:
    """A file is run under guard; nothing of one that failed stays among the modules."""
    (tmp_path / "m.py").write_text(source, encoding="utf-8")
    before = set(sys.modules)
    with pytest.raises(ConfigError, match=r"^models\[1\] \(m\)\.factory: ") as caught:
        load(tmp_path, factory="file:m.py")
    assert problem in str(caught.value)
    assert not any(name.startswith("graphcache_file_") for name in set(sys.modules) - before if "raise" in source)
