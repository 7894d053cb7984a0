"""Where results go: to `out`, which may lie anywhere and overlap any argument."""

import numpy as np
import pytest
from layouts import strided, unaligned
from norm_cases import NORMS, few_norms, norms_with_gamma
from norm_checks import BFLOAT16, check_backward, check_forward, draw, draw_all, unchanged

import numnorm


def fresh(array):
    return np.full(array.shape, 77, array.dtype)


def transposed(array):
    return np.full(array.shape[::-1], 77, array.dtype).T


def with_gaps(array):
    return strided(np.full(array.shape, 77, array.dtype))


def with_margins(array):
    """The array in a longer one, which is the first result."""
    line = np.full(array.size + 6, 77, array.dtype)
    inside = line[3:-3].reshape(array.shape)
    inside[...] = array
    return line, inside


OUTPUTS = [fresh, transposed, with_gaps, unaligned]
OVERLAPS = {
    "itself": lambda line, inside: inside,
    "itself-backwards": lambda line, inside: inside[::-1],
    "before": lambda line, inside: line[:-6].reshape(inside.shape),
    "after": lambda line, inside: line[6:].reshape(inside.shape),
}


@few_norms([BFLOAT16, np.float32])
@pytest.mark.parametrize("output", OUTPUTS)
def test_the_result_goes_to_out(name, dtype, which, output):
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype, which)
    with unchanged(x, dy):
        saved = check_forward(norm, x, *parameters, out=output(x))
        check_backward(norm, dy, x, saved, *parameters[:1], out=output(x))


def test_the_gaps_of_out_are_left_alone():
    x = draw((7, 33), np.float32, 0)
    out = with_gaps(x)
    numnorm.layer_norm(x, out=out)
    gaps = np.ones(out.base.shape, bool)
    gaps[::2, ::2] = False
    np.testing.assert_array_equal(out.base[gaps], 77)


@few_norms([BFLOAT16, np.float32])
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_out_overlaps_x(name, dtype, which, overlap):
    norm = NORMS[name]
    x, _, *parameters = draw_all(norm, dtype, which)
    line, inside = with_margins(x)
    check_forward(norm, inside, *parameters, out=OVERLAPS[overlap](line, inside))


@few_norms([BFLOAT16, np.float32])
@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("overlapped", ["dy", "x"])
def test_the_gradient_overlaps_an_input(name, dtype, which, overlap, overlapped):
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype, which)
    saved = check_forward(norm, x, *parameters)
    line, inside = with_margins(x if overlapped == "x" else dy)
    out = OVERLAPS[overlap](line, inside)
    if overlapped == "x":
        check_backward(norm, dy, inside, saved, *parameters[:1], out=out)
    else:
        check_backward(norm, inside, x, saved, *parameters[:1], out=out)


def inside_of(out, start, array):
    """The values of `array` in the memory of `out`, from its element `start` on."""
    view = out.reshape(-1)[start : start + array.size].reshape(array.shape)
    view[...] = array
    return view


@norms_with_gamma([np.float32, np.float64], ["both"], always=False)
@pytest.mark.parametrize("start", [0, 1])
def test_out_overlaps_a_parameter(name, dtype, which, start):
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype, which)
    saved = check_forward(norm, x, *parameters)
    for number, parameter in enumerate(parameters):
        out = fresh(x)
        others = list(parameters)
        others[number] = inside_of(out, start, parameter)
        check_forward(norm, x, *others, out=out)
    out = fresh(x)
    check_backward(norm, dy, x, saved, inside_of(out, start, parameters[0]), out=out)


# The statistics are float64, and only an array of that dtype can lie in the same memory.
@few_norms([np.float64], always=False)
def test_the_gradient_overlaps_a_statistic(name, dtype, which):
    norm = NORMS[name]
    x, dy, *parameters = draw_all(norm, dtype)
    saved = check_forward(norm, x, *parameters)
    for number, statistic in enumerate(saved):
        out = fresh(x)
        others = list(saved)
        others[number] = inside_of(out, 1, statistic)
        check_backward(norm, dy, x, others, out=out)


def test_out_on_a_parameter_of_another_item_size():
    # The same memory, but not the same elements in the same places.
    rng = np.random.default_rng(0)
    gamma, x = rng.random(512, np.float32), rng.normal(size=(2, 512)).astype(np.float16)
    expected = numnorm.layer_norm(x, gamma)
    found = numnorm.layer_norm(x, gamma, out=gamma.view(np.float16).reshape(2, 512))
    np.testing.assert_array_equal(found, expected)
