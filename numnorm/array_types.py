"""Types for annotations: arrays, options, and how a result's type follows from x.

A float array of NumPy comes back with its own type. For everything else the result is `Any`: where
it lies, and so its type, is known only when the code runs.
"""

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, SupportsIndex

import numpy as np

if TYPE_CHECKING:
    # Type checkers know the defaults of type variables, Python from 3.13 on.
    from numpy.typing import ArrayLike as _NumpyLike
    from typing_extensions import TypeVar

    Array = TypeVar("Array", default=Any)
else:
    from typing import TypeVar

    Array = TypeVar("Array")
    _NumpyLike = Any  # `numpy` does not import `numpy.typing`, nor does `import numnorm`
_Own = TypeVar("_Own", covariant=True)


class FloatArray(Protocol[_Own]):
    """A NumPy array of a float dtype; its method tells a type checker the array's own type."""

    @property
    def dtype(self) -> np.dtype[np.floating[Any]]:
        """The dtype of the elements."""

    def byteswap(self, inplace: bool = ...) -> _Own:
        """Only arrays of NumPy have this method."""


class Convertible(Protocol):
    """Data frames, and arrays of other libraries in the memory of the host.

    NumPy's arrays do not match: they take `dtype` by position only.
    """

    def __array__(self, *, dtype: Any = ...) -> Any:
        """Return the values as a NumPy array."""


class OnDevice(Protocol):
    """Arrays in the memory of a CUDA device."""

    @property
    def __cuda_array_interface__(self) -> Any:
        """The address, shape and type of the elements."""


Number = float | np.floating[Any] | np.integer[Any]
"""A number: of NumPy's own, float64 alone is a float."""

Integer = SupportsIndex
"""An integer, one of NumPy's included."""

Duration = np.timedelta64 | datetime.timedelta
"""A length of time; that of pandas is a `timedelta`, too."""

# Not NumPy's `ArrayLike`: an array of NumPy is one, too, and mypy would not find its own type.
_Sequences = Sequence[Number] | Sequence[Sequence[Number]] | Sequence[Sequence[Sequence[Number]]]
_Integers = np.ndarray[Any, np.dtype[np.integer[Any] | np.bool]]
_Others = list[Any] | tuple[Any, ...] | _Sequences | _Integers | Convertible | OnDevice

Input = FloatArray[Array] | _Others
"""An array whose own type the result has: ``def norm(x: Input[Array]) -> Array``."""

ArrayLike = _NumpyLike | FloatArray[Any] | _Others
"""Any other array of a call."""

Detach = Literal["mean", "scale", "both"]
Convention = Literal["torch", "keras"]
EpsIn = Literal["variance", "std"]
CellNorm = Literal["layer", "rms", "ada"]
LSTMNorm = Literal["layer", "rms", "ada", "batch"]
LSTMVariant = Literal["paper", "normalized_cell", "per_gate", "cell_only"]
Nonlinearity = Literal["tanh", "relu"]
Closed = Literal["right", "left", "both", "neither"]
NanPolicy = Literal["propagate", "omit", "raise"]
