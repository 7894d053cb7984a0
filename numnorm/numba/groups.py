"""Group and instance normalization in nopython code."""

from typing import Any

from numnorm.norms.group import GROUP
from numnorm.norms.results import Gradients, Normalized
from numnorm.numba.arguments import (
    check_integer,
    check_number,
    checked_eps,
    choice_of,
    inverse,
    is_none,
    wrong,
)
from numnorm.numba.arrays import make_named, types
from numnorm.numba.backward import make_backward
from numnorm.numba.forward import make_forward
from numnorm.numba.layouts import make_groups

_normalized, _gradients = make_named(Normalized), make_named(Gradients)


def group_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    groups: Any = None,
    channel_axis: Any = 1,
    eps: Any = 1e-5,
    out: Any = None,
) -> Any:
    """Compile `numnorm.group_norm`."""
    check_number("eps", eps)
    check_integer("groups", groups)
    rows = make_groups(x, channel_axis)
    layout, forward = rows.layout, make_forward(GROUP, rows, x, gamma, beta, out, save=False)

    def call(x, gamma=None, beta=None, groups=None, channel_axis=1, eps=1e-5, out=None):
        scaling = checked_eps(eps), 0.0, 0
        return forward(x, gamma, beta, layout(x, groups, channel_axis), scaling, out)[0]

    return call


def group_norm_forward(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    groups: Any = None,
    channel_axis: Any = 1,
    eps: Any = 1e-5,
    out: Any = None,
) -> Any:
    """Compile `numnorm.group_norm_forward`."""
    check_number("eps", eps)
    check_integer("groups", groups)
    rows = make_groups(x, channel_axis)
    layout, forward = rows.layout, make_forward(GROUP, rows, x, gamma, beta, out, save=True)

    def call(x, gamma=None, beta=None, groups=None, channel_axis=1, eps=1e-5, out=None):
        scaling = checked_eps(eps), 0.0, 0
        of_x = layout(x, groups, channel_axis)
        return _normalized(forward(x, gamma, beta, of_x, scaling, out))

    return call


def group_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    groups: Any = None,
    channel_axis: Any = 1,
    out: Any = None,
) -> Any:
    """Compile `numnorm.group_norm_backward`."""
    check_integer("groups", groups)
    rows = make_groups(x, channel_axis)
    layout, backward = rows.layout, make_backward(GROUP, rows, dy, x, mean, rstd, gamma, out)

    def call(dy, x, mean, rstd, gamma=None, groups=None, channel_axis=1, out=None):
        of_x = layout(x, groups, channel_axis)
        of_width = inverse(of_x[1][1], True)
        numbers = of_width, of_width, 0.0
        return _gradients(backward(dy, x, mean, rstd, gamma, None, of_x, numbers, out))

    return call


def _check_no_statistics(
    running: tuple[Any, ...], training: Any, convention: Any, unbiased: Any
) -> None:
    """Raise if running statistics are given: they are not compiled."""
    names = "running_mean", "running_var", "momentum", "batches"
    for name, kind in zip(names, running, strict=True):
        if not is_none(kind):
            raise wrong(name, "None in compiled code, which keeps no running statistics", kind)
    _check_training(training)
    choice_of("convention", convention, ("torch", "keras"))
    choice_of("unbiased", unbiased, (None, True, False))


def _check_training(training: Any) -> None:
    value = training.literal_value if isinstance(training, types.Literal) else training
    if value is not True:
        raise wrong("training", "the literal True in compiled code", training)


def instance_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    channel_axis: Any = 1,
    running_mean: Any = None,
    running_var: Any = None,
    training: Any = True,
    momentum: Any = None,
    batches: Any = None,
    convention: Any = "torch",
    unbiased: Any = None,
    eps: Any = 1e-5,
    out: Any = None,
) -> Any:
    """Compile `numnorm.instance_norm`."""
    running = running_mean, running_var, momentum, batches
    _check_no_statistics(running, training, convention, unbiased)
    check_number("eps", eps)
    rows = make_groups(x, channel_axis)
    layout, forward = rows.layout, make_forward(GROUP, rows, x, gamma, beta, out, save=False)

    def call(
        x, gamma=None, beta=None, channel_axis=1, running_mean=None, running_var=None,
        training=True, momentum=None, batches=None, convention="torch", unbiased=None, eps=1e-5,
        out=None,
    ):  # fmt: skip
        scaling = checked_eps(eps), 0.0, 0
        return forward(x, gamma, beta, layout(x, None, channel_axis), scaling, out)[0]

    return call


def instance_norm_forward(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    channel_axis: Any = 1,
    running_mean: Any = None,
    running_var: Any = None,
    training: Any = True,
    momentum: Any = None,
    batches: Any = None,
    convention: Any = "torch",
    unbiased: Any = None,
    eps: Any = 1e-5,
    out: Any = None,
) -> Any:
    """Compile `numnorm.instance_norm_forward`."""
    running = running_mean, running_var, momentum, batches
    _check_no_statistics(running, training, convention, unbiased)
    check_number("eps", eps)
    rows = make_groups(x, channel_axis)
    layout, forward = rows.layout, make_forward(GROUP, rows, x, gamma, beta, out, save=True)

    def call(
        x, gamma=None, beta=None, channel_axis=1, running_mean=None, running_var=None,
        training=True, momentum=None, batches=None, convention="torch", unbiased=None, eps=1e-5,
        out=None,
    ):  # fmt: skip
        scaling = checked_eps(eps), 0.0, 0
        return _normalized(forward(x, gamma, beta, layout(x, None, channel_axis), scaling, out))

    return call


def instance_norm_backward(
    dy: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    channel_axis: Any = 1,
    training: Any = True,
    out: Any = None,
) -> Any:
    """Compile `numnorm.instance_norm_backward`."""
    _check_training(training)
    rows = make_groups(x, channel_axis)
    layout, backward = rows.layout, make_backward(GROUP, rows, dy, x, mean, rstd, gamma, out)

    def call(dy, x, mean, rstd, gamma=None, channel_axis=1, training=True, out=None):
        of_x = layout(x, None, channel_axis)
        of_width = inverse(of_x[1][1], True)
        numbers = of_width, of_width, 0.0
        return _gradients(backward(dy, x, mean, rstd, gamma, None, of_x, numbers, out))

    return call
