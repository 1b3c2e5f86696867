import io

import grpc
from rich.console import Console

from service.cli.traffic.tally import ModelTally
from service.cli.traffic.view import View, summary
from service.pb.graphcache.v1 import replay_pb2 as pb

REPLAYED = pb.Outcome(path=pb.PATH_REPLAY, padding_ratio=0.5)
REFUSED = pb.Outcome(
    path=pb.PATH_EAGER, fallback_reason=pb.FALLBACK_REASON_REFUSED, refusal_reason=pb.REFUSAL_REASON_SYNC, detail="sync: .item()"
)


class Failure:
    """A status as grpc's errors carry it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        """The code."""
        return self._code

    def details(self) -> str:
        """The message."""
        return "the message"


def tally() -> ModelTally:
    """Three replays, one refusal, one failure, one request shed."""
    found = ModelTally("m", "one request per arrival")
    for milliseconds in (1, 2, 3):
        found.served(REPLAYED, 4, milliseconds / 1e3)
    found.served(REFUSED, 1, 0.5)
    found.failed(Failure(grpc.StatusCode.INTERNAL))
    found.failed(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED))
    return found


def test_a_tally_adds_up() -> None:
    """Shares, percentiles, padding and reasons; shed requests are no errors."""
    told = tally().summary()
    assert (told["requests"], told["rows"], told["hit_ratio"], told["padding_ratio"]) == (4, 13, 0.75, 0.5)
    assert told["paths"]["replay"] == {"requests": 3, "share": 0.75, "p50_ms": 2.0, "p99_ms": 2.98}
    assert told["reasons"] == {"refused: sync": 1}
    assert (told["errors"], told["shed"], told["first_error"]) == (1, 1, "INTERNAL: the message")


def test_an_empty_tally_has_a_summary() -> None:
    """Nothing was answered yet."""
    told = ModelTally("m", "").summary()
    assert (told["requests"], told["hit_ratio"], told["paths"], told["first_error"]) == (0, 0.0, {}, None)


def test_without_a_terminal_a_line_comes_every_few_seconds() -> None:
    """A log stays readable: no control characters, no line per refresh."""
    page = io.StringIO()
    with View(Console(file=page, width=200), [tally()], 60) as view:
        for quarter in range(4 * 11):
            view.update(quarter / 4)
    lines = page.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0] == "5 of 60 s: m 4 requests, 75.0 % replayed, replay p50 2 ms, eager p50 500 ms, 1 errors"
    assert "\x1b" not in page.getvalue()


def test_on_a_terminal_the_table_is_live() -> None:
    """Paths, reasons and the time that has passed are drawn."""
    page = io.StringIO()
    with View(Console(file=page, width=200, force_terminal=True, _environ={"TERM": "xterm"}), [tally()], 60) as view:
        view.update(30)
    drawn = page.getvalue()
    for part in ("30 of 60 s", "replay", "eager", "refused: sync 1"):
        assert part in drawn


def test_the_summary_names_the_first_error() -> None:
    """A failed run says why."""
    page = io.StringIO()
    summary(Console(file=page, width=200), [tally()], 12.3)
    assert "4 requests with 13 rows in 12 s, hit ratio 75.0 %, padding 50.0 %, delayed 0, shed 1, errors 1" in page.getvalue()
    assert "first error: INTERNAL: the message" in page.getvalue()
    assert page.getvalue().endswith("4 requests in 12 s, 75.0 % replayed from graphs\n")
