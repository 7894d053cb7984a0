"""Calls in compiled functions that are refused in one line: not compiled, or without keywords."""

import sys

import numba
import numpy as np
import pytest
from every_call import output_of, start
from nopython import compiled, function_of
from numba.core.errors import UnsupportedError

import numnorm
from numnorm import rnn
from numnorm._numba.homes import HOMES, NORMS

pytestmark = compiled
WRITTEN = {"": "(x + residual)", "_forward": "(x + residual)", "_backward": "(...).dx + dtotal"}
SUMS = {
    f"add_{norm}{passes}": f"{norm}{passes}{written}"
    for norm in ("layer_norm", "rms_norm")
    for passes, written in WRITTEN.items()
}
X = np.random.default_rng(7).standard_normal((2, 3))


def others(module, prefix):
    """The names of the public functions of a module that compiled code cannot call."""
    names = [f"{prefix}{name}" for name in module.__all__ if name.islower()]
    return [name for name in names if name not in HOMES and name not in NORMS]


@pytest.mark.parametrize("name", [*others(numnorm, ""), *others(rnn, "rnn.")])
def test_other_functions_are_refused_by_name(name):
    call = numba.njit(function_of(["x"], f"numnorm.{name}(x)"))
    with pytest.raises(UnsupportedError) as error:
        call(X)
    advice = "call it outside of compiled functions, or in a block `with numba.objmode(...)`"
    if name in SUMS:
        advice = f"write the sum, numnorm.{SUMS[name]}"
    assert str(error.value).splitlines()[1] == f"numnorm.{name} is not compiled: {advice}"


def test_a_function_of_another_name_is_refused():
    encoding = numnorm.positional_encoding

    @numba.njit
    def call(x):
        return encoding(len(x), 3)

    with pytest.raises(UnsupportedError, match=r"numnorm\.positional_encoding is not compiled"):
        call(X)


def test_what_is_not_compiled_may_stand_in_object_mode():
    @numba.njit
    def call(x):
        with numba.objmode(codes="float64[:, ::1]"):
            codes = np.asarray(numnorm.positional_encoding(2, 4), np.float64)
        return numnorm.layer_norm(x), codes

    y, codes = call(X)
    np.testing.assert_array_equal(y, numnorm.layer_norm(X))
    np.testing.assert_array_equal(codes, numnorm.positional_encoding(2, 4))


def shifted(x, beta):
    try:
        y = numnorm.layer_norm(x, beta=beta)
    except Exception:
        y = np.zeros_like(x)
    return y


def finally_unbiased(x, beta):
    count = 0
    try:
        y = numnorm.standard_normal_variate(
            x,
            ddof=1,
        )
    finally:
        count += 1
    return y


def in_a_loop(x, beta):
    y = np.zeros_like(x)
    for i in range(len(x)):
        try:
            if i > 0:
                y[i] = numnorm.layer_norm(x[i], beta=beta)
        except Exception:
            break
    return y


def from_the_module(x, beta):
    try:
        y = layer_norm(x, beta=beta)
    except Exception:
        y = np.zeros_like(x)
    return y


layer_norm = numnorm.layer_norm


@pytest.mark.parametrize("function", [shifted, finally_unbiased, in_a_loop, from_the_module])
def test_keywords_in_a_try_block_are_not_lost(function):
    call = numba.njit(function)
    if sys.version_info >= (3, 13):  # Numba keeps them
        np.testing.assert_array_equal(call(X, X[0]), function(X, X[0]))
        return
    with pytest.raises(UnsupportedError, match=r"drops the keywords of \w+ in a try block"):
        call(X, X[0])


@numba.njit
def apart(x, beta):
    return numnorm.layer_norm(x, beta=beta)


def beside_a_try_block(x, beta):
    y = numnorm.layer_norm(x, beta=beta)
    try:
        # Without keywords, beside a call that is not numnorm's own.
        z = numnorm.layer_norm(apart(x, beta))
    except Exception:
        z = y
    return y + z


def test_other_calls_are_taken():
    call = numba.njit(beside_a_try_block)
    expected = numnorm.layer_norm(X, beta=X[0])
    np.testing.assert_array_equal(call(X, X[0]), expected + numnorm.layer_norm(expected))


def test_the_first_function_of_a_process_is_looked_at():
    code = """
import numba, numpy, numnorm
import numnorm._numba
numnorm._numba.init()  # what an installed numnorm has an entry point for
try:
    numba.njit(lambda x: numnorm.chunk_multiple(x))(numpy.ones((2, 3)))
except numba.core.errors.NumbaError as error:
    print(str(error).splitlines()[1])
"""
    assert output_of(start("-c", code)).startswith("numnorm.chunk_multiple is not compiled")
