"""The tests of this folder run the kernels of CUDA on a device in Python."""

import sys

import pytest
import simulated_target

sys.modules["numnorm.backends.cuda.target"] = simulated_target


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
