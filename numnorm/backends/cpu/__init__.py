"""The CPU backend: NumPy arrays and Numba kernels. Each module is imported on first use."""

import gc
import importlib
from collections.abc import Callable, Hashable
from typing import Any

_HOMES = {
    "memory.host_arrays": ("as_float_array", "rounded"),
    "recurrent.lstm_batch_norm": ("batch_cell_backward", "batch_cell_forward"),
    "recurrent.cells": ("cell_backward", "cell_forward", "cell_weights", "prepared_step"),
    "recurrent.sequences": (
        "add",
        "as_mask",
        "apply_mask",
        "concatenate",
        "split",
        "to_time_major",
        "dropout_mask",
        "dropped",
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
    "columns.columns": ("column_backward", "column_forward"),
    "columns.denormalize": ("denormalized",),
    "columns.moments": (
        "block_moments",
        "column_moments",
        "deviation",
        "folded_moments",
        "merged_moments",
        "streamed_moments",
        "streamed_counts",
        "variance",
    ),
    "moving.exponential": (
        "exponential_backward",
        "exponential_forward",
        "exponential_step",
        "masked_exponential_step",
        "masked_exponential_backward",
        "masked_exponential_forward",
    ),
    "moving.order_windows": (
        "moving_order_backward",
        "moving_order_forward",
        "moving_order_step",
    ),
    "moving.timed_windows": ("window_bounds",),
    "moving.windows": (
        "masked_moving_backward",
        "masked_moving_forward",
        "masked_moving_step",
        "moving_step",
        "moving_backward",
        "moving_forward",
    ),
    "order.rows": ("order_backward", "order_forward"),
    "rows.residual": ("added_backward", "added_forward"),
    "rows.rows": ("row_backward", "row_forward"),
    "sparse.columns": ("sparse_moments", "sparse_scaled"),
    "weighted.arrays": ("whole_mask",),
    "weighted.columns": (
        "weighted_column_backward",
        "weighted_column_forward",
        "weighted_moments",
        "weighted_statistics",
    ),
    "weighted.weights_range": ("weights_in_range",),
    "weighted.rows": ("weighted_row_backward", "weighted_row_forward"),
    "statistics.stored": (
        "check_updatable",
        "reciprocal",
        "running_statistics",
        "saved",
        "share_memory",
        "step_statistics",
        "update_counted",
        "update_running",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = getattr(_imported(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = function
    return function


def repeated(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    x: Any,
    arrays: tuple[Any, ...],
    options: Hashable,
) -> Any:
    """Return ``function(*arguments)``: plans of the host's calls are kept where they are made."""
    return function(*arguments)


def _imported(name: str) -> Any:
    # The first import brings in Numba, which creates many objects and no garbage: the collector
    # would only slow it down.
    enabled = gc.isenabled()
    gc.disable()
    try:
        # Its modules import each other: threads that began with different ones would get parts.
        importlib.import_module("numba")
        return importlib.import_module(name)
    finally:
        if enabled:
            gc.enable()
