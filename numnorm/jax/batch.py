"""Batch normalization for arrays of JAX."""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

import numnorm
from numnorm.arguments import check_eps, check_flag, check_shape
from numnorm.array_types import Convention, NanPolicy, Number
from numnorm.backends.cpu.xla.column_calls import (
    ColumnCall,
    backward_call,
    forward_call,
    is_compiled,
)
from numnorm.jax.arrays import as_float_array, counting_arrays
from numnorm.jax.passes import Pass, normalized_by_python
from numnorm.jax.rows import compute_dtype, mapped, once
from numnorm.jax.targets import call, call_python, target_of, varying_like
from numnorm.layouts import column_layout, normalized_axes
from numnorm.norms.axes import merged_shape
from numnorm.norms.batch import SPEC
from numnorm.norms.labels import (
    axis_of_samples,
    check_no_running,
    checked_labels,
    no_labels,
    stored_statistics,
)
from numnorm.norms.moments import GroupMoments
from numnorm.norms.running import running_options
from numnorm.norms.sparse import checked_clip
from numnorm.norms.spec import taken_counting


class BatchNormalized(NamedTuple):
    """The result of `batch_norm` and `instance_norm` in training with running statistics.

    Attributes
    ----------
    y : jax.Array
        The normalized array, of the shape and dtype of x.
    running_mean, running_var : jax.Array
        The new running statistics. No gradient flows through them.

    Examples
    --------
    >>> import jax
    >>> import numnorm.jax
    >>> start = {"running_mean": jax.numpy.zeros(1), "running_var": jax.numpy.ones(1)}
    >>> result = numnorm.jax.batch_norm(jax.numpy.array([[1.0], [3.0]]), **start)
    >>> result.running_mean
    Array([0.2], dtype=float32)
    """

    y: jax.Array
    running_mean: jax.Array
    running_var: jax.Array


class _Static(NamedTuple):
    training: bool
    weight: float
    unbiased: bool
    eps: float


def batch_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    channel_axis: int = 1,
    running_mean: Any = None,
    running_var: Any = None,
    training: bool = True,
    momentum: float | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: float = 1e-5,
    with_mean: bool = True,
    clip: Number | None = None,
    where: Any = None,
    weights: Any = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    labels: Any = None,
    statistics: GroupMoments | None = None,
) -> jax.Array | BatchNormalized:
    """Normalize each channel over the batch and all spatial axes, then scale and shift it.

    Parameters
    ----------
    x : array_like
        Any shape; a dtype as for `layer_norm`.
    gamma, beta : array_like, optional
        Gain and bias of each channel, of shape ``(C,)``. Default: 1 and 0.
    channel_axis : int or tuple of int, default 1
        As for `numnorm.batch_norm`. ``(C,)`` is the shape of these axes.
    running_mean, running_var : array_like, optional
        Of shape ``(C,)``, both or neither. They are required in inference. Nothing is updated in
        place: in training, the new ones are returned.
    training : bool, default True
        Whether to normalize with the statistics of `x`.
    momentum, batches, convention, unbiased, eps, nan_policy, fill
        As for `numnorm.batch_norm`.
    with_mean : bool, default True
        No other value.
    clip : float, optional
        As for `numnorm.batch_norm`. The gradient of what is beyond it is 0.
    where, weights : array_like, optional
        As for `numnorm.batch_norm`; arrays of the trace, constants for the gradient.
    labels : array_like, optional
        As for `numnorm.batch_norm`: labels of any kind if they are known when the caller is traced,
        otherwise numbers. Then the saved statistics take memory as if each sample had a label of
        its own.
    statistics : GroupMoments, optional
        As for `numnorm.batch_norm`. They and the labels are known when the caller is traced, and
        are constants for the gradient.

    Returns
    -------
    jax.Array or BatchNormalized
        y, of the shape and dtype of x; in training with running statistics
        ``(y, running_mean, running_var)``.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import jax
    >>> import numnorm.jax
    >>> x = jax.numpy.array([[1.0], [3.0]])
    >>> y, mean, var = numnorm.jax.batch_norm(
    ...     x, running_mean=jax.numpy.zeros(1), running_var=jax.numpy.ones(1), eps=0.0
    ... )
    >>> y.ravel(), mean, var
    (Array([-1.,  1.], dtype=float32), Array([0.2], dtype=float32), Array([1.1], dtype=float32))
    """
    if not check_flag("with_mean", with_mean):
        raise NotImplementedError("with_mean must be True in numnorm.jax, got False")
    most = checked_clip(clip)
    x = as_float_array("x", x)
    axes = normalized_axes(channel_axis, x.ndim, "channel_axis")
    layout = column_layout(*merged_shape(x.shape, axes))
    training, eps = check_flag("training", training), check_eps(eps)
    counting = taken_counting(
        {
            "where": where,
            "weights": weights,
            "nan_policy": nan_policy,
            "fill": fill,
            "labels": labels,
            "statistics": statistics,
        }
    )
    running = {"running_mean": running_mean, "running_var": running_var}
    if labels is not None:
        check_no_running(running)
    elif statistics is not None:
        raise no_labels()
    options = running_options(
        (momentum, batches, convention),
        unbiased,
        (running_mean, running_var),
        training or statistics is not None,
    )
    static = _Static(training and statistics is None, options.weight, options.unbiased, eps)
    if static.training:
        options.correction(layout.per_channel)  # raises
    shape = tuple(x.shape[axis] for axis in axes)
    arrays = {}
    for name, value in {"gamma": gamma, "beta": beta, **running}.items():
        if value is not None:
            array = as_float_array(name, value)
            check_shape(name, array.shape, shape, "the channels of x")
            arrays[name] = array.astype(compute_dtype(array.dtype)) if name in running else array
    if counting or axes[-1] - axes[0] >= len(axes):
        y, *moved = _by_python(static, axes, x, arrays, counting)
    else:
        y, *moved = _normalized(static, (layout.outer, layout.channels, layout.inner), x, **arrays)
    if clip is not None:
        y = jnp.clip(y, -most, most)
    return BatchNormalized(y, *moved) if moved else y


