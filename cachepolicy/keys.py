"""Keys: what a graph depends on, complete and minimal.

Every field says which kernels or numbers it changes. Host names, paths and serial numbers are in none of them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field

from cachepolicy.buckets import Bucket


def digest(value: object) -> str:
    """A stable 16-digit fingerprint of plain data (dicts, lists, strings, numbers)."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Environment:
    """The device and software that choose a step's kernels."""

    device: str = "cpu"  # GPU or CPU name: other chips have other kernels
    compute_capability: str = ""  # code generation target
    sm_count: int = 0  # changes split-k and grid heuristics
    mig_profile: str = ""  # a slice has fewer SMs and less memory
    driver: str = ""  # compiles PTX, owns graph execution
    cuda: str = ""
    torch: str = ""
    cublas: str = ""  # picks GEMM kernels
    cudnn: str = ""  # picks convolution and RNN kernels
    extensions: tuple[str, ...] = ()  # loaded operator libraries, name and version
    allocator: str = ""  # expandable segments and the like change addresses' behaviour
    workspace: str = ""  # CUBLAS_WORKSPACE_CONFIG changes split-k and determinism
    flags: tuple[tuple[str, str], ...] = ()  # TF32, determinism, attention backends, matmul precision, thread count
    lowering: str = ""  # how the CPU backend lowers a recording

    def fingerprint(self) -> str:
        """Stable over processes and hosts."""
        return digest(asdict(self))


@dataclass(frozen=True, slots=True)
class Signature:
    """Everything a graph depends on except its bucket. One signature has one ladder and one set of costs."""

    environment: str  # Environment.fingerprint()
    program: str  # fingerprint of source or archive, arguments, and the state dict's names, shapes, dtypes and strides
    weights: str  # which loaded weights ("encoder:1@3"): graphs depend on it, costs do not
    variant: tuple[tuple[str, str], ...] = ()  # closed-set choices, in declared order
    phase: str = "any"
    datatypes: tuple[tuple[str, str], ...] = ()  # input name and datatype
    compile: str = "none"  # compiled kernels differ from eager's
    _hash: int = field(default=0, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        parts = (self.environment, self.program, self.weights, self.variant, self.phase, self.datatypes, self.compile)
        object.__setattr__(self, "_hash", hash(parts))  # hashed on every lookup

    def __hash__(self) -> int:
        return self._hash

    @property
    def model(self) -> str:
        """The model's name, which its weights begin with."""
        return self.weights.partition(":")[0]

    def cost_fingerprint(self) -> str:
        """Fingerprint without the weights: what costs and traffic may be shared under."""
        return digest([self.environment, self.program, self.variant, self.phase, self.datatypes, self.compile])


@dataclass(frozen=True, slots=True)
class GraphKey:
    """Names one graph: a signature at a bucket."""

    signature: Signature
    bucket: Bucket
    _fingerprint: list[str] = field(default_factory=list, init=False, compare=False, repr=False)

    def fingerprint(self) -> str:
        """Stable name for replies, traces and records; worked out once, since every reply carries it."""
        if not self._fingerprint:
            s = self.signature
            parts = [s.environment, s.program, s.weights, s.variant, s.phase, s.datatypes, s.compile, list(self.bucket.sizes)]
            self._fingerprint.append(digest(parts))
        return self._fingerprint[0]

    def __str__(self) -> str:
        variant = "".join(f"[{name}={value}]" for name, value in self.signature.variant)
        return f"{self.signature.weights}{variant}/{self.bucket}"
