"""The accuracy that a CPU is held to, of the kernels for devices: the same cases and bounds.

A simulated device rounds after each multiplication, where a real one may fuse it with an addition
and round once: its errors are at most the errors of the simulation.
"""

import numpy as np
import pytest
import reference
from accuracy_cases import (
    AWKWARD_ROWS,
    CENTRED,
    CONSTANTS,
    DETACHED_MEANS,
    EXTREMES,
    FLOAT32_MEANS,
    FLOAT32_SCALES,
    FLOAT64_MEANS,
    FLOAT64_SCALES,
    HALF_CASES,
    HALF_UNIT,
    NAMES,
    OF_ROWS,
    SCALES_OF_FLOAT64_CHANNELS,
    WEIGHT_NORM_SCALES,
    WITH_GAMMA,
    Roundings,
    assert_error,
    assert_forward,
    check_at_scale,
    check_awkward_rows,
    check_detached_at_mean,
    check_end_of_the_range,
    check_float32_at_mean,
    check_float64_at_mean,
    check_gradient_of_constant_rows,
    check_no_gradient_of_constant_rows,
    check_parameters,
    check_right_or_nan,
    check_rounded_once,
    check_scales_side_by_side,
    constant_rows,
    draw,
    needs_wide_longdouble,
    norms_of,
)

import numnorm
from numnorm.backends.cuda.compiler.element_type import FLOAT32
from numnorm.backends.cuda.threads.row_shape import launch_shape

ROWS = 4
# In the registers of a part of a block, with elements to spare; in those of all its warps; and in
# none, for which the simulation of one norm has to do.
WARP_WIDE, BLOCK_WIDE, TOO_WIDE = 202, 1028, 16386
# Two units of the largest value; without AdaNorm, at any mean and scale, 3.3 halves were the most.
ROUNDINGS = Roundings(4, 4)
# Those with kernels of their own.
WIDE = ["layer", "rms", "ada", "group", "batch", "batch-images"]

each_norm = pytest.mark.parametrize("name", NAMES)


def each_norm_and_width(names):
    """Few rows of the wide ones: each has threads of its own to simulate."""
    narrow = [(name, ROWS, WARP_WIDE) for name in names]
    wide = [(name, 2, BLOCK_WIDE) for name in names if name in WIDE]
    return pytest.mark.parametrize("name, rows, width", narrow + wide)


@pytest.fixture
def norms(imported):
    """The norms of rows of a width, on a device; what they return first is on the host."""
    take = imported("cupy").take

    def taken(arrays):
        return (take(array) if isinstance(array, np.ndarray) else array for array in arrays)

    def forward_of(function):
        def forward(*arrays, **options):
            y, *saved = function(*taken(arrays), **options)
            return y.host, *saved

        return forward

    def backward_of(function):
        def backward(*arrays, **options):
            gradients = function(*taken(arrays), **options)
            gradients = gradients if isinstance(gradients, tuple) else (gradients,)
            return tuple(gradient.host for gradient in gradients)

        return backward

    def norms_on_a_device(rows, width):
        return {
            name: norm._replace(
                forward=forward_of(norm.forward), backward=backward_of(norm.backward)
            )
            for name, norm in norms_of(rows, width, roundings=ROUNDINGS).items()
        }

    return norms_on_a_device


def test_the_widths_are_of_different_kernels():
    narrow, wide, wider = (
        launch_shape(width, FLOAT32, aligned=True) for width in (WARP_WIDE, BLOCK_WIDE, TOO_WIDE)
    )
    assert narrow.team == 32 < wide.team
    assert wide.vectors > 0 == wider.vectors


# Offsets


@each_norm_and_width(NAMES)
@pytest.mark.parametrize("mean", FLOAT32_MEANS)
def test_float32_at_any_mean(norms, name, rows, width, mean):
    check_float32_at_mean(norms(rows, width)[name], mean)


@each_norm_and_width(NAMES)
@pytest.mark.parametrize("mean", FLOAT64_MEANS)
def test_float64_at_any_mean(norms, name, rows, width, mean):
    check_float64_at_mean(norms(rows, width)[name], mean)


@pytest.mark.parametrize("mean", FLOAT32_MEANS)
def test_rows_that_no_registers_hold_at_any_mean(norms, mean):
    norm = norms(2, TOO_WIDE)["layer"]
    assert_forward(norm, norm.draw(np.float32, mean), 1e-5)


