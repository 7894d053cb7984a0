"""Element types: the dtype in memory, the compute type and the conversions between them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.simd import half_precision as halves
from numnorm.backends.cpu.simd.vector import compiled_as


def _plain_same(value: Any) -> Any:
    return value


@compiled_as(_plain_same)
def _same(typing_context, value):
    return value(value), lambda context, builder, signature, arguments: arguments[0]


@dataclasses.dataclass(frozen=True, eq=False)
class ElementType:
    """An element type: its storage dtype in kernels, its compute type, its conversions.

    `saved` is the dtype of statistics that are returned to the caller.
    """

    name: str
    storage_dtype: np.dtype[Any]
    compute_type: Any
    to_compute: Callable[[Any], Any]
    to_storage: Callable[[Any], Any]
    saved: np.dtype[Any]

    @functools.cached_property
    def compute_dtype(self) -> np.dtype[Any]:
        """The compute type as a dtype."""
        return np.dtype(self.compute_type)

    @property
    def lanes(self) -> int:
        """The number of elements of the compute type in 64 bytes."""
        return 64 // self.compute_dtype.itemsize

    @property
    def smallest_variance(self) -> float:
        """The variance below which squares lose digits to underflow in the compute type."""
        return 1e-30 if self.compute_type is np.float32 else 1e-280

    @property
    def largest(self) -> float:
        """The largest finite number of the compute type."""
        return float(np.finfo(self.compute_dtype).max)

    @property
    def largest_exponent(self) -> int:
        """The largest exponent e of a power of two that kernels scale by.

        Both 2**e and 2**-e are normal numbers of the compute type, with some room to its ends.
        """
        return 120 if self.compute_type is np.float32 else 1000


_WORD, _SINGLE, _DOUBLE = np.dtype(np.uint16), np.dtype(np.float32), np.dtype(np.float64)

_ELEMENT_TYPES = {
    element_type.name: element_type
    for element_type in (
        ElementType("float32", _SINGLE, np.float32, _same, _same, _DOUBLE),
        ElementType("float64", _DOUBLE, np.float64, _same, _same, _DOUBLE),
        ElementType(
            "float16",
            _WORD,
            np.float32,
            halves.float16_to_float32,
            halves.float32_to_float16,
            _SINGLE,
        ),
        ElementType(
            "bfloat16",
            _WORD,
            np.float32,
            halves.bfloat16_to_float32,
            halves.float32_to_bfloat16,
            _DOUBLE,  # a norm or rstd may exceed the range of float32
        ),
    )
}


@functools.cache
def element_type_of(dtype: np.dtype[Any]) -> ElementType:
    """Return the element type of a supported dtype."""
    return _ELEMENT_TYPES[dtype.name]
