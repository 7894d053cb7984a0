"""The cases of norms: norm, direction, dtype, and rows that fill a given amount of memory."""

from __future__ import annotations

from typing import NamedTuple

# Powers of two, and one width that leaves rows unaligned.
WIDTHS = (256, 512, 1024, 2048, 4095, 4096, 8192, 16384, 32768)
_ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


class Case(NamedTuple):
    """One call.

    Attributes
    ----------
    norm, direction, dtype : str
        Such as "layer_norm", "forward" or "backward", "float32".
    rows, width : int
        The shape of x.
    """

    norm: str
    direction: str
    dtype: str
    rows: int
    width: int

    @property
    def launches(self) -> int:
        """The number of calls that are timed together."""
        return 20

    @property
    def name(self) -> str:
        """The name for tables and messages."""
        return f"{self.norm} {self.direction} {self.dtype} {self.rows}×{self.width}"

    @property
    def bytes_moved(self) -> int:
        """The bytes to read and write: x and y, or dy, x and dx."""
        arrays = 2 if self.direction == "forward" else 3
        return arrays * self.rows * self.width * _ITEMSIZES[self.dtype]


def all_cases(size: int, quick: bool) -> list[Case]:
    """Return the cases whose x has `size` bytes; a few of them if `quick`."""
    dtypes = ("float32", "bfloat16") if quick else tuple(_ITEMSIZES)
    widths = (1024, 4096) if quick else WIDTHS
    norms = ("layer_norm",) if quick else ("layer_norm", "rms_norm", "ada_norm", "batch_norm")
    return [
        Case(norm, direction, dtype, max(1, size // (width * _ITEMSIZES[dtype])), width)
        for norm in norms
        for direction in ("forward", "backward")
        for dtype in dtypes
        for width in widths
    ]
