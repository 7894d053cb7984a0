"""Random calls of all norms: sizes of 0 and 1 in every place, odd layouts, new memory of NaN."""

import math

import numpy as np
import pytest
import reference
from filled_memory import NAN, filled_memory
from layouts import LAYOUTS
from norm_checks import Norm, as_tuple

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not reference.LONGDOUBLE_IS_WIDER, reason="the definitions have no more digits"
    ),
]

SIZES = (0, 1, 1, 2, 3, 5, 8, 17, 33)
ROW_NORMS = ("layer_norm", "rms_norm", "ada_norm", "weight_norm")
CHANNEL_NORMS = ("batch_norm", "instance_norm", "group_norm")
# Roundings of one result, generously: a wrong number is off by far more.
ROUNDINGS = 256


def chosen(rng, values):
    return values[rng.integers(len(values))]


def drawn_norm(rng):
    """Return a norm with random options and a random shape that they fit."""
    name = chosen(rng, ROW_NORMS + CHANNEL_NORMS)
    ndim = int(rng.integers(1 if name in ROW_NORMS else 3, 5))
    shape = tuple(int(chosen(rng, SIZES if ndim < 4 else SIZES[:6])) for _ in range(ndim))
    options = {} if name == "weight_norm" else {"eps": float(chosen(rng, (1e-5, 0.5)))}
    backward = {}
    axis = int(rng.integers(-ndim, ndim))
    if name in ROW_NORMS:
        count = int(rng.integers(1, ndim + 1))
        axes = tuple(int(a) for a in rng.permutation(ndim)[:count])
        options["axis"] = axis if rng.random() < 0.5 else axes
    else:
        axis = axis if name == "batch_norm" or axis % ndim else 1
        options["channel_axis"] = axis
    if name == "layer_norm" and rng.random() < 0.3:
        backward["detach"] = chosen(rng, ("mean", "scale", "both"))
    if name == "group_norm":
        channels = shape[axis]
        divisors = [n for n in range(1, channels + 1) if channels % n == 0]
        options["groups"] = int(chosen(rng, divisors or [1]))
    return Norm(name, shape, options, backward)


def drawn(rng, shape, dtype):
    """Return a random array in a random layout."""
    array = np.asarray(rng.standard_normal(shape)).astype(dtype)
    pick = rng.integers(len(LAYOUTS) + 2)
    if pick < len(LAYOUTS) and array.ndim:
        return LAYOUTS[pick](array)
    return array.T.copy().T if pick == len(LAYOUTS) else array


def check(got, expected, dtype, scale, label):
    expected = np.asarray(expected)
    assert got.shape == expected.shape and got.dtype == dtype, label
    if got.size:
        error = np.abs(got - expected).max()
        assert error <= ROUNDINGS * np.finfo(dtype).eps * scale, (label, error, scale)


def check_call(norm, rng):
    dtype = chosen(rng, (np.float32, np.float64))
    x, dy = drawn(rng, norm.shape, dtype), drawn(rng, norm.shape, dtype)
    parameters = [drawn(rng, norm.parameter_shape, dtype) for _ in range(norm.parameters)]
    parameters = parameters if rng.random() < 0.7 else []
    label = norm, dtype.__name__, x.strides, dy.strides, len(parameters)
    try:
        with filled_memory(NAN):
            y, *saved = norm.forward(x, *parameters)
            gradients = as_tuple(norm.backward(dy, x, saved, *parameters[:1]))
    except ValueError:
        assert x.size == 0, label  # statistics of nothing
        return
    assert y.shape == gradients[0].shape == norm.shape, label
    if x.size == 0:
        assert not any(gradient.any() for gradient in gradients[1:]), label
        return
    rows, largest = x.size, max(1, float(np.abs(x).max()))
    gain = max(1.0, *(float(np.abs(p).max()) for p in parameters)) if parameters else 1.0
    rstd = max(1.0, float(norm.normalized(x)[1].max()))
    scale = gain * rstd * largest * 8
    check(y, norm.expected(x, *parameters)[0], dtype, scale, label)
    slope = scale * rstd**2 * largest * max(1.0, float(np.abs(dy).max()))
    for n, (got, exact) in enumerate(
        zip(gradients, as_tuple(norm.expected_backward(dy, x, *parameters[:1])), strict=False)
    ):
        check(got, exact, dtype, slope * (1 if n == 0 else math.sqrt(rows) * 4), (*label, n))


@pytest.mark.parametrize("seed", range(40))
def test_random_calls(seed):
    rng = np.random.default_rng(seed)
    for _ in range(500):
        with np.errstate(all="raise", under="ignore"):
            check_call(drawn_norm(rng), rng)
