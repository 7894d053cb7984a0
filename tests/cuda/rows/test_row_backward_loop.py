"""The backward kernels of rows that no registers hold: the definitions, in every order."""

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

from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT32
from numnorm.backends.cuda.rows.arguments import PartialSums, RowSizes, SavedStatistics
from numnorm.backends.cuda.rows.backward_loop_kernel import (
    COEFFICIENTS,
    make_row_backward_coefficients,
    make_row_backward_columns,
    make_row_backward_loop,
)
from numnorm.backends.cuda.rows.parameter_sums import ROWS_BETWEEN_FLUSHES
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.cuda.threads.row_shape import RowShape, segment_shape
from numnorm.norms.ada import ADA
from numnorm.norms.affine import GAIN

# Rows that take a block several turns, and several blocks by columns; the last ones in part.
WHOLE, ANYWHERE = RowShape(64, 1, 0, True), RowShape(64, 1, 0, False)
SHAPES = {"whole": (WHOLE, 1096), "odd": (ANYWHERE, 1027), "narrow": (WHOLE, 8)}
ROWS = 3


def result_like(case, dy, x):
    if case.in_place:
        return x if case.in_place == "x" else dy
    dx = np.full_like(x, np.nan)
    return dx if case.shape.whole else off_by_one(dx)


