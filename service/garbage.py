"""Keeps Python's collector short: a full collection over all that a worker has imported stops every thread for a fifth of a second."""

from __future__ import annotations

import gc
from weakref import ref


def keep() -> None:
    """All that is there now lives as long as the worker and is not looked at any more."""
    gc.freeze()


def let_go(gone: ref[object]) -> None:
    """What was to be freed and is still there hangs in a cycle, which is not looked at any more: look at everything once.

    If somebody still has it (a replay that waits for its audit), everything is left to the collector from now on.
    """
    if gone() is None:
        return
    gc.unfreeze()
    gc.collect()
    if gone() is None:
        gc.freeze()
