"""Gradients of arrays of Dask far from 0: rounding a saved mean is restored, for any chunks."""

import kernels
import numpy as np
import pytest
import reference
from accuracy_cases import CENTRED, HALF_UNIT, norms_of
from lazy_norms import computed, divided

import numnorm

da = pytest.importorskip("dask.array")

ROWS, WIDTH = 6, 90
NORMS = norms_of(ROWS, WIDTH, 1)
# A normalized value of a sum over blocks, some more roundings than ROUNDINGS.backward counts, and
# one chain of additions where kernels are not compiled.
BOUND = 128 * HALF_UNIT[np.float64]


def of_float64(names):
    return kernels.names({name: NORMS[name].name for name in names}, np.float64)


def assert_close(results, expected):
    for mine, theirs in zip(results, expected, strict=True):
        assert float(abs(mine - theirs).max()) <= BOUND * float(abs(theirs).max())


def in_chunks(array, seed):
    rng = np.random.default_rng(seed)
    return da.from_array(array, chunks=divided(array.shape, rng))


@pytest.mark.parametrize("offset", [1e9, -1e12])
@pytest.mark.parametrize("name", of_float64([*CENTRED]))
def test_any_chunks(name, offset):
    norm = NORMS[name]
    x, dy = norm.draw(np.float64, offset), norm.draw(np.float64, seed=1)
    saved = norm.run(x, 1e-5)
    expected = norm.expect_backward(dy, x, 1e-5)
    for seed in range(4):
        gradients = norm.run_backward(dy, in_chunks(x, seed), 1e-5, forward=saved)
        assert_close(map(computed, gradients), expected)


CHANNELS = {"one axis": 1, "two axes": (1, 3)}
GAINS = {"none": None, "channels": (1, 3), "samples": (0,), "both": (0, 1, 2), "one": ()}


@pytest.mark.parametrize("along", GAINS)
@pytest.mark.parametrize("axis", CHANNELS.values(), ids=CHANNELS)
def test_gains_that_broadcast_in_batch_norm(axis, along):
    rng = np.random.default_rng(0)
    x, dy = rng.normal(1e9, 1.0, (9, 4, 5, 3)), rng.normal(size=(9, 4, 5, 3))
    gain = ()
    if GAINS[along] is not None:
        shape = [n if a in GAINS[along] else 1 for a, n in enumerate(x.shape)]
        gain = (rng.normal(size=shape),)
    _, mean, rstd = numnorm.batch_norm_forward(x, channel_axis=axis, eps=0)
    own = (axis,) if axis == 1 else axis
    others = tuple(a for a in range(4) if a not in own)
    xhat = reference.batch_norm(x, channel_axis=axis, eps=0)[0]
    g = dy * gain[0] if gain else dy
    dx = reference.batch_norm_backward(g, x, channel_axis=axis, eps=0)[0]
    summed = tuple(a for a in range(4) if shape[a] == 1) if gain else others
    sums = ((dy * xhat).sum(summed, keepdims=bool(gain)), dy.sum(summed, keepdims=bool(gain)))
    for seed in range(3):
        lazy = in_chunks(x, seed)
        results = numnorm.batch_norm_backward(dy, lazy, mean, rstd, *gain, channel_axis=axis)
        assert_close(computed(results), (dx, *sums))


def test_float32_beside_a_gradient_of_float64():
    rng = np.random.default_rng(0)
    x = (1e6 + rng.integers(-8, 8, (50, 3)) / 16).astype(np.float32)
    dy = rng.normal(size=x.shape)
    _, mean, rstd = numnorm.batch_norm_forward(x, eps=0)
    expected = reference.batch_norm_backward(dy, x.astype(np.float64), eps=0)
    results = computed(numnorm.batch_norm_backward(dy, in_chunks(x, 1), mean, rstd))
    np.testing.assert_allclose(results.dx, expected[0].astype(float), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(results.dgamma, expected[1].astype(float), rtol=1e-6)


def test_a_mean_that_the_caller_changed_stays_as_it_is():
    rng = np.random.default_rng(0)
    x, dy = rng.normal(1e6, 1.0, (40, 3)), rng.normal(size=(40, 3))
    mean, rstd = np.full(3, 1e6 + 0.25), np.ones(3)
    expected = numnorm.batch_norm_backward(dy, x, mean, rstd)
    assert_close(computed(numnorm.batch_norm_backward(dy, in_chunks(x, 1), mean, rstd)), expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of kernels that are not compiled
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_channel(poison):
    rng = np.random.default_rng(0)
    x, dy = rng.normal(1e9, 1.0, (40, 3)), rng.normal(size=(40, 3))
    _, mean, rstd = numnorm.batch_norm_forward(x)
    clean = computed(numnorm.batch_norm_backward(dy, in_chunks(x, 1), mean, rstd))
    for array in (x, dy):
        bad = array.copy()
        bad[30, 1] = poison
        given = (dy, bad) if array is x else (bad, x)
        results = numnorm.batch_norm_backward(given[0], in_chunks(given[1], 1), mean, rstd)
        for mine, theirs in zip(computed(results), clean, strict=True):
            np.testing.assert_array_equal(mine[..., [0, 2]], theirs[..., [0, 2]])
        assert np.isnan(computed(results).dx[:, 1]).all()
