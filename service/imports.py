"""`torch._dynamo` takes seconds to import, and answers are given without it: it is left to the capturer's thread.

Its parts import each other in a circle: of two threads that import them at once, one can see the other's half made. Whoever may cause
that import (the capturer, before its first job, and the code of a model that is being loaded) holds the lock.
"""

from __future__ import annotations

import importlib
import threading

IMPORTING = threading.Lock()


def import_dynamo() -> None:
    """Dispatch modes, fake tensors and torch.compile need it."""
    with IMPORTING:
        importlib.import_module("torch._dynamo.config")
