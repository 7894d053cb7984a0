"""Rows that are divided between blocks: far from zero, in extreme sizes, in any order."""

import numpy as np
import pytest
import reference
from lazy_norms import computed

import numnorm

da = pytest.importorskip("dask.array")

EPS = float(np.finfo(np.float64).eps)


def rows(offset=0.0, scale=1.0, shape=(3, 40)):
    return offset + scale * np.random.default_rng(0).normal(size=shape)


def divided(array):
    return da.from_array(array, chunks=(2, 7))


@pytest.mark.parametrize("offset, scale", [(1e8, 1.0), (1e8, 1e-3), (-1e150, 1e140), (0, 1e-140)])
def test_rows_far_from_zero(offset, scale):
    x, dy = rows(offset, scale), rows(shape=(3, 40))[::-1]
    y, _, rstd = reference.layer_norm(x, eps=0.0)
    lazy = numnorm.layer_norm_forward(divided(x), eps=0.0)
    mine = computed(lazy)
    # x less the mean has as many digits as x allows; the other steps round a few times.
    np.testing.assert_allclose(mine.y, y.astype(float), rtol=16 * EPS, atol=16 * EPS)
    np.testing.assert_allclose(mine.rstd, rstd.astype(float), rtol=16 * EPS)
    dx, dgamma, dbeta = reference.layer_norm_backward(dy, x, eps=0.0)
    gradients = computed(numnorm.layer_norm_backward(dy, divided(x), lazy.mean, lazy.rstd))
    tolerance = 64 * EPS
    np.testing.assert_allclose(gradients.dx * scale, (dx * scale).astype(float), atol=tolerance)
    np.testing.assert_allclose(gradients.dgamma, dgamma.astype(float), atol=tolerance)
    np.testing.assert_allclose(gradients.dbeta, dbeta.astype(float), atol=tolerance)


@pytest.mark.parametrize("scale", [1e155, 1e-160])
@pytest.mark.parametrize("name", ["standard_normal_variate", "weight_norm"])
@pytest.mark.filterwarnings("ignore:overflow")
def test_squares_out_of_the_range_of_float64_are_nan_not_wrong(name, scale):
    assert np.isnan(getattr(numnorm, name)(divided(rows(scale=scale))).compute()).all()


@pytest.mark.parametrize("scale", [1e-38, 1e-42, 1e35])
@pytest.mark.filterwarnings("ignore:overflow")
def test_float32_has_its_whole_range(scale):
    x = rows(scale=scale).astype(np.float32)
    y = numnorm.standard_normal_variate(divided(x)).compute()
    # Both round once or twice to float32.
    expected = numnorm.standard_normal_variate(x)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("library", ["dask.array", "dask_array"])
def test_rows_in_more_parts_than_are_gathered_at_once(library):
    x = rows(shape=(40, 3))
    lazy = pytest.importorskip(library).from_array(x, chunks=(1, 3))
    _, mean, rstd = numnorm.layer_norm_forward(lazy, axis=0)
    result = computed(numnorm.layer_norm_backward(lazy, lazy, mean, rstd, axis=0))
    _, mean, rstd = numnorm.layer_norm_forward(x, axis=0)
    for mine, theirs in zip(
        result, numnorm.layer_norm_backward(x, x, mean, rstd, axis=0), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-13)


def test_a_mean_that_the_caller_changed_stays_as_it_is():
    x, dy = rows(), rows()[::-1]
    _, mean, rstd = numnorm.layer_norm_forward(x)
    expected = numnorm.layer_norm_backward(dy, x, mean + 0.5, rstd)
    result = computed(numnorm.layer_norm_backward(dy, divided(x), mean + 0.5, rstd))
    for mine, theirs in zip(result, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("eps_in", ["variance", "std"])
def test_constant_rows(eps_in):
    x, dy = np.full((3, 40), 7.25), rows()
    assert not numnorm.layer_norm(divided(x), eps=0.0).compute().any()
    for eps in (0.0, 1e-5):
        options = {"eps": eps, "eps_in": eps_in}
        y, mean, rstd = numnorm.ada_norm_forward(divided(x), **options)
        assert not y.compute().any()
        expected = numnorm.ada_norm_backward(dy, x, mean.compute(), rstd.compute(), **options)
        dx = numnorm.ada_norm_backward(dy, divided(x), mean, rstd, **options)
        np.testing.assert_allclose(dx, expected, rtol=1e-13, atol=1e-10 * abs(expected).max())
    zeros = np.zeros((3, 40))
    w, norm = numnorm.weight_norm_forward(divided(zeros))
    assert not w.compute().any() and not norm.compute().any()
    gradients = numnorm.weight_norm_backward(dy, divided(zeros), norm)
    assert not any(array.any() for array in computed(gradients))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of kernels that are not compiled
def test_what_is_not_finite_stays_in_its_row():
    x = rows()
    clean = numnorm.layer_norm(divided(x)).compute()
    for poison in (np.nan, np.inf):
        bad = x.copy()
        bad[1, 30] = poison
        y = numnorm.layer_norm(divided(bad)).compute()
        assert np.isnan(y[1]).all()
        np.testing.assert_array_equal(y[[0, 2]], clean[[0, 2]])


def test_bytes_do_not_depend_on_the_scheduler():
    x = da.from_array(rows(3.0, shape=(40, 600)).astype(np.float32), chunks=(7, 11))
    gamma = np.linspace(0.5, 2.0, 600, dtype=np.float32)
    y, mean, rstd = numnorm.layer_norm_forward(x, gamma)
    results = [y, mean, *numnorm.layer_norm_backward(y, x, mean, rstd, gamma)]
    alone = da.compute(*results, scheduler="synchronous")
    for workers in (2, 8):
        together = da.compute(*results, scheduler="threads", num_workers=workers)
        assert [a.tobytes() for a in together] == [a.tobytes() for a in alone]
