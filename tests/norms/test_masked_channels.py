"""Batch norm with masks and weights against its definition, in each layout of the kernels."""

import numpy as np
import pytest
from accuracy_cases import needs_wide_longdouble
from kernels import full

import numnorm

# Across channels, in one tile and in more; along channels; one channel, whose elements lie side by
# side in segments of one length or as one; and one entry.
SHAPES = [(70, 5), (3, 530), (4, 3, 37), (2, 2, 2100), (5000, 1), (192, 1), (1, 4), (3, 1, 50)]
WEIGHTS = ["none", "samples", "float64", "float32", "zeros"]
MASKS = ["none", "some", "omit", "both", "one", "nothing"]
# The gradients are compared with sums in extended precision, beside the largest of the channel.
TOLERANCE = {"float32": 3e-6, "float64": 3e-14}


def weights_of(kind, shape, rng):
    """Return weights of x as they are passed, and as they broadcast."""
    if kind == "none":
        return None, np.ones(shape)
    if kind == "samples":
        weights = rng.random(shape[0]) + 0.1
        return weights, np.broadcast_to(weights.reshape(-1, *(1,) * (len(shape) - 1)), shape)
    weights = rng.random(shape) + 0.1
    if kind == "zeros":
        weights[rng.random(shape) < 0.3] = 0.0
    weights = weights.astype("float32" if kind == "float32" else "float64")
    return weights, weights.astype(np.float64)


def mask_of(kind, x, rng):
    """Return the keywords, and which elements are kept; x gets values that must not matter."""
    keep, keywords = np.ones(x.shape, bool), {}
    if kind in ("omit", "both"):
        missing = rng.random(x.shape) < 0.2
        x[missing], keywords["nan_policy"] = np.nan, "omit"
        keep &= ~missing
    if kind in ("some", "both", "one", "nothing"):
        where = rng.random(x.shape) < 0.7 if kind in ("some", "both") else np.zeros(x.shape, bool)
        if kind == "one":
            where.flat[rng.integers(where.size)] = True
        x[~where & (rng.random(x.shape) < 0.5)] = np.inf
        keep, keywords["where"] = keep & where, where
    return keywords, keep


def definition(x, dy, weights, keep, gamma, offset, eps):
    """Return y, dx, dgamma and dbeta of ``x (outer, channels, ...)`` in extended precision."""
    axes = (0, *range(2, x.ndim))
    wide = np.where(keep, x, offset).astype(np.longdouble) - offset
    w, g = np.where(keep, weights, 0).astype(np.longdouble), np.where(keep, dy, 0)
    gamma = gamma.reshape(1, -1, *(1,) * (x.ndim - 2)).astype(np.longdouble)
    total = w.sum(axes, keepdims=True)
    mean = (w * wide).sum(axes, keepdims=True) / total
    deviation = np.where(keep, wide - mean, 0)
    rstd = 1 / np.sqrt((w * deviation**2).sum(axes, keepdims=True) / total + eps)
    xhat = np.where(keep, deviation * rstd, 0)
    dgamma, dbeta = (g * xhat).sum(axes, keepdims=True), g.sum(axes, keepdims=True)
    through = w * (dbeta + xhat * dgamma) / total
    dx = np.where(keep, gamma * rstd * (g - through), 0)
    return xhat * gamma, dx, dgamma.ravel(), dbeta.ravel()


def assert_near(found, expected, tolerance, scale=0.0):
    """Compare within a share of the largest number, or of the terms that may cancel in it."""
    scale = np.nanmax(np.abs(expected), initial=max(scale, 1e-3))
    np.testing.assert_allclose(found, expected.astype(np.float64), 0, tolerance * scale)


@needs_wide_longdouble
@full
@pytest.mark.parametrize("offset", [0.0, 1e9])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_definition(shape, dtype, offset):
    rng = np.random.default_rng(len(shape) + shape[0])
    # Digits that float32 has at this offset.
    spread = 1.0 if offset == 0.0 or dtype == "float64" else 1e4
    for _ in range(3):
        kind, mask = rng.choice(WEIGHTS), rng.choice(MASKS)
        weights, all_weights = weights_of(kind, shape, rng)
        x = (rng.normal(size=shape) * spread + offset).astype(dtype)
        dy = rng.normal(size=shape).astype(dtype)
        gamma = rng.normal(size=shape[1]).astype(dtype)
        keywords, keep = mask_of(mask, x, rng)
        dy[~keep] = np.nan
        with np.errstate(all="ignore"):
            expected = definition(x, dy, all_weights, keep, gamma, offset, 1e-5)
        weighs = np.where(keep, all_weights, 0).sum((0, *range(2, x.ndim))) > 0
        keywords["weights"] = weights
        y, mean, rstd = numnorm.batch_norm_forward(x, gamma, **keywords, fill=0.0)
        assert np.array_equal(np.isnan(mean), ~weighs)
        found = numnorm.batch_norm_backward(dy, x, mean, rstd, gamma, **keywords)
        unweighed = keep & ~weighs.reshape(1, -1, *(1,) * (x.ndim - 2))
        factor, tolerance = np.nanmax(np.abs(rstd * gamma), initial=0.0), TOLERANCE[dtype] * 4
        # The mean of the forward pass is rounded to float64.
        rounding = np.spacing(offset) * factor / tolerance
        of_dx = factor * np.nanmax(np.abs(dy), initial=0.0)
        for array, of_all, scale in ((y, expected[0], rounding), (found.dx, expected[1], of_dx)):
            assert np.all(np.isnan(array[unweighed]))
            array[unweighed] = of_all[unweighed] = 0.0
            assert_near(array, of_all, tolerance, scale)
            assert not np.any(array[~keep])
        nothing = ~keep.any((0, *range(2, x.ndim)))
        for array, of_all in ((found.dgamma, expected[2]), (found.dbeta, expected[3])):
            assert not np.any(array[nothing])
            assert_near(array[weighs], of_all[weighs], TOLERANCE[dtype] * 10)


def test_detached_statistics_pass_no_gradient_through():
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 9, 4))
    keep, mean, rstd = rng.random((9, 4)) < 0.6, rng.normal(size=4), rng.random(4) + 0.5
    found = numnorm.batch_norm_backward(dy, x, mean, rstd, training=False, where=keep)
    np.testing.assert_allclose(found.dx, np.where(keep, dy * rstd, 0.0), 1e-15)
    np.testing.assert_allclose(found.dbeta, np.where(keep, dy, 0.0).sum(0), 1e-14)
    xhat = np.where(keep, dy * (x - mean) * rstd, 0.0)
    np.testing.assert_allclose(found.dgamma, xhat.sum(0), 1e-13)


@pytest.mark.parametrize("kind", ["float32", "samples"])
def test_weights_give_what_they_give_in_float64_for_each_element(kind):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 6))
    weights, of_all = weights_of(kind, x.shape, rng)
    found = numnorm.batch_norm(x, weights=weights)
    assert np.array_equal(found, numnorm.batch_norm(x, weights=np.array(of_all)))


def test_a_weight_that_is_no_number_is_an_error():
    x, weights = np.ones((40, 6)), np.ones((40, 6))
    for wrong in (-1.0, np.nan, np.inf):
        weights[3, 2] = wrong
        for given in (weights, weights.astype(np.float32)):
            with pytest.raises(ValueError, match="weights must be finite and at least 0"):
                numnorm.batch_norm(x, weights=given)
