"""One step of an LSTM forward and backward, in every order of threads, beside the CPU's."""

import dataclasses
import itertools

import cell_cases as cells
import numpy as np
import pytest
from kernel_arrays import addresses, in_dtype
from step_checks import DTYPES, ROWS, assert_close, flow_numbers, scaling_numbers

from numnorm.backends.cuda.compiler.element_type import ELEMENTS
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.common.cell_shape import cell_shape
from numnorm.backends.cuda.recurrent.common.parameter_sums_kernel import make_cell_sums
from numnorm.backends.cuda.recurrent.lstm.backward_kernel import make_lstm_backward
from numnorm.backends.cuda.recurrent.lstm.forward_kernel import make_lstm_forward
from numnorm.backends.cuda.recurrent.lstm.gates import places
from numnorm.backends.cuda.threads.activations import make_sigmoid
from numnorm.rnn.forms import lstm_form

FORMS = [pytest.param(form, id=form.name) for form in cells.LSTM_FORMS]
SOME_FORMS = [
    pytest.param(form, id=form.name)
    for form in (
        lstm_form("layer", "paper").cell._replace(zoneout=True),
        lstm_form("rms", "normalized_cell").cell,
        lstm_form("layer", "per_gate").cell,
    )
]


def ada_numbers(form):
    norm = form.gates or form.cell
    return (1.0, 0.1) if norm is not None and norm.parameters == 0 else (1.0, 0.0)


def weights_of(problem, dtype):
    given = problem.given
    terms = (p for p in (given.bias, given.beta_x, given.beta_h) if p is not None)
    return in_dtype(dtype, sum(terms), given.gamma_h, given.gamma_x, given.gamma_c, given.beta_c)


