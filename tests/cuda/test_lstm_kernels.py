"""One step of an LSTM forward and backward, in every order of threads, beside the CPU's."""

import cells
import numpy as np
import pytest
from simulated_target import register

from numnorm.backends.cuda.cell_norms import NUMBERS
from numnorm.backends.cuda.elements import ELEMENTS
from numnorm.backends.cuda.lstm_backward_kernel import make_lstm_backward
from numnorm.backends.cuda.lstm_forward_kernel import make_lstm_forward
from numnorm.backends.cuda.lstm_gates import places

ROWS = 11
DTYPES = ("float32", "float64")
FORMS = [pytest.param(form, id=form.name) for form in (*cells.FORMS, *cells.ZONED)]


def addresses(*arrays):
    return [0 if array is None or array.size == 0 else register(array) for array in arrays]


def scaling_numbers(eps, count):
    return 1 / count, 1 / count, eps, 0.0, np.sqrt(eps)


def ada_numbers(form):
    norm = form.gates or form.cell
    return (1.0, 0.1) if norm is not None and norm.parameters == 0 else (1.0, 0.0)


def in_dtype(dtype, *arrays):
    """Copies of a dtype; nothing stays nothing."""
    return [None if a is None else np.array(a, dtype, order="C") for a in arrays]


def weights_of(problem, dtype):
    given = problem.given
    terms = (p for p in (given.bias, given.beta_x, given.beta_h) if p is not None)
    return in_dtype(
        dtype, sum(terms), given.gamma_h, given.gamma_x, given.gamma_c, given.beta_c
    )


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


def assert_close(found, expected, dtype, what="", scale=1.0):
    """Within 1e-10 in float64, and some roundings of the largest in float32."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, what
    bound = scale * (1e-10 if dtype == "float64" else 1e-5) * max(1, np.abs(expected).max())
    assert np.all(np.abs(found - expected) <= bound), (what, np.abs(found - expected).max(), bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["several rows a warp", "odd, several warps a row"])
def test_forward(form, name, dtype, order):
    shape, units = cells.shape_for(name, dtype)
    problem = cells.problem(form, units, [ROWS if shape.teams > 1 else 2], dtype=dtype)
    _, ((state, carried), saved) = problem.forward()
    batch = problem.states[0].shape[0]
    h, c, _, xp, cell, table = forward(problem, shape, dtype)
    assert_close(h, state[batch:], dtype, "h")
    assert_close(c, carried[batch:], dtype, "c")
    if form.carries_normalized or form.zoneout:
        assert_close(cell, saved.cell, dtype, "cell")
    if not form.by_product:
        assert_close(xp, saved.z, dtype, "sums")
    assert not np.isnan(table).any()


def flow_numbers(norm, count):
    return 1 / count if norm is not None and norm.formula.centred else 0.0, 1 / count, 0.0


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["several rows a warp", "odd, several warps a row"])
def test_backward(form, name, dtype, order):
    shape, units = cells.shape_for(name, dtype)
    problem = cells.problem(form, units, [ROWS if shape.teams > 1 else 2], dtype=dtype)
    expected, given = problem.backward(), problem.given
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
