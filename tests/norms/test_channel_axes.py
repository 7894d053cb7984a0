"""Several channel axes in batch norm and batch moments, against their definitions."""

from typing import NamedTuple

import numpy as np
import pytest

import numnorm

RNG = np.random.default_rng(9)
X = RNG.normal(2.0, 3.0, (4, 3, 5, 2))
# A mean and a variance of some dozen numbers below ten, and a few roundings after them.
RTOL = ATOL = 64 * np.finfo(np.float64).eps
AXES = [(1, 2), (1, 3), (0, 2), (2, 3), (0, 1), (3,), (-1, 1), (1, 2, 3), [3, 1], (0, 1, 2)]


def definition(x, axes, gamma, beta, eps):
    """y, mean and variance in longdouble; gamma and beta have the shape of the channel axes."""
    x, axes = x.astype(np.longdouble), sorted(a % x.ndim for a in axes)
    others = tuple(a for a in range(x.ndim) if a not in axes)
    mean, variance = x.mean(others, keepdims=True), x.var(others, keepdims=True)
    gamma, beta = (np.expand_dims(a, others) for a in (gamma, beta))
    y = (x - mean) / np.sqrt(variance + eps) * gamma + beta
    return y, mean.squeeze(others), variance.squeeze(others), others


def draw_parameters(axes):
    shape = [X.shape[a] for a in sorted(a % X.ndim for a in axes)]
    return RNG.uniform(0.5, 2.0, shape), RNG.normal(size=shape)


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_training(axes):
    gamma, beta = draw_parameters(axes)
    expected, mean, variance, others = definition(X, axes, gamma, beta, 1e-5)
    running = np.zeros(gamma.shape), np.ones(gamma.shape, np.float32)
    y, *saved = numnorm.batch_norm_forward(
        X, gamma, beta, channel_axis=axes,
        running_mean=running[0], running_var=running[1], momentum=1.0, unbiased=False,
    )  # fmt: skip
    np.testing.assert_allclose(y, expected, RTOL, ATOL)
    np.testing.assert_allclose(saved[0], mean, RTOL, ATOL)
    np.testing.assert_allclose(saved[1], 1 / np.sqrt(variance + 1e-5), RTOL, ATOL)
    np.testing.assert_allclose(running[0], mean, RTOL, ATOL)
    np.testing.assert_allclose(running[1], variance, 1e-7)  # of float32
    np.testing.assert_array_equal(numnorm.batch_norm(X, gamma, beta, channel_axis=axes), y)

    dy = RNG.normal(size=X.shape)
    dx, dgamma, dbeta = numnorm.batch_norm_backward(dy, X, *saved, gamma, channel_axis=axes)
    xhat = (X - np.expand_dims(mean, others)) / np.sqrt(np.expand_dims(variance + 1e-5, others))
    np.testing.assert_allclose(dgamma, (dy * xhat).sum(others), 4 * RTOL, 16 * ATOL)
    np.testing.assert_allclose(dbeta, dy.sum(others), 4 * RTOL, 16 * ATOL)
    g = dy * np.expand_dims(gamma, others)
    inner = g - g.mean(others, keepdims=True) - xhat * (g * xhat).mean(others, keepdims=True)
    expected = inner / np.sqrt(np.expand_dims(variance + 1e-5, others))
    np.testing.assert_allclose(dx, expected, 16 * RTOL, 16 * ATOL)


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_inference(axes):
    gamma, beta = draw_parameters(axes)
    variance, mean = draw_parameters(axes)
    stored = {"running_mean": mean, "running_var": variance, "training": False}
    y = numnorm.batch_norm(X, gamma.tolist(), beta, channel_axis=axes, **stored)
    others = tuple(a for a in range(4) if a not in {a % 4 for a in axes})
    mean, variance, gamma, beta = (np.expand_dims(a, others) for a in (mean, variance, gamma, beta))
    expected = (X - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    np.testing.assert_allclose(y, expected, RTOL, ATOL)


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_moments(axes):
    *_, mean, variance, others = definition(X, axes, *draw_parameters(axes), 0)
    moments = numnorm.batch_moments(X, channel_axis=axes)
    np.testing.assert_allclose(moments.mean, mean, RTOL, ATOL)
    np.testing.assert_allclose(moments.var(), variance, RTOL, ATOL)
    assert moments.count == np.prod([X.shape[a] for a in others])
    if 0 in others:  # else the samples are channels
        first = numnorm.batch_moments(X[:3], channel_axis=axes)
        for both in (
            numnorm.batch_moments(X[3:], channel_axis=axes, after=first),
            first.merge(numnorm.batch_moments(X[3:], channel_axis=axes)),
        ):
            np.testing.assert_allclose(both.mean, mean, RTOL, ATOL)
            np.testing.assert_allclose(both.var(), variance, RTOL, ATOL)


# Gains that broadcast: some with all channels, some with a part of them, some with none.
@pytest.mark.parametrize("shape", [(4, 1, 1, 1), (4, 3, 5, 2), (1, 3, 1, 2), (1, 1, 5, 1)], ids=str)
@pytest.mark.parametrize("axes", [(1, 2), (1, 3), (0, 2), [3, 1], (3,), (0, 1, 2, 3)], ids=str)
def test_gain_with_as_many_axes_as_x(axes, shape):
    gamma, beta = RNG.uniform(0.5, 2.0, shape), RNG.normal(size=shape)
    *_, mean, variance, others = definition(X, axes, *draw_parameters(axes), 1e-5)
    std = np.sqrt(np.expand_dims(variance, others) + 1e-5)
    xhat = (X - np.expand_dims(mean, others)) / std
    y, *saved = numnorm.batch_norm_forward(X, gamma, beta, channel_axis=axes)
    np.testing.assert_allclose(y, xhat * gamma + beta, RTOL, ATOL)

    dy = RNG.normal(size=X.shape)
    dx, *sums = numnorm.batch_norm_backward(dy, X, *saved, gamma, channel_axis=axes)
    g = dy * gamma
    inner = g - g.mean(others, keepdims=True) - xhat * (g * xhat).mean(others, keepdims=True)
    np.testing.assert_allclose(dx, inner / std, 64 * RTOL, 64 * ATOL)  # 1 / std is up to 300
    summed = tuple(axis for axis, n in enumerate(shape) if n == 1)
    for found, terms in zip(sums, (dy * xhat, dy), strict=True):
        expected = terms.sum(summed, keepdims=True)
        np.testing.assert_allclose(found, expected, 4 * RTOL, 64 * ATOL)
        assert found.shape == shape


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axes", [(1, 2), (1, 3)], ids=str)
def test_out(axes, order):
    expected = numnorm.batch_norm(X, channel_axis=axes)
    out = np.empty(X.shape, order=order)
    assert numnorm.batch_norm(X, channel_axis=axes, out=out) is out
    np.testing.assert_array_equal(out, expected)
    x = X.copy(order)
    assert numnorm.batch_norm(x, channel_axis=axes, out=x) is x
    np.testing.assert_array_equal(x, expected)
    statistics = numnorm.batch_norm_forward(X, channel_axis=axes)[1:]
    dx = numnorm.batch_norm_backward(expected, X, *statistics, channel_axis=axes).dx
    numnorm.batch_norm_backward(expected, X, *statistics, channel_axis=axes, out=out)
    np.testing.assert_array_equal(out, dx)


def test_one_axis_in_a_sequence_is_that_axis():
    y, mean, _ = numnorm.batch_norm_forward(X, channel_axis=(1,))
    expected = numnorm.batch_norm_forward(X, channel_axis=1)
    np.testing.assert_array_equal(y, expected.y)
    np.testing.assert_array_equal(mean, expected.mean)


class Axes(NamedTuple):  # a kind of tuple, as PyTorch's Size is
    first: int
    last: int


def test_axis_of_a_row_norm_may_be_a_list_or_another_tuple():
    for norm in (numnorm.layer_norm, numnorm.rms_norm, numnorm.ada_norm, numnorm.weight_norm):
        np.testing.assert_array_equal(norm(X, axis=[1, -1]), norm(X, axis=(1, -1)))
        np.testing.assert_array_equal(norm(X, axis=Axes(1, -1)), norm(X, axis=(1, -1)))


def expanded(shape):
    """An array whose elements along the first axis share their memory."""
    return np.lib.stride_tricks.as_strided(
        np.zeros(shape), strides=(0, *np.zeros(shape).strides[1:])
    )


READ_ONLY = np.zeros((3, 5))
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"channel_axis": ()}, ValueError, r"channel_axis must name at least 1 axis, got \(\)"),
        ({"channel_axis": (1, 1)}, ValueError, "channel_axis must not name an axis twice.*"),
        ({"channel_axis": (1, 4)}, ValueError, "channel_axis must be between -4 and 3 .* got 4"),
        ({"channel_axis": (1, 2.0)}, TypeError, "channel_axis must be an int, got 2.0"),
        (
            {"gamma": np.ones(15)},
            ValueError,
            r"gamma must have shape \(3, 5\), the channels of x.*",
        ),
        ({"running_mean": [[0.0] * 5] * 3}, TypeError, "running_mean must be an array to be.*"),
        ({"running_mean": np.zeros(3)}, ValueError, r"running_mean must have shape \(3, 5\).*"),
        ({"running_mean": READ_ONLY}, ValueError, "running_mean must be writable.*"),
        ({"running_var": np.zeros((5, 3)).T}, ValueError, "running_var must be C-contiguous.*"),
        (
            {"gamma": np.ones((4, 3, 2, 1))},
            ValueError,
            r"gamma must have shape \(3, 5\), the chan.*",
        ),
        ({"gamma": np.ma.ones((1, 3, 5, 1))}, TypeError, "gamma must not be a masked array.*"),
        ({"beta": np.ma.ones((3, 5))}, TypeError, "beta must not be a masked array.*"),
        ({"out": np.empty((4, 3, 5))}, ValueError, r"out must have shape \(4, 3, 5, 2\).*"),
        ({"out": np.empty(X.shape, np.float32)}, TypeError, "out must have dtype float64.*"),
        ({"out": X.tolist()}, TypeError, "out must be a numpy.ndarray.*"),
        (
            {"out": expanded(X.shape)},
            ValueError,
            "out must have memory for each element, got an .*",
        ),
        ({"out": np.ma.zeros(X.shape)}, TypeError, "out must not be a masked array.*"),
    ],
)
def test_errors(options, error, message):
    running = {"running_mean": np.zeros((3, 5)), "running_var": np.ones((3, 5))}
    with pytest.raises(error, match=f"^{message}$"):
        numnorm.batch_norm(**({"x": X, "channel_axis": (1, 2)} | running | options))
    if "channel_axis" in options:
        with pytest.raises(error, match=f"^{message}$"):
            numnorm.batch_moments(X, **options)