def forward(problem, shape, dtype, *, save=True, in_place=False):
    """h, c, and what is saved: the sums of both products, the cell and the statistics."""
    form, (h, c) = problem.form, in_dtype(dtype, *problem.states)
    given, rows, units = problem.given, h.shape[0], h.shape[1]
    z = (problem.states[0] @ given.weight_h.T).astype(dtype)
    xp = (problem.x @ given.weight_x.T).astype(dtype)
    keeps, element = in_dtype(dtype, *problem.keeps), ELEMENTS[dtype]
    new_h, new_c = (h, c) if in_place else (np.full_like(h, np.nan), np.full_like(c, np.nan))
    cell = np.full_like(h, np.nan)
    table = np.full((rows, places(form), NUMBERS), np.nan, dtype)
    kernel = make_lstm_forward(form, element, shape)
    saved = (xp, cell, table) if save else (None,) * 3
    before = in_dtype(dtype, h, c) if not in_place else (h, c)
    kernel.launch(
        -(-rows // shape.teams), 0,
        *addresses(z, xp, *weights_of(problem, dtype), *keeps, *before, new_h, new_c, *saved),
        rows, units, *ada_numbers(form),
        *scaling_numbers(problem.eps, units if form.separate else 4 * units),
        *scaling_numbers(problem.eps, units),
    )  # fmt: skip
    return new_h, new_c, z, xp, cell, table


def backward(problem, shape, dtype):
    """What reaches z, xp, the gates, the normalized cell, and the cell before, of one step."""
    form, element, given = problem.form, ELEMENTS[dtype], weights_of(problem, dtype)
    h, c, z, xp, cell, table = forward(problem, shape, dtype)
    rows, units = h.shape
    dy, dh, dc = in_dtype(dtype, *problem.slopes)
    dz, dxp, slopes = np.full((3, rows, 4 * units), np.nan, dtype)
    dn = np.full_like(h, np.nan)
    apart = form.carries_normalized or form.zoneout
    kernel = make_lstm_backward(form, element, shape)
    kernel.launch(
        -(-rows // shape.teams), 0,
        *addresses(z if form.by_product else xp, xp if form.by_product else None),
        *addresses(cell if apart else c, *in_dtype(dtype, problem.states[1]), table, *given),
        *addresses(*in_dtype(dtype, *problem.keeps), dy, None, dh, dc, dz, dxp, slopes, dn),
        rows, 0, units, *ada_numbers(form),
        *flow_numbers(form.gates, units if form.separate else 4 * units),
        *flow_numbers(form.cell, units),
    )  # fmt: skip
    return dz if form.gates else slopes, dxp if form.by_product else None, slopes, dn, dh, dc


def check_step(form, name, dtype):
    shape, units = cells.shape_for(name, dtype)
    problem = cells.problem(form, units, (ROWS if shape.teams > 1 else 2,), dtype=dtype)
    check_forward(problem, shape, dtype)
    check_backward(problem, shape, dtype)


def check_forward(problem, shape, dtype):
    form, batch = problem.form, problem.states[0].shape[0]
    _, ((state, carried), saved) = problem.forward
    h, c, _, xp, cell, table = forward(problem, shape, dtype)
    assert_close(h, state[batch:], dtype, "h")
    assert_close(c, carried[batch:], dtype, "c")
    if form.carries_normalized or form.zoneout:
        assert_close(cell, saved.cell, dtype, "cell")
    if not form.by_product:
        assert_close(xp, saved.z, dtype, "sums")
    assert not np.isnan(table).any()
    same = forward(problem, shape, dtype, save=False, in_place=True)
    assert h.tobytes() == same[0].tobytes() and c.tobytes() == same[1].tobytes()


def check_backward(problem, shape, dtype):
    form, expected, given = problem.form, problem.backward, problem.given
    dz, dxp, slopes, dn, dh, dc = backward(problem, shape, dtype)
    of_x = dxp if form.by_product else dz
    assert_close(dc, expected.states[1], dtype, "dc")
    before = dz @ given.weight_h + (dh if form.zoneout else 0)
    assert_close(before, expected.states[0], dtype, "dh")
    assert_close(of_x @ given.weight_x, expected.dx, dtype, "dx")
    assert_close(of_x.T @ problem.x, expected.parameters["weight_x"], dtype, "weight_x")
    assert_close(slopes.sum(axis=0), expected.parameters["bias"], dtype, "bias")
    if form.cell and form.cell.parameters:
        assert_close(dn.sum(axis=0), expected.parameters["beta_c"], dtype, "beta_c")


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


def scaled(problem, dtype, factors):
    """The same with the products of each row times a factor, by its states and its input."""
    factors = np.array(factors)[:, None]
    h, c = problem.states
    return dataclasses.replace(problem, states=(h * factors, c), x=problem.x * factors)


@pytest.mark.parametrize(
    ("name", "eps"), [("several rows a warp", 1e-5), ("odd, several warps a row", 0.0)]
)
@pytest.mark.parametrize("form", SOME_FORMS)
def test_products_of_any_scale_beside_each_other(form, name, eps, order):
    shape, units = cells.shape_for(name, "float32")
    factors = [1, 1e-25, 1e36]
    problem = cells.problem(form, units, (len(factors),), dtype="float32", eps=eps)
    problem = scaled(problem, "float32", factors)
    check_forward(problem, shape, "float32")


@pytest.mark.parametrize("name", ["several rows a warp", "odd, several warps a row"])
def test_constant_products_and_cells_without_epsilon(name, order):
    # Their normalized value is 0 by convention, whatever the rounding of a mean.
    shape, units = cells.shape_for(name, "float32")
    form = lstm_form("layer", "paper").cell
    problem = cells.problem(form, units, (2,), inputs=1, dtype="float32", eps=0.0)
    given = problem.given
    ones = np.ones_like(given.weight_x)
    given = given._replace(
        weight_x=ones, weight_h=np.zeros_like(given.weight_h), bias=0 * given.bias + 0.1,
        beta_x=0 * given.bias, beta_h=0 * given.bias,
    )  # fmt: skip
    states = problem.states[0], np.full_like(problem.states[1], 0.3)
    problem = dataclasses.replace(problem, given=given, states=states)
    h, c, *_ = forward(problem, shape, "float32")
    expected = np.tanh(given.beta_c) / (1 + np.exp(-0.1))
    assert_close(h, np.broadcast_to(expected, h.shape), "float32")
    assert (c == c[0, 0]).all()


# What the gates are made of


@pytest.mark.parametrize("dtype", DTYPES)
def test_sigmoid(dtype):
    element, kind = ELEMENTS[dtype], np.dtype(dtype).type
    sigmoid = make_sigmoid(element)
    x = np.linspace(-80, 80, 1001).astype(dtype)
    found, wide = np.array([sigmoid(v) for v in x]), x.astype(np.longdouble)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-wide)), rtol=3 * np.finfo(dtype).eps)
    with np.errstate(over="ignore"):
        ends = [sigmoid(kind(v)) for v in (-np.inf, -1e30, 0, 1e30, np.inf, np.nan)]
    np.testing.assert_array_equal(ends, [0, 0, 0.5, 1, 1, np.nan])


# Sums over all steps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, parts", [(1, 1), (40, 1), (75, 2)])
def test_sums_over_rows(rows, parts, dtype, order):
    rng, columns, places = np.random.default_rng(0), 140, 5
    slopes, values = rng.normal(size=(2, rows, columns)).astype(dtype)
    table = rng.normal(size=(rows, places, NUMBERS)).astype(dtype)
    found = np.full((2, parts, columns), np.nan, dtype)
    kernel = make_cell_sums(ELEMENTS[dtype], normed=True)
    kernel.launch(
        2 * parts, 0, *addresses(slopes, values, table, found), rows, columns, parts, places, 2, 70
    )
    scale, high, low, factor = (
        np.repeat(table[:, 2:4], 70, axis=1).astype(np.float64).T.swapaxes(1, 2)
    )
    xhat = (values * scale - high - low) * factor
    assert_close(found[0].sum(axis=0), (slopes * xhat).sum(axis=0), dtype)
    assert_close(found[1].sum(axis=0), slopes.sum(axis=0, dtype=np.float64), dtype)


def test_shapes_of_cells():
    for name, units in itertools.product(DTYPES, range(1, 1025)):
        element = ELEMENTS[name]
        shape = cell_shape(units, element, whole=units % 4 == 0)
        assert units <= shape.team * element.vector and shape.threads % 32 == 0
        assert shape.team == 1 or units > shape.team // 2 * element.vector
    with pytest.raises(NotImplementedError, match="2049 units in float32 are wider than the 2048"):
        cell_shape(2049, ELEMENTS["float32"], whole=False)
