"""Keys: each field that changes kernels or numbers changes the fingerprint, and nothing else is in it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from cachepolicy.buckets import Bucket
from cachepolicy.keys import Environment, GraphKey, Signature
from service.stores.base import program_of

ENVIRONMENT = Environment(
    "NVIDIA H200",
    "9.0",
    132,
    "1g.18gb",
    "575.1",
    "13.0",
    "2.13.0",
    "13.1",
    "91002",
    ("triton 3.5",),
    "expandable",
    ":4096:8",
    (("tf32", "1"),),
    "ts",
)
SIGNATURE = Signature("e", "p", "encoder:1@1", (("adapter", "base"),), "decode", (("x", "FP32"),), "none")
OTHER: dict[type, Any] = {str: "another", int: 7, tuple: (("another", "value"),)}


@pytest.mark.parametrize("name", [field.name for field in fields(Environment)])
def test_every_field_of_the_environment_is_in_its_fingerprint(name: str) -> None:
    """Flipped one at a time."""
    flipped = replace(ENVIRONMENT, **{name: OTHER[type(getattr(ENVIRONMENT, name))]})
    assert flipped.fingerprint() != ENVIRONMENT.fingerprint()


def test_the_environment_names_no_host_path_or_serial_number() -> None:
    """Its fields are these; a new one has to be thought about."""
    assert [field.name for field in fields(Environment)] == [
        *("device", "compute_capability", "sm_count", "mig_profile", "driver", "cuda", "torch", "cublas", "cudnn"),
        *("extensions", "allocator", "workspace", "flags", "lowering"),
    ]


@pytest.mark.parametrize("name", ["environment", "program", "weights", "variant", "phase", "datatypes", "compile"])
def test_every_field_of_a_signature_is_in_the_graphs_fingerprint(name: str) -> None:
    """Weights are in the graph's, and not in what costs are shared under; the environment is not in what a program is called."""
    flipped = replace(SIGNATURE, **{name: OTHER[type(getattr(SIGNATURE, name))]})
    bucket = Bucket.of(batch=4)
    assert GraphKey(flipped, bucket).fingerprint() != GraphKey(SIGNATURE, bucket).fingerprint()
    assert (flipped.cost_fingerprint() == SIGNATURE.cost_fingerprint()) == (name == "weights")
    assert (program_of(flipped) == program_of(SIGNATURE)) == (name in ("weights", "environment"))


def test_the_bucket_is_in_the_graphs_fingerprint() -> None:
    """Size and axis."""
    keys = [GraphKey(SIGNATURE, bucket) for bucket in (Bucket.of(batch=4), Bucket.of(batch=8), Bucket.of(seq=4))]
    assert len({key.fingerprint() for key in keys}) == 3


def test_fingerprints_are_the_same_in_another_process() -> None:
    """Whatever that process hashes by, and wherever it runs."""
    script = (
        "from tests.cachepolicy.test_keys import *; print(ENVIRONMENT.fingerprint(), SIGNATURE.cost_fingerprint(), program_of(SIGNATURE))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": "77"})
    assert done.stdout.split() == [ENVIRONMENT.fingerprint(), SIGNATURE.cost_fingerprint(), program_of(SIGNATURE)]
