"""Keywords of other libraries: the error that gives the name to use here.

A public function takes all keywords that it does not know as ``**others``, to raise this error. Its
signature does not show them.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

# What other libraries, from PyTorch and Keras to torchaudio and braindecode, call an argument: its
# names here.
_NAMES = {
    ("input", "inputs", "X", "a", "data"): ("x",),
    ("weight", "scale", "gain", "Scale"): ("gamma", "with_std"),
    ("bias", "offset", "B", "affine", "elementwise_affine"): ("beta", "gamma"),
    ("use_bias", "center", "use_scale"): ("beta", "gamma"),
    ("normalized_shape", "dim", "reduction_axes", "axes", "channel_axis"): ("axis", "channel_axis"),
    ("axis", "feature_axes", "data_format", "batch_axis"): ("channel_axis",),
    ("num_groups", "group_size", "num_channels"): ("groups",),
    ("epsilon", "variance_epsilon", "epsilon_"): ("eps",),
    ("mean", "moving_mean", "input_mean"): ("running_mean", "subtract_mean"),
    ("var", "variance", "moving_variance", "running_variance", "input_var"): ("running_var",),
    ("is_training", "use_running_average", "use_input_stats", "training_mode"): ("training",),
    ("track_running_stats",): ("running_mean",),
    ("num_batches_tracked",): ("batches",),
    ("grad_output", "grad", "dz"): ("dy",),
    ("correction", "unbiased"): ("ddof",),
    ("norm_vars",): ("with_std",),
    ("norm_means", "with_mean"): ("subtract_mean",),
    ("zero_center",): ("with_mean",),
    ("max_value",): ("clip",),
    ("cmn_window", "window_size"): ("window",),
    ("min_cmn_window",): ("min_window",),
    ("factor_new",): ("alpha",),
    ("init_block_size",): ("initial",),
    ("mask",): ("where",),
    ("groups",): ("labels",),
    ("smooth_coef", "s", "b"): ("alpha",),
    ("delta",): ("bias",),
    ("r",): ("power",),
    ("order", "polynomial_order"): ("degree",),
    ("ref", "mean_spectrum"): ("reference",),
    ("sample_weight", "fweights", "w"): ("weights",),
    ("interpolation",): ("method",),
}
# What to do instead, for functions that have a certain argument.
_INSTEAD = {
    "weight": ("g", "use x"),
    "min_periods": ("window", "set the results of the first steps to NaN"),
    "aweights": (
        "weights",
        "use weights, times the number of elements over their sum if ddof is 1",
    ),
    "quantile_range": ("factor", "use scale=(low, high), from 0 to 1"),
    "unit_variance": ("factor", "use factor='normal'"),
    "with_centering": ("factor", "use center=0"),
    "with_scaling": ("factor", "use scale=None"),
    "span": ("alpha", "use alpha=2 / (span + 1)"),
    "com": ("alpha", "use alpha=1 / (1 + com)"),
    "halflife": ("alpha", "use alpha=1 - exp(-log(2) / halflife)"),
}
# What a norm takes, and the norm of a sum does not.
_OF_ONE_ARRAY = "where", "weights", "nan_policy", "fill"
_OWN_NAMES = {other: own for others, own in _NAMES.items() for other in others}
# A step of a stream has no such options.
_LOOKING_AHEAD = ("center", "min_window", "initial")


def hide_others(functions: Iterable[Callable[..., Any]]) -> None:
    """Leave ``**others`` out of the signatures that `help` and editors show."""
    for function in functions:
        signature = inspect.signature(function)
        shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]


def written_sum(name: str, *options: str) -> str | None:
    """Return the call that a function of a sum and a residual, by name, stands for; or None."""
    if not name.startswith("add_"):
        return None
    norm = name.removeprefix("add_")
    if norm.endswith("_backward"):
        return f"{norm}({', '.join(['...', *options])}).dx + dtotal"
    return f"{norm}({', '.join(['x + residual', *options])})"


def unexpected(function: Callable[..., Any], others: dict[str, Any]) -> TypeError:
    """Return the error for keywords that a function does not have."""
    keyword = next(iter(others))
    text = f"{function.__name__}() got an unexpected keyword argument {keyword!r}"
    parameters = inspect.signature(function).parameters
    argument, instead = _INSTEAD.get(keyword, (None, ""))
    if argument in parameters:
        return TypeError(f"{text}: {instead}")
    names = keyword, *_OWN_NAMES.get(keyword, ())
    of_one = next((name for name in names if name in _OF_ONE_ARRAY), None)
    if of_one is not None and (written := written_sum(function.__name__, f"{of_one}=...")):
        return TypeError(f"{text}: call {written}")
    own = [n for n in _OWN_NAMES.get(keyword, ()) if n in parameters]
    if own:
        return TypeError(f"{text}: use {own[0]}")
    if function.__name__.endswith("_step") and keyword in _LOOKING_AHEAD:
        return TypeError(f"{text}: it would need steps that are still to come")
    return TypeError(text)
