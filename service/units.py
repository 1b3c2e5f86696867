"""Sizes, durations, shares and addresses as people write them. Every parser raises ValueError with a text that says what is accepted."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SIZE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_ADDRESS = re.compile(r"unix:.+|(?:\[[0-9A-Fa-f:.]+\]|[^\s:/]+):(\d{1,5})")
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+|%)")


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes, plus a share of the device's memory: one of the two is zero."""

    bytes: int = 0
    share: float = 0.0

    def resolve(self, total: int) -> int:
        """Bytes on a device that has `total` bytes."""
        return self.bytes + int(self.share * total)


def parse_size(value: object) -> int:
    """Bytes of "64MiB", "1.5GiB", "100kB" or a plain number of bytes."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if value == "0":  # the one number of bytes whose unit does not matter
        return 0
    number, unit = _split(value)
    factor = _SIZE_UNITS.get(unit.upper())
    if factor is None:
        raise ValueError(f"must be a size such as 64MiB, not {value!r}")
    return int(number * factor)


def parse_duration(value: object) -> float:
    """Seconds of "2ms", "15s", "10m" or 0."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    number, unit = _split(value)
    factor = _TIME_UNITS.get(unit)
    if factor is None:
        raise ValueError(f"must be a duration such as 2ms, 15s or 10m, not {value!r}")
    return number * factor


def parse_optional_duration(value: object) -> float | None:
    """Seconds as `parse_duration`, or None for "none"."""
    return None if value is None or value == "none" else parse_duration(value)


def parse_share(value: object) -> float:
    """The fraction that "0.1%" or "5%" means, from 0 to 1."""
    number, unit = _split(value)
    if unit != "%" or number > 100:
        raise ValueError(f"must be a percentage such as 5%, not {value!r}")
    return number / 100


def parse_budget(value: object) -> Budget:
    """A size, or a share of the device's memory such as "5%"."""
    if isinstance(value, Budget):
        return value
    if _split(value)[1] == "%":
        return Budget(share=parse_share(value))
    try:
        return Budget(bytes=parse_size(value))
    except ValueError:
        raise ValueError(f"must be a size such as 512MiB or a percentage such as 5%, not {value!r}") from None


def parse_address(text: str) -> str:
    """The same text, if it is an address that gRPC can listen on or call."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[1] or 0) > 65535:
        raise ValueError(f"must be host:port or unix:/path, not {text!r}")
    return text


def _split(value: object) -> tuple[float, str]:
    """Number and unit; the unit is "" where the text is no quantity."""
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    return (float(match[1]), match[2]) if match else (0.0, "")
