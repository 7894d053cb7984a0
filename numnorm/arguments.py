"""Checks of arguments, and their error messages.

The checks look at shapes, dtypes and numbers and never at the elements of an array, so that every
backend can use them.
"""

import contextlib
import functools
import math
import numbers
import operator
from typing import Any, SupportsIndex

import numpy as np

Shape = tuple[int, ...]
Axis = SupportsIndex | tuple[SupportsIndex, ...] | list[int] | list[np.int64]

FLOATS = ("float16", "bfloat16", "float32", "float64")


def result_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the result for an array of a given dtype."""
    result = _result_dtype(dtype)
    if result is None:
        floats = ", ".join(FLOATS)
        got = _dtype_text(dtype)
        raise TypeError(f"{name} must have dtype {floats}, an integer or bool, got {got}")
    return result


def _dtype_text(dtype: np.dtype[Any]) -> str:
    text = str(dtype)  # of any length for a record
    return text if len(text) <= 60 else dtype.name


@functools.lru_cache(maxsize=256)
def _result_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    if dtype.name in FLOATS:
        return dtype.newbyteorder("=")
    return np.dtype(np.float64) if dtype.kind in "biu" else None


def wider_float(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that holds all digits of two float dtypes, in the native byte order."""
    if one == other:
        return one
    return np.dtype(np.float64 if np.float64 in (one, other) else np.float32)


def check_shape(name: str, shape: Shape, expected: Shape, meaning: str) -> None:
    """Raise unless an array has the expected shape."""
    if shape != expected:
        raise ValueError(f"{name} must have shape {expected}, {meaning}, got {shape}")


def broadcasts(shape: Shape, usual: Shape, of_x: Shape) -> bool:
    """Return whether gamma or beta, not of the usual shape, broadcasts against x.

    It has as many axes as x, and more than one: the shape in ``layer_norm(x, (8,))``, as PyTorch
    takes it, would be a gain of 8.
    """
    pairs = zip(shape, of_x, strict=False)
    return 1 < len(shape) == len(of_x) and shape != usual and all(n in (1, m) for n, m in pairs)


def check_parameter_shape(name: str, shape: Shape, usual: Shape, meaning: str, of_x: Shape) -> None:
    """Raise unless gamma or beta has its usual shape; name the shape in which it broadcasts."""
    wider = (1,) * (len(of_x) - len(shape)) + shape
    if 1 < len(shape) < len(of_x) and shape != usual and broadcasts(wider, usual, of_x):
        meaning = f"{meaning}, or {wider} to broadcast"
    check_shape(name, shape, usual, meaning)


def check_float(name: str, dtype: np.dtype[Any]) -> None:
    """Raise unless an array holds real numbers."""
    if dtype.kind in "fV":  # ml_dtypes has kind V, too
        result_dtype(name, dtype)
    elif _result_dtype(dtype) is None:
        raise TypeError(f"{name} must hold real numbers, got dtype {_dtype_text(dtype)}")


def check_dtype(dtype: Any, among: tuple[str, ...] = FLOATS) -> np.dtype[Any]:
    """Return a float dtype, in the native byte order."""
    result: Any = None
    got = brief(dtype)
    if dtype is not None:  # np.dtype(None) is float64
        with contextlib.suppress(TypeError, ValueError):
            result = np.dtype(dtype)
            got = result.name
    if result is None or result.name not in among:
        raise TypeError(f"dtype must be {', '.join(among[:-1])} or {among[-1]}, got {got}")
    checked: np.dtype[Any] = result.newbyteorder("=")
    return checked


def check_number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> float:
    """Return a finite number as a float: at least `least`, more than `above`, at most `most`."""
    if isinstance(value, bool | np.timedelta64) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {brief(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    if not (least <= number <= most and above < number):
        bounds = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        if most < math.inf:
            both = f"between {least:g} and {most:g}"
            bounds = f"{bounds} and at most {most:g}" if above > -math.inf else both
        raise ValueError(f"{name} must be {bounds}, got {number:g}")
    return number


def check_eps(eps: Any) -> float:
    """Return epsilon as a float."""
    if type(eps) is float and 0.0 <= eps < math.inf:
        return eps
    return check_number("eps", eps, least=0.0)


def check_integer(name: str, value: Any, least: int) -> int:
    """Return an integer that is not too small."""
    try:
        if isinstance(value, bool | np.timedelta64):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {brief(value)}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return a value that is one of the choices."""
    comparable = value is None or isinstance(value, str)  # `in` would compare an array elementwise
    if not (comparable and value in choices):
        listed = ", ".join(repr(c) for c in choices[:-1]) + f" or {choices[-1]!r}"
        raise ValueError(f"{name} must be {listed}, got {brief(value)}")
    return value


def check_generator(rng: Any) -> None:
    """Raise unless random numbers can be drawn from it."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, got {type(rng).__name__}")


def check_flag(name: str, value: Any) -> bool:
    """Return True or False."""
    if value is True or value is False:
        return value
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {brief(value)}")
    return bool(value)


def brief(value: Any) -> str:
    """Return a value for a message: its repr if it is short, or else its type."""
    if value is None or isinstance(value, str | int | float | tuple):
        text = repr(value)
        if len(text) <= 60:
            return text
    return f"an object of type {type(value).__name__}"
