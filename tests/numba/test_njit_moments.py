"""`batch_moments` and the methods of `Moments` inside compiled functions."""

from collections import namedtuple

import kernels
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import LAYOUTS
from nopython import compiled, function_of
from nopython import same as same_results
from numba.core.errors import TypingError

import numnorm

pytestmark = compiled
rng = np.random.default_rng(39)


def same(actual, expected):
    if isinstance(expected, numnorm.Moments):
        assert isinstance(actual, numnorm.Moments)
        assert actual.count == expected.count
        actual, expected = tuple(actual[1:]), tuple(expected[1:])
    same_results(actual, expected)


def check(function, *arguments):
    same(numba.njit(function)(*arguments), function(*arguments))


def chunks(x, size, axis):
    total = None
    for i in range(0, x.shape[0], size):
        total = numnorm.batch_moments(x[i : i + size], channel_axis=axis, after=total)
    return total


@pytest.mark.parametrize(
    "dtype", [pytest.param(np.float32), pytest.param(np.float64, marks=kernels.full)]
)
def test_random_chunks(dtype):
    kind = numba.types.Array(numba.from_dtype(np.dtype(dtype)), 3, "A")
    call = numba.njit((kind, numba.int64, numba.int64))(chunks)

    @settings(max_examples=500, deadline=None, database=None)
    @given(
        st.tuples(st.sampled_from([1, 3, 40, 300]), st.integers(0, 5), st.integers(0, 40)),
        st.sampled_from([np.ascontiguousarray, np.asfortranarray, *LAYOUTS[:2]]),
        st.integers(1, 300), st.integers(-2, 2), st.sampled_from([0.0, 1e4]), st.integers(0, 9),
    )  # fmt: skip
    def check_one(shape, layout, size, axis, offset, seed):
        x = np.random.default_rng(seed).standard_normal(shape) + offset
        if axis == 0:
            size = shape[0]
        x = layout(x.astype(dtype))
        same(call(x, size, axis), chunks(x, size, axis))

    check_one()


@pytest.mark.parametrize("shape", [(40000, 64), (9, 3, 70000), (0, 3), (5, 0)])
def test_a_plain_call(shape):
    check(lambda x: numnorm.batch_moments(x), rng.standard_normal(shape, np.float32))


def test_integers():
    check(lambda x: numnorm.batch_moments(x, channel_axis=-1), rng.integers(9, size=(5, 3, 2)))


def test_methods():
    def call(x, y, ddof):
        left, right = numnorm.batch_moments(x), numnorm.batch_moments(y)
        return left.var(), right.std(ddof), right.var(ddof=1), left.merge(right)

    x, y = rng.standard_normal((2, 50, 4)) + 1e5
    actual, expected = numba.njit(call)(x, y, 1), call(x, y, 1)
    same(actual[:3], expected[:3])
    same(actual[3], expected[3])


def test_merging_with_no_values():
    empty = numnorm.batch_moments(np.ones((0, 4)))
    moments = numnorm.batch_moments(rng.standard_normal((50, 4)))
    merge = numba.njit(function_of(["a", "b"], "a.merge(b)"))
    same(merge(moments, empty), moments)
    same(merge(empty, moments), moments)
    with_none = numnorm.Moments(50, moments.mean, moments.m2)
    same(merge(empty, with_none), with_none._replace(mean_lo=np.zeros(4)))
    same(merge(moments, with_none), moments.merge(with_none))


def test_fields_of_other_named_tuples():
    Other = namedtuple("Other", ["std", "merge"])
    call = numba.njit(lambda other: (other.std, other.merge))
    assert call(Other(1, 2.0)) == (1, 2.0)


TYPING_ERRORS = {
    "numnorm.batch_moments(x, after=3)": "after must be Moments, got",
    "numnorm.batch_moments(x, channel_axis=(0, 1))": "channel_axis must be one int in",
    "m.merge(x)": "other must be Moments, got",
    "m.std(0.5)": "ddof must be an int, got float64",
}


@pytest.mark.parametrize("text", TYPING_ERRORS)
def test_typing_errors(text):
    call = numba.njit(function_of(["x", "m"], text))
    with pytest.raises(TypingError) as error:
        call(np.ones((2, 4)), numnorm.batch_moments(np.ones((2, 4))))
    assert any(TYPING_ERRORS[text] in line for line in str(error.value).splitlines())


ERRORS = {
    "numnorm.batch_moments(x[:, 1:], after=m)": "moments must have one number for each channel",
    "m.var(2)": "ddof must be less than the count",
    "m.var(-1)": "ddof must be at least 0",
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors_at_run_time(text):
    call = numba.njit(function_of(["x", "m"], text))
    with pytest.raises(ValueError, match=f"^{ERRORS[text]}$"):
        call(np.ones((2, 4)), numnorm.batch_moments(np.ones((2, 4))))
