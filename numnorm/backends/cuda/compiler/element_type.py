"""The types of elements in a device's memory, and the type that kernels compute in."""

import dataclasses
from typing import Any

import numpy as np

VECTOR_BYTES = 16  # of a thread's widest load


@dataclasses.dataclass(frozen=True)
class ElementType:
    """A storage dtype and its compute type, in which kernels compute.

    Parameters
    ----------
    name : str
        The name of the dtype in memory.
    itemsize : int
        The bytes of an element.
    compute_name : str
        The name of the compute dtype: "float32" or "float64".
    """

    name: str
    itemsize: int
    compute_name: str

    @property
    def compute_type(self) -> Any:
        """The compute type, as a NumPy type."""
        return np.float32 if self.compute_name == "float32" else np.float64

    @property
    def vector(self) -> int:
        """The number of elements in a thread's widest load."""
        return VECTOR_BYTES // self.itemsize

    @property
    def smallest_variance(self) -> float:
        """The variance below which squares lose digits to underflow in the compute type."""
        return 1e-30 if self.compute_name == "float32" else 1e-280

    @property
    def largest_exponent(self) -> int:
        """The largest exponent e of a power of two that kernels scale by.

        Both 2**e and 2**-e are normal numbers of the compute type, with some room to its ends.
        """
        return 120 if self.compute_name == "float32" else 1000


FLOAT32 = ElementType("float32", 4, "float32")
FLOAT64 = ElementType("float64", 8, "float64")

ELEMENT_TYPES = {
    element.name: element
    for element in (
        FLOAT32,
        FLOAT64,
        ElementType("float16", 2, "float32"),
        ElementType("bfloat16", 2, "float32"),
    )
}


def compute_element_type(element: ElementType) -> ElementType:
    """Return the element type whose storage dtype is the compute dtype of `element`."""
    return FLOAT32 if element.compute_name == "float32" else FLOAT64
