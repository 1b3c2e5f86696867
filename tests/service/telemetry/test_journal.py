"""The rings of recent decisions."""

from __future__ import annotations

from cachepolicy.buckets import Bucket
from cachepolicy.keys import GraphKey, Signature
from cachepolicy.reasons import FallbackReason
from service.snapshot import Decision, Happening
from service.telemetry.journal import Journal

KEY = GraphKey(Signature("e", "p", "m:1@1", (("adapter", "legal"),)), Bucket.of(batch=4))


def note(journal: Journal, request_id: str, reason: FallbackReason | None = None, trace_id: str = "") -> None:
    outcome = "replay" if reason is None else "eager"
    journal.decided(Decision(0.0, "m", "1", request_id, trace_id, {"batch": 3}, outcome, reason))


def test_a_storm_of_replays_does_not_push_out_a_fallback() -> None:
    """Each has a ring of its own, of fixed size."""
    journal = Journal(kept=10)
    note(journal, "odd", FallbackReason.EVICTED)
    for index in range(1000):
        note(journal, str(index))
    assert journal.kept == 11
    assert [decision.request_id for decision in journal.find("odd")] == ["odd"]
    assert not journal.find("0")
    assert journal.find("999")


def test_a_request_is_found_by_its_id_and_by_its_trace() -> None:
    """A retry has the same id: both are found, oldest first."""
    journal = Journal()
    note(journal, "a", FallbackReason.NOT_CAPTURED, "t1")
    note(journal, "b")
    note(journal, "a", None, "t2")
    assert [decision.trace_id for decision in journal.find("a")] == ["t1", "t2"]
    assert [decision.request_id for decision in journal.find("t2")] == ["a"]
    latest = journal.latest("m", FallbackReason.NOT_CAPTURED)
    assert latest is not None
    assert latest.trace_id == "t1"


def test_readers_get_what_is_newer_than_what_they_know_in_order() -> None:
    """Requests and what became of graphs, in one sequence."""
    journal = Journal()
    note(journal, "a")
    known = journal.number
    note(journal, "b", FallbackReason.EVICTED)
    journal.happened(Happening.CAPTURED, KEY, seconds=0.5, size=100)
    note(journal, "c")
    assert [type(entry).__name__ for entry in journal.since(known)] == ["Decision", "GraphEvent", "Decision"]
    assert [type(entry).__name__ for entry in journal.since(known, replays=False)] == ["Decision", "GraphEvent"]
    assert not journal.since(journal.number)
    event = journal.events()[0]
    assert (event.model, event.bucket, event.variant) == ("m", Bucket.of(batch=4), (("adapter", "legal"),))
