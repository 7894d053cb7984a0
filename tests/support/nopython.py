"""Functions that call numnorm, for Numba to compile, and the comparison of what they return."""

import numba
import numpy as np
import pytest
from every_call import COMPILED

import numnorm
import numnorm._numba

compiled = pytest.mark.skipif(not COMPILED, reason="Numba compiles nothing")
if COMPILED:  # an installed numnorm has an entry point for this
    numnorm._numba.init()


def function_of(arguments, *lines):
    """Return a function of these arguments whose last line is an expression that it returns."""
    body = "".join(f"    {line}\n" for line in (*lines[:-1], f"return {lines[-1]}"))
    names = {"numnorm": numnorm}
    exec(f"def call({', '.join(arguments)}):\n{body}", names)
    return names["call"]


def call_of(name, arguments, options):
    """Return the text of a call of a public function."""
    given = [*arguments, *(f"{key}={value!r}" for key, value in options.items())]
    return f"numnorm.{name}({', '.join(given)})"


def same(actual, expected):
    """Assert that two results have the same types, shapes, dtypes and bytes."""
    assert type(actual) is type(expected)
    if isinstance(expected, tuple):
        for one, other in zip(actual, expected, strict=True):
            same(one, other)
    elif expected is not None:
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        assert actual.tobytes() == expected.tobytes(), np.abs(actual - expected).max()


def check(function, *arguments):
    """Assert that a function returns the same, compiled or not."""
    same(numba.njit(function)(*arguments), function(*arguments))
