"""One step of a plain recurrent network forward and backward, in every order of threads."""

import dataclasses

import cell_cases as cells
import numpy as np
import pytest
from kernel_arrays import addresses, in_dtype
from step_checks import DTYPES, ROWS, assert_close, flow_numbers, scaling_numbers

from numnorm.backends.cuda.compiler.element_type import ELEMENTS
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.rnn.backward_kernel import make_rnn_backward
from numnorm.backends.cuda.recurrent.rnn.forward_kernel import make_rnn_forward
from numnorm.backends.cuda.threads.activations import make_activation
from numnorm.rnn.forms import rnn_form

FORMS = [pytest.param(form, id=form.name) for form in cells.RNN_FORMS]
SOME_FORMS = [
    pytest.param(form, id=form.name)
    for form in (
        cells.zoned(rnn_form("layer", "tanh")),
        rnn_form("rms", "relu").cell,
        rnn_form(None, "tanh").cell,
    )
]


def ada_numbers(form):
    return (1.0, 0.1) if form.norm is not None and form.norm.parameters == 0 else (1.0, 0.0)


def weights_of(problem, dtype):
    given = problem.given
    terms = (p for p in (given.bias, given.beta) if p is not None)
    return in_dtype(dtype, sum(terms), given.gamma)


def forward(problem, shape, dtype, *, save=True):
    """The new state, and what is saved: the sums of both products and the statistics."""
    form, given, (h,) = problem.form, problem.given, in_dtype(dtype, *problem.states)
    rows, units = h.shape
    z = (problem.states[0] @ given.weight_h.T).astype(dtype)
    xp = (problem.x @ given.weight_x.T).astype(dtype)
    (keep,) = in_dtype(dtype, *problem.keeps)
    new = np.full_like(h, np.nan)
    table = np.full((rows, NUMBERS), np.nan, dtype)
    kernel = make_rnn_forward(form, ELEMENTS[dtype], shape)
    saved = (xp, table if form.norm else None) if save else (None, None)
    kernel.launch(
        -(-rows // shape.teams), 0,
        *addresses(z, xp, *weights_of(problem, dtype), keep, h, new, *saved),
        rows, units, *ada_numbers(form), *scaling_numbers(problem.eps, units),
    )  # fmt: skip
    return new, xp, table


def backward(problem, shape, dtype):
    """What reaches the sums, their norm's result, and the state past one step."""
    form, given = problem.form, weights_of(problem, dtype)
    _, sums, table = forward(problem, shape, dtype)
    rows, units = sums.shape
    dy, dh = in_dtype(dtype, *problem.slopes)
    (keep,) = in_dtype(dtype, *problem.keeps)
    dz, slopes = np.full((2, rows, units), np.nan, dtype)
    kernel = make_rnn_backward(form, ELEMENTS[dtype], shape)
    kernel.launch(
        -(-rows // shape.teams), 0,
        *addresses(sums, table if form.norm else None, *given, keep, dy, None, dh),
        *addresses(dz if form.norm else None, slopes),
        rows, 0, units, *ada_numbers(form), *flow_numbers(form.norm, units),
    )  # fmt: skip
    return dz if form.norm else slopes, slopes, dh


def check_step(form, name, dtype):
    shape, units = cells.shape_for(name, dtype)
    rows = ROWS if shape.teams > 1 else 2
    problem = cells.problem(form, units, (rows,), dtype=dtype)
    check_forward(problem, shape, dtype)
    check_backward(problem, shape, dtype)


def check_forward(problem, shape, dtype):
    _, ((state,), saved) = problem.forward
    h, sums, table = forward(problem, shape, dtype)
    assert_close(h, state[len(h) :], dtype, "h")
    assert_close(sums, saved.z, dtype, "sums")
    assert np.isnan(table).any() == (problem.form.norm is None)
    same, xp, nothing = forward(problem, shape, dtype, save=False)
    assert h.tobytes() == same.tobytes() and np.isnan(nothing).all()
    assert (xp == (problem.x @ problem.given.weight_x.T).astype(dtype)).all()


def check_backward(problem, shape, dtype):
    expected, given = problem.backward, problem.given
    dz, slopes, dh = backward(problem, shape, dtype)
    before = dz @ given.weight_h + (dh if problem.form.zoneout else 0)
    assert_close(before, expected.states[0], dtype, "dh")
    assert_close(dz @ given.weight_x, expected.dx, dtype, "dx")
    assert_close(dz.T @ problem.x, expected.parameters["weight_x"], dtype, "weight_x")
    assert_close(slopes.sum(axis=0), expected.parameters["bias"], dtype, "bias")


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form, order):
    # Narrow ones: a thread has all of a unit, whatever the form.
    check_step(form, "several rows a warp", "float32")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_float64(form):
    check_step(form, "several rows a warp", "float64")


@pytest.mark.parametrize("name", [name for name in cells.SHAPES if name != "several rows a warp"])
@pytest.mark.parametrize("form", SOME_FORMS)
def test_every_shape(form, name, order):
    check_step(form, name, "float32")


@pytest.mark.parametrize(
    ("name", "eps"), [("several rows a warp", 1e-5), ("odd, several warps a row", 0.0)]
)
@pytest.mark.parametrize("form", SOME_FORMS[:2])
def test_products_of_any_scale_beside_each_other(form, name, eps, order):
    shape, units = cells.shape_for(name, "float32")
    factors = np.array([1, 1e-25, 1e36])[:, None]
    problem = cells.problem(form, units, (3,), dtype="float32", eps=eps)
    states = (problem.states[0] * factors,)
    problem = dataclasses.replace(problem, states=states, x=problem.x * factors)
    _, ((state,), _) = problem.forward
    h, *_ = forward(problem, shape, "float32")
    for got, expected in zip(h, state[3:], strict=True):
        assert_close(got, expected, "float32")


@pytest.mark.parametrize("name", ["several rows a warp", "odd, several warps a row"])
def test_constant_sums_without_epsilon(name, order):
    # Their normalized value is 0 by convention, whatever the rounding of a mean.
    shape, units = cells.shape_for(name, "float32")
    form = rnn_form("layer", "tanh").cell
    problem = cells.problem(form, units, (2,), inputs=1, dtype="float32", eps=0.0)
    given = problem.given
    ones, none = np.ones_like(given.weight_x), np.zeros_like(given.weight_h)
    given = given._replace(weight_x=ones, weight_h=none)
    h, *_ = forward(dataclasses.replace(problem, given=given), shape, "float32")
    expected = np.tanh(given.bias + given.beta)
    assert_close(h, np.broadcast_to(expected, h.shape), "float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_rectifier(dtype):
    kind = np.dtype(dtype).type
    value, gradient = make_activation(ELEMENTS[dtype], rectified=True)
    x = [kind(v) for v in (-np.inf, -1, -0.0, 0, 2, np.inf, np.nan)]
    np.testing.assert_array_equal([value(v) for v in x], [0, 0, 0, 0, 2, np.inf, np.nan])
    slopes = [gradient(kind(3), value(v)) for v in x]
    np.testing.assert_array_equal(slopes, [0, 0, 0, 0, 3, 3, 3])
    assert {type(v) for v in slopes} == {kind}
