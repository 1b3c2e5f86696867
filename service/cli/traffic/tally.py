"""Counting how requests were served, per model."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from service.cli import words
from service.cli.client import Status
from service.pb.graphcache.v1.replay_pb2 import Outcome

SHED = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED)  # answers of an overloaded worker, not failures


@dataclass(slots=True)
class ModelTally:
    """One model's share of the traffic. `load` says in words what an arrival became."""

    model: str
    load: str
    seconds: dict[str, array[float]] = field(default_factory=dict)  # latencies by path
    reasons: Counter[str] = field(default_factory=Counter)
    padding: float = 0.0  # sum of the replays' padding ratios
    rows: int = 0
    delayed: int = 0  # arrivals that could not be sent when they were due
    shed: int = 0
    errors: int = 0
    first_error: str = ""

    def served(self, outcome: Outcome, rows: int, seconds: float) -> None:
        """Count an answer."""
        self.seconds.setdefault(words.path(outcome.path), array("d")).append(seconds)
        self.rows += rows
        self.padding += outcome.padding_ratio
        if reason := words.reason(outcome.fallback_reason):
            refusal = words.refusal(outcome.refusal_reason)
            self.reasons[f"{reason}: {refusal}" if refusal else reason] += 1

    def failed(self, error: Status) -> None:
        """Count a call that was not answered."""
        if error.code() in SHED:
            self.shed += 1
            return
        self.errors += 1
        self.first_error = self.first_error or f"{error.code().name}: {error.details()}"

    @property
    def requests(self) -> int:
        """Answered requests."""
        return sum(len(seconds) for seconds in self.seconds.values())

    def count(self, path: str) -> int:
        """Answered requests of a path."""
        return len(self.seconds.get(path, ()))

    @property
    def hit_ratio(self) -> float:
        """Replays per answered request."""
        return self.count("replay") / self.requests if self.requests else 0.0

    @property
    def padding_ratio(self) -> float:
        """Mean padding of the replays: padded elements per real element."""
        return self.padding / self.count("replay") if self.count("replay") else 0.0

    def percentile(self, path: str, share: float) -> float:
        """Latency in seconds that `share` of the path's requests stayed below."""
        return float(np.quantile(np.frombuffer(self.seconds[path]), share))

    def summary(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {
            "load": self.load,
            "requests": self.requests,
            "rows": self.rows,
            "hit_ratio": self.hit_ratio,
            "padding_ratio": self.padding_ratio,
            "paths": {
                path: {
                    "requests": self.count(path),
                    "share": self.count(path) / self.requests,
                    "p50_ms": self.percentile(path, 0.5) * 1e3,
                    "p99_ms": self.percentile(path, 0.99) * 1e3,
                }
                for path in sorted(self.seconds, reverse=True)
            },
            "reasons": dict(self.reasons.most_common()),
            "delayed": self.delayed,
            "shed": self.shed,
            "errors": self.errors,
            "first_error": self.first_error or None,
        }


def overall_hit_ratio(tallies: Sequence[ModelTally]) -> float:
    """Replays per answered request of all models together."""
    requests = sum(tally.requests for tally in tallies)
    return sum(tally.count("replay") for tally in tallies) / requests if requests else 0.0
