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


@pytest.fixture(params=simulated_target.ORDERS)
def order(request):
    """In which order the threads run between two barriers."""
    simulated_target.ORDER = request.param
    yield request.param
    simulated_target.ORDER = simulated_target.ORDERS[0]


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
