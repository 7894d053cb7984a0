# Written by tests/support/stubs.py.

from typing import Any, Literal

import jax

from numnorm.arguments import Axis
from numnorm.array_types import (
    ArrayLike,
    Closed,
    Convention,
    Detach,
    Duration,
    EpsIn,
    Integer,
    NanPolicy,
    Number,
)
from numnorm.jax.batch import BatchNormalized as BatchNormalized
from numnorm.jax.batch import batch_norm as batch_norm
from numnorm.jax.denormalize import denormalize as denormalize
from numnorm.jax.recurrent import gru as gru
from numnorm.jax.recurrent import lstm as lstm
from numnorm.norms.order_statistics import Center, Factor, Method, Scale

__all__ = [
    "BatchNormalized",
    "ada_norm",
    "batch_norm",
    "denormalize",
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
    "robust_norm",
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
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
def emsc(
    x: Any,
    reference: Any,
    *,
    axis: Integer = -1,
    degree: Integer = 2,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
def exponential_norm(
    x: Any,
    alpha: Number | None = None,
    *,
    span: Number | None = None,
    com: Number | None = None,
    halflife: Number | Duration | None = None,
    times: ArrayLike | None = None,
    axis: Integer = -1,
    adjust: bool = True,
    initial: Integer = 0,
    eps: Number = 0.0001,
    where: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
def group_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    groups: Integer,
    channel_axis: Integer = 1,
    eps: Number = 1e-05,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
def instance_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    channel_axis: Integer = 1,
    running_mean: Any = None,
    running_var: Any = None,
    training: bool = True,
    momentum: Number | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: Number = 1e-05,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array | BatchNormalized: ...
def layer_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-05,
    detach: Detach | None = None,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
def moving_norm(
    x: Any,
    window: Integer | Number | Duration,
    *,
    times: ArrayLike | None = None,
    closed: Closed = "right",
    axis: Integer = -1,
    center: bool = False,
    min_window: Integer = 1,
    subtract_mean: bool = True,
    with_std: bool = True,
    eps: Number = 0.0,
    where: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
def moving_robust_norm(
    x: Any,
    window: Integer,
    *,
    axis: Integer = -1,
    center: bool = False,
    min_window: Integer = 1,
    scale: Scale = "mad",
    factor: Factor = 1.0,
    method: Method | None = None,
    eps: Number = 0.0,
    where: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
def pcen(
    x: Any,
    alpha: Any,
    gain: Any = 0.98,
    bias: Any = 2.0,
    power: Any = 0.5,
    *,
    axis: Integer = -1,
    eps: Number = 1e-06,
    where: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
def rms_norm(
    x: Any,
    gamma: Any = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-05,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
def robust_norm(
    x: Any,
    *,
    axis: Axis = -1,
    center: Center = "median",
    scale: Scale = "mad",
    factor: Factor = 1.0,
    method: Method | None = None,
    eps: Number = 0.0,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
def standard_normal_variate(
    x: Any,
    *,
    axis: Axis = -1,
    ddof: Integer = 0,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
def weight_norm(
    x: Any,
    g: Any = None,
    *,
    axis: Axis = -1,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
) -> jax.Array: ...
