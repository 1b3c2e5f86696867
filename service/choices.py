"""Closed sets of words that the configuration and the model specs share. Standard library only."""

from __future__ import annotations

from enum import StrEnum


class Fill(StrEnum):
    """What the worker writes into an input that only says what is real.

    valid: BOOL, true for real elements. length: the real size of `fill_axis`, per row. position: the index along `fill_axis`.
    """

    VALID = "valid"
    LENGTH = "length"
    POSITION = "position"


class Above(StrEnum):
    """What happens to a request larger than an axis' maximum."""

    SPLIT = "split"
    EAGER = "eager"
    REJECT = "reject"


class Rows(StrEnum):
    """Whether a row's answer is independent of the other rows of its batch. AUTO: not until proven."""

    AUTO = "auto"
    INDEPENDENT = "independent"
    DEPENDENT = "dependent"


class Compile(StrEnum):
    """What is done to the step before it is recorded."""

    NONE = "none"
    INDUCTOR = "inductor"


class Keep(StrEnum):
    """What is traced whatever the sampling. Errors are all requests that got no answer; slow ones by their model's own measure."""

    FALLBACK = "fallback"
    ERROR = "error"
    SLOW = "slow"


class LogFormat(StrEnum):
    """How log lines are written."""

    TEXT = "text"
    JSON = "json"


class Phase(StrEnum):
    """Which step of generation a model is: phases have graphs and costs of their own."""

    ANY = "any"
    PREFILL = "prefill"
    DECODE = "decode"


class ArenaScope(StrEnum):
    """What shares a pool of graph memory: all graphs of a model, or nothing."""

    MODEL = "model"
    GRAPH = "graph"
