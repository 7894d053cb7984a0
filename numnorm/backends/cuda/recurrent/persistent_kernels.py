"""Whether all steps of a cell are taken at once: the only way into the folder `persistent`."""

import importlib
from typing import Any

from numnorm.backends.contract.recurrent import CellSpec, wants_persistent_kernels
from numnorm.backends.cuda.arrays.device_array import DeviceArray


def persistent_forward(kind: Any, spec: CellSpec, x: DeviceArray, state: Any, batch: int) -> Any:
    """Return what takes all steps at once, if the caller asks for it and the device has room.

    Else None. It has the parameters of the function that takes them one by one.
    """
    return _passes().planned_forward(kind, spec, x, state, batch) if _is_wanted() else None


def persistent_backward(kind: Any, spec: CellSpec, x: DeviceArray, batch: int, units: int) -> Any:
    """Return the like for the way back."""
    return _passes().planned_backward(kind, spec, x, batch, units) if _is_wanted() else None


def _is_wanted() -> bool:
    return wants_persistent_kernels.get()


def _passes() -> Any:
    # Only now: these kernels take functions of the kernels of one step.
    return importlib.import_module("numnorm.backends.cuda.recurrent.persistent.passes")
