"""Batch norm in nopython code."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm._numba.arguments import (
    check_array,
    check_flag,
    check_integer,
    check_number,
    check_out,
    checked_eps,
    choice_of,
    is_none,
    literal_of,
    real_of,
    wrong,
)
from numnorm._numba.arrays import (
    address,
    array_kind,
    assign,
    empty,
    has_shape,
    packed,
    types,
    viewed,
)
from numnorm._numba.helpers import helper
from numnorm._numba.outputs import new_target, result, results_of
from numnorm._numba.signatures import compiled_call
from numnorm.backends.cpu.columns import serial
from numnorm.backends.cpu.compiler.symbols import Source, make_call_of
from numnorm.norms.running import new_batch_weight
from numnorm.norms.spec import NormSpec

Function = Callable[..., Any]
Kinds = dict[str, Any]

_CHANNELS = types.Array(types.float64, 1, "C")
_SHAPE, _NUMBER = types.UniTuple(types.intp, 3), types.float64
_OF_CHANNELS = "one number for each channel of x"


@helper
def channel_shape(x, channel_axis):
    """Return the shape ``(outer, channels, inner)`` of an array."""
    axis = np.int64(channel_axis)
    axis += x.ndim if axis < 0 else 0
    if not 0 <= axis < x.ndim:
        raise ValueError("channel_axis must be an axis of x")
    outer = inner = 1
    for i, size in enumerate(x.shape):
        if i < axis:
            outer *= size
        elif i > axis:
            inner *= size
    return outer, x.shape[axis], inner


def is_across(x: Any, channel_axis: Any) -> bool:
    """Return whether the channel axis is known to be the last one; check its type."""
    if isinstance(channel_axis, types.BaseTuple | tuple | types.List):
        raise wrong("channel_axis", "one int in compiled code", channel_axis)
    check_integer("channel_axis", channel_axis)
    return literal_of(channel_axis) in (-1, x.ndim - 1)


def make_taken(name: str, kind: Any, real: Any, *, optional: bool = True) -> tuple[Function, Any]:
    """Return a compiled ``taken(array, shape)``, an array of channels for a kernel, and its type.

    It raises if the shape is another. None remains None.
    """
    if check_array(name, kind, 1, _OF_CHANNELS, optional=optional) is None:
        return helper(lambda array, shape: None), types.none
    message = f"{name} must have {_OF_CHANNELS}"

    def taken(array, shape):
        if not has_shape(array, (shape[1],)):
            raise ValueError(message)
        return packed(array, None, real)

    return helper(taken), array_kind(real, 1)


def _make_weight(momentum: Any, batches: Any, convention: str) -> Function:
    """Return a compiled ``weight(momentum, batches)`` of a new batch in the running statistics."""
    given = momentum.literal_value if isinstance(momentum, types.Literal) else momentum
    if isinstance(given, str | types.UnicodeType):
        if given != "cumulative":
            raise wrong("momentum", "a number, 'cumulative' or None", momentum)
        check_integer("batches", batches)

        def cumulative(momentum, batches):
            if batches < 0:
                raise ValueError("batches must be at least 0")
            return 1.0 / (batches + 1)

        return helper(cumulative)
    if not is_none(batches):
        raise wrong("batches", "None unless momentum='cumulative'", batches)
    if is_none(momentum):
        default = new_batch_weight(None, None, convention)
        return helper(lambda momentum, batches: default)
    check_number("momentum", momentum)
    of_new = convention == "torch"

    def weight(momentum, batches):
        number = np.float64(momentum)
        if not 0.0 <= number <= 1.0:
            raise ValueError("momentum must be between 0 and 1")
        return number if of_new else 1.0 - number

    return helper(weight)


def _make_running(name: str, kind: Any) -> tuple[Function, Function, Any]:
    """Return compiled ``moved(array, shape)`` and ``store(array, moved)``, and a type.

    The first returns the array that a kernel updates, of this type: the caller's own if possible.
    The second stores it in the caller's.
    """
    if is_none(kind):
        taken, none = make_taken(name, kind, np.float64)
        return taken, helper(lambda array, moved: None), none
    fits = isinstance(kind, types.Array) and kind.ndim == 1 and kind.mutable
    if not fits or kind.dtype not in (types.float32, types.float64):
        raise wrong(name, "a writable array of float32 or float64 with 1 axis", kind)
    own = kind.layout == "C" and kind.aligned
    real = np.float32 if own and kind.dtype == types.float32 else np.float64
    taken, taken_kind = make_taken(name, kind, real)

    def store(array, moved):
        if not own:
            assign(array, moved)

    return taken, helper(store), taken_kind


def _make_trained(real: Any, across: bool, parameters: Any, running: Any) -> Function:
    """Return a compiled batch norm in training, for `_make_normalized`."""
    for name, other, kinds in (
        ("running_mean", "running_var", running),
        ("running_var", "running_mean", running[::-1]),
    ):
        if is_none(kinds[0]) and not is_none(kinds[1]):
            raise wrong(name, f"given with {other}", None)
    take_mean, store_mean, mean_kind = _make_running("running_mean", running[0])
    take_var, store_var, var_kind = _make_running("running_var", running[1])
    given, elements = not is_none(mean_kind), array_kind(real, 1)
    before = elements, _SHAPE, *parameters, mean_kind, var_kind, _NUMBER, types.intp, _NUMBER
    source = real.__name__, across, *parameters, (mean_kind, var_kind)
    kinds = *before, elements, _CHANNELS, _CHANNELS
    call = make_call_of(Source(serial.make_forward, source, kinds))

    def trained(x, shape, parameters, running, weight, unbiased, eps, y, mean, rstd):
        gamma, beta = parameters
        running_mean, running_var = running
        moved_mean, moved_var = take_mean(running_mean, shape), take_var(running_var, shape)
        if given and address(running_mean) == address(running_var):
            raise ValueError("running_var must not share memory with running_mean")
        correction = 1 if unbiased else 0
        call(
            (
                *(x, shape, gamma, beta, moved_mean, moved_var),
                *(weight, correction, eps, y, mean, rstd),
            )
        )
        store_mean(running_mean, moved_mean)
        store_var(running_var, moved_var)

    return helper(trained)


def _make_frozen(real: Any, across: bool, parameters: Any, running: Any) -> Function:
    """Return a compiled batch norm in inference, for `_make_normalized`."""
    for name, kind in zip(("running_mean", "running_var"), running, strict=True):
        if is_none(kind):
            raise wrong(name, "given when training is not the literal True", None)
    take_mean, _ = make_taken("running_mean", running[0], np.float64)
    take_var, _ = make_taken("running_var", running[1], np.float64)
    elements = array_kind(real, 1)
    before = elements, _SHAPE, *parameters, _CHANNELS, _CHANNELS, _NUMBER
    source, kinds = (real.__name__, across, *parameters), (*before, elements, _CHANNELS)
    call = make_call_of(Source(serial.make_frozen_forward, source, kinds))

    def frozen(x, shape, parameters, running, weight, unbiased, eps, y, mean, rstd):
        gamma, beta = parameters
        running_mean, variance = take_mean(running[0], shape), take_var(running[1], shape)
        call((x, shape, gamma, beta, running_mean, variance, eps, y, rstd))
        assign(mean, running_mean)

    return helper(frozen)


def _by_training(training: Any, make: Callable[[bool], Function]) -> Function:
    """Return a compiled ``run(training, arguments)`` of ``make(True)`` or ``make(False)``."""
    if isinstance(training, types.Boolean) and not isinstance(training, types.Literal):
        trained, frozen = make(True), make(False)

        def run(training, arguments):
            if training:
                return trained(*arguments)
            return frozen(*arguments)

        return helper(run)
    one = make(choice_of("training", training, (True, False)))
    return helper(lambda training, arguments: one(*arguments))


def make(spec: NormSpec, function: Function, kinds: Kinds) -> Function:
    """Return what compiles a call of a function of batch norm with arguments of these types."""
    names: tuple[str, ...] = _OF_GRADIENTS
    if spec.is_backward(function):
        run = _make_gradients(kinds)
    else:
        check_number("eps", kinds["eps"])
        run = _make_normalized(kinds)
        names = _OF_NORMALIZED
    call = f"_results(_run({', '.join(names)}))"
    return compiled_call(function, call, _run=run, _results=results_of(function))


_OF_NORMALIZED = (
    "x", "gamma", "beta", "channel_axis", "running_mean", "running_var", "training", "momentum",
    "batches", "unbiased", "eps", "out",
)  # fmt: skip
_OF_GRADIENTS = "dy", "x", "mean", "rstd", "gamma", "channel_axis", "training", "out"


def _make_normalized(kinds: Kinds) -> Function:
    """Return a compiled forward pass of `_OF_NORMALIZED`, which returns y, mean and rstd."""
    x, channel_axis, unbiased = kinds["x"], kinds["channel_axis"], kinds["unbiased"]
    running, training = (kinds["running_mean"], kinds["running_var"]), kinds["training"]
    real, across = real_of("x", x), is_across(x, channel_axis)
    take_gamma, gamma_kind = make_taken("gamma", kinds["gamma"], real)
    take_beta, beta_kind = make_taken("beta", kinds["beta"], real)
    convention = choice_of("convention", kinds["convention"], ("torch", "keras"))
    weight_of = _make_weight(kinds["momentum"], kinds["batches"], convention)
    by_convention = is_none(unbiased)
    if not by_convention:
        check_flag("unbiased", unbiased)
    check_out(kinds["out"], x, real)

    def make_one(trained):
        make_run = _make_trained if trained else _make_frozen
        return make_run(real, across, (gamma_kind, beta_kind), running)

    run, by_torch = _by_training(training, make_one), convention == "torch"

    def normalized(
        x, gamma, beta, channel_axis, running_mean, running_var, training, momentum, batches,
        unbiased, eps, out,
    ):  # fmt: skip
        if not has_shape(out, x.shape):
            raise ValueError("out must have the shape of x")
        eps, shape = checked_eps(eps), channel_shape(x, channel_axis)
        source = viewed(packed(x, None, real), (x.size,))
        parameters = take_gamma(gamma, shape), take_beta(beta, shape)
        running, weight = (running_mean, running_var), weight_of(momentum, batches)
        correction = by_torch if by_convention else unbiased
        y = new_target(out, None, (x.size,), real, (source,))
        mean, rstd = empty((shape[1],), np.float64), empty((shape[1],), np.float64)
        run(
            training,
            (source, shape, parameters, running, weight, correction, eps, y, mean, rstd),
        )
        return result(y, x, None, out, real), mean, rstd

    return helper(normalized)


def _make_gradients(kinds: Kinds) -> Function:
    """Return a compiled backward pass of `_OF_GRADIENTS`, which returns dx, dgamma and dbeta."""
    dy, x, gamma, channel_axis = (kinds[n] for n in ("dy", "x", "gamma", "channel_axis"))
    own, across = real_of("x", x), is_across(x, channel_axis)
    check_array("dy", dy, x.ndim, "the shape of x")
    check_out(kinds["out"], x, own)
    # The dtype that holds all digits of dy and x.
    real = np.float64 if np.float64 in (own, real_of("dy", dy)) else np.float32
    take_mean, _ = make_taken("mean", kinds["mean"], np.float64, optional=False)
    take_rstd, _ = make_taken("rstd", kinds["rstd"], np.float64, optional=False)
    take_gamma, gamma_kind = make_taken("gamma", gamma, real)
    gradient, summed = (own, real) if is_none(gamma) else (real_of("gamma", gamma),) * 2
    elements, of_gradient = array_kind(real, 1), array_kind(summed, 1)
    arguments = elements, elements, _SHAPE, _CHANNELS, _CHANNELS, gamma_kind, elements
    source = real.__name__, across, gamma_kind, summed.__name__

    def make_one(trained):
        make_run = serial.make_backward if trained else serial.make_frozen_backward
        call = make_call_of(Source(make_run, source, (*arguments, of_gradient, of_gradient)))
        return helper(lambda *arguments: call(arguments))

    run = _by_training(kinds["training"], make_one)

    def gradients(dy, x, mean, rstd, gamma, channel_axis, training, out):
        if not has_shape(dy, x.shape):
            raise ValueError("dy must have the shape of x")
        if not has_shape(out, x.shape):
            raise ValueError("out must have the shape of x")
        shape, flat = channel_shape(x, channel_axis), (x.size,)
        grads, source = viewed(packed(dy, None, real), flat), viewed(packed(x, None, real), flat)
        statistics = take_mean(mean, shape), take_rstd(rstd, shape)
        weight = take_gamma(gamma, shape)
        dx = new_target(out, None, flat, real, (source, grads))
        dgamma, dbeta = empty((shape[1],), summed), empty((shape[1],), summed)
        run(training, (grads, source, shape, *statistics, weight, dx, dgamma, dbeta))
        dx = result(dx, x, None, out, own)
        return dx, packed(dgamma, None, gradient), packed(dbeta, None, gradient)

    return helper(gradients)
