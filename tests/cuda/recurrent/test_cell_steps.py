"""One step of every kind of cell forward and backward, in every order of threads."""

import dataclasses

import cell_cases as cells
import numpy as np
import pytest
from cell_steps import assert_close, check_forward, check_step, forward

from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES
from numnorm.backends.cuda.recurrent.states import make_activation, make_sigmoid
from numnorm.rnn.specs import gru_spec, lstm_spec, rnn_spec

DTYPES = ("float32", "float64")
NARROW, ODD = "several rows a warp", "odd, several warps a row"


def named(*specs):
    return [pytest.param(spec, id=f"{cells.KINDS[type(spec)].name}.{spec.name}") for spec in specs]


SPECS = named(*cells.LSTM_FORMS, *cells.GRU_FORMS, *cells.RNN_FORMS)
NORMED = (
    lstm_spec("layer", "paper").cell._replace(zoneout=True),
    lstm_spec("rms", "normalized_cell").cell,
    lstm_spec("layer", "per_gate").cell,
    cells.zoned(gru_spec("layer")),
    gru_spec("rms").cell,
    cells.zoned(rnn_spec("layer", "tanh")),
    rnn_spec("rms", "relu").cell,
)
SOME_SPECS = named(*NORMED, rnn_spec(None, "tanh").cell)


@pytest.mark.parametrize("spec", SPECS)
def test_every_form(spec, order):
    # Narrow ones: a thread has all of a unit, whatever the form.
    check_step(spec, NARROW, "float32")


@pytest.mark.parametrize("spec", SPECS)
def test_every_form_in_float64(spec):
    check_step(spec, NARROW, "float64")


@pytest.mark.parametrize("name", [name for name in cells.SHAPES if name != NARROW])
@pytest.mark.parametrize("spec", SOME_SPECS)
def test_every_shape(spec, name, order):
    check_step(spec, name, "float32")


@pytest.mark.parametrize(("name", "eps"), [(NARROW, 1e-5), (ODD, 0.0)])
@pytest.mark.parametrize("spec", named(*NORMED))
def test_products_of_any_scale_beside_each_other(spec, name, eps, order):
    shape, units = cells.shape_for(name, "float32")
    factors = np.array([1, 1e-25, 1e36])[:, None]
    problem = cells.problem(spec, units, (len(factors),), dtype="float32", eps=eps)
    h, *others = problem.states
    states = h * factors, *others
    problem = dataclasses.replace(problem, states=states, x=problem.x * factors)
    if others:
        check_forward(problem, shape, "float32")
        return
    _, ((state,), _) = problem.forward
    (found,), *_ = forward(problem, shape, "float32")
    # A state that is kept in part is as large as it was.
    size = np.maximum(1, np.abs(factors))
    assert_close(found / size, state[len(factors) :] / size, "float32")


@pytest.mark.parametrize("name", [NARROW, ODD])
def test_constant_products_and_cells_without_epsilon(name, order):
    # Their normalized value is 0 by convention, whatever the rounding of a mean.
    shape, units = cells.shape_for(name, "float32")
    spec = lstm_spec("layer", "paper").cell
    problem = cells.problem(spec, units, (2,), inputs=1, dtype="float32", eps=0.0)
    given = problem.given
    ones = np.ones_like(given.weight_x)
    given = given._replace(
        weight_x=ones, weight_h=np.zeros_like(given.weight_h), bias=0 * given.bias + 0.1,
        beta_x=0 * given.bias, beta_h=0 * given.bias,
    )  # fmt: skip
    states = problem.states[0], np.full_like(problem.states[1], 0.3)
    problem = dataclasses.replace(problem, given=given, states=states)
    (h, c), *_ = forward(problem, shape, "float32")
    expected = np.tanh(given.beta_c) / (1 + np.exp(-0.1))
    assert_close(h, np.broadcast_to(expected, h.shape), "float32")
    assert (c == c[0, 0]).all()


@pytest.mark.parametrize("name", [NARROW, ODD])
def test_constant_products_of_gru_without_epsilon(name, order):
    shape, units = cells.shape_for(name, "float32")
    problem = cells.problem(gru_spec("layer").cell, units, (2,), inputs=1, eps=0.0)
    given = problem.given
    given = given._replace(
        weight_x=np.full_like(given.weight_x, 0.3), weight_h=0 * given.weight_h,
        bias=0 * given.bias + 0.1, bias_h=0 * given.bias_h + 0.7, beta_x=0 * given.bias,
        beta_h=0 * given.bias,
    )  # fmt: skip
    problem = dataclasses.replace(problem, given=given)
    (h,), *_ = forward(problem, shape, "float32")
    z = 1 / (1 + np.exp(-0.1))
    expected = (1 - z) * problem.states[0] + z * np.tanh(0.1 + z * 0.7)
    assert_close(h, expected, "float32")


@pytest.mark.parametrize("name", [NARROW, ODD])
def test_constant_sums_of_rnn_without_epsilon(name, order):
    shape, units = cells.shape_for(name, "float32")
    spec = rnn_spec("layer", "tanh").cell
    problem = cells.problem(spec, units, (2,), inputs=1, dtype="float32", eps=0.0)
    given = problem.given
    ones, none = np.ones_like(given.weight_x), np.zeros_like(given.weight_h)
    given = given._replace(weight_x=ones, weight_h=none)
    (h,), *_ = forward(dataclasses.replace(problem, given=given), shape, "float32")
    expected = np.tanh(given.bias + given.beta)
    assert_close(h, np.broadcast_to(expected, h.shape), "float32")


# What the gates are made of


@pytest.mark.parametrize("dtype", DTYPES)
def test_sigmoid(dtype):
    element, kind = ELEMENT_TYPES[dtype], np.dtype(dtype).type
    sigmoid = make_sigmoid(element)
    x = np.linspace(-80, 80, 1001).astype(dtype)
    found, wide = np.array([sigmoid(v) for v in x]), x.astype(np.longdouble)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-wide)), rtol=3 * np.finfo(dtype).eps)
    with np.errstate(over="ignore"):
        ends = [sigmoid(kind(v)) for v in (-np.inf, -1e30, 0, 1e30, np.inf, np.nan)]
    np.testing.assert_array_equal(ends, [0, 0, 0.5, 1, 1, np.nan])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rectifier(dtype):
    kind = np.dtype(dtype).type
    value, gradient = make_activation(ELEMENT_TYPES[dtype], rectified=True)
    x = [kind(v) for v in (-np.inf, -1, -0.0, 0, 2, np.inf, np.nan)]
    np.testing.assert_array_equal([value(v) for v in x], [0, 0, 0, 0, 2, np.inf, np.nan])
    grads = [gradient(kind(3), value(v)) for v in x]
    np.testing.assert_array_equal(grads, [0, 0, 0, 0, 3, 3, 3])
    assert {type(v) for v in grads} == {kind}
