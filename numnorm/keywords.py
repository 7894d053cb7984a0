"""Keywords of other libraries: the error that gives the name to use here.

A public function takes them as ``**others``. Its signature shows only those that it has: keywords
which a plain call would pay for, if they were parameters.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from numnorm import array_types

# What other libraries, from PyTorch and Keras to torchaudio and braindecode, call an argument: its
# names here.
_NAMES = {
    ("input", "inputs", "X", "a", "data"): ("x", "v"),
    ("weight", "scale", "gain", "Scale"): ("gamma", "v"),
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
    ("grad_output", "grad", "dz"): ("dy", "dw"),
    ("correction", "unbiased"): ("ddof",),
    ("norm_vars", "with_std"): ("scale",),
    ("norm_means", "with_mean"): ("subtract_mean",),
    ("cmn_window", "window_size"): ("window",),
    ("min_cmn_window",): ("min_window",),
    ("factor_new",): ("alpha",),
    ("init_block_size",): ("initial",),
    ("mask",): ("where",),
    ("sample_weight", "fweights"): ("weights",),
}
# What to do instead, for functions that have a certain argument.
_INSTEAD = {
    "min_periods": ("window", "set the results of the first steps to NaN"),
    "aweights": (
        "weights",
        "use weights, times the number of elements over their sum if ddof is 1",
    ),
    "span": ("alpha", "use alpha=2 / (span + 1)"),
    "com": ("alpha", "use alpha=1 / (1 + com)"),
    "halflife": ("alpha", "use alpha=1 - exp(-log(2) / halflife)"),
}
_OWN_NAMES = {other: own for others, own in _NAMES.items() for other in others}
# A step of a stream has no such options.
_LOOKING_AHEAD = ("center", "min_window", "initial")
_DEFAULTS = dict.fromkeys(["where", "weights", "fill", "groups", "statistics"])
_DEFAULTS |= {"nan_policy": "propagate"}


def hide_others(functions: Iterable[Callable[..., Any]]) -> None:
    """Show the keywords in ``**others`` that a function has, and no others, in its signature."""
    for function in functions:
        signature = inspect.signature(function)
        shown = []
        for parameter in signature.parameters.values():
            own = [parameter]
            if parameter.kind is parameter.VAR_KEYWORD:
                own = list(_keywords(parameter.annotation))
            shown += own
        function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]


def _keywords(annotation: str) -> Iterator[inspect.Parameter]:
    """Yield the keywords of an annotation ``Unpack[...]`` of `**others` as parameters."""
    kind = getattr(array_types, annotation.removeprefix("Unpack[").removesuffix("]"), None)
    for name, of_value in inspect.get_annotations(kind).items() if kind else ():
        only = inspect.Parameter.KEYWORD_ONLY
        text = of_value.__forward_arg__
        yield inspect.Parameter(name, only, default=_DEFAULTS[name], annotation=text)


def unexpected(function: Callable[..., Any], others: dict[str, Any]) -> TypeError:
    """Return the error for keywords that a function does not have."""
    keyword = next(iter(others))
    text = f"{function.__name__}() got an unexpected keyword argument {keyword!r}"
    parameters = inspect.signature(function).parameters
    argument, instead = _INSTEAD.get(keyword, (None, ""))
    if argument in parameters:
        return TypeError(f"{text}: {instead}")
    own = [n for n in _OWN_NAMES.get(keyword, ()) if n in parameters]
    if own:
        return TypeError(f"{text}: use {own[0]}")
    if function.__name__.endswith("_step") and keyword in _LOOKING_AHEAD:
        return TypeError(f"{text}: it would need steps that are still to come")
    return TypeError(text)