@pytest.mark.parametrize("detach", ["mean", "scale", "both"])
@pytest.mark.parametrize("mean", DETACHED_MEANS)
def test_detached_gradients_at_any_mean(norms, detach, mean):
    check_detached_at_mean(norms(ROWS, WARP_WIDE)["layer"], detach, mean)


@pytest.mark.parametrize("name", WITH_GAMMA)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parameters_keep_the_accuracy(norms, name, dtype):
    check_parameters(norms(ROWS, WARP_WIDE)[name], dtype)


@each_norm
@pytest.mark.parametrize("rows", AWKWARD_ROWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_awkward_rows(norms, name, rows, dtype):
    check_awkward_rows(norms(ROWS, WARP_WIDE)[name], rows, dtype)


@pytest.mark.parametrize("rows", AWKWARD_ROWS)
def test_awkward_rows_that_no_registers_hold(norms, rows):
    check_awkward_rows(norms(2, TOO_WIDE)["layer"], rows, np.float32)


# Scales


@each_norm_and_width(NAMES)
@pytest.mark.parametrize("scale", FLOAT32_SCALES)
@pytest.mark.parametrize("eps", [0, 1e-5])
def test_float32_at_any_scale(norms, name, rows, width, scale, eps):
    check_at_scale(norms(rows, width)[name], np.float32, scale, eps)


@pytest.mark.parametrize("scale", FLOAT32_SCALES)
def test_rows_that_no_registers_hold_at_any_scale(norms, scale):
    norm = norms(2, TOO_WIDE)["layer"]
    assert_forward(norm, norm.draw(np.float32, 0, scale), 0)


@needs_wide_longdouble
@each_norm_and_width(OF_ROWS)
@pytest.mark.parametrize("scale", FLOAT64_SCALES)
def test_float64_at_any_scale(norms, name, rows, width, scale):
    check_at_scale(norms(rows, width)[name], np.float64, scale, 0)


@needs_wide_longdouble
@pytest.mark.parametrize("name", ["batch", "batch-images"])
@pytest.mark.parametrize("scale", SCALES_OF_FLOAT64_CHANNELS)
def test_a_float64_channel_is_right_or_nan(norms, name, scale):
    check_right_or_nan(norms(ROWS, WARP_WIDE)[name], scale)


@needs_wide_longdouble
@each_norm
@pytest.mark.parametrize("dtype, unit", EXTREMES)
def test_the_ends_of_the_range(norms, name, dtype, unit):
    check_end_of_the_range(norms(ROWS, WARP_WIDE)[name], dtype, unit)


@each_norm
def test_rows_of_different_scales_side_by_side(norms, name):
    check_scales_side_by_side(norms(8, WARP_WIDE)[name])


@each_norm
@pytest.mark.parametrize("dtype, mean, scale", HALF_CASES)
def test_halves_are_rounded_once(norms, name, dtype, mean, scale):
    check_rounded_once(norms(ROWS, WARP_WIDE)[name], dtype, mean, scale)


@pytest.mark.parametrize("scale", WEIGHT_NORM_SCALES)
def test_weight_norm_at_any_scale(imported, scale):
    take, x = imported("cupy").take, draw(np.float32, 0, scale, ROWS, WARP_WIDE)
    g = draw(np.float32, 1, 1, 1, ROWS, seed=2)[0]
    y, norm = numnorm.weight_norm_forward(take(x), take(g))
    for mine, theirs in zip((y, norm), reference.weight_norm(x, g), strict=True):
        assert_error(mine.host, theirs, ROUNDINGS.forward * HALF_UNIT[np.float32])


# Constant rows


@pytest.mark.parametrize("name", CENTRED)
@pytest.mark.parametrize("dtype", CONSTANTS)
@pytest.mark.parametrize("eps", [0, 1e-5])
@pytest.mark.parametrize("width", [2, 34])
def test_a_constant_row_is_exactly_zero(norms, name, dtype, eps, width):
    rows = constant_rows(dtype, width)
    norm = norms(len(rows), width)[name]
    y = norm.run(norm.arrange(rows), eps)[0]
    np.testing.assert_array_equal(y, np.zeros_like(y))


@pytest.mark.parametrize("dtype", CONSTANTS)
@pytest.mark.parametrize("name", CENTRED)
def test_a_constant_row_without_eps_has_no_gradient(norms, dtype, name):
    check_no_gradient_of_constant_rows(norms(8, 34)[name], dtype)


@each_norm
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gradient_of_a_constant_row_with_eps(norms, name, dtype):
    check_gradient_of_constant_rows(norms(ROWS, WARP_WIDE)[name], dtype)
