"""Batch norm and moments over several channel axes of a device array."""

import numpy as np
import pytest
from row_arrays import draw

import numnorm

AXES = [(1, 2), (0, 2), (2, 3), (-1,)]
KEEP = np.random.default_rng(1).random((3, 1, 4, 2)) < 0.7


def host(values):
    return [value.host if hasattr(value, "host") else value for value in values]


def assert_close(found, expected, tolerance=1e-6):
    for mine, theirs in zip(host(found), expected, strict=True):
        assert np.shape(mine) == np.shape(theirs)
        largest = np.nanmax(np.abs(theirs), initial=1.0)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * largest)


def arrays(axes):
    x = draw((3, 5, 4, 2))
    shape = tuple(x.shape[axis] for axis in axes)
    return x, draw(x.shape, seed=1), draw(shape, seed=2), draw(shape, seed=3)


# The CPU is held to one channel axis in `tests/norms/test_channel_axes.py`.
@pytest.mark.parametrize("counting", [{}, {"where": KEEP, "nan_policy": "omit"}])
@pytest.mark.parametrize("axes", AXES)
def test_batch_norm(axes, counting, library):
    take, (x, dy, gamma, beta) = library.take, arrays(axes)
    options = {"channel_axis": axes} | counting
    for there in (options, options | {"where": take(KEEP)}) if counting else (options,):
        with np.errstate(all="ignore"):
            expected = numnorm.batch_norm_forward(x, gamma, beta, **options)
            wanted = numnorm.batch_norm_backward(dy, x, *expected[1:], gamma, **options)
        found = numnorm.batch_norm_forward(*map(take, (x, gamma, beta)), **there)
        assert type(found.y) is type(found.mean) is type(take(x))
        assert_close(found, expected)
        given = map(take, (dy, x, expected.mean, expected.rstd, gamma))
        assert_close(numnorm.batch_norm_backward(*given, **there), wanted, 1e-5)


@pytest.mark.parametrize("axes", AXES)
def test_outputs_and_running_statistics(axes, library):
    if library.called == "jax":
        pytest.skip("JAX has no arrays to write")
    x, _, mean, var = arrays(axes)
    var, take = np.abs(var), library.take
    there = [take(x.copy()), take(mean.copy()), take(var.copy())]
    options = {"channel_axis": axes, "out": there[0]}
    y = numnorm.batch_norm(x, channel_axis=axes, running_mean=mean, running_var=var)
    got = numnorm.batch_norm(there[0], running_mean=there[1], running_var=there[2], **options)
    assert got is there[0]
    assert_close(there, (y, mean, var))
    frozen = {"running_mean": there[1], "running_var": there[2], "training": False}
    y = numnorm.batch_norm(x, channel_axis=axes, running_mean=mean, running_var=var, training=False)
    assert_close([numnorm.batch_norm(take(x), channel_axis=axes, **frozen)], [y])


@pytest.mark.parametrize("options", [{}, {"where": KEEP}])
def test_moments(options, library):
    take, (x, other, *_) = library.take, arrays((1, 2))
    options = {"channel_axis": (1, 2)} | options
    one, two = (numnorm.batch_moments(a, **options) for a in (x, other))
    there, two_there = (numnorm.batch_moments(take(a), **options) for a in (x, other))
    assert_close(there, one)
    assert_close(there.merge(two_there), one.merge(two))
    assert_close(numnorm.batch_moments(take(other), after=there, **options), one.merge(two))
    assert_close([there.var(1), there.std()], [one.var(1), one.std()])


def test_labels(imported):
    take, (x, dy, gamma, beta) = imported("cupy").take, arrays((1, 2))
    options = {"channel_axis": (1, 2), "labels": ["b", "a", "b"]}
    expected = numnorm.batch_norm_forward(x, gamma, beta, **options)
    assert_close(numnorm.batch_norm_forward(*map(take, (x, gamma, beta)), **options), expected)
    wanted = numnorm.batch_norm_backward(dy, x, *expected[1:], gamma, **options)
    given = map(take, (dy, x, expected.mean, expected.rstd, gamma))
    assert_close(numnorm.batch_norm_backward(*given, **options), wanted, 1e-5)


@pytest.mark.parametrize("counting", [{}, {"where": KEEP, "nan_policy": "omit"}])
@pytest.mark.parametrize("shape", [(3, 1, 1, 1), (1, 5, 1, 2), (3, 5, 4, 2), (1, 1, 4, 1)])
@pytest.mark.parametrize("axes", AXES[:3])
def test_gains_that_broadcast(axes, shape, counting, imported):
    take, (x, dy, *_) = imported("torch").take, arrays(axes)
    gamma, beta = draw(shape, seed=2), draw((1, 5, 1, 1), seed=3)
    options = {"channel_axis": axes} | counting
    expected = numnorm.batch_norm_forward(x, gamma, beta, **options)
    assert_close(numnorm.batch_norm_forward(*map(take, (x, gamma, beta)), **options), expected)
    wanted = numnorm.batch_norm_backward(dy, x, *expected[1:], gamma, **options)
    given = map(take, (dy, x, expected.mean, expected.rstd, gamma))
    assert_close(numnorm.batch_norm_backward(*given, **options), wanted, 1e-5)


@pytest.mark.parametrize("axes", [(1, 2), (0, 2)])
def test_a_gain_that_broadcasts_in_every_library(axes, library):
    take, (x, dy, *_) = library.take, arrays(axes)
    gamma = draw((3, 5, 1, 1), seed=2)
    expected = numnorm.batch_norm_forward(x, gamma, channel_axis=axes)
    found = numnorm.batch_norm_forward(take(x), take(gamma), channel_axis=axes)
    assert_close(found, expected)
    wanted = numnorm.batch_norm_backward(dy, x, *expected[1:], gamma, channel_axis=axes)
    given = map(take, (dy, x, expected.mean, expected.rstd, gamma))
    assert_close(numnorm.batch_norm_backward(*given, channel_axis=axes), wanted, 1e-5)


def test_errors(imported):
    take, (x, _, gamma, _) = imported("cupy").take, arrays((1, 2))
    for error, message, given in [
        (ValueError, r"gamma must have shape \(5, 4\)", {"gamma": take(gamma.T.copy())}),
        (TypeError, "gamma must be a cupy.ndarray on device 0", {"gamma": gamma}),
        (ValueError, "running_mean must be C-contiguous",
         {"running_mean": take(gamma.T.copy().T), "running_var": take(gamma)}),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            numnorm.batch_norm(take(x), channel_axis=(1, 2), **given)
