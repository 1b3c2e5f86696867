"""Tensors in host memory as they come from and go to the wire: datatype, shape, bytes. Knows neither torch nor protobuf."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod

import numpy as np
import numpy.typing as npt


class Datatype(StrEnum):
    """The Open Inference Protocol's names of fixed-size datatypes."""

    BOOL = "BOOL"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    FP16 = "FP16"
    BF16 = "BF16"
    FP32 = "FP32"
    FP64 = "FP64"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]

    @property
    def bits(self) -> np.dtype[np.unsignedinteger]:
        """The unsigned numpy dtype of equal size: moving values as bits is exact for every datatype, BF16 included."""
        return _BITS[_ITEMSIZE[self]]

    @property
    def numpy(self) -> np.dtype[np.generic] | None:
        """The numpy dtype of the same values, or None for BF16, which numpy lacks."""
        return _NUMPY.get(self)

    @property
    def is_float(self) -> bool:
        """Whether values can be NaN."""
        return self in (Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64)


_NUMPY: dict[Datatype, np.dtype[np.generic]] = {
    Datatype.BOOL: np.dtype(np.bool_),
    Datatype.INT8: np.dtype(np.int8),
    Datatype.INT16: np.dtype(np.int16),
    Datatype.INT32: np.dtype(np.int32),
    Datatype.INT64: np.dtype(np.int64),
    Datatype.UINT8: np.dtype(np.uint8),
    Datatype.UINT16: np.dtype(np.uint16),
    Datatype.UINT32: np.dtype(np.uint32),
    Datatype.UINT64: np.dtype(np.uint64),
    Datatype.FP16: np.dtype(np.float16),
    Datatype.FP32: np.dtype(np.float32),
    Datatype.FP64: np.dtype(np.float64),
}
_ITEMSIZE: dict[Datatype, int] = {d: 2 if d is Datatype.BF16 else _NUMPY[d].itemsize for d in Datatype}
_BITS: dict[int, np.dtype[np.unsignedinteger]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, eq=False)
class HostTensor:
    """A C-contiguous, little-endian tensor in host memory. `data` is never written to."""

    datatype: Datatype
    shape: tuple[int, ...]
    data: Buffer

    @classmethod
    def of(cls, datatype: Datatype, array: npt.NDArray[np.generic]) -> HostTensor:
        """From a numpy array whose item size is the datatype's (BF16 as uint16 bits); copies only where it is not contiguous."""
        array = np.ascontiguousarray(array)
        if array.dtype.itemsize != datatype.itemsize:
            raise ValueError(f"{array.dtype} does not hold {datatype}")
        return cls(datatype, array.shape, array.reshape(-1).view(np.uint8).data)

    @property
    def nbytes(self) -> int:
        """Bytes that shape and datatype ask for."""
        return prod(self.shape) * self.datatype.itemsize

    def bits(self) -> npt.NDArray[np.unsignedinteger]:
        """A read-only view of the values as unsigned integers of equal size, in the tensor's shape."""
        return np.frombuffer(self.data, dtype=self.datatype.bits).reshape(self.shape)

    def array(self) -> npt.NDArray[np.generic]:
        """A read-only view of the values; BF16 comes as uint16 bits."""
        return np.frombuffer(self.data, dtype=self.datatype.numpy or self.datatype.bits).reshape(self.shape)