def _by_python(
    static: _Static,
    axes: tuple[int, ...],
    x: Any,
    arrays: dict[str, Any],
    counting: dict[str, Any],
) -> Any:
    """Return y and the new running statistics, if there are any, by a call of Python."""
    channels = tuple(x.shape[axis] for axis in axes)
    statistic_shape = channels
    of_elements = counting_arrays(SPEC, x, axes, counting)
    if "labels" in counting:
        of_labels, count = _labels(
            x, axes, counting.pop("labels"), counting.pop("statistics", None)
        )
        of_elements |= of_labels
        statistic_shape = count, *channels
    options = {
        "channel_axis": axes,
        "training": static.training,
        "momentum": static.weight,
        "unbiased": static.unbiased,
        "eps": static.eps,
        **counting,
    }
    given = {"x": x, **arrays, **of_elements}
    traced = Pass(SPEC.name, tuple(given), statistic_shape, options)
    traced.check(given)
    return normalized_by_python(traced, *given.values())


def _labels(
    x: Any, axes: tuple[int, ...], labels: Any, statistics: Any
) -> tuple[dict[str, Any], int]:
    """Return labels as numbers, their stored statistics, and how many there are at most."""
    if any(isinstance(a, jax.core.Tracer) for a in (labels, *jax.tree.leaves(statistics))):
        if statistics is not None:
            raise TypeError("labels and statistics must be known when the caller is traced")
        labels = jnp.asarray(labels)
        return {"labels": labels}, x.shape[axis_of_samples(labels.shape, x.shape, axes)]
    labels = checked_labels(labels)
    axis_of_samples(labels.shape, x.shape, axes)  # raises for a wrong shape
    kinds, numbers = np.unique(labels, return_inverse=True)
    arrays = {"labels": jnp.asarray(numbers.astype(np.int32))}
    if statistics is not None:
        stored = np.stack(stored_statistics(statistics, kinds, x.shape, axes))
        # JAX may have no float64: a number of it is two words.
        arrays["statistics"] = jnp.asarray(stored[..., np.newaxis].view(np.uint32))
    return arrays, len(kinds)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _normalized(
    static: _Static,
    shape: tuple[int, ...],
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
) -> Any:
    """Return y and the new running statistics, if there are any."""
    gamma, beta = (
        None if a is None else a.astype(compute_dtype(x.dtype)).reshape(1, -1)
        for a in (gamma, beta)
    )
    running = None
    if running_mean is not None:
        given = running_mean, running_var
        running = tuple(jax.lax.stop_gradient(a).reshape(1, -1) for a in given)
    arrays = x.reshape(1, *shape), gamma, beta, running
    y, moved = _batch_norm(static, *varying_like(arrays, arrays))
    return y.reshape(x.shape), *(a.reshape(running_mean.shape) for a in moved or ())


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _batch_norm(static: _Static, x: Any, gamma: Any, beta: Any, running: Any) -> Any:
    """Return y of ``x (1, outer, channels, inner)``, and the new running statistics or None."""
    y, _, _, *moved = _forward_of(static, *_given(gamma, beta, running))(
        x, *_arrays(gamma, beta, running)
    )
    return y, tuple(moved) or None


def _batch_norm_forward(static: _Static, x: Any, gamma: Any, beta: Any, running: Any) -> Any:
    forward = _forward_of(static, *_given(gamma, beta, running))
    y, mean, rstd, *moved = once(forward)(x, *_arrays(gamma, beta, running))
    return (y, tuple(moved) or None), (x, mean, rstd, gamma, beta, running)


def _batch_norm_backward(static: _Static, saved: Any, gradients: Any) -> Any:
    x, mean, rstd, gamma, beta, running = saved
    weights = () if gamma is None else (gamma,)
    backward = _backward_of(static, len(weights))
    dx, dgamma, dbeta = once(backward)(gradients[0], x, mean, rstd, *weights)
    nothing = None if running is None else tuple(map(jnp.zeros_like, running))
    return dx, None if gamma is None else dgamma, None if beta is None else dbeta, nothing


