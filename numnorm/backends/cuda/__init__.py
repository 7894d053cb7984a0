"""The CUDA backend: device arrays and kernels. Each module is imported when it is first used."""

import importlib
from typing import Any

_HOMES = {
    "arrays.device_array": ("as_float_array",),
    "arrays.known_calls": ("repeated",),
    "arrays.label_parts": ("DeviceLabelParts",),
    "arrays.masks": ("as_mask_of", "as_weights_of"),
    "recurrent.lstm_batch_norm": ("batch_cell_backward", "batch_cell_forward"),
    "recurrent.cells": ("cell_backward", "cell_forward", "cell_weights", "prepared_step"),
    "recurrent.stacking": (
        "add",
        "as_mask",
        "apply_mask",
        "concatenate",
        "dropout_mask",
        "dropped",
        "split",
        "to_time_major",
    ),
    "columns.channel_axes": ("DeviceChannelAxes",),
    "columns.columns": ("column_backward", "column_forward"),
    "columns.moments": (
        "averaged_moments",
        "column_moments",
        "deviation",
        "merged_moments",
        "placed_rows",
        "streamed_moments",
        "variance",
    ),
    "moving.exponential": ("exponential_backward", "exponential_forward", "exponential_step"),
    "moving.windows": ("moving_backward", "moving_forward", "moving_step"),
    "rows.backward": ("row_backward",),
    "rows.forward": ("row_forward",),
    "rows.residual": ("added_backward", "added_forward"),
    "recurrent.sequences": (
        "check_packed",
        "copied_parameter",
        "packed_like",
        "zoneout_mask",
        "cell_parameter",
        "cell_state",
        "as_like",
        "sort_states",
        "pad_packed",
        "parameter_gradient",
        "unsort_states",
        "pack_padded",
    ),
    "statistics.stored": (
        "check_updatable",
        "reciprocal",
        "running_statistics",
        "saved",
        "share_memory",
        "step_statistics",
        "update_running",
    ),
    "weighted.backend": ("with_weighting",),
    "weighted.columns": ("counted_deviation", "counted_variance", "merged_counted"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(part(_HOME_OF[name], "arrays of a CUDA device"), name)
    globals()[name] = value
    return value


def part(module: str, wanted: str) -> Any:
    """Import a module of this package. An error names the compilers that `wanted` needs."""
    try:
        return importlib.import_module(f"{__name__}.{module}")
    except ImportError as error:
        raise ImportError(
            f"{wanted} need numba-cuda or numba-cuda-mlir: pip install 'numnorm[cu13]', or "
            "'numnorm[cu13-mlir]' with NumPy 2.5 and newer (for CUDA 12 'cu12', 'cu12-mlir')"
        ) from error
