"""Exact counts of every policy on small cuts of public traces (ATTRIBUTION.md): a change of behaviour shows here, meant or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachepolicy.contest import Policy, run
from cachepolicy.costs import Prices
from cachepolicy.recorded import MIB, ArenaShape, read_runs
from cachepolicy.simulate import Outcome, Recorded

DATA = Path(__file__).parent / "data"
ARENA = ArenaShape(base=34.0, slope=0.35, per_graph=2)


def step(eager_ms: float, replay_ms: float, per_row_ms: float, capture_ms: float, mib: int) -> Prices:
    """Costs that rise with rows; eager turns compute-bound at 128 rows."""
    sizes = range(1, 129)
    return Prices(
        eager=[max(eager_ms, replay_ms + per_row_ms * size) / 1e3 for size in sizes],
        replay=[(replay_ms + per_row_ms * size) / 1e3 for size in sizes],
        capture=[capture_ms / 1e3 for _ in sizes],
        own=[(mib + size // 10) * MIB for size in sizes],
        top=[0 for _ in sizes],
    )


def in_arena(prices: Prices) -> Prices:
    """The same with a shared arena and captures at a tenth of the cost."""
    sizes = range(1, len(prices.eager) + 1)
    return Prices(
        prices.eager,
        prices.replay,
        [seconds / 10 for seconds in prices.capture],
        [int(ARENA.per_graph) * MIB for _ in sizes],
        [ARENA.top_bytes(size) for size in sizes],
    )


CHAT = [step(6.0, 3.1, 0.02, 300, 10)]
FLEET = [step(6.0, 3.1, 0.02, 300, 10), step(5.0, 0.9, 0.004, 200, 6), step(7.8, 5.6, 0.036, 450, 18)]
FLEET = [FLEET[model % 3] for model in range(8)]


def counts(outcome: Outcome) -> tuple[int, int, int, int, int, float]:
    """Captures, evictions, rebuilds, replayed steps, padding rows, net seconds."""
    return (
        outcome.count("capture"),
        outcome.count("evict"),
        outcome.count("rebuild"),
        outcome.replayed,
        outcome.padding,
        round(outcome.net_s, 3),
    )


GOLDEN: list[tuple[str, str, Policy, int, tuple[int, int, int, int, int, float]]] = [
    ("chat_20s", "private", Policy.PAYBACK, 24, (2, 0, 0, 5030, 26567, 11.607)),
    ("chat_20s", "private", Policy.LRU, 24, (12, 10, 0, 5027, 31407, 8.504)),
    ("chat_20s", "private", Policy.LFU, 24, (12, 10, 0, 5027, 28826, 8.556)),
    ("chat_20s", "private", Policy.GDSF, 24, (12, 10, 0, 5027, 28826, 8.556)),
    ("chat_20s", "private", Policy.POWERS_OF_TWO, 24, (2, 0, 0, 0, 0, -0.6)),
    ("chat_20s", "private", Policy.VLLM, 24, (2, 0, 0, 0, 0, -0.6)),
    ("chat_20s", "private", Policy.PAYBACK, 96, (4, 0, 0, 5030, 16019, 11.218)),
    ("chat_20s", "private", Policy.LRU, 96, (12, 4, 0, 5027, 10942, 8.914)),
    ("chat_20s", "private", Policy.LFU, 96, (12, 4, 0, 5027, 6198, 9.008)),
    ("chat_20s", "private", Policy.GDSF, 96, (12, 4, 0, 5027, 6126, 9.01)),
    ("chat_20s", "private", Policy.POWERS_OF_TWO, 96, (7, 0, 0, 5039, 43100, 9.8)),
    ("chat_20s", "private", Policy.VLLM, 96, (8, 0, 0, 5039, 18172, 9.998)),
    ("chat_20s", "arena", Policy.PAYBACK, 48, (4, 2, 0, 5036, 23651, 12.161)),
    ("chat_20s", "arena", Policy.LRU, 48, (12, 10, 0, 5027, 31389, 11.745)),
    ("shift_80s", "private", Policy.PAYBACK, 24, (5, 3, 0, 14300, 94499, 32.656)),
    ("shift_80s", "private", Policy.LRU, 24, (28, 27, 0, 16871, 236874, 27.866)),
    ("shift_80s", "private", Policy.LFU, 24, (28, 27, 0, 16871, 235735, 27.889)),
    ("shift_80s", "private", Policy.GDSF, 24, (28, 27, 0, 16871, 202703, 28.55)),
    ("shift_80s", "private", Policy.POWERS_OF_TWO, 24, (2, 0, 0, 4414, 0, 12.083)),
    ("shift_80s", "private", Policy.VLLM, 24, (2, 0, 0, 4414, 0, 12.083)),
    ("shift_80s", "private", Policy.PAYBACK, 96, (7, 0, 0, 16541, 79969, 36.713)),
    ("shift_80s", "private", Policy.LRU, 96, (28, 22, 0, 16871, 143253, 29.739)),
    ("shift_80s", "private", Policy.LFU, 96, (28, 20, 0, 16871, 167759, 29.249)),
    ("shift_80s", "private", Policy.GDSF, 96, (28, 20, 0, 16871, 167759, 29.249)),
    ("shift_80s", "private", Policy.POWERS_OF_TWO, 96, (7, 0, 0, 16899, 169156, 35.583)),
    ("shift_80s", "private", Policy.VLLM, 96, (8, 0, 0, 11949, 17022, 28.633)),
    ("shift_80s", "arena", Policy.PAYBACK, 48, (8, 7, 0, 8096, 15956, 22.311)),
    ("shift_80s", "arena", Policy.LRU, 48, (13, 12, 0, 9856, 44589, 25.594)),
    ("fleet_120s", "private", Policy.PAYBACK, 24, (43, 41, 0, 72664, 283086, 170.664)),
    ("fleet_120s", "private", Policy.LRU, 24, (1382, 1380, 0, 114897, 28416, -133.882)),
    ("fleet_120s", "private", Policy.LFU, 24, (1377, 1375, 0, 114902, 29696, -139.264)),
    ("fleet_120s", "private", Policy.GDSF, 24, (1395, 1393, 0, 114884, 28825, -139.308)),
    ("fleet_120s", "private", Policy.POWERS_OF_TWO, 24, (2, 0, 0, 6155, 0, 19.516)),
    ("fleet_120s", "private", Policy.VLLM, 24, (2, 0, 0, 6155, 0, 19.516)),
    ("fleet_120s", "private", Policy.PAYBACK, 96, (14, 6, 0, 116062, 392683, 306.582)),
    ("fleet_120s", "private", Policy.LRU, 96, (89, 80, 0, 116190, 209193, 285.316)),
    ("fleet_120s", "private", Policy.LFU, 96, (439, 431, 0, 115840, 26183, 184.939)),
    ("fleet_120s", "private", Policy.GDSF, 96, (228, 219, 0, 116051, 51223, 246.779)),
    ("fleet_120s", "private", Policy.POWERS_OF_TWO, 96, (9, 0, 0, 70396, 0, 185.325)),
    ("fleet_120s", "private", Policy.VLLM, 96, (9, 0, 0, 70396, 0, 185.325)),
    ("fleet_120s", "arena", Policy.PAYBACK, 160, (174, 168, 2, 115246, 359137, 304.439)),
    ("fleet_120s", "arena", Policy.LRU, 160, (256, 251, 0, 116023, 86869, 307.218)),
]


@pytest.mark.parametrize(("cut", "regime", "policy", "mib", "expected"), GOLDEN)
def test_counts_are_as_they_were(cut: str, regime: str, policy: Policy, mib: int, expected: tuple[int, int, int, int, int, float]) -> None:
    """Deterministic: the same cut, costs and budget give the same captures, evictions, replays and padding."""
    prices = FLEET if cut.startswith("fleet") else CHAT
    prices = [in_arena(of_model) for of_model in prices] if regime == "arena" else prices
    assert counts(run(policy, prices, mib * MIB, Recorded(list(read_runs(DATA / f"{cut}.csv.gz"))))) == expected


@pytest.mark.parametrize("cut", ["chat_20s", "shift_80s", "fleet_120s"])
def test_shipped_policy_beats_every_baseline(cut: str) -> None:
    """In a budget that is short."""
    prices = FLEET if cut.startswith("fleet") else CHAT
    runs = list(read_runs(DATA / f"{cut}.csv.gz"))
    net = {policy: run(policy, prices, 48 * MIB, Recorded(runs)).net_s for policy in Policy}
    assert max(net, key=lambda policy: net[policy]) is Policy.PAYBACK
