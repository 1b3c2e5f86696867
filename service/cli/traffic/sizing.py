"""How large the request is that an arrival of a trace becomes, for a model with these axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from service.cli.traffic.trace import Arrival, p95


def sizing(axes: Mapping[str, int], batch_axis: str, trace: Sequence[Arrival]) -> tuple[Callable[[Arrival], dict[str, int]], str]:
    """Sizes of an arrival's request by axis (`axes` are maxima), and the rule in words."""
    others = [name for name in axes if name != batch_axis]
    if others:
        typical = p95([arrival.prompt_tokens for arrival in trace])
        text = f"batch 1, {', '.join(others)} = prompt tokens, where {typical} (p95) or more become the axis' maximum"

        def by_prompt(arrival: Arrival) -> dict[str, int]:
            return {name: 1 if name == batch_axis else _scaled(arrival.prompt_tokens, typical, largest) for name, largest in axes.items()}

        return by_prompt, text
    typical = p95([arrival.output_tokens for arrival in trace])

    def by_output(arrival: Arrival) -> dict[str, int]:
        return {name: _scaled(arrival.output_tokens, typical, largest) for name, largest in axes.items()}

    return by_output, f"batch = output tokens, where {typical} (p95) or more become the axis' maximum"


def live_sequences(trace: Sequence[Arrival], step_s: float, most: int) -> Iterator[int]:
    """Sequences that are under way at each step of a decoding loop, at most so many: an arrival stays for its output tokens."""
    ahead = list(reversed(trace))
    left: list[int] = []
    now = ahead[-1].at_s
    while ahead or left:
        while ahead and ahead[-1].at_s <= now:
            left.append(max(1, ahead.pop().output_tokens))
        if left:
            yield min(most, len(left))
            left = left[most:] + [tokens - 1 for tokens in left[:most] if tokens > 1]
            now += step_s
        elif ahead:
            now = ahead[-1].at_s


def _scaled(value: int, typical: int, maximum: int) -> int:
    return min(maximum, max(1, round(value * maximum / typical)))
