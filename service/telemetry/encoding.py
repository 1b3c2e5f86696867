"""Snapshots and decisions as JSON: the keys of the status page are the fields' names."""

from __future__ import annotations

import json
from typing import Any

from cachepolicy.buckets import Bucket


def as_json(value: object) -> str:
    """Dataclasses by their fields, buckets as axis → size, a variant's choices as name → value."""
    return json.dumps(value, default=_shallow)


def _shallow(value: Any) -> dict[str, Any]:
    """One level of what the encoder does not know, all of it with slots; it asks again for what is inside."""
    if isinstance(value, Bucket):
        return value.as_dict()
    return {name: dict(getattr(value, name)) if name == "variant" else getattr(value, name) for name in value.__slots__}
