from __future__ import annotations

from collections.abc import Callable

import pytest

from service.units import Budget, parse_budget, parse_duration, parse_optional_duration, parse_share, parse_size


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_size, "64MiB", 64 << 20),
        (parse_size, "1.5 GiB", 3 << 29),
        (parse_size, "10kB", 10_000),
        (parse_size, "7B", 7),
        (parse_size, 4096, 4096),
        (parse_size, 0, 0),
        (parse_size, "0", 0),
        (parse_duration, "2ms", 0.002),
        (parse_duration, "250us", 0.00025),
        (parse_duration, "15s", 15.0),
        (parse_duration, "10m", 600.0),
        (parse_duration, "1.5h", 5400.0),
        (parse_duration, "2d", 172800.0),
        (parse_duration, 0, 0.0),
        (parse_optional_duration, "none", None),
        (parse_optional_duration, "1s", 1.0),
        (parse_share, "0.1%", 0.001),
        (parse_share, "100%", 1.0),
        (parse_budget, "5%", Budget(share=0.05)),
        (parse_budget, "512MiB", Budget(bytes=512 << 20)),
    ],
)
def test_quantities_mean_what_people_write(parse: Callable[[object], object], text: object, value: object) -> None:
    """Each unit, with and without fractions and blanks."""
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_size, "64"),
        (parse_size, "64 apples"),
        (parse_size, "-1MiB"),
        (parse_size, "5%"),
        (parse_size, True),
        (parse_size, 1.5),
        (parse_duration, 2),
        (parse_duration, "2"),
        (parse_duration, "2MS"),
        (parse_duration, "none"),
        (parse_duration, False),
        (parse_share, "101%"),
        (parse_share, 0.5),
        (parse_budget, "lots"),
        (parse_budget, None),
    ],
)
def test_what_is_no_quantity_is_refused(parse: Callable[[object], object], text: object) -> None:
    """Missing and unknown units, signs, and things that are no text at all."""
    with pytest.raises(ValueError, match="must be a "):
        parse(text)


def test_a_share_resolves_on_a_device() -> None:
    """5 % of a device's bytes; a size stays what it is."""
    assert Budget(share=0.05).resolve(1000) == 50
    assert Budget(bytes=7).resolve(1000) == 7
