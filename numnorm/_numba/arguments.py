"""Checks of arguments: of their types while a caller is compiled, of numbers when it runs.

What compiles a call gets the types of the arguments, and Python's default for a missing one.
"""

import math
from typing import Any

import numpy as np
from numba.core import errors

from numnorm._numba.arrays import types
from numnorm._numba.helpers import helper

_REALS = {types.float32: np.float32, types.float64: np.float64}


def is_none(kind: Any) -> bool:
    """Return whether an argument is None or missing with a default of None."""
    return kind is None or isinstance(kind, types.NoneType)


def wrong(name: str, expected: str, kind: Any) -> errors.TypingError:
    """Return the error for an argument of a wrong type."""
    return errors.TypingError(f"{name} must be {expected}, got {kind}")


def real_of(name: str, kind: Any) -> Any:
    """Return np.float32 or np.float64: the dtype of the result for an array argument."""
    if isinstance(kind, types.Array):
        if kind.dtype in _REALS:
            return _REALS[kind.dtype]
        if isinstance(kind.dtype, types.Integer | types.Boolean):
            return np.float64
    raise wrong(name, "an array of float32, float64, integers or bool", kind)


def check_array(name: str, kind: Any, ndim: int, meaning: str, *, optional: bool = True) -> Any:
    """Return the dtype of an array argument, which must have `ndim` axes; None for None."""
    if optional and is_none(kind):
        return None
    real = real_of(name, kind)
    if kind.ndim != ndim:
        raise wrong(name, f"an array with {_axes(ndim)}, {meaning}", f"one with {_axes(kind.ndim)}")
    return real


def _axes(count: int) -> str:
    return "1 axis" if count == 1 else f"{count} axes"


def check_out(kind: Any, x: Any, real: Any) -> None:
    """Raise unless `out` is None or can take a result of the dtype `real` and the shape of x."""
    if is_none(kind):
        return
    fits = isinstance(kind, types.Array) and kind.mutable and kind.aligned
    if not (fits and _REALS.get(kind.dtype) is real and kind.ndim == x.ndim):
        axes = _axes(x.ndim)
        raise wrong("out", f"a writable array of {real.__name__} with {axes}", kind)


def check_number(name: str, kind: Any) -> None:
    """Raise unless an argument is a number."""
    if isinstance(kind, bool) or not isinstance(kind, int | float | types.Integer | types.Float):
        raise wrong(name, "a number", kind)


def check_integer(name: str, kind: Any) -> None:
    """Raise unless an argument is an integer."""
    if isinstance(kind, bool) or not isinstance(kind, int | types.Integer):
        raise wrong(name, "an int", kind)


def value_of(kind: Any) -> Any:
    """Return the value of a literal and of None; of others the type."""
    if isinstance(kind, types.Literal):
        return kind.literal_value
    return None if isinstance(kind, types.NoneType) else kind


def choice_of(name: str, kind: Any, choices: tuple[Any, ...]) -> Any:
    """Return the value of an argument that must be a literal: a string, None, True or False."""
    value = value_of(kind)
    if isinstance(value, types.Type) or value not in choices:
        listed = ", ".join(map(repr, choices[:-1])) + f" or {choices[-1]!r}"
        got = "a value known only at run time" if isinstance(value, types.Type) else repr(value)
        raise wrong(name, f"the literal {listed}", got)
    return value


def is_default(name: str, kind: Any) -> bool:
    """Return whether a keyword for missing values and weights leaves all elements as they are."""
    return is_none(kind) or (name == "nan_policy" and value_of(kind) == "propagate")


def literal_of(kind: Any) -> Any:
    """Return the value of an int or a tuple of ints that the compiler knows, else None."""
    value = value_of(kind)
    if isinstance(value, types.BaseTuple | tuple):
        members = tuple(map(literal_of, value))
        return None if None in members else members
    return value if isinstance(value, int) else None


def check_flag(name: str, kind: Any) -> None:
    """Raise unless an argument is True or False."""
    if not isinstance(kind, bool | types.Boolean | types.BooleanLiteral):
        raise wrong(name, "True or False", kind)


@helper
def checked_eps(eps):
    """Return epsilon as a float64: `float` would keep a float32, which kernels do not take."""
    number = np.float64(eps)
    if not 0.0 <= number < math.inf:
        raise ValueError("eps must be finite and at least 0")
    return number


@helper
def checked_ddof(ddof, width):
    """Return ddof, which must be less than the number of normalized elements."""
    if ddof < 0:
        raise ValueError("ddof must be at least 0")
    if ddof >= width and width > 0:
        raise ValueError("ddof must be less than the number of normalized elements")
    return np.int64(ddof)


@helper
def inverse(count, counts):
    """Return 1 / count; 0 for 0, or if the statistic does not count."""
    return 1.0 / float(count) if counts and count != 0 else 0.0
