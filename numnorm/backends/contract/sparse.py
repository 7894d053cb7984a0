"""A sparse matrix whose columns are channels: what a backend is handed, and what it offers."""

from typing import Any, NamedTuple, Protocol


class Stored(NamedTuple):
    """The stored values of a matrix in compressed rows (CSR) or columns (CSC).

    Attributes
    ----------
    values : array of float32 or float64
        The stored values.
    indices : array of int32 or int64
        The column of each value; in compressed columns its row.
    ends : array of int32 or int64
        Where the values of each row or column begin, and the end of the last one.
    shape : tuple of int
        The numbers of rows, which are samples, and of columns, which are channels.
    along : bool
        Whether the columns are compressed.
    """

    values: Any
    indices: Any
    ends: Any
    shape: tuple[int, int]
    along: bool

    @property
    def size(self) -> int:
        """The number of stored values."""
        return int(self.ends[-1])


class Samples(NamedTuple):
    """What is known of the rows of a sparse matrix.

    Attributes
    ----------
    weights : array of float64
        The weight of each row, at least 0; empty for weights of 1.
    codes : array of int64
        The group of each row, from 0 on; empty for one group.
    groups : int
        The number of groups.
    omit : bool
        Whether stored NaN are left out.
    """

    weights: Any
    codes: Any
    groups: int
    omit: bool


class SparseBackend(Protocol):
    """Batch norm of sparse matrices: the CPU's alone."""

    def sparse_moments(self, x: Stored, samples: Samples) -> tuple[Any, Any, Any, Any]:
        """Return count, mean, m2 and mean_lo of each group and column."""

    def sparse_scaled(self, x: Stored, codes: Any, scale: Any, most: float, y: Any) -> None:
        """Store the values times the scale of their group and column in y, within -most and most.

        Codes are as in `Samples`; y may be the values themselves.
        """
