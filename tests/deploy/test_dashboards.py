"""Dashboard and alert rules against what a worker really exposes, and against Prometheus' own tool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.serving import Node
from service.snapshot import DeviceReading
from tests.harness import MODULES, running

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "graphcache.rules.yaml"
CONFIGURATION = f"""
worker: {{allowed_factories: ["file:{MODULES}/*.py"]}}
models: [{{name: affine, factory: "file:{MODULES}/affine.py", axes: {{batch: {{max: 4}}}}}}]
"""
FROM_SCRAPING = {"instance", "job", "le"}
VARIABLES = {"$__rate_interval": "5m", "$instance": ".*", "$model": ".*"}

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: apt-get install prometheus")


def dashboards() -> list[Path]:
    return sorted((DEPLOY / "grafana").glob("*.json"))


def queries(dashboard: Path) -> Iterator[tuple[str, str]]:
    """Where a query stands, and the query."""
    document = json.loads(dashboard.read_text())
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in document["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.sub(r"label_values\((.*), (\w+)\)", r"count by (\2) (\1)", variable["definition"])


def rule_queries() -> Iterator[tuple[str, str]]:
    """The same for the rules."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule.get("alert", rule.get("record")), rule["expr"]


def every_query() -> list[tuple[str, str]]:
    return [*rule_queries(), *(query for dashboard in dashboards() for query in queries(dashboard))]


async def exposed() -> dict[str, set[str]]:
    """Every sample's name and its labels, on a worker whose device tells what an NVIDIA one does."""
    async with running("cpu", CONFIGURATION) as node:
        return described(node)


def described(node: Node) -> dict[str, set[str]]:
    node.observer._monitor.read = lambda: DeviceReading(1, 2, 0.5, {"sm": 1e9})  # type: ignore[method-assign]
    found: dict[str, set[str]] = {}
    registry = node.worker.metrics.registry
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    described: list[Any] = [*registry._families, *(reading for source in registry._sources for reading in source())]
    for metric in described:
        for suffix in suffixes[metric.kind]:
            found[metric.name + suffix] = set(metric.labels)
    return found


async def test_queries_name_only_metrics_and_labels_that_exist() -> None:
    """A renamed metric or label would leave a panel empty, and an alert silent."""
    known = await exposed()
    records = {name for name, _ in rule_queries() if ":" in name}
    labels = set().union(*known.values()) | FROM_SCRAPING
    problems = []
    for place, query in every_query():
        for name, selector in re.findall(r"\b(graphcache[a-z0-9_:]+)\b(\{[^}]*\})?", query):
            if name not in known and name not in records:
                problems.append(f"{place}: {name} is no metric")
            problems += [
                f"{place}: {name} has no label {label}"
                for label in re.findall(r"(\w+)\s*[=!]~?\"|(\w+)\s*=~", selector)
                for label in label
                if label and label not in known.get(name, labels) | FROM_SCRAPING
            ]
        for grouped in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", query):
            problems += [f"{place}: nothing has the label {label}" for label in re.findall(r"\w+", grouped) if label not in labels]
    assert problems == []
    assert len(every_query()) > 40


@needs_promtool
def test_the_rules_hold_their_own_tests() -> None:
    """`promtool test rules`: each alert fires on synthetic series and clears."""
    for command in (("check", "rules", str(RULES)), ("test", "rules", str(RULES.with_suffix(".test.yaml")))):
        result = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr


@needs_promtool
@pytest.mark.parametrize("dashboard", dashboards(), ids=lambda path: path.name)
def test_dashboard_queries_are_sound(dashboard: Path, tmp_path: Path) -> None:
    """Prometheus parses every one of them."""
    rules = []
    for number, (_, query) in enumerate(queries(dashboard)):
        for variable, value in VARIABLES.items():
            query = query.replace(variable, value)  # noqa: PLW2901
        rules.append({"record": f"query:number{number}", "expr": query})
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    result = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("dashboard", dashboards(), ids=lambda path: path.name)
def test_panels_do_not_overlap(dashboard: Path) -> None:
    """On Grafana's grid of 24 columns, each with a title and an identity of its own."""
    panels = json.loads(dashboard.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert panel["title"]
        assert max(x for x, _ in cells) < 24
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
