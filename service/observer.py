"""Looks at a running worker: what gauges read at a scrape, and the whole snapshot for the status page and `graphcache top`.

Called from the threads of those who ask; it takes no lock that a request waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from time import monotonic, time
from typing import TYPE_CHECKING

from cachepolicy.buckets import Bucket
from cachepolicy.reasons import FallbackReason, hint_for
from service import __version__
from service.messages import GraphMode, Path
from service.models.spec import variant_text
from service.snapshot import Load, ModelView, ReasonCount, SizeCount, Snapshot, VariantMode
from service.telemetry.instruments import Reading
from service.telemetry.metrics import SLOWER_REPLAY
from service.telemetry.threads import cpu_seconds

if TYPE_CHECKING:
    from cachepolicy.cache import GraphCache
    from cachepolicy.costs import CostTable
    from service.admin import Admin
    from service.batcher import Ticket
    from service.capturer import Capturer
    from service.registry import Registry
    from service.telemetry.alarm import GraphsOff
    from service.telemetry.device import DeviceMonitor
    from service.telemetry.journal import Journal
    from service.telemetry.pulse import Pulse
    from service.worker import Worker

SIZES_SHOWN = 64  # exact sizes of a variant, the most frequent ones


class Observer:
    """Reads; changes nothing."""

    def __init__(
        self,
        worker: Worker,
        admin: Admin,
        cache: GraphCache,
        costs: CostTable,
        capturer: Capturer,
        pulse: Pulse,
        alarm: GraphsOff,
        journal: Journal,
        monitor: DeviceMonitor,
        device: str,
    ) -> None:
        self.journal = journal
        self._worker = worker
        self._registry: Registry = worker.registry
        self._admin = admin
        self._cache = cache
        self._costs = costs
        self._capturer = capturer
        self._pulse = pulse
        self._alarm = alarm
        self._monitor = monitor
        self._device = device
        self._started = monotonic()

    # -- for a scrape

    def readings(self) -> Iterator[Reading]:
        """Everything that is looked up rather than counted."""
        yield from self._graphs()
        yield from self._modes()
        yield from self._alarms()
        load = self.load()
        yield _one("graphcache_budget_bytes", "The cache's budget", self._cache.budget)
        yield _one("graphcache_used_bytes", "Bytes that resident graphs take, arenas included", self._cache.used)
        yield _one("graphcache_reusable_bytes", "Bytes that the driver keeps for later graphs", self._capturer.ledger.reusable)
        yield _one("graphcache_requests_waiting", "Requests that are not yet answered", load.waiting)
        yield _one("graphcache_requests_running", "Batches on the lane", load.running)
        yield _one("graphcache_saturation", "Share of the limits on waiting requests and bytes that is in use", load.saturation)
        yield _one("graphcache_device_busy_ratio", "Share of the last 10 seconds that the lane has worked", load.busy_ratio)
        yield _many("graphcache_backlog_seconds", "Predicted run time of waiting work", "path", load.backlog_s.items())
        yield replace(_many("graphcache_cpu_seconds", "CPU time of the process by part", "part", cpu_seconds().items()), kind="counter")
        reading = self._monitor.read()
        if reading is not None:
            yield _one("graphcache_device_memory_used_bytes", "Device memory in use, by all processes", reading.memory_used)
            yield _one("graphcache_device_memory_total_bytes", "Device memory", reading.memory_total)
            if reading.utilization is not None:
                yield _one("graphcache_device_utilization_ratio", "Share of time with a kernel on the device", reading.utilization)
            yield _many("graphcache_device_clock_hertz", "Clocks of the device", "domain", reading.clocks.items())

    def _graphs(self) -> Iterator[Reading]:
        states = Reading("graphcache_graphs", "Graphs by state", ("model", "state"))
        sizes = Reading("graphcache_graph_bytes", "Bytes of resident graphs by model, arenas apart", ("model",))
        by_bucket = Reading("graphcache_bucket_bytes", "Bytes of resident graphs by bucket, arenas apart", ("model", "bucket"))
        arenas: dict[str, set[str]] = {}
        for entry in self._cache:
            model = entry.key.signature.model
            _add(states, (model, "serving"), 1)
            _add(sizes, (model,), entry.bytes)
            _add(by_bucket, (model, _name(entry.key.bucket)), entry.bytes)
            if entry.arena:
                arenas.setdefault(model, set()).add(entry.arena)
        for key, progress in self._capturer.progress().items():
            _add(states, (key.signature.model, str(progress.stage)), 1)
        shared = Reading("graphcache_arena_bytes", "Bytes of the memory pools that graphs of a model share", ("model",))
        for model, names in arenas.items():
            shared.values[model,] = sum(self._cache.arena_bytes(name) for name in names)
        yield from (states, sizes, by_bucket, shared)

    def _modes(self) -> Iterator[Reading]:
        off = Reading("graphcache_graphs_off", "Variants switched off, by who did it", ("model", "origin"))
        since = Reading("graphcache_mode_since", "Epoch seconds since when a mode is in force", ("model", "variant", "mode", "origin"))
        for found in self._variant_modes():
            state = found.state
            _add(off, (found.model, state.origin), state.mode is GraphMode.NONE)
            since.values[found.model, variant_text(found.variant), str(state.mode), state.origin] = state.since
        yield from (off, since)

    def _alarms(self) -> Iterator[Reading]:
        on = Reading("graphcache_graphs_effectively_off", "1 where nearly all requests have run eagerly for minutes", ("model",))
        for model, state in self._alarm.watched.items():
            on.values[model,] = float(state)
        yield on

    # -- for people

    def snapshot(self) -> Snapshot:
        """Everything now."""
        return Snapshot(
            worker=self._worker.name,
            program=__version__,
            device=self._device,
            at=time(),
            uptime_s=monotonic() - self._started,
            ready=self._worker.ready,
            load=self.load(),
            budget=self._cache.budget,
            used=self._cache.used,
            reusable=self._capturer.ledger.reusable,
            memory=self._monitor.read(),
            models=self._models(),
            modes=self._variant_modes(),
            graphs=self._admin.graphs(),
            sizes=self._sizes(),
            events=self.journal.events(),
        )

    def load(self) -> Load:
        """How busy the worker is."""
        worker = self._worker
        return Load(worker.waiting, worker.running, worker.saturation, self._pulse.busy_ratio, self._backlog())

    @property
    def alarms(self) -> dict[str, str]:
        """Models whose graphs are effectively off, and why."""
        return self._alarm.on

    def _models(self) -> list[ModelView]:
        versions: dict[str, list[str]] = {}
        for served in self._registry.all():
            versions.setdefault(served.spec.name, []).append(served.spec.version)
        alarms, metrics = self._alarm.on, self._worker.metrics
        found = []
        for name, up in versions.items():
            lost = metrics.lost_seconds(name)
            reasons = [self._reason(name, reason, count, lost) for reason, count in metrics.fallbacks(name).items()]
            reasons.sort(key=lambda reason: (-reason.lost_s, -reason.requests))
            slower = lost.get(SLOWER_REPLAY, 0.0)
            found.append(ModelView(name, up, metrics.outcomes(name), metrics.saved_seconds(name), slower, reasons, alarms.get(name, "")))
        return found

    def _reason(self, model: str, reason: FallbackReason, count: int, lost: dict[str, float]) -> ReasonCount:
        latest = self.journal.latest(model, reason)
        detail = latest.detail if latest else ""
        return ReasonCount(reason, count, lost.get(str(reason), 0.0), detail, hint_for(reason, detail))

    def _variant_modes(self) -> list[VariantMode]:
        now = time()
        return [
            VariantMode(served.spec.name, variant, served.mode(variant, now))
            for served in self._registry.all()
            for variant in served.spec.all_variants()
        ]

    def _sizes(self) -> list[SizeCount]:
        found = []
        histograms = self._capturer.histograms()
        for served in self._registry.all():
            for variant in served.spec.all_variants():
                runs = histograms.get(served.signature(variant), {})
                most = sorted(runs.items(), key=lambda item: -item[1])[:SIZES_SHOWN]
                found += [
                    SizeCount(served.spec.name, variant, Bucket(size), count, served.ladder.fit(dict(size))) for size, count in sorted(most)
                ]
        return found

    def _backlog(self) -> dict[str, float]:
        """Predicted seconds of what waits; nothing for what was never measured."""
        found = {str(path): 0.0 for path in Path}
        for waiting in self._worker.queued():
            for ticket, batches in _batches(waiting):
                served, signature = ticket.served, ticket.served.signature(ticket.variant)
                fit = served.ladder.fit(ticket.part.shape)
                if fit is not None and self._cache.get(served.key(ticket.variant, fit)) is not None:
                    found[Path.REPLAY] += batches * (self._costs.replay(signature, fit) or 0.0)
                elif fit is not None:
                    found[Path.EAGER] += batches * (self._costs.eager(signature, fit) or 0.0)
        return found


def _batches(waiting: Sequence[Ticket]) -> Iterator[tuple[Ticket, float]]:
    """Waiting tickets that stand for a batch each, and for how many of them."""
    for ticket in waiting:
        yield ticket, 1.0 if ticket.alone else ticket.rows / ticket.served.max_rows


@lru_cache(maxsize=4096)
def _name(bucket: Bucket) -> str:
    return str(bucket)


def _add(reading: Reading, labels: tuple[str, ...], value: float) -> None:
    reading.values[labels] = reading.values.get(labels, 0) + value


def _one(name: str, text: str, value: float) -> Reading:
    return Reading(name, text, (), {(): value})


def _many(name: str, text: str, label: str, values: Iterable[tuple[str, float]]) -> Reading:
    return Reading(name, text, (label,), {(key,): value for key, value in values})
