"""The forward kernel of rows: the definitions, in every order of threads."""

import dataclasses

import numpy as np
import pytest
import reference
import simulated_target
from kernel_arrays import off_by_one
from row_checks import assert_close, awkward_rows
from simulated_target import register

from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT64
from numnorm.backends.cuda.rows.arguments import (
    Addition,
    Parameter,
    RowParameters,
    RowScaling,
    RowSizes,
    SavedStatistics,
)
from numnorm.backends.cuda.rows.forward_kernel import make_row_forward
from numnorm.backends.cuda.rows.forward_loop_kernel import make_row_forward_loop
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.norms.affine import AFFINE, GAIN

# Parts of a warp, a warp and several; rows of whole pieces of 16 bytes, and of any width.
SHAPES = {
    "several rows a warp": (RowShape(8, 4, 1, True), 32),
    "a row a warp": (RowShape(32, 4, 2, True), 256),
    "several warps a row": (RowShape(64, 1, 2, True), 512),
    "odd, several rows a warp": (RowShape(8, 8, 2, False), 61),
    "odd, several warps a row": (RowShape(64, 1, 2, False), 403),
    "one element": (RowShape(1, 32, 1, False), 1),
}
ROWS = 9


def draw(dtype, width, seed=0):
    return np.random.default_rng(seed).normal(3, 2, (ROWS, width)).astype(dtype)


def run(x, gamma, beta, shape, formula=AFFINE, eps=1e-5, make=make_row_forward, in_place=False):
    """y, mean and rstd of an array whose rows begin anywhere."""
    element = ELEMENT_TYPES[x.dtype.name]
    y, saved = x if in_place else np.full_like(x, np.nan), np.full((2, ROWS), np.nan)
    weights = Weights(
        ELEMENT_TYPES[gamma.dtype.name], None if beta is None else ELEMENT_TYPES[beta.dtype.name]
    )
    kernel = make(formula, element, FLOAT64, weights, shape)
    parameters = RowParameters(
        Parameter(register(gamma), 1.0), Parameter(0 if beta is None else register(beta), 0.0)
    )
    width = x.shape[1]
    kernel.launch(
        -(-ROWS // shape.teams), 0, register(x), Addition(0, 0), parameters, register(y),
        SavedStatistics(*map(register, saved)), RowSizes(ROWS, width, width, 1),
        RowScaling(1 / width, 1 / width, 0.0), eps, np.sqrt(eps),
    )  # fmt: skip
    return y, *saved


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_layer_norm(name, dtype, order):
    shape, width = SHAPES[name]
    # The number of pieces that this type needs.
    vectors = -(-width // (shape.team * ELEMENT_TYPES[dtype].vector))
    shape = dataclasses.replace(shape, vectors=vectors)
    dtype = simulated_target._element_type(ELEMENT_TYPES[dtype])
    x, gamma, beta = draw(dtype, width), draw(dtype, width, 1)[0], draw(dtype, width, 2)[0]
    if not shape.whole:
        x = off_by_one(x)
    y, mean, rstd = run(x, gamma, beta, shape)
    expected, of_mean, of_rstd = reference.layer_norm(x, gamma, beta)
    epsilon = np.finfo(np.float64 if dtype == np.float64 else np.float32).eps
    assert_close(y, expected)
    np.testing.assert_allclose(mean, np.float64(of_mean), rtol=8 * epsilon)
    np.testing.assert_allclose(rstd, np.float64(of_rstd), rtol=8 * epsilon)


@pytest.mark.parametrize("eps", [0.0, 1e-5])
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "one element"])
def test_rows_of_any_scale_and_mean_beside_each_other(name, eps, order):
    shape, width = SHAPES[name]
    x = awkward_rows(width)
    gamma, beta = draw(np.float32, width, 1)[0], draw(np.float32, width, 2)[0]
    y = run(x, gamma, beta, shape, eps=eps)[0]
    expected = reference.layer_norm(x, gamma, beta, eps=eps)[0]
    assert_close(y, expected)
    np.testing.assert_array_equal(y[8], beta)


@pytest.mark.parametrize("scale", [1, 1e-30])
def test_rms_norm(scale, order):
    shape, width = SHAPES["several warps a row"]
    x, gamma = draw(np.float32, width) * np.float32(scale), draw(np.float32, width, 1)[0]
    y, root_mean_square, rstd = run(x, gamma, None, shape, GAIN, eps=0)
    expected, of_rstd = reference.rms_norm(x, gamma, eps=0)
    assert_close(y, expected)
    np.testing.assert_allclose(rstd, np.float64(of_rstd), rtol=1e-6)
    np.testing.assert_allclose(root_mean_square, 1 / np.float64(of_rstd), rtol=1e-6)


def test_parameters_of_another_type(order):
    shape, width = SHAPES["a row a warp"]
    x = draw(np.float32, width)
    gamma, beta = draw(np.float64, width, 1)[0], draw(np.float16, width, 2)[0]
    y = run(x, gamma, beta, shape)[0]
    same = run(x, gamma.astype(np.float32), beta.astype(np.float32), shape)[0]
    assert y.tobytes() == same.tobytes()


# Rows that are wider than a block's registers


@pytest.mark.parametrize(
    "shape, width", [(RowShape(64, 1, 1, True), 1024), (RowShape(64, 1, 1, False), 1003)]
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_wide_rows(shape, width, dtype, order):
    dtype = simulated_target._element_type(ELEMENT_TYPES[dtype])
    x, gamma, beta = draw(dtype, width), draw(dtype, width, 1)[0], draw(dtype, width, 2)[0]
    if not shape.whole:
        x = off_by_one(x)
    expected, of_mean, of_rstd = reference.layer_norm(x, gamma, beta)
    y, mean, rstd = run(x, gamma, beta, shape, make=make_row_forward_loop, in_place=True)
    assert y is x
    assert_close(y, expected)
    epsilon = np.finfo(np.float64 if dtype == np.float64 else np.float32).eps
    np.testing.assert_allclose(mean, np.float64(of_mean), rtol=8 * epsilon)
    np.testing.assert_allclose(rstd, np.float64(of_rstd), rtol=8 * epsilon)


@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_wide_rows_of_any_scale_and_mean(eps, order):
    x = awkward_rows(777)
    gamma, beta = draw(np.float32, 777, 1)[0], draw(np.float32, 777, 2)[0]
    shape = RowShape(64, 1, 1, False)
    y = run(x, gamma, beta, shape, eps=eps, make=make_row_forward_loop)[0]
    assert_close(y, reference.layer_norm(x, gamma, beta, eps=eps)[0])
    np.testing.assert_array_equal(y[8], beta)


def test_wide_rows_of_rms_norm(order):
    x, gamma = awkward_rows(777), draw(np.float32, 777, 1)[0]
    shape = RowShape(64, 1, 1, False)
    y, _, rstd = run(x, gamma, None, shape, GAIN, make=make_row_forward_loop)
    expected, of_rstd = reference.rms_norm(x, gamma)
    assert_close(y, expected)
    np.testing.assert_allclose(rstd, np.float64(of_rstd), rtol=1e-6)
