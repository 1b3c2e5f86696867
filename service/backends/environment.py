"""What the kernels on a device depend on, read from torch and the system."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path

import pynvml
import torch

from cachepolicy.keys import Environment


def describe(device: torch.device, *, lowering: str) -> Environment:
    """The environment of a device; for CUDA it must be initialised."""
    if device.type == "cuda":
        return _cuda(device, lowering)
    flags = {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "mkldnn": str(torch.backends.mkldnn.enabled),
        **_common_flags(),
    }
    return Environment(
        device=_cpu_name(),
        torch=str(torch.__version__),
        extensions=_extensions(),
        flags=tuple(sorted(flags.items())),
        lowering=lowering,
    )


def _cuda(device: torch.device, lowering: str) -> Environment:
    properties = torch.cuda.get_device_properties(device)
    flags = {
        "tf32_matmul": _told(lambda: torch.backends.cuda.matmul.allow_tf32),
        "tf32_cudnn": _told(lambda: torch.backends.cudnn.allow_tf32),
        "cudnn_benchmark": str(torch.backends.cudnn.benchmark),
        "cudnn_deterministic": str(torch.backends.cudnn.deterministic),
        "fp16_reduction": str(torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        "bf16_reduction": str(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        "blas": str(torch.backends.cuda.preferred_blas_library()),
        "sdp": "".join(
            "1" if enabled() else "0"  # type: ignore[no-untyped-call]
            for enabled in (
                torch.backends.cuda.flash_sdp_enabled,
                torch.backends.cuda.mem_efficient_sdp_enabled,
                torch.backends.cuda.math_sdp_enabled,
                torch.backends.cuda.cudnn_sdp_enabled,
            )
        ),
        **_common_flags(),
    }
    return Environment(
        device=properties.name,
        compute_capability=f"{properties.major}.{properties.minor}",
        sm_count=properties.multi_processor_count,
        mig_profile=_mig_profile(properties.name),
        driver=_driver_version(),
        cuda=str(torch.version.cuda),
        torch=str(torch.__version__),
        cublas=_library_version("nvidia-cublas"),
        cudnn=str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        extensions=_extensions(),
        allocator=os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")),
        workspace=os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""),
        flags=tuple(sorted(flags.items())),
        lowering=lowering,
    )


class Settings:
    """The settings that choose kernels, as they are now. Asked before every batch, which takes about 1 µs."""

    def __init__(self, device: torch.device) -> None:
        kinds = [(kind, step) for kind in (("cuda",) if device.type == "cuda" else ("mkldnn",)) for step in ("matmul", "conv", "rnn")]
        watched: dict[str, Callable[[], object]] = {
            f"precision of {step}": partial(torch._C._get_fp32_precision_getter, kind, step) for kind, step in kinds
        }
        watched |= {name: getattr(torch._C, getter) for name, getter in _WATCHED.items()}
        self._names, self._getters = list(watched), list(watched.values())

    def now(self) -> tuple[object, ...]:
        """Their values."""
        return tuple([getter() for getter in self._getters])

    def drift(self, before: tuple[object, ...]) -> str:
        """What has changed since they were `before`; "" where nothing has."""
        now = self.now()
        if now == before:
            return ""
        changed = [(name, new, old) for name, new, old in zip(self._names, now, before, strict=True) if _same(new) != _same(old)]
        return ", ".join(f"{name} is {new}, was {old}" for name, new, old in changed)


_WATCHED = {
    "deterministic algorithms": "_get_deterministic_algorithms",
    "cuDNN's benchmark": "_get_cudnn_benchmark",
    "deterministic cuDNN": "_get_cudnn_deterministic",
    "flash attention": "_get_flash_sdp_enabled",
    "memory-efficient attention": "_get_mem_efficient_sdp_enabled",
    "plain attention": "_get_math_sdp_enabled",
    "cuDNN's attention": "_get_cudnn_sdp_enabled",
    "mkldnn": "_get_mkldnn_enabled",
}


def _same(value: object) -> object:
    """A precision that nobody has set is the full one."""
    return "ieee" if value == "none" else value


def _told(read: Callable[[], object]) -> str:
    """A setting as text; torch refuses to name an old one where the new interface has set its like."""
    try:
        return str(read())
    except RuntimeError:
        return "mixed"


def _common_flags() -> dict[str, str]:
    return {
        "matmul_precision": _told(torch.get_float32_matmul_precision),
        "precisions": ",".join(
            str(torch._C._get_fp32_precision_getter(kind, step)) for kind in ("cuda", "mkldnn") for step in ("matmul", "conv", "rnn")
        ),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
    }


def _extensions() -> tuple[str, ...]:
    """Loaded operator libraries by file name, and the compiler of model authors' own kernels."""
    libraries = {Path(path).name for path in torch.ops.loaded_libraries}
    triton = _library_version("triton")
    return tuple(sorted(libraries | ({f"triton {triton}"} if triton else set())))


def _library_version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _cpu_name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _mig_profile(name: str) -> str:
    """The slice's profile ("1g.18gb"), which the driver appends to the GPU's name."""
    return name.partition(" MIG ")[2]


def _driver_version() -> str:
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""
