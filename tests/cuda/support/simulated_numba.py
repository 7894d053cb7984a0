"""`numba.cuda` on the simulated device, for kernels of users."""

import contextlib
import sys
from types import ModuleType

import numpy as np
import simulated_target


class _Array(np.ndarray):
    def copy_to_host(self):
        return np.array(self)


class _Kernel:
    def __init__(self, function):
        self.py_func = function

    def __getitem__(self, shape):
        blocks, threads = shape
        return lambda *arguments: simulated_target.run(self.py_func, arguments, blocks, threads)


class _Cuda(type(simulated_target.cuda)):
    @staticmethod
    def jit(function=None, *, device=False):
        make = simulated_target.device if device else _Kernel
        return make if function is None else make(function)

    @staticmethod
    def to_device(host):
        return np.array(host).view(_Array)

    @staticmethod
    def device_array(shape, dtype):
        return np.full(shape, np.nan, dtype).view(_Array)


@contextlib.contextmanager
def instead_of_numba():
    """Replace the module `numba` in imports by this simulation."""
    numba, found = sys.modules.get("numba"), ModuleType("numba")
    found.cuda = _Cuda()
    sys.modules["numba"] = found
    try:
        yield
    finally:
        del sys.modules["numba"]
        if numba is not None:
            sys.modules["numba"] = numba
