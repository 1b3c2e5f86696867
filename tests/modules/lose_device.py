"""Loses the device by an index out of range, in the way the argument says, and prints what each call raised."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from cachepolicy.buckets import Bucket
from service.errors import GraphcacheError
from service.tensors import Datatype, HostTensor
from tests.backends import Rig, part
from tests.modules.cuda_steps import Looks

rig = Rig("cuda:0")
raises, looks = rig.plain_model(Looks(raises=True)), rig.plain_model(Looks(raises=False))
good, bad = ([part({"x": HostTensor.of(Datatype.FP32, np.full((2, 4), value, np.float32))}, batch=2)] for value in (1, 1e6))
recording = rig.record(looks, Bucket.of(batch=4))
rig.replay(recording, good)


def tell(way: str) -> None:
    """Run once; print the error's name."""
    try:
        match way:
            case "raise":
                rig.eager(raises, good)
            case "eager":
                rig.eager(looks, bad)
            case "replay":
                rig.replay(recording, bad)
            case _:
                rig.lane.submit(lambda: looks.forward({"x": rig.tensor(bad)}, ())).result()
                rig.record(looks, Bucket.of(batch=8))
    except GraphcacheError as error:
        print(type(error).__name__, flush=True)


tell("raise")
tell(sys.argv[1])
tell("eager")
