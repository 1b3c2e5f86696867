"""The text of a scrape, as the reference parsers read it."""

from __future__ import annotations

import threading

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from service.telemetry.instruments import Reading, Registry

TRACE = "0123456789abcdef0123456789abcdef"


def filled() -> Registry:
    registry = Registry()
    requests = registry.counter("g_requests", "Requests", "model", "outcome")
    requests.of("m", "replay").inc()
    requests.of("m", "replay").inc(2.5, TRACE)
    requests.of('a "quoted"\nname \\ of', "eager").inc()
    registry.gauge("g_padding", "Padding", "model").of("m").set(0.25)
    seconds = registry.histogram("g_seconds", "Seconds", (0.001, 0.1, 1), "model").of("m")
    for value, trace in ((0.0005, ""), (0.001, ""), (0.05, TRACE), (7.0, "")):
        seconds.observe(value, trace)
    registry.histogram("g_lag_seconds", "Lag", (1,)).of().observe(0.5)
    registry.watch(
        lambda: [Reading("g_cpu_seconds", "CPU", ("part",), {("lane",): 1.5}, "counter"), Reading("g_budget", "Budget", (), {(): 7})]
    )
    return registry


@pytest.mark.parametrize("openmetrics", [False, True])
def test_the_reference_parser_reads_back_what_was_written(openmetrics: bool) -> None:
    """Both formats: names, kinds, label values with every character that needs an escape, cumulative buckets."""
    text = filled().text(openmetrics=openmetrics)
    families = {family.name: family for family in (parse_openmetrics if openmetrics else parse_text)(text)}
    assert {name: family.type for name, family in families.items()} == {
        "g_requests": "counter",
        "g_padding": "gauge",
        "g_seconds": "histogram",
        "g_lag_seconds": "histogram",
        "g_cpu_seconds": "counter",
        "g_budget": "gauge",
    }
    samples = {(s.name, *sorted(s.labels.items())): s.value for family in families.values() for s in family.samples}
    assert samples["g_requests_total", ("model", "m"), ("outcome", "replay")] == 3.5
    assert samples["g_requests_total", ("model", 'a "quoted"\nname \\ of'), ("outcome", "eager")] == 1
    buckets = [s.value for s in families["g_seconds"].samples if s.name == "g_seconds_bucket"]
    assert buckets == [2, 3, 3, 4]  # a value equal to a bound lies below it
    assert samples["g_seconds_sum", ("model", "m")] == pytest.approx(7.0515)
    assert samples["g_cpu_seconds_total", ("part", "lane")] == 1.5
    assert samples["g_budget",] == 7


def test_exemplars_are_in_openmetrics_only() -> None:
    """The trace of the counted request and of the bucket's latest observation."""
    registry = filled()
    found = {
        (s.name, s.labels.get("le")): s.exemplar
        for family in parse_openmetrics(registry.text(openmetrics=True))  # type: ignore[no-untyped-call]
        for s in family.samples
        if s.exemplar
    }
    assert set(found) == {("g_requests_total", None), ("g_seconds_bucket", "0.1")}
    assert all(exemplar.labels == {"trace_id": TRACE} for exemplar in found.values())
    assert TRACE not in registry.text()


def test_nothing_is_lost_between_threads() -> None:
    """Four threads count and observe at once."""
    registry = Registry()
    counter, histogram = registry.counter("c", "", "x"), registry.histogram("h", "", (1.0,))

    def work() -> None:
        for _ in range(5000):
            counter.of("a").inc()
            histogram.of().observe(0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.of("a").value == 20000
    assert "h_count 20000\n" in registry.text()


def test_what_is_gone_leaves_no_series() -> None:
    """All series of one model end, and only those."""
    registry = Registry()
    counter = registry.counter("c", "", "model", "outcome")
    counter.of("a", "replay").inc()
    counter.of("b", "replay").inc()
    registry.drop("model", "a")
    assert 'model="a"' not in registry.text()
    assert 'model="b"' in registry.text()
