# Written by tests/support/stubs.py.

from typing import Any, Literal

from numnorm.arguments import Axis
from numnorm.array_types import ArrayLike, Convention, Detach, EpsIn, Integer, NanPolicy, Number
from numnorm.autograd.cells import gru as gru
from numnorm.autograd.cells import lstm as lstm
from numnorm.autograd.cells import rnn as rnn
from numnorm.norms.moments import GroupMoments
from numnorm.norms.order_statistics import Method

__all__ = [
    "ada_norm",
    "batch_norm",
    "emsc",
    "exponential_norm",
    "group_norm",
    "gru",
    "instance_norm",
    "layer_norm",
    "lstm",
    "moving_norm",
    "moving_robust_norm",
    "pcen",
    "rms_norm",
    "rnn",
    "standard_normal_variate",
    "weight_norm",
]

def ada_norm(
    x: Any,
    *,
    axis: Axis = -1,
    scale: float = 1.0,
    k: Number = 0.1,
    eps: Number = 1e-05,
    eps_in: EpsIn = "variance",
    ddof: Integer = 0,
    detach_factor: bool = True,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
def batch_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    channel_axis: Axis = 1,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    training: bool = True,
    momentum: Number | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: Number = 1e-05,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    labels: ArrayLike | None = None,
    statistics: GroupMoments | None = None,
) -> Any: ...
def emsc(
    x: Any,
    reference: ArrayLike,
    *,
    axis: Integer = -1,
    degree: Integer = 2,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
def exponential_norm(
    x: Any,
    alpha: Number,
    *,
    axis: Integer = -1,
    adjust: bool = True,
    initial: Integer = 0,
    eps: Number = 0.0001,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
def group_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    groups: Integer,
    channel_axis: Integer = 1,
    eps: Number = 1e-05,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
def instance_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    channel_axis: Integer = 1,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    training: bool = True,
    momentum: Number | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: Number = 1e-05,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
def layer_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-05,
    detach: Detach | None = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
def moving_norm(
    x: Any,
    window: Integer,
    *,
    axis: Integer = -1,
    center: bool = False,
    min_window: Integer = 1,
    subtract_mean: bool = True,
    with_std: bool = True,
    eps: Number = 0.0,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
def moving_robust_norm(
    x: Any,
    window: Integer,
    *,
    axis: Integer = -1,
    center: bool = False,
    min_window: Integer = 1,
    scale: Literal["mad", "iqr", "range"] | tuple[Number, Number] | list[float] | None = "mad",
    factor: Number | Literal["normal"] = 1.0,
    method: Method | None = None,
    eps: Number = 0.0,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
def pcen(
    x: Any,
    alpha: Any,
    gain: Any = 0.98,
    bias: Any = 2.0,
    power: Any = 0.5,
    *,
    axis: Integer = -1,
    eps: Number = 1e-06,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
def rms_norm(
    x: Any,
    gamma: Any = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-05,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
def standard_normal_variate(
    x: Any,
    *,
    axis: Axis = -1,
    ddof: Integer = 0,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
def weight_norm(
    x: Any,
    g: Any = None,
    *,
    axis: Axis = -1,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> Any: ...
