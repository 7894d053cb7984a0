"""The tests of this folder run the kernels of CUDA on a device in Python."""

import sys

import pytest
import simulated_target
from fake_libraries import LIBRARIES, cupy

sys.modules["numnorm.backends.cuda.compiler.target"] = simulated_target


@pytest.fixture(autouse=True)
def nothing_on_the_device():
    yield
    simulated_target.forget()


@pytest.fixture(autouse=True)
def nothing_known():
    """Forget the plans of earlier calls, as a test may change what plans are made of."""
    from numnorm.backends.cuda.arrays.known_calls import forget

    forget()


@pytest.fixture(params=simulated_target.ORDERS)
def order(request):
    """In which order the threads run between two barriers."""
    simulated_target.ORDER = request.param
    yield request.param
    simulated_target.ORDER = simulated_target.ORDERS[0]


@pytest.fixture
def few_registers(monkeypatch):
    """Rows of any width are read in a loop, by blocks of few threads."""
    from numnorm.backends.cuda.rows import forward as rows
    from numnorm.backends.cuda.rows.backward import gradient_plan
    from numnorm.backends.cuda.threads import row_shape as launch

    monkeypatch.setattr(launch, "_TEAMS", ())
    monkeypatch.setattr(launch, "_LOOP", 32)
    for name, value in (("_TEAMS", ()), ("_LOOP", 32), ("_STRIP", 32)):
        monkeypatch.setattr(launch, f"_BACKWARD{name}", value)
    for plan in (gradient_plan, rows.forward_plan):
        plan.cache_clear()
    yield
    for plan in (gradient_plan, rows.forward_plan):
        plan.cache_clear()


@pytest.fixture
def imported(monkeypatch):
    """Make one of the made-up libraries as if the caller had imported it, with `take`."""

    def make(name):
        modules = LIBRARIES[name]()
        for module, found in modules.items():
            monkeypatch.setitem(sys.modules, module, found)
        return next(iter(modules.values()))

    return make


@pytest.fixture(params=LIBRARIES)
def library(request, imported):
    """Each library, with `take(host, number=0)` for an array on a device."""
    found = imported(request.param)
    found.called = request.param
    return found


@pytest.fixture
def products(library, monkeypatch):
    """Each library; Numba's arrays have their products made by CuPy."""
    if library.called == "numba":
        monkeypatch.setitem(sys.modules, "cupy", cupy()["cupy"])
    return library
