"""Whether one kernel computes all steps of a cell: the only entry to the folder `persistent`."""

import importlib
from typing import Any

from numnorm.backends.contract.recurrent import CellSpec, wants_persistent_kernels
from numnorm.backends.cuda.arrays.device_array import DeviceArray


def persistent_forward(kind: Any, spec: CellSpec, x: DeviceArray, state: Any, batch: int) -> Any:
    """Return the function that computes all steps in one kernel, with `_run_forward`'s parameters.

    Return None unless the caller wants it and the device can run it.
    """
    return _passes().planned_forward(kind, spec, x, state, batch) if _is_wanted() else None


def persistent_backward(kind: Any, spec: CellSpec, x: DeviceArray, batch: int, units: int) -> Any:
    """Return the function that computes all backward steps in one kernel.

    It has the parameters of `_run_backward`. Return None unless the caller wants it and the device
    can run it.
    """
    return _passes().planned_backward(kind, spec, x, batch, units) if _is_wanted() else None


def _is_wanted() -> bool:
    return wants_persistent_kernels.get()


def _passes() -> Any:
    # A late import, because `persistent` imports the modules that import this one.
    return importlib.import_module("numnorm.backends.cuda.recurrent.persistent.passes")