def of_columns(case, dy, x, mean, rstd):
    """dx and the sums of the parts, for parameters of columns."""
    rows, width = x.shape
    element, strip = ELEMENT_TYPES[x.dtype.name], RowShape(32, 1, 1, case.shape.whole)
    weights, dx = Weights(*(elements_of(array) for array in case.weights)), result_like(case, dy, x)
    parameters, sizes = parameters_of(case), RowSizes(rows, width, width, case.channels)
    first = make_row_backward_coefficients(case.formula, element, saved_of(x), weights, case.shape)
    second = make_row_backward_columns(case.formula, element, weights, case.parameters, strip)
    coefficients = np.full((rows, COEFFICIENTS), np.nan, element.compute_type)
    first.launch(
        rows, 0, *addresses(dy, x), SavedStatistics(*addresses(mean, rstd)), parameters,
        *addresses(coefficients), sizes, scaling_of(case, width),
    )  # fmt: skip
    table = case.parameters, case.parts // case.channels, case.channels * width
    sums, lost = np.full((2, *table), np.nan, element.compute_type)
    strips = -(-width // (32 * element.vector))
    second.launch(
        case.parts * strips, 0, *addresses(dy, x), parameters, *addresses(coefficients, dx),
        PartialSums(*addresses(sums, lost)), sizes, case.parts,
    )  # fmt: skip
    return dx, sums


def of_segments(case, dy, x, mean, rstd):
    """dx and the sums of the segments, for parameters that they share."""
    rows, width = x.shape
    element, segment = ELEMENT_TYPES[x.dtype.name], case.segment or width
    weights = Weights(*(elements_of(array) for array in case.weights), case.shared)
    kernel = make_row_backward_loop(
        case.formula, element, saved_of(x), weights, case.parameters, case.shape
    )
    dx, segments = result_like(case, dy, x), rows * width // segment
    sums = np.full(
        (case.parameters, segments // case.channels, case.channels), np.nan, element.compute_type
    )
    kernel.launch(
        rows, 0, *addresses(dy, x), SavedStatistics(*addresses(mean, rstd)), parameters_of(case),
        *addresses(dx), 0, PartialSums(*addresses(sums, None)),
        RowSizes(rows, width, segment, case.channels), rows, scaling_of(case, width),
    )  # fmt: skip
    return dx, sums


def gradients(case, dy, x, mean, rstd, dtype=None):
    dx, sums = (of_segments if case.shared else of_columns)(case, dy, x, mean, rstd)
    return dx, *parameter_gradients(ELEMENT_TYPES[x.dtype.name], sums, dtype or x.dtype)


def check_all(found, expected, dtype, coefficients):
    assert len(found) == len(expected)
    for one, of, count in zip(found, expected, (1, coefficients, coefficients), strict=False):
        check(one, of, dtype, count)


# Parameters of columns


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(name, dtype, order):
    dtype = element_type(dtype)
    shape, width = SHAPES[name]
    x, dy = draw(dtype, ROWS, width, mean=3), draw(dtype, ROWS, width, seed=1)
    gamma = draw(dtype, width, mean=1, seed=2)
    if not shape.whole:
        x, dy = off_by_one(x), off_by_one(dy)
    case = Case(shape, weights=(gamma, gamma))
    found = gradients(case, dy, x, *statistics(x))
    check_all(found, reference.layer_norm_backward(dy, x, gamma), dtype, ROWS)


@pytest.mark.parametrize("place", ["x", "dy"])
@pytest.mark.parametrize("name", SHAPES)
def test_in_place_without_gamma(name, place, order):
    shape, width = SHAPES[name]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    expected = reference.layer_norm_backward(dy, x)
    found = gradients(Case(shape, in_place=place), dy, x, *statistics(x))
    assert found[0] is {"x": x, "dy": dy}[place]
    check_all(found, expected, x.dtype, ROWS)


@pytest.mark.parametrize("parts", [1, 2, 8])
def test_more_or_fewer_parts_than_rows(parts, order):
    shape, width = SHAPES["odd"]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    found = gradients(Case(shape, parts=parts), dy, x, *statistics(x))
    check_all(found, reference.layer_norm_backward(dy, x), x.dtype, ROWS)


@pytest.mark.parametrize("name", ["narrow", "odd"])
def test_more_rows_than_are_summed_up_in_one_go(name, order):
    """None of the ones that 32 rows add up to, and that float32 has no place for, is lost."""
    shape, count = SHAPES[name][0], ROWS_BETWEEN_FLUSHES
    x, dy = draw(np.float32, 9 * count, 8), np.full((9 * count, 8), 1 / count, np.float32)
    dy[:count] = 0
    dy[0] = 2**25
    dbeta = gradients(Case(shape, parts=1), dy, x, *statistics(x))[2]
    np.testing.assert_array_equal(dbeta, 2**25 + 8)


def test_rms_norm(order):
    shape, width = SHAPES["odd"]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    gamma = draw(np.float32, width, mean=1, seed=2)
    rstd = np.float64(reference.rms_norm(x)[1])
    case = Case(shape, GAIN, 1, (gamma, None), shares=(0.0, 1 / width))
    found = gradients(case, dy, x, None, rstd)
    check_all(found, reference.rms_norm_backward(dy, x, gamma), x.dtype, ROWS)


@pytest.mark.parametrize("detach", ["mean", "scale", "both"])
def test_detached_statistics(detach, order):
    shape, width = SHAPES["narrow"]
    x, dy = draw(np.float32, ROWS, width), draw(np.float32, ROWS, width, seed=1)
    shares = tuple(0.0 if detach in (of, "both") else 1 / width for of in ("mean", "scale"))
    dx, _ = of_columns(Case(shape, shares=shares), dy, x, *statistics(x))
    check(dx, reference.layer_norm_backward(dy, x, detach=detach)[0], x.dtype)


@pytest.mark.parametrize("name", ["whole", "odd"])
def test_parameters_of_channels_for_each_element(name, order):
    """Group norm without space: the rows of a sample have a gamma each."""
    shape, width = SHAPES[name]
    x, dy = draw(np.float32, 2, 3 * width), draw(np.float32, 2, 3 * width, seed=1)
    gamma = draw(np.float32, 3 * width, mean=1, seed=2)
    _, mean, rstd = reference.group_norm(x, groups=3)
    saved = np.float64(mean).ravel(), np.float64(rstd).ravel()
    case = Case(shape, weights=(gamma, gamma), channels=3, parts=3)
    found = gradients(case, dy.reshape(6, -1), x.reshape(6, -1), *saved)
    expected = reference.group_norm_backward(dy, x, gamma, groups=3)
    check_all((found[0].reshape(x.shape), *found[1:]), expected, x.dtype, 2)


@pytest.mark.parametrize("name", ["whole", "odd"])
def test_parameters_of_another_type(name, order):
    shape, width = SHAPES[name]
    x, dy = draw(np.float32, 2, width), draw(np.float32, 2, width, seed=1)
    gamma = draw(ml_dtypes.bfloat16, width, mean=1, seed=2)
    arrays = dy, x, *statistics(x)
    found = gradients(Case(shape, weights=(gamma, gamma)), *arrays, dtype=ml_dtypes.bfloat16)
    wide = gamma.astype(np.float32)
    same = gradients(Case(shape, weights=(wide, wide)), *arrays)
    assert found[0].tobytes() == same[0].tobytes()
    for one, of in zip(found[1:], same[1:], strict=True):
        np.testing.assert_array_equal(one, of.astype(ml_dtypes.bfloat16))


def test_rows_of_any_scale_and_mean_beside_each_other(order):
    shape, width = SHAPES["odd"]
    scales = np.array([1, 1e30, 1e-30, 1e38, 1e-38, 1])[:, None]
    x = (scales * draw(np.float64, 6, width) / 10).astype(np.float32)
    x[5] += np.float32(1e7)
    dy = draw(np.float32, 6, width, seed=1)
    dx, _ = of_columns(Case(shape), dy, x, *statistics(x, eps=0.0))
    expected = reference.layer_norm_backward(dy, x, eps=0.0)[0]
    inside = np.abs(expected) < np.finfo(np.float32).max
    dx, expected = np.where(inside, dx, 0), np.where(inside, expected, 0)
    largest = np.abs(expected).max(axis=1, keepdims=True)
    smallest = float(np.finfo(np.float32).smallest_subnormal)
    assert np.all(np.abs(dx - expected) <= 16 * np.finfo(np.float32).eps * largest + smallest)


def test_an_infinite_gradient_is_infinite(order):
    shape, width = SHAPES["narrow"]
    x, dy = draw(np.float32, 70, width), draw(np.float32, 70, width, seed=1)
    dy[2, 5] = np.inf
    dbeta = gradients(Case(shape, parts=1), dy, x, *statistics(x))[2]
    assert dbeta[5] == np.inf
    assert np.isfinite(np.delete(dbeta, 5)).all()


# Parameters of segments, and none


# How many threads work on a segment, and how long it is: threads that turn to it several times or
# not at all, teams of a warp and of parts of one, and the block, which takes one at a time.
SEGMENTS = {
    "one thread each": (RowShape(1, 64, 0, True), 24),
    "a part of a warp each": (RowShape(8, 8, 0, False), 75),
    "a warp each": (RowShape(32, 2, 0, True), 88),
    "the block": (WHOLE, 552),
    "the block, odd": (ANYWHERE, 523),
    "the block, short": (ANYWHERE, 5),
}


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("name", SEGMENTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_group_norm(name, groups, dtype, order):
    dtype = element_type(dtype)
    shape, inner = SEGMENTS[name]
    x, dy = draw(dtype, 2, 6, inner, mean=3), draw(dtype, 2, 6, inner, seed=1)
    gamma = draw(dtype, 6, mean=1, seed=2)
    if not shape.whole:
        x, dy = off_by_one(x), off_by_one(dy)
    _, mean, rstd = reference.group_norm(x, groups=groups)
    kind = saved_of(x).name
    saved = (np.asarray(of).astype(kind).ravel() for of in (mean, rstd))
    case = Case(shape, weights=(gamma, gamma), segment=inner, channels=6, shared=True)
    found = gradients(case, *(a.reshape(2 * groups, -1) for a in (dy, x)), *saved)
    expected = reference.group_norm_backward(dy, x, gamma, groups=groups)
    check_all((found[0].reshape(x.shape), *found[1:]), expected, dtype, 2)


@pytest.mark.parametrize("place", ["x", "dy"])
@pytest.mark.parametrize("name", SEGMENTS)
def test_instance_norm_in_place(name, place, order):
    """Without gamma; the teams that have no segment change none."""
    shape, inner = SEGMENTS[name]
    x, dy = draw(np.float32, 2, 3, inner), draw(np.float32, 2, 3, inner, seed=1)
    _, mean, rstd = reference.group_norm(x, groups=3)
    expected = reference.group_norm_backward(dy, x, groups=3)
    case = Case(shape, segment=inner, channels=3, shared=True, in_place=place)
    saved = np.float64(mean).ravel(), np.float64(rstd).ravel()
    found = gradients(case, dy.reshape(6, -1), x.reshape(6, -1), *saved)
    check_all((found[0].reshape(x.shape), *found[1:]), expected, x.dtype, 2)


@pytest.mark.parametrize("of", ["bfloat16", "float64"])
def test_one_parameter_of_another_type(of, order):
    """As a norm without a mean would have it of segments."""
    shape, inner = SEGMENTS["the block, odd"]
    x, dy = draw(np.float32, 2, 3 * inner), draw(np.float32, 2, 3 * inner, seed=1)
    gamma = draw(element_type(of), 3, mean=1, seed=2)
    rstd = np.float64(reference.rms_norm(x)[1])
    shares = 0.0, 1 / x.shape[1]
    case = Case(
        shape, GAIN, 1, (gamma, None), segment=inner, channels=3, shared=True, shares=shares
    )  # fmt: skip
    dx, dgamma = gradients(case, dy, x, None, rstd, dtype=np.float32)
    wide = np.repeat(np.float64(gamma), inner)
    expected = reference.rms_norm_backward(dy, x, wide)
    check(dx, expected[0], x.dtype)
    check(dgamma, expected[1].reshape(3, -1).sum(1), x.dtype, inner)


@pytest.mark.parametrize("eps_in", ["variance", "std"])
@pytest.mark.parametrize("name", ["whole", "odd"])
def test_ada_norm(name, eps_in, order):
    shape, width = SHAPES[name]
    x, dy = draw(np.float32, 2, width), draw(np.float32, 2, width, seed=1)
    specs = {"eps": 0.5, "eps_in": eps_in, "ddof": 1}
    _, mean, _ = reference.ada_norm(x, **specs)
    rstd = 1 / reference.ada_denominator(reference.exact(x), (1,), **specs)[0][:, 0]
    case = Case(
        shape, ADA.formula, 0, numbers=(1.5, 0.1), shares=(1 / width, 1 / (width - 1)),
        eps_on_deviation=0.5 if eps_in == "std" else 0.0,
    )  # fmt: skip
    dx, _ = of_segments(case, dy, x, np.float64(mean), np.float64(rstd))
    check(dx, reference.ada_norm_backward(dy, x, scale=1.5, k=0.1, **specs), x.dtype)


def test_a_detached_statistic_passes_no_nan_on(order):
    shape, width = SHAPES["odd"]
    x, dy = draw(np.float32, 2, width), draw(np.float32, 2, width, seed=1)
    dy[1, 9] = np.nan
    case = Case(shape, parameters=0, shares=(0.0, 0.0))
    dx, _ = of_segments(case, dy, x, *statistics(x))
    assert np.isnan(dx).sum() == np.isnan(dx[1, 9]) == 1


def test_sums_of_a_long_segment(order):
    """None of the ones that a thread adds to many, and that float32 has no place for, is lost."""
    x, dy = draw(np.float32, 1, 9 * 16), np.full((1, 9 * 16), 1 / 4, np.float32)
    dy[0, :16] = 0
    dy[0, 0] = 2**25
    case = Case(RowShape(4, 8, 0, False), shared=True)
    dbeta = gradients(case, dy, x, *statistics(x))[2]
    np.testing.assert_array_equal(dbeta, 2**25 + 4 * 8)


@pytest.mark.parametrize("kernels", [of_columns, of_segments])
def test_sums_of_a_wide_row(kernels, order):
    """A gradient that is constant has a mean that is, though each sum of its is rounded alike."""
    x, dy = draw(np.float32, 1, 16000), np.full((1, 16000), 1.7, np.float32)
    mean, rstd = statistics(x)
    dx, _ = kernels(Case(RowShape(32, 1, 0, False), parameters=1, parts=1), dy, x, mean, rstd)
    assert np.all(np.abs(dx) <= 4 * np.finfo(np.float32).eps * rstd)


def test_an_infinite_gradient_of_a_segment_is_infinite(order):
    shape, inner = SEGMENTS["a part of a warp each"]
    x, dy = draw(np.float32, 2, 3 * inner), draw(np.float32, 2, 3 * inner, seed=1)
    dy[1, inner + 3] = np.inf
    case = Case(shape, segment=inner, channels=3, shared=True)
    dbeta = gradients(case, dy, x, *statistics(x))[2]
    assert dbeta[1] == np.inf
    assert np.isfinite(dbeta[[0, 2]]).all()


# How the threads of a block share the segments


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("element", ELEMENT_TYPES.values(), ids=ELEMENT_TYPES)
def test_segments_of_every_length(element, whole):
    block = RowShape(512, 1, 0, whole)
    for segment in range(1, 2000):
        shape = segment_shape(64 * segment, segment, element, block)
        assert shape.threads == 512
        assert shape.team <= 32
        # No thread has nothing to do for want of a narrower team.
        assert shape.team == 1 or segment > shape.team // 2 * element.vector
        assert shape.whole == (whole and segment % element.vector == 0)
        assert segment_shape(15 * segment, segment, element, block).team == 512


def test_rows_of_few_segments_take_the_block():
    assert segment_shape(40000, 2500, FLOAT32, RowShape(512, 1, 0, True)).team == 32
    assert segment_shape(40000, 40000, FLOAT32, RowShape(512, 1, 0, True)) == RowShape(
        512, 1, 0, True
    )