_batch_norm.defvjp(_batch_norm_forward, _batch_norm_backward)


def _given(*arrays: Any) -> tuple[bool, ...]:
    return tuple(array is not None for array in arrays)


def _arrays(gamma: Any, beta: Any, running: Any) -> tuple[Any, ...]:
    return (*(a for a in (gamma, beta) if a is not None), *(running or ()))


@functools.lru_cache(maxsize=1024)
def _forward_of(static: _Static, gamma: bool, beta: bool, running: bool) -> Any:
    """Return the function of x, parameters and running statistics, for groups of batches."""

    @custom_vmap
    def forward(x: Any, *others: Any) -> Any:
        groups, channels = len(x), x.shape[2]
        statistic = jax.ShapeDtypeStruct((groups, channels, 2), jnp.uint32)
        results = [jax.ShapeDtypeStruct(x.shape, x.dtype), statistic, statistic]
        if running and static.training:
            results += [jax.ShapeDtypeStruct((groups, channels), a.dtype) for a in others[-2:]]
        if x.size and static.training and is_compiled(np.dtype(x.dtype)):
            layout = column_layout(x.shape[1:], 1)
            described = forward_call(
                np.dtype(x.dtype), layout, (groups, len(others[0]) if others else 1),
                (gamma, beta), others[-1].dtype.name if running else None, static.eps,
                int(static.unbiased), static.weight,
            )  # fmt: skip
            return _call(described, results, x, *others)
        given = {"gamma": gamma, "beta": beta, "running": running}
        return call_python(forward_pass, results, x, *others, **given, **static._asdict())

    return mapped(forward, 1)


@functools.lru_cache(maxsize=1024)
def _backward_of(static: _Static, parameters: int) -> Any:
    """Return the function of dy, x, mean, rstd and gamma, for groups of batches."""

    @custom_vmap
    def backward(dy: Any, x: Any, mean: Any, rstd: Any, *weights: Any) -> Any:
        shape = len(x), 2, x.shape[2]  # dgamma and dbeta
        results = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
        results += [jax.ShapeDtypeStruct(shape, compute_dtype(x.dtype))]
        arrays = dy, x, mean, rstd, *weights
        if x.size and static.training and is_compiled(np.dtype(x.dtype)):
            groups = len(x), len(weights[0]) if weights else 1
            layout = column_layout(x.shape[1:], 1)
            described = backward_call(np.dtype(x.dtype), layout, groups, bool(weights))
            dx, both = _call(described, results, *arrays)
        else:
            dx, both = call_python(backward_pass, results, *arrays, training=static.training)
        return dx, both[:, 0], both[:, 1]

    return mapped(backward, 4)


def _call(described: ColumnCall, results: Any, *arrays: Any) -> Any:
    """Call a compiled handler, and return its results without its scratch."""
    scratch = []
    for dtype, shape in described.scratch:
        words = (*shape, 2) if dtype == "float64" else shape
        scratch.append(jax.ShapeDtypeStruct(words, jnp.uint32))
    target = target_of(described.name, described.handler)
    numbers = np.array(described.numbers)
    return call(target, [*results, *scratch], *arrays, numbers=numbers)[: len(results)]


def forward_pass(
    arguments: list[Any],
    results: list[Any],
    gamma: bool,
    beta: bool,
    running: bool,
    training: bool,
    weight: float,
    unbiased: bool,
    eps: float,
) -> None:
    """Store y, mean, rstd and the new running statistics of each group."""
    x, *others = arguments
    for g in range(len(x)):
        given = [array[g % len(array)] for array in others]
        weights = [given.pop(0) if there else None for there in (gamma, beta)]
        statistics = given if running else [None, None]
        if running and training:
            for new, old in zip(results[3:], given, strict=True):
                new[g] = old
            statistics = [new[g] for new in results[3:]]
        _, mean, rstd = numnorm.batch_norm_forward(
            x[g], *weights, running_mean=statistics[0], running_var=statistics[1],
            training=training, momentum=weight, unbiased=unbiased, eps=eps, out=results[0][g],
        )  # fmt: skip
        for k, statistic in ((1, mean), (2, rstd)):
            results[k][g].view(np.float64)[:, 0] = statistic


def backward_pass(arguments: list[Any], results: list[Any], training: bool) -> None:
    """Store dx, dgamma and dbeta of each group."""
    dy, x, mean, rstd, *weights = arguments
    for g in range(len(x)):
        means, rstds = (array[g].view(np.float64)[:, 0] for array in (mean, rstd))
        gamma = weights[0][g % len(weights[0])] if weights else None
        gradients = numnorm.batch_norm_backward(
            dy[g], x[g], means, rstds, gamma, training=training, out=results[0][g]
        )
        results[1][g] = gradients[1:]
