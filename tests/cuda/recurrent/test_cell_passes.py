"""Whole passes of cells on device arrays of every library, beside the CPU's."""

import dataclasses
import sys

import cell_cases as cells
import numpy as np
import pytest
from cell_steps import assert_close

from numnorm.backends.contract.norms import scaling_by
from numnorm.backends.cuda.arrays import device_array as arrays
from numnorm.backends.cuda.recurrent import cells as device
from numnorm.rnn.forms import gru_form, lstm_form, rnn_form

PAPER, GRU, PLAIN = map(cells.form_of, cells.KINDS.values())
KINDS = pytest.mark.parametrize("form", [PAPER, GRU, PLAIN], ids=["lstm", "gru", "rnn"])


def named(*forms):
    return [pytest.param(form, id=f"{cells.KINDS[type(form)].name}.{form.name}") for form in forms]


FORMS = named(*cells.LSTM_FORMS, *cells.GRU_FORMS, *cells.RNN_FORMS)
SOME_FORMS = named(
    PAPER._replace(zoneout=True),
    lstm_form("rms", "normalized_cell").cell,
    lstm_form("layer", "per_gate").cell,
    GRU._replace(zoneout=True),
    gru_form("rms").cell,
    PLAIN._replace(zoneout=True),
    rnn_form("rms", "relu").cell,
    rnn_form(None, "tanh").cell,
)


@pytest.fixture
def taken(products):
    """Arrays of each library on a device."""
    return lambda name, array, dtype: taken_by(products, name, array, dtype)


def taken_by(library, name, array, dtype):
    if array is None:
        return None
    return arrays.as_float_array(name, library.take(np.array(array, dtype, order="C")))


def run(problem, taken, dtype, *, save=True, backward=True):
    """The history, and all gradients."""
    form, scaling = problem.form, scaling_by(problem.eps)
    given = problem.given._asdict().items()
    given = type(problem.given)(**{name: taken(name, value, dtype) for name, value in given})
    x, *states = (taken("x", a, dtype) for a in (problem.x, *problem.states))
    keeps = tuple(taken("keep", a, dtype) for a in problem.keeps)
    weights = device.cell_weights(form, given, 1.0, 0.1, False)
    history, saved = device.cell_forward(
        form, scaling, x, problem.steps, weights, tuple(states), keeps, save
    )
    history = [a.host for a in history]
    if not backward:
        return history, None
    dy, *last = (taken("dy", a, dtype) for a in problem.slopes)
    found = device.cell_backward(
        form, scaling, x, problem.steps, weights, saved, keeps, dy, tuple(last)
    )
    return history, found


def check(problem, history, found, dtype):
    """The history and all gradients are those of the CPU."""
    _, (of_cpu, _) = problem.forward
    for one, other in zip(history, of_cpu, strict=True):
        assert_close(one, other, dtype, "history")
    expected = problem.backward
    # float32 roundings grow on the way back through the steps.
    assert_close(found.dx.host, expected.dx, dtype, "dx", 5)
    for one, other in zip(found.states, expected.states, strict=True):
        assert_close(one.host, other, dtype, "state", 5)
    for name, value in problem.given._asdict().items():
        if value is not None:
            got = found.parameters[name].host
            assert_close(got, expected.parameters[name], dtype, name, 5)


@pytest.mark.parametrize("form", FORMS)
def test_passes(form, imported):
    check_passes(form, "float64", imported("torch"))


@pytest.mark.parametrize("form", SOME_FORMS)
def test_passes_in_any_order_of_threads(form, imported, order):
    check_passes(form, "float32", imported("torch"))


def check_passes(form, dtype, library):
    problem = cells.problem(form, 10, (4, 4, 3, 1), dtype=dtype)

    def taken(name, array, dtype):
        return taken_by(library, name, array, dtype)

    check(problem, *run(problem, taken, dtype), dtype)


@pytest.mark.parametrize(("units", "counts"), [(8, (3, 3)), (9, (3, 2, 2)), (8, (1,))], ids=str)
@KINDS
def test_libraries(taken, form, units, counts):
    problem = cells.problem(form._replace(zoneout=len(counts) == 2), units, counts)
    check(problem, *run(problem, taken, "float64"), "float64")


@pytest.mark.parametrize("zoneout", [False, True])
@KINDS
def test_without_saving_the_states_are_the_same(taken, form, zoneout):
    problem = cells.problem(form._replace(zoneout=zoneout), 9, (4, 2, 1))
    (h, *cell), _ = run(problem, taken, "float32", backward=False)
    (same, *last), _ = run(problem, taken, "float32", save=False, backward=False)
    assert h.tobytes() == same.tobytes()
    for c, one in zip(cell, last, strict=True):
        # The last steps of the rows: the fourth and third end with the first step, and so on.
        assert one.tobytes() == c[[4 + 6, 4 + 5, 4 + 2, 4 + 3]].tobytes()


@KINDS
def test_no_steps(taken, form):
    problem = cells.problem(form, 5, (2,))
    steps = problem.steps._replace(starts=np.zeros(0, int), counts=np.zeros(0, int))
    slopes = problem.slopes[0][:0], *problem.slopes[1:]
    problem = dataclasses.replace(problem, steps=steps, x=problem.x[:0], slopes=slopes)
    history, found = run(problem, taken, "float64")
    assert all((a == b).all() for a, b in zip(history, problem.states, strict=True))
    assert all((a.host == b).all() for a, b in zip(found.states, problem.slopes[1:], strict=True))
    assert found.dx.host.shape == problem.x.shape
    for name, value in problem.given._asdict().items():
        gradient = found.parameters[name].host
        assert gradient.shape == value.shape and not gradient.any()


MISSING = [
    pytest.param(PAPER, ("gamma_x", "gamma_c", "beta_c", "beta_h", "bias"), id="lstm"),
    pytest.param(GRU, ("gamma_x", "beta_x", "bias_h"), id="gru"),
    pytest.param(GRU, ("gamma_h", "beta_h", "bias"), id="gru, others"),
    pytest.param(PLAIN, ("gamma", "beta", "bias"), id="rnn"),
]


@pytest.mark.parametrize(("form", "names"), MISSING)
def test_missing_parameters(taken, form, names):
    problem = cells.problem(form, 6, (3, 1))
    given = problem.given._replace(**dict.fromkeys(names))
    history, found = run(dataclasses.replace(problem, given=given), taken, "float64")
    there = {n: getattr(problem.given, n) for n in names}
    there = {n: np.full_like(p, n.startswith("gamma")) for n, p in there.items()}
    problem = dataclasses.replace(problem, given=problem.given._replace(**there))
    check(problem, history, found, "float64")


def test_half_precision_is_computed_in_float32(taken):
    x = taken("x", np.array([[1.5, 2.25]]), "float16")
    found = device.working(x)
    assert found.element.name == "float32" and found.array.host.tolist() == [[1.5, 2.25]]
    assert device.working(found).array is found.array


def test_numba_alone_has_no_products(imported, monkeypatch):
    library = imported("numba")
    monkeypatch.setitem(sys.modules, "cupy", None)
    problem = cells.problem(PAPER, 5, (2,))
    with pytest.raises(ImportError, match="need CuPy, as Numba has none"):
        run(problem, lambda *given: taken_by(library, *given), "float32")
