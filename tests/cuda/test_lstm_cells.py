"""Whole passes of an LSTM on device arrays of every library, beside the CPU's."""

import dataclasses
import sys

import cells
import numpy as np
import pytest
from fake_libraries import cupy
from test_lstm_kernels import FORMS, SOME_FORMS, assert_close

from numnorm.backends.contract import GRUForm, scaling_by
from numnorm.backends.cuda import arrays
from numnorm.backends.cuda import cells as device
from numnorm.rnn.forms import lstm_form

PAPER = lstm_form("layer", "paper").cell


@pytest.fixture
def taken(library, monkeypatch):
    """Arrays of each library on a device; Numba's have their products made by CuPy."""
    if library.called == "numba":
        monkeypatch.setitem(sys.modules, "cupy", cupy()["cupy"])
    return lambda name, array, dtype: taken_by(library, name, array, dtype)


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


@pytest.mark.parametrize("counts", [(3, 3), (3, 2, 2), (1,)], ids=str)
@pytest.mark.parametrize("units", [8, 9])
def test_libraries(taken, units, counts):
    problem = cells.problem(PAPER._replace(zoneout=len(counts) == 2), units, counts)
    check(problem, *run(problem, taken, "float64"), "float64")


@pytest.mark.parametrize("zoneout", [False, True])
def test_without_saving_the_states_are_the_same(taken, zoneout):
    problem = cells.problem(PAPER._replace(zoneout=zoneout), 9, (4, 2, 1))
    (h, c), _ = run(problem, taken, "float32", backward=False)
    (same, last), _ = run(problem, taken, "float32", save=False, backward=False)
    assert h.tobytes() == same.tobytes()
    # The last steps of the rows: the fourth and third end with the first step, and so on.
    assert last.tobytes() == c[[4 + 6, 4 + 5, 4 + 2, 4 + 3]].tobytes()


def test_no_steps(taken):
    problem = cells.problem(PAPER, 5, (2,))
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


def test_missing_parameters(taken):
    problem = cells.problem(PAPER, 6, (3, 1))
    missing = dict.fromkeys(("gamma_x", "gamma_c", "beta_c", "beta_h", "bias"))
    given = problem.given._replace(**missing)
    _, found = run(dataclasses.replace(problem, given=given), taken, "float64")
    ones, zeros = np.ones(24), np.zeros(24)
    given = problem.given._replace(
        gamma_x=ones, gamma_c=ones[:6], beta_c=zeros[:6], beta_h=zeros, bias=zeros
    )
    problem = dataclasses.replace(problem, given=given)
    check(problem, *run(problem, taken, "float64"), "float64")
    same = problem.backward
    assert_close(found.parameters["gamma_c"].host, same.parameters["gamma_c"], "float64")


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


def test_other_cells(taken):
    x = taken("x", np.zeros((2, 2)), "float32")
    with pytest.raises(NotImplementedError, match="a GRU is not there yet"):
        device.cell_forward(GRUForm(None), scaling_by(1e-5), x, None, None, (), (), True)
