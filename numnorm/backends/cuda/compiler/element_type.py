"""How elements lie in a device's memory, and the precision that they are computed in."""

import dataclasses
from typing import Any

import numpy as np

_VECTOR = 16  # bytes of the widest load of a thread


@dataclasses.dataclass(frozen=True)
class Element:
    """One element type: its size, and its working type.

    Parameters
    ----------
    name : str
        That of its dtype.
    itemsize : int
        Bytes of an element.
    working_name : str
        The dtype that it is computed in: "float32" or "float64".
    """

    name: str
    itemsize: int
    working_name: str

    @property
    def working(self) -> Any:
        """The NumPy type that it is computed in."""
        return np.float32 if self.working_name == "float32" else np.float64

    @property
    def vector(self) -> int:
        """The number of elements in the widest load of a thread."""
        return _VECTOR // self.itemsize

    @property
    def smallest_variance(self) -> float:
        """Below this, the squares lost digits to underflow in the working type."""
        return 1e-30 if self.working_name == "float32" else 1e-280

    @property
    def largest_exponent(self) -> int:
        """Up to this, a power of two and its reciprocal are well inside the working type."""
        return 120 if self.working_name == "float32" else 1000


FLOAT32 = Element("float32", 4, "float32")
FLOAT64 = Element("float64", 8, "float64")

ELEMENTS = {
    element.name: element
    for element in (
        FLOAT32,
        FLOAT64,
        Element("float16", 2, "float32"),
        Element("bfloat16", 2, "float32"),
    )
}


def working_element(element: Element) -> Element:
    """Return the element whose type is the one that another is computed in."""
    return FLOAT32 if element.working_name == "float32" else FLOAT64
