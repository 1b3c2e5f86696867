"""Snapshots and decisions as plain data: the JSON of the status page and its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from cachepolicy.buckets import Bucket


def plain(value: object) -> Any:
    """Dataclasses by their fields, buckets as axis → size, a variant's choices as name → value."""
    match value:
        case Bucket():
            return value.as_dict()
        case Enum():
            return value.value
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case _ if is_dataclass(value):
            return {field.name: _field(field.name, getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def _field(name: str, value: Any) -> Any:
    return dict(value) if name == "variant" else plain(value)
