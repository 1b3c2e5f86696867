"""A graph serves only after it was proven right (docs/decisions/0030), and is audited while it serves.

judgement  once for each load, on a throw-away instance: may this model be recorded at all?
proof      for each recording: does it answer as eager does, and how may it be padded?
rows       may rows of different requests be merged?
audit      are the replays that were served right?
timing     is a replay faster than eager?
"""

from service.verification.audit import Audit, Mismatch
from service.verification.proof import Proof
from service.verification.samples import Accepted
from service.verification.timing import Stopwatch

__all__ = ["Accepted", "Audit", "Mismatch", "Proof", "Stopwatch"]
