"""Dropout of inputs on a device, with one mask for all steps."""

import dataclasses
from typing import Any

import numpy as np

from numnorm.backends.contract.recurrent import SequenceLayout
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.recurrent.stacking import apply_mask, as_mask


def dropped(rows: Any, kept: Any, factor: float, layout: SequenceLayout) -> Any:
    """Return packed rows times the factor where an element is kept, else 0."""
    array = getattr(rows, "array", rows)
    mask = layout.rows(np.broadcast_to(kept, (layout.time, *kept.shape)))
    result = apply_mask(array, as_mask(np.ascontiguousarray(mask), array), factor)
    return dataclasses.replace(rows, array=result) if isinstance(rows, DeviceArray) else result


def dropout_mask(kept: Any, factor: float, layout: SequenceLayout, x: DeviceArray) -> Any:
    """Raise: the kernels of a device have no such mask."""
    raise NotImplementedError("recurrent_dropout must be 0 on a device, got another number")
