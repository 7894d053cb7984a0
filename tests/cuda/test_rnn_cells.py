"""Whole passes of a plain recurrent network on device arrays of every library."""

import dataclasses

import numpy as np
import pytest
import rnn_problems
from test_lstm_cells import check, run, taken, taken_by  # noqa: F401  # a fixture among them
from test_lstm_kernels import assert_close
from test_rnn_kernels import FORMS, SOME_FORMS

from numnorm.rnn.forms import rnn_form

PLAIN = rnn_form("layer", "tanh").cell


@pytest.mark.parametrize("form", FORMS)
def test_passes(form, imported):
    check_passes(form, "float64", imported("torch"))


@pytest.mark.parametrize("form", SOME_FORMS)
def test_passes_in_any_order_of_threads(form, imported, order):
    check_passes(form, "float32", imported("torch"))


def check_passes(form, dtype, library):
    problem = rnn_problems.problem(form, 10, (4, 4, 3, 1), dtype=dtype)
    found = run(problem, lambda *given: taken_by(library, *given), dtype)
    check(problem, *found, dtype)


@pytest.mark.parametrize("counts", [(3, 3), (3, 2, 2), (1,)], ids=str)
@pytest.mark.parametrize("units", [8, 9])
def test_libraries(taken, units, counts):  # noqa: F811
    form = PLAIN._replace(zoneout=len(counts) == 2)
    problem = rnn_problems.problem(form, units, counts)
    check(problem, *run(problem, taken, "float64"), "float64")


@pytest.mark.parametrize("zoneout", [False, True])
def test_without_saving_the_states_are_the_same(taken, zoneout):  # noqa: F811
    problem = rnn_problems.problem(PLAIN._replace(zoneout=zoneout), 9, (4, 2, 1))
    (h,), _ = run(problem, taken, "float32", backward=False)
    (same,), _ = run(problem, taken, "float32", save=False, backward=False)
    assert h.tobytes() == same.tobytes()


def test_no_steps(taken):  # noqa: F811
    problem = rnn_problems.problem(PLAIN, 5, (2,))
    steps = problem.steps._replace(starts=np.zeros(0, int), counts=np.zeros(0, int))
    slopes = problem.slopes[0][:0], problem.slopes[1]
    problem = dataclasses.replace(problem, steps=steps, x=problem.x[:0], slopes=slopes)
    (history,), found = run(problem, taken, "float64")
    assert (history == problem.states[0]).all()
    assert (found.states[0].host == problem.slopes[1]).all()
    assert found.dx.host.shape == problem.x.shape
    for name, value in problem.given._asdict().items():
        gradient = found.parameters[name].host
        assert gradient.shape == value.shape and not gradient.any()


def test_missing_parameters(taken):  # noqa: F811
    problem = rnn_problems.problem(PLAIN, 6, (3, 1))
    given = problem.given._replace(gamma=None, beta=None, bias=None)
    _, found = run(dataclasses.replace(problem, given=given), taken, "float64")
    ones, zeros = np.ones(6), np.zeros(6)
    given = problem.given._replace(gamma=ones, beta=zeros, bias=zeros)
    problem = dataclasses.replace(problem, given=given)
    check(problem, *run(problem, taken, "float64"), "float64")
    same = problem.backward.parameters
    assert_close(found.parameters["gamma"].host, same["gamma"], "float64")
