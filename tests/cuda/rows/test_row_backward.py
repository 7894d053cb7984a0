"""The backward kernels of rows: the definitions, in every order of threads."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
import reference
from kernel_arrays import addresses, off_by_one
from row_kernels import (
    DTYPES,
    Case,
    check,
    draw,
    element_type,
    elements_of,
    parameter_gradients,
    parameters_of,
    saved_of,
    scaling_of,
    statistics,
)
from simulated_target import Kernel, cuda, register

from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT32, FLOAT64
from numnorm.backends.cuda.rows.arguments import SUMS, PartialSums, RowSizes, SavedStatistics
from numnorm.backends.cuda.rows.backward_kernel import make_row_backward
from numnorm.backends.cuda.rows.parameter_sums import ROWS_BETWEEN_FLUSHES, make_flush
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.norms import scale_gradient_factor
from numnorm.norms.ada import ADA
from numnorm.norms.affine import GAIN

# Parts of a warp, a warp and several; rows of whole pieces of 16 bytes, and of any width.
SHAPES = {
    "several rows a warp": (RowShape(8, 4, 1, True), 32),
    "several warps of several rows": (RowShape(16, 4, 2, True), 112),
    "a row a warp": (RowShape(32, 4, 2, True), 248),
    "several warps a row": (RowShape(64, 1, 2, True), 512),
    "odd, several rows a warp": (RowShape(8, 8, 2, False), 29),
    "odd, several warps a row": (RowShape(64, 1, 1, False), 203),
    "one element": (RowShape(1, 32, 2, False), 1),
}
ROWS = 21


def backward(case, dy, x, mean, rstd):
    """dx, and the sums that the kernel leaves for `parameter_gradients`."""
    rows, width = x.shape
    element, dx = ELEMENT_TYPES[x.dtype.name], dy if case.in_place else np.full_like(x, np.nan)
    if not case.shape.whole and not case.in_place:
        dx = off_by_one(dx)
    weights = Weights(*(elements_of(array) for array in case.weights), case.shared)
    kernel = make_row_backward(
        case.formula, element, saved_of(x), weights, case.parameters, case.shape
    )
    segment, channels = case.segment or width, case.channels
    size = (rows * width // segment // channels, channels)
    if not case.shared:
        size = case.parts // channels, channels * width
    sums, lost = np.full((2, case.parameters, *size), np.nan, element.compute_type)
    kernel.launch(
        case.parts, 0, *addresses(dy, x), SavedStatistics(*addresses(mean, rstd)),
        parameters_of(case), register(dx), 0, PartialSums(*addresses(sums, lost)),
        RowSizes(rows, width, segment, channels), case.parts, scaling_of(case, width),
    )  # fmt: skip
    return dx, sums


def gradients(case, dy, x, mean, rstd, dtype=None):
    dx, sums = backward(case, dy, x, mean, rstd)
    return dx, *parameter_gradients(ELEMENT_TYPES[x.dtype.name], sums, dtype or x.dtype)


def shape_for(name, dtype):
    shape, width = SHAPES[name]
    if dtype == np.float64:  # which takes twice the pieces
        shape = dataclasses.replace(shape, vectors=2 * shape.vectors)
    return shape, width


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(name, dtype, order):
    dtype = element_type(dtype)
    shape, width = shape_for(name, dtype)
    x, dy = draw(dtype, ROWS, width, mean=3), draw(dtype, ROWS, width, seed=1)
    gamma = draw(dtype, width, mean=1, seed=2)
    if not shape.whole:
        x, dy = off_by_one(x), off_by_one(dy)
    mean, rstd = statistics(x)
    dx, dgamma, dbeta = gradients(Case(shape, weights=(gamma, gamma)), dy, x, mean, rstd)
    expected = reference.layer_norm_backward(dy, x, gamma)
    # Only the statistics of float16 are saved as float32, which is the working type.
    check(dx, expected[0], dtype)
    check(dgamma, expected[1], dtype, ROWS)
    check(dbeta, expected[2], dtype, ROWS)


@pytest.mark.parametrize("name", ["several warps of several rows", "odd, several warps a row"])
def test_in_place_without_gamma(name, order):
    shape, width = SHAPES[name]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    expected = reference.layer_norm_backward(dy, x)
    dx, dgamma, _ = gradients(Case(shape, in_place=True), dy, x, *statistics(x))
    assert dx is dy
    check(dx, expected[0], x.dtype)
    check(dgamma, expected[1], x.dtype, ROWS)


@pytest.mark.parametrize("parts", [1, 3, 30])
@pytest.mark.parametrize("name", ["several rows a warp", "several warps a row"])
def test_more_or_fewer_parts_than_rows(name, parts, order):
    shape, width = SHAPES[name]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    expected = reference.layer_norm_backward(dy, x)
    found = gradients(Case(shape, parts=parts), dy, x, *statistics(x))
    for one, of, coefficients in zip(found, expected, (1, ROWS, ROWS), strict=True):
        check(one, of, x.dtype, coefficients)


def test_rms_norm(order):
    shape, width = SHAPES["several warps a row"]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    gamma = draw(np.float32, width, mean=1, seed=2)
    rstd = np.float64(reference.rms_norm(x)[1])
    case = Case(shape, GAIN, 1, (gamma, None), shares=(0.0, 1 / width))
    dx, dgamma = gradients(case, dy, x, None, rstd)
    expected = reference.rms_norm_backward(dy, x, gamma)
    check(dx, expected[0], x.dtype)
    check(dgamma, expected[1], x.dtype, ROWS)


@pytest.mark.parametrize("eps_in", ["variance", "std"])
def test_ada_norm(eps_in, order):
    shape, width = SHAPES["odd, several rows a warp"]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    specs = {"eps": 0.5, "eps_in": eps_in, "ddof": 1}
    _, mean, _ = reference.ada_norm(x, **specs)
    rstd = 1 / reference.ada_denominator(reference.exact(x), (1,), **specs)[0][:, 0]
    case = Case(
        shape, ADA.formula, 0, numbers=(1.5, 0.1), shares=(1 / width, 1 / (width - 1)),
        eps_on_deviation=0.5 if eps_in == "std" else 0.0,
    )  # fmt: skip
    dx, _ = backward(case, dy, x, np.float64(mean), np.float64(rstd))
    expected = reference.ada_norm_backward(dy, x, scale=1.5, k=0.1, **specs)
    check(dx, expected, x.dtype)


@pytest.mark.parametrize("detach", ["mean", "scale", "both"])
def test_detached_statistics(detach, order):
    shape, width = SHAPES["several rows a warp"]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    shares = tuple(0.0 if detach in (of, "both") else 1 / width for of in ("mean", "scale"))
    dx = backward(Case(shape, shares=shares), dy, x, *statistics(x))[0]
    check(dx, reference.layer_norm_backward(dy, x, detach=detach)[0], x.dtype)


def test_a_detached_statistic_passes_no_nan_on(order):
    shape, width = SHAPES["several rows a warp"]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    dy[4, 9] = np.nan
    dx = backward(Case(shape, shares=(0.0, 0.0)), dy, x, *statistics(x))[0]
    assert np.isnan(dx).sum() == np.isnan(dx[4, 9]) == 1


def test_epsilon_on_a_deviation_whose_reciprocal_is_out_of_range(order):
    shape, width = SHAPES["several rows a warp"]
    x = (1e-37 * draw(np.float64, ROWS, width)).astype(np.float32)
    dy = (1e-3 * draw(np.float64, ROWS, width, seed=1)).astype(np.float32)
    specs = {"eps": 1e-37, "eps_in": "std"}
    _, mean, _ = reference.ada_norm(x, **specs)
    rstd = 1 / reference.ada_denominator(reference.exact(x), (1,), ddof=0, **specs)[0][:, 0]
    assert rstd.min() > 2.0**FLOAT32.largest_exponent
    case = Case(shape, ADA.formula, 0, numbers=(1.0, 0.1), eps_on_deviation=1e-37)
    dx, _ = backward(case, dy, x, np.float64(mean), np.float64(rstd))
    check(dx, reference.ada_norm_backward(dy, x, **specs), x.dtype)


@pytest.mark.parametrize("name", ["several rows a warp", "odd, several rows a warp"])
def test_rows_of_any_scale_and_mean_beside_each_other(name, order):
    shape, width = SHAPES[name]
    scales = np.array([1, 1e30, 1e-30, 1e3, 1e-3, 1e38, 1e-38, 1])[:, None]
    x = (scales * draw(np.float64, 8, width) / 10).astype(np.float32)
    x[7] += np.float32(1e7)
    dy = draw(np.float32, 8, width, seed=1)
    dx = backward(Case(shape), dy, x, *statistics(x, eps=0.0))[0]
    expected = reference.layer_norm_backward(dy, x, eps=0.0)[0]
    inside = np.abs(expected) < np.finfo(np.float32).max
    dx, expected = np.where(inside, dx, 0), np.where(inside, expected, 0)
    largest = np.abs(expected).max(axis=1, keepdims=True)
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    bound = 16 * np.finfo(np.float32).eps * largest + smallest
    assert np.all(np.abs(dx - expected) <= bound)


def test_what_lies_behind_a_row_cannot_be_infinite(order):
    """A mean far beyond the deviation would make it so."""
    shape = RowShape(8, 4, 1, True)
    x, dy = np.full((4, 4), 1e30, np.float32), draw(np.float32, 4, 4)
    mean, rstd = np.float64(x[:, 0]), np.full(4, 1e10)
    dx, dgamma, dbeta = gradients(Case(shape), dy, x, mean, rstd)
    assert np.isfinite(dx).all()
    np.testing.assert_array_equal(dgamma, 0)
    check(dbeta, reference.exact(dy).sum(0), x.dtype, 4)


def test_a_constant_row_and_nan_stay_in_their_rows(order):
    shape, width = SHAPES["several rows a warp"]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    x[3], x[5, 7] = 0.1, np.nan
    mean, rstd = (np.nan_to_num(of, nan=np.nan) for of in statistics(x, eps=0.0))
    dx = backward(Case(shape), dy, x, mean, rstd)[0]
    np.testing.assert_array_equal(dx[3], 0)
    assert np.isnan(dx[5]).all()
    others = np.delete(np.arange(ROWS), 5)
    check(dx[others], reference.layer_norm_backward(dy[others], x[others], eps=0.0)[0], x.dtype)


def test_an_infinite_gradient_is_infinite(order):
    shape, width = SHAPES["several warps a row"]
    x, dy = draw(np.float32, 70, width), draw(np.float32, 70, width, seed=1)
    dy[2, 5] = np.inf
    dbeta = gradients(Case(shape, parts=1), dy, x, *statistics(x))[2]
    assert dbeta[5] == np.inf
    assert np.isfinite(np.delete(dbeta, 5)).all()


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("name", ["several rows a warp", "several warps a row", "odd"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_group_norm(name, groups, dtype, order):
    """Runs of a channel: narrower than a piece, of several threads, and of several warps."""
    dtype = element_type(dtype)
    shape, inner = {
        "several rows a warp": (RowShape(8, 4, 4, True), 8),
        "several warps a row": (RowShape(64, 1, 2, True), 40),
        "odd": (RowShape(64, 1, 4, False), 39),
    }[name]
    if name == "several warps a row" and groups == 1:
        shape = dataclasses.replace(shape, vectors=8)
    x, dy = draw(dtype, 5, 8, inner, mean=3), draw(dtype, 5, 8, inner, seed=1)
    gamma = draw(dtype, 8, mean=1, seed=2)
    if not shape.whole:
        x, dy = off_by_one(x), off_by_one(dy)
    _, mean, rstd = reference.group_norm(x, groups=groups)
    saved = np.float64(mean).ravel(), np.float64(rstd).ravel()
    case = Case(shape, weights=(gamma, gamma), segment=inner, channels=8, shared=True)
    rows = 5 * groups, -1
    dx, dgamma, dbeta = gradients(case, dy.reshape(rows), x.reshape(rows), *saved)
    expected = reference.group_norm_backward(dy, x, gamma, groups=groups)
    check(dx.reshape(x.shape), expected[0], dtype)
    check(dgamma, expected[1], dtype, 5)
    check(dbeta, expected[2], dtype, 5)


def test_group_norm_in_place(order):
    """The teams behind the last row change none."""
    x, dy = draw(np.float32, 5, 4, 8), draw(np.float32, 5, 4, 8, seed=1)
    _, mean, rstd = reference.group_norm(x, groups=1)
    saved = np.float64(mean).ravel(), np.float64(rstd).ravel()
    case = Case(RowShape(8, 4, 1, True), segment=8, channels=4, shared=True, in_place=True, parts=1)
    expected = reference.group_norm_backward(dy, x, groups=1)[0]
    dx, _ = backward(case, dy.reshape(5, -1), x.reshape(5, -1), *saved)
    check(dx.reshape(x.shape), expected, x.dtype)


@pytest.mark.parametrize("name", ["several rows a warp", "odd, several warps a row"])
def test_parameters_of_channels_for_each_element(name, order):
    """Group norm without space: the rows of a sample have a gamma each."""
    shape, width = SHAPES[name]
    x, dy = draw(np.float32, 15, 3 * width), draw(np.float32, 15, 3 * width, seed=1)
    gamma = draw(np.float32, 3 * width, mean=1, seed=2)
    _, mean, rstd = reference.group_norm(x, groups=3)
    saved = np.float64(mean).ravel(), np.float64(rstd).ravel()
    case = Case(shape, weights=(gamma, gamma), channels=3, parts=6)
    dx, dgamma, dbeta = gradients(case, dy.reshape(45, -1), x.reshape(45, -1), *saved)
    expected = reference.group_norm_backward(dy, x, gamma, groups=3)
    check(dx.reshape(x.shape), expected[0], x.dtype)
    check(dgamma, expected[1], x.dtype, 15)
    check(dbeta, expected[2], x.dtype, 15)


def test_parameters_of_another_type(order):
    shape, width = SHAPES["several rows a warp"]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    gamma = draw(ml_dtypes.bfloat16, width, mean=1, seed=2)
    mean, rstd = statistics(x)
    arrays = dy, x, mean, rstd
    dx, dgamma, dbeta = gradients(
        Case(shape, weights=(gamma, gamma)), *arrays, dtype=ml_dtypes.bfloat16
    )
    wide = gamma.astype(np.float32)
    same = gradients(Case(shape, weights=(wide, wide)), *arrays, dtype=np.float64)
    assert dx.tobytes() == same[0].tobytes()
    np.testing.assert_array_equal(dgamma, same[1].astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(dbeta, same[2].astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("shape", [RowShape(1, 32, 1, False), RowShape(64, 1, 1, False)])
def test_sums_of_many_rows(shape, order):
    rows = 20 * ROWS_BETWEEN_FLUSHES * shape.teams if shape.teams > 1 else 200
    x, dy = draw(np.float32, rows, 2), draw(np.float32, rows, 2, mean=30, seed=1)
    mean, rstd = statistics(x)
    _, sums = backward(Case(shape, parts=1), dy, x, mean, rstd)
    expected = reference.layer_norm_backward(dy, x)[1:]
    # 32 rows are added in float32, with an error of their sum that is an eps or less by far;
    # the sum of 20,000 rows one by one is off by dozens.
    bound = 2 * np.finfo(np.float32).eps * np.abs(dy).sum(0)
    for one, of in zip(sums[:, 0], expected, strict=True):
        assert np.all(np.abs(one - of) <= bound)


@pytest.mark.parametrize("shape", [RowShape(32, 1, 1, False), RowShape(32, 1, 1, True)])
def test_flushes_lose_nothing(shape, order):
    """With the number of flushes of 20,000 rows, the sum is the exact sum, rounded."""
    flush, width, count = make_flush(FLOAT32, shape), 4, 625
    values = np.abs(draw(np.float32, count, width)) + 1
    sums, lost = np.full((2, width), np.nan, np.float32)
    column = (lambda k: k) if shape.whole else (lambda k: 0)

    def kernel(partials):
        thread = cuda.threadIdx.x
        at, mine = thread * (4 if shape.whole else 1), np.zeros(4, np.float32)
        for i in range(count):
            for k in range(4):
                mine[k] = values[i, at + column(k)] if at + column(k) < width else 0
            flush(mine, at, width, 0, i == 0, i == count - 1, partials, None)

    kernel = Kernel(kernel, (SUMS,), shape.threads)
    kernel.launch(1, 0, PartialSums(*addresses(sums, lost)))
    expected = np.float64(values.sum(0, dtype=np.float64))
    np.testing.assert_array_equal(sums, np.float32(expected))


@pytest.mark.parametrize("strips", [1, 8])
@pytest.mark.parametrize("of", DTYPES)
def test_parameter_gradients_of_many_parts(of, strips, order):
    sums = np.abs(draw(np.float32, 2, 300, 70)) + 1
    found = parameter_gradients(FLOAT32, sums, element_type(of), strips)
    expected = reference.exact(sums).sum(1)
    if of == "float64":  # both parts of the sum are in it
        np.testing.assert_allclose(found, np.float64(expected), rtol=1e-12)
    else:
        np.testing.assert_array_equal(found, np.float32(expected).astype(found.dtype))


def test_flow_through_the_deviation(order):
    from numnorm.backends.cuda.statistics.row_statistics import make_scale_gradient_factor

    for element in (FLOAT32, FLOAT64):
        flow = make_scale_gradient_factor(element)
        for rstd, eps in ((0.5, 0.25), (2.0, 0.5), (4.0, 0.5), (np.nan, 0.1), (3.0, 0.0)):
            found = flow(element.compute_type(rstd), element.compute_type(eps))
            assert type(found) is element.compute_type
            np.testing.assert_allclose(found, scale_gradient_factor(rstd, eps), rtol=1e-6)
