"""Whole passes of cells on device arrays of every library, beside the CPU's."""

import dataclasses
import functools
import sys

import cell_cases as cells
import numpy as np
import pytest
from pass_checks import GRU, KINDS, PAPER, PLAIN, SOME_SPECS, SPECS, check, named, run, taken_by

from numnorm.backends.cuda.recurrent import pass_arrays
from numnorm.rnn import parameters as rnn_parameters


@pytest.fixture
def taken(products):
    """Arrays of each library on a device."""
    return lambda name, array, dtype: taken_by(products, name, array, dtype)


@pytest.mark.parametrize("spec", SPECS)
def test_passes(spec, imported):
    check_passes(spec, "float64", imported("torch"))


@pytest.mark.parametrize("spec", SOME_SPECS)
def test_passes_in_any_order_of_threads(spec, imported, order):
    check_passes(spec, "float32", imported("torch"))


def check_passes(spec, dtype, library):
    problem = cells.problem(spec, 10, (4, 4, 3, 1), dtype=dtype)

    def taken(name, array, dtype):
        return taken_by(library, name, array, dtype)

    check(problem, *run(problem, taken, dtype), dtype)


@pytest.mark.parametrize(
    ("units", "batch_sizes"), [(8, (3, 3)), (9, (3, 2, 2)), (8, (1,))], ids=str
)
@KINDS
def test_libraries(taken, spec, units, batch_sizes):
    problem = cells.problem(spec._replace(zoneout=len(batch_sizes) == 2), units, batch_sizes)
    check(problem, *run(problem, taken, "float64"), "float64")


@pytest.mark.parametrize("zoneout", [False, True])
@KINDS
def test_without_saving_the_states_are_the_same(taken, spec, zoneout):
    problem = cells.problem(spec._replace(zoneout=zoneout), 9, (4, 2, 1))
    (h, *cell), _ = run(problem, taken, "float32", backward=False)
    (same, *last), _ = run(problem, taken, "float32", save=False, backward=False)
    assert h.tobytes() == same.tobytes()
    for c, one in zip(cell, last, strict=True):
        # The last steps of the rows: the fourth and third end with the first step, and so on.
        assert one.tobytes() == c[[4 + 6, 4 + 5, 4 + 2, 4 + 3]].tobytes()


@KINDS
def test_a_step_takes_no_new_memory(spec, imported, monkeypatch):
    library, made = imported("torch"), []
    empty = library.empty
    monkeypatch.setattr(library, "empty", lambda *a, **o: made.append(a) or empty(*a, **o))
    counts = []
    for steps in (2, 5):
        made.clear()
        run(cells.problem(spec, 8, (3,) * steps), functools.partial(taken_by, library), "float64")
        counts.append(len(made))
    assert counts[0] == counts[1]


RESET = cells.spec_of(rnn_parameters.GRU, reset_after=False)
WIDE = named(*(spec._replace(zoneout=True) for spec in (PAPER, GRU, PLAIN, RESET)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spec", WIDE)
def test_more_units_than_threads_have_vectors(spec, dtype, imported, monkeypatch):
    monkeypatch.setattr(pass_arrays, "_TEAMS", (1, 2, 4))
    problem, library = cells.problem(spec, 37, (3, 2), dtype=dtype), imported("torch")
    found = run(problem, functools.partial(taken_by, library), dtype)
    check(problem, *found, dtype)


@KINDS
def test_no_steps(taken, spec):
    problem = cells.problem(spec, 5, (2,))
    steps = problem.steps._replace(offsets=np.zeros(0, int), batch_sizes=np.zeros(0, int))
    grads = problem.grads[0][:0], *problem.grads[1:]
    problem = dataclasses.replace(problem, steps=steps, x=problem.x[:0], grads=grads)
    history, found = run(problem, taken, "float64")
    assert all((a == b).all() for a, b in zip(history, problem.states, strict=True))
    assert all((a.host == b).all() for a, b in zip(found.states, problem.grads[1:], strict=True))
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


@pytest.mark.parametrize(("spec", "names"), MISSING)
def test_missing_parameters(taken, spec, names):
    problem = cells.problem(spec, 6, (3, 1))
    given = problem.given._replace(**dict.fromkeys(names))
    history, found = run(dataclasses.replace(problem, given=given), taken, "float64")
    there = {n: getattr(problem.given, n) for n in names}
    there = {n: np.full_like(p, n.startswith("gamma")) for n, p in there.items()}
    problem = dataclasses.replace(problem, given=problem.given._replace(**there))
    check(problem, history, found, "float64")


def test_numba_alone_has_no_products(imported, monkeypatch):
    library = imported("numba")
    monkeypatch.setitem(sys.modules, "cupy", None)
    problem = cells.problem(PAPER, 5, (2,))
    with pytest.raises(ImportError, match="need CuPy, as Numba has none"):
        run(problem, lambda *given: taken_by(library, *given), "float32")
