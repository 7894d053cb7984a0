"""Rows of whole registers: their widths are constants forward, their gradients have own loops."""

import kernels
import numpy as np
import pytest
import reference
from every_call import COMPILED

import numnorm

# Without compilation NumPy warns where squares overflow, before the row is scaled.
pytestmark = [] if COMPILED else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]

# Rows of these many elements fill whole registers of 64 bytes.
WIDTHS = [
    *(pytest.param(np.float32, width, id=f"float32-{width}") for width in (16, 32, 64, 128)),
    *(pytest.param(np.float64, width, id=f"float64-{width}") for width in (8, 16, 32, 64)),
]
NORMS = {
    "layer": (numnorm.layer_norm_forward, numnorm.layer_norm_backward, reference.layer_norm),
    "rms": (numnorm.rms_norm_forward, numnorm.rms_norm_backward, reference.rms_norm),
}
NORM_AND_WIDTH = kernels.pairs({name: f"{name}_norm" for name in NORMS}, WIDTHS, parameters="both")
LAYER_WIDTH = kernels.pairs({"layer": "layer_norm"}, WIDTHS)
# More than are summed up in the working type, twice, and some.
ROWS = 75


def draw(dtype, width, seed):
    return np.random.default_rng(seed).normal(3, 2, (ROWS, width)).astype(dtype)


def tolerance(dtype, width):
    # A sum of `width` terms in a tree, its factors' roundings and the last one of the result.
    return 8 * np.finfo(dtype).eps * np.sqrt(width)


def parameters(norm, dtype, width):
    gamma, beta = np.random.default_rng(5).normal(1, 0.1, (2, width)).astype(dtype)
    return (gamma, beta) if norm == "layer" else (gamma,)


def awkward_rows(dtype, width):
    """Rows of many scales, far from 0, constant, and one that its last element dominates."""
    x = draw(dtype, width, 0)
    x *= np.resize(np.array([1, 1e30, 1e-30, 1e3, 1e-3], dtype), ROWS)[:, None]
    x[10::20] += dtype(1e6)
    x[11::20] = dtype(0.1)
    x[12::20, -1] = dtype(1e12)
    return x


@pytest.mark.parametrize("norm, dtype, width", NORM_AND_WIDTH)
def test_awkward_rows_forward(norm, dtype, width):
    forward, _, exactly = NORMS[norm]
    x, weights = awkward_rows(dtype, width), parameters(norm, dtype, width)
    expected = exactly(x, *weights, eps=0)[0]
    y = forward(x, *weights, eps=0)[0]
    # Of each row's largest value; a constant row gives exactly beta.
    largest = np.abs(expected).max(axis=1, keepdims=True)
    assert np.all(np.abs(y - expected) <= tolerance(dtype, width) * largest)
    if norm == "layer":
        np.testing.assert_array_equal(y[11::20], np.tile(weights[1], (len(y[11::20]), 1)))


@pytest.mark.parametrize("norm, dtype, width", NORM_AND_WIDTH)
def test_gradients(norm, dtype, width):
    forward, backward, _ = NORMS[norm]
    exactly = getattr(reference, f"{norm}_norm_backward")
    x, dy, weights = draw(dtype, width, 1), draw(dtype, width, 2), parameters(norm, dtype, width)
    _, *saved = forward(x, *weights)
    found = backward(dy, x, *saved, weights[0])
    for actual, expected in zip(found, exactly(x=x, dy=dy, gamma=weights[0]), strict=True):
        largest = np.abs(expected).max()
        # The sums over rows have more terms, of which none is larger than their largest sum.
        assert np.all(np.abs(actual - expected) <= 2 * tolerance(dtype, width) * largest)


@pytest.mark.parametrize("norm, dtype, width", NORM_AND_WIDTH)
def test_gradients_of_rows_of_any_scale(norm, dtype, width):
    forward, backward, _ = NORMS[norm]
    exactly = getattr(reference, f"{norm}_norm_backward")
    # Some deviations are so small that their reciprocals are near the end of the type's range.
    scales = [1, 1e30, 1e-30, 1e-37, 1e37, 1e-3]
    if dtype is np.float64:
        scales = [1, 1e300, 1e-300, 1e-307, 1e306, 1e-3]
    x = (draw(np.float64, width, 1)[:6] * np.array(scales)[:, None]).astype(dtype)
    dy = draw(dtype, width, 2)[:6]
    _, *saved = forward(x, eps=0)
    dx = backward(dy, x, *saved)[0]
    expected = exactly(dy, x, eps=0)[0]
    largest = np.abs(expected).max(axis=1, keepdims=True)
    assert np.all(np.abs(dx - expected) <= tolerance(dtype, width) * largest)


@pytest.mark.parametrize("dtype, width", WIDTHS)
def test_a_row_gives_the_same_bytes_alone_and_in_place(dtype, width):
    x, dy = awkward_rows(dtype, width), draw(dtype, width, 2)
    y, mean, rstd = numnorm.layer_norm_forward(x)
    dx = numnorm.layer_norm_backward(dy, x, mean, rstd)[0]
    for i in range(15):
        alone = numnorm.layer_norm_forward(x[i : i + 1])
        assert alone.y.tobytes() == y[i].tobytes()
        its_dx = numnorm.layer_norm_backward(dy[i : i + 1], x[i : i + 1], *alone[1:])[0]
        assert its_dx.tobytes() == dx[i].tobytes()
    in_place = dy.copy()
    numnorm.layer_norm_backward(in_place, x, mean, rstd, out=in_place)
    assert in_place.tobytes() == dx.tobytes()
    assert numnorm.layer_norm(x, out=x).tobytes() == y.tobytes()


@pytest.mark.parametrize("dtype, width", WIDTHS)
def test_what_is_not_a_number_stays_in_its_row(dtype, width):
    x, dy = draw(dtype, width, 1), draw(dtype, width, 2)
    clean = numnorm.layer_norm(x)
    for bad in (np.nan, np.inf):
        poisoned = x.copy()
        poisoned[3, 5] = bad
        y, mean, rstd = numnorm.layer_norm_forward(poisoned)
        dx = numnorm.layer_norm_backward(dy, poisoned, mean, rstd)[0]
        others = np.arange(ROWS) != 3
        assert np.any(np.isnan(y[3])) and np.any(np.isnan(dx[3]))
        assert y[others].tobytes() == clean[others].tobytes()
        assert np.all(np.isfinite(dx[others]))
