"""One step of a GRU forward and backward, in every order of threads, beside the CPU's."""

import dataclasses

import cell_cases as cells
import numpy as np
import pytest
from kernel_arrays import addresses, in_dtype
from step_checks import ROWS, assert_close, flow_numbers, scaling_numbers

from numnorm.backends.cuda.compiler.element_type import ELEMENTS
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.gru.backward_kernel import make_gru_backward
from numnorm.backends.cuda.recurrent.gru.forward_kernel import make_gru_forward
from numnorm.backends.cuda.recurrent.gru.gates import places
from numnorm.rnn.forms import gru_form

FORMS = [pytest.param(form, id=form.name) for form in cells.GRU_FORMS]
SOME_FORMS = [
    pytest.param(form, id=form.name)
    for form in (cells.zoned(gru_form("layer")), gru_form("rms").cell)
]


def ada_numbers(form):
    return (1.0, 0.1) if form.norm is not None and form.norm.parameters == 0 else (1.0, 0.0)


def weights_of(problem, dtype):
    """The offsets of both gates, of the rest, and of what r lets pass, and both gammas."""
    given, two = problem.given, 2 * problem.states[0].shape[1]
    beta_x, beta_h = (0 * given.bias if b is None else b for b in (given.beta_x, given.beta_h))
    offset = given.bias + beta_x
    offsets = offset[:two] + beta_h[:two], offset[two:], given.bias_h + beta_h[two:]
    return in_dtype(dtype, *offsets, given.gamma_h, given.gamma_x)


def forward(problem, shape, dtype, *, save=True, in_place=False):
    """h, and what is saved: both products and the statistics."""
    form, given, element = problem.form, problem.given, ELEMENTS[dtype]
    (h,) = in_dtype(dtype, *problem.states)
    rows, units = h.shape
    z = (problem.states[0] @ given.weight_h.T).astype(dtype)
    xp = (problem.x @ given.weight_x.T).astype(dtype)
    new = h if in_place else np.full_like(h, np.nan)
    table = np.full((rows, places(form), NUMBERS), np.nan, dtype)
    kernel = make_gru_forward(form, element, shape)
    kernel.launch(
        -(-rows // shape.teams), 0,
        *addresses(z, xp, *weights_of(problem, dtype), *in_dtype(dtype, *problem.keeps), h, new),
        *addresses(table if save else None), rows, units, *ada_numbers(form),
        *scaling_numbers(problem.eps, 2 * units), *scaling_numbers(problem.eps, units),
    )  # fmt: skip
    return new, z, xp, table


def backward(problem, shape, dtype):
    """What reaches z, xp, what the norms make of both, and the state before, of one step."""
    form, element = problem.form, ELEMENTS[dtype]
    _, z, xp, table = forward(problem, shape, dtype)
    before, dy, dh, *keeps = in_dtype(dtype, *problem.states, *problem.slopes, *problem.keeps)
    rows, units = dh.shape
    dz, dxp, slopes_z, slopes_x = np.full((4, rows, 3 * units), np.nan, dtype)
    kernel = make_gru_backward(form, element, shape)
    kernel.launch(
        -(-rows // shape.teams), 0,
        *addresses(z, xp, before, table, *weights_of(problem, dtype), *keeps, dy, None, dh),
        *addresses(dz, dxp, slopes_z, slopes_x), rows, 0, units, *ada_numbers(form),
        *flow_numbers(form.norm, 2 * units), *flow_numbers(form.norm, units),
    )  # fmt: skip
    results = (dz, dxp) if form.norm else (slopes_z, slopes_x)
    return *results, slopes_z, slopes_x, dh


def check_step(form, name, dtype):
    shape, units = cells.shape_for(name, dtype)
    problem = cells.problem(form, units, (ROWS if shape.teams > 1 else 2,), dtype=dtype)
    check_forward(problem, shape, dtype)
    check_backward(problem, shape, dtype)


def check_forward(problem, shape, dtype):
    batch = problem.states[0].shape[0]
    _, ((state,), _) = problem.forward
    h, _, _, table = forward(problem, shape, dtype)
    assert_close(h, state[batch:], dtype, "h")
    assert not np.isnan(table).any()
    same, *_ = forward(problem, shape, dtype, save=False, in_place=True)
    assert h.tobytes() == same.tobytes()


def check_backward(problem, shape, dtype):
    expected, given, units = problem.backward, problem.given, problem.states[0].shape[1]
    dz, dxp, slopes_z, slopes_x, dh = backward(problem, shape, dtype)
    assert_close(dz @ given.weight_h + dh, expected.states[0], dtype, "dh")
    assert_close(dxp @ given.weight_x, expected.dx, dtype, "dx")
    of = expected.parameters
    assert_close(dxp.T @ problem.x, of["weight_x"], dtype, "weight_x")
    assert_close(dz.T @ problem.states[0], of["weight_h"], dtype, "weight_h")
    assert_close(slopes_x.sum(axis=0), of["bias"], dtype, "bias")
    assert_close(slopes_z.sum(axis=0), of["beta_h"], dtype, "beta_h")
    assert_close(slopes_z[:, 2 * units :].sum(axis=0), of["bias_h"], dtype, "bias_h")


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


def scaled(problem, factors):
    """The same with the products of each row times a factor, by its states and its input."""
    factors = np.array(factors)[:, None]
    (h,) = problem.states
    return dataclasses.replace(problem, states=(h * factors,), x=problem.x * factors)


@pytest.mark.parametrize(
    ("name", "eps"), [("several rows a warp", 1e-5), ("odd, several warps a row", 0.0)]
)
@pytest.mark.parametrize("form", SOME_FORMS)
def test_products_of_any_scale_beside_each_other(form, name, eps, order):
    shape, units = cells.shape_for(name, "float32")
    factors = [1, 1e-25, 1e36]
    problem = cells.problem(form, units, (len(factors),), dtype="float32", eps=eps)
    problem = scaled(problem, factors)
    _, ((state,), _) = problem.forward
    h, *_ = forward(problem, shape, "float32")
    # A state that is kept in part is as large as it was.
    size = np.maximum(1, np.abs(factors))[:, None]
    assert_close(h / size, state[len(factors) :] / size, "float32")


@pytest.mark.parametrize("name", ["several rows a warp", "odd, several warps a row"])
def test_constant_products_without_epsilon(name, order):
    # Their normalized value is 0 by convention, whatever the rounding of a mean.
    shape, units = cells.shape_for(name, "float32")
    problem = cells.problem(gru_form("layer").cell, units, (2,), inputs=1, eps=0.0)
    given = problem.given
    given = given._replace(
        weight_x=np.full_like(given.weight_x, 0.3), weight_h=0 * given.weight_h,
        bias=0 * given.bias + 0.1, bias_h=0 * given.bias_h + 0.7, beta_x=0 * given.bias,
        beta_h=0 * given.bias,
    )  # fmt: skip
    problem = dataclasses.replace(problem, given=given)
    h, *_ = forward(problem, shape, "float32")
    z = 1 / (1 + np.exp(-0.1))
    expected = (1 - z) * problem.states[0] + z * np.tanh(0.1 + z * 0.7)
    assert_close(h, expected, "float32")
