"""Checks of arguments and their messages, and every array seen as rows or as columns.

Nothing here reads the elements of an array: shapes, dtypes and numbers only, so that every
backend uses the same checks.
"""

import contextlib
import functools
import math
import numbers
import operator
import sys
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Axis = int | tuple[int, ...]

FLOATS = ("float16", "bfloat16", "float32", "float64")


def result_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that an array is computed and returned in."""
    result = _result_dtype(dtype)
    if result is None:
        floats = ", ".join(FLOATS)
        got = _dtype_text(dtype)
        raise TypeError(f"{name} must have dtype {floats}, an integer or bool, got {got}")
    return result


def _dtype_text(dtype: np.dtype[Any]) -> str:
    return str(dtype) if len(str(dtype)) <= 60 else dtype.name  # a record's can be any length


@functools.lru_cache(maxsize=256)
def _result_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    if dtype.name in FLOATS:
        return dtype.newbyteorder("=")
    return np.dtype(np.float64) if dtype.kind in "biu" else None


# DLPack's numbers for the memory of a CUDA device, and for memory that it shares with the host.
_CUDA_KINDS = (2, 13)


def is_masked(kind: type) -> bool:
    """Return whether arrays of a type have a mask, which they would lose."""
    # To ask numpy.ma would import it, which takes a third of the time of a process's first call.
    masked = sys.modules.get("numpy.ma")
    return masked is not None and issubclass(kind, masked.MaskedArray)


def is_surprising(value: Any) -> bool:
    """Return whether an object must not be turned into a NumPy array silently."""
    # A graph would be computed and a device array copied behind the caller's back.
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return is_masked(type(value)) or hasattr(value, "__dask_graph__") or is_on_device(value)


def is_on_device(value: Any) -> bool:
    """Return whether an object says that it lies in the memory of a CUDA device."""
    ask = getattr(value, "__dlpack_device__", None)
    if ask is not None and not isinstance(value, np.ndarray):
        # What cannot be handed over, such as an array on several devices, raises what it likes.
        with contextlib.suppress(Exception):
            kind = ask()[0]
            if getattr(kind, "value", kind) in _CUDA_KINDS:
                return True
    with contextlib.suppress(Exception):  # so may this
        return hasattr(value, "__cuda_array_interface__")
    return True


def check_on_host(name: str, value: Any) -> None:
    """Raise if an array is on a device, where others of the call are not."""
    if is_on_device(value):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"{name} must lie on the host, as other arrays do, got a {kind} on a device"
        )


def as_plain_array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array, of any dtype but of no objects that are not arrays."""
    if is_masked(type(value)):
        raise TypeError(f"{name} must not be a masked array: fill or compress it first")
    try:
        array = np.asarray(None if is_surprising(value) else value)
    except (TypeError, ValueError, RuntimeError):
        array = np.asarray(None)
    if array.shape == () and array.dtype == object:
        check_on_host(name, value)
        raise TypeError(
            f"{name} must be an array or turn into one, got an object of type "
            f"{type(value).__name__}"
        )
    return array


def check_shape(name: str, shape: Shape, expected: Shape, meaning: str) -> None:
    """Raise unless an array has the expected shape."""
    if shape != expected:
        raise ValueError(f"{name} must have shape {expected}, {meaning}, got {shape}")


def check_float(name: str, dtype: np.dtype[Any]) -> None:
    """Raise unless an array is one of real numbers."""
    if dtype.kind == "f":
        result_dtype(name, dtype)
    elif _result_dtype(dtype) is None:
        raise TypeError(f"{name} must hold real numbers, got dtype {_dtype_text(dtype)}")


def check_dtype(dtype: Any, among: tuple[str, ...] = FLOATS) -> np.dtype[Any]:
    """Return a float dtype, in the native byte order."""
    found: Any = None
    got = brief(dtype)
    if dtype is not None:  # which is float64 for NumPy
        with contextlib.suppress(TypeError, ValueError):
            found = np.dtype(dtype)
            got = found.name
    if found is None or found.name not in among:
        raise TypeError(f"dtype must be {', '.join(among[:-1])} or {among[-1]}, got {got}")
    checked: np.dtype[Any] = found.newbyteorder("=")
    return checked


def check_number(
    name: str, value: Any, *, least: float = -math.inf, most: float = math.inf
) -> float:
    """Return a finite number between two bounds as a float."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {brief(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    if not least <= number <= most:
        bounds = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
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
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {brief(value)}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return a value that is one of the choices."""
    comparable = value is None or isinstance(value, str)  # and an array would be compared in parts
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
    """Return a value for a message: a plain one itself, of anything else its type."""
    if value is None or isinstance(value, str | int | float | tuple):
        text = repr(value)
        if len(text) <= 60:
            return text
    return f"an object of type {type(value).__name__}"
