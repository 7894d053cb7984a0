"""Keywords of other libraries: the error that gives the name to use here.

A public function takes them as ``**others``, which its signature does not show.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

# What PyTorch, Keras, Flax, ONNX, scikit-learn or SciPy call an argument: its names here.
_NAMES = {
    ("input", "inputs", "X", "a", "data"): ("x", "v"),
    ("weight", "scale", "gain", "Scale"): ("gamma", "v"),
    ("bias", "offset", "B", "affine", "elementwise_affine"): ("beta", "gamma"),
    ("use_bias", "center", "use_scale"): ("beta", "gamma"),
    ("normalized_shape", "dim", "reduction_axes", "axes", "channel_axis"): ("axis", "channel_axis"),
    ("axis", "feature_axes", "data_format", "batch_axis"): ("channel_axis",),
    ("num_groups", "group_size", "num_channels"): ("groups",),
    ("epsilon", "variance_epsilon", "epsilon_"): ("eps",),
    ("mean", "moving_mean", "input_mean"): ("running_mean",),
    ("var", "variance", "moving_variance", "running_variance", "input_var"): ("running_var",),
    ("is_training", "use_running_average", "use_input_stats", "training_mode"): ("training",),
    ("track_running_stats",): ("running_mean",),
    ("num_batches_tracked",): ("batches",),
    ("grad_output", "grad", "dz"): ("dy", "dw"),
    ("correction", "unbiased"): ("ddof",),
}
_OWN_NAMES = {other: own for others, own in _NAMES.items() for other in others}
_MISSING_VALUES = ("nan_policy", "where", "mask", "sample_weight")


def hide_others(functions: Iterable[Callable[..., Any]]) -> None:
    """Leave ``**others`` out of the signatures that `help` and `inspect` show."""
    for function in functions:
        signature = inspect.signature(function)
        shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]


def unexpected(function: Callable[..., Any], others: dict[str, Any]) -> TypeError:
    """Return the error for keywords that a function does not have."""
    keyword = next(iter(others))
    text = f"{function.__name__}() got an unexpected keyword argument {keyword!r}"
    own = [n for n in _OWN_NAMES.get(keyword, ()) if n in inspect.signature(function).parameters]
    if own:
        return TypeError(f"{text}: use {own[0]}")
    if keyword in _MISSING_VALUES:
        return TypeError(f"{text}: leave out what is missing before the call")
    return TypeError(text)
