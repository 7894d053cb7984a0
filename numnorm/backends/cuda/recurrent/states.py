"""The activations of gates and states, zoneout (Krueger et al. 2017), and its gradient."""

import functools
from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    constant,
    cuda,
    device,
    make_exp,
    make_tanh,
    reciprocal,
)
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.cells import tanh_gradient, zoneout_blend, zoneout_gradient

# Activations


@functools.cache
def make_sigmoid(element: ElementType) -> Any:
    """Return a device function ``sigmoid(x)``, 1 / (1 + exp(-x)).

    It uses exp(-|x|), which cannot overflow.
    """
    exp, inverse = make_exp(element), reciprocal(element)
    zero, one = constant(element, 0.0), constant(element, 1.0)

    @device
    def sigmoid(x):
        e = exp(-abs(x))
        return (one if x >= zero else e) * inverse(one + e)

    return sigmoid


class Activation(NamedTuple):
    """The activation of a plain recurrent network.

    Attributes
    ----------
    value : callable
        ``value(x)``
    gradient : callable
        ``gradient(grad, value)``: the gradient of x, from the gradient of the value.
    """

    value: Any
    gradient: Any


@functools.cache
def make_activation(element: ElementType, *, rectified: bool) -> Activation:
    """Return ReLU if `rectified`, otherwise tanh."""
    zero, one = constant(element, 0.0), constant(element, 1.0)
    if not rectified:
        gradient = device(tanh_gradient)
        through = device(lambda grad, value: gradient(grad, value, one))
        return Activation(make_tanh(element), through)
    return Activation(
        device(lambda x: zero if x < zero else x),  # max() would turn a NaN into 0
        device(lambda grad, value: zero if value == zero else grad),
    )


# Zoneout


def make_blend(element: ElementType, shape: RowShape, *, zoneout: bool) -> Any:
    """Return a device function ``blend(mask, first, at, limit, new, before)``.

    It blends a thread's elements `new`, in place, with the elements `before`, by the row of the
    mask that begins at index `first`. Without zoneout it does nothing.
    """
    if not zoneout:
        return device(lambda mask, first, at, limit, new, before: None)
    columns = row_columns(element, shape)
    blended = device(zoneout_blend)
    read = make_read_columns(element, columns)
    slots = columns.slots
    compute_type = element.compute_type

    @device
    def blend(mask, first, at, limit, new, before):
        zoneout_mask = cuda.local.array(slots, compute_type)
        read(mask, first, at, limit, zoneout_mask)
        for k in range(slots):
            new[k] = blended(new[k], before[k], zoneout_mask[k])

    return blend


def make_blend_gradient(element: ElementType, shape: RowShape, *, zoneout: bool) -> Any:
    """Return a device function ``blend_gradient(mask, span, grad, bypass)``.

    It splits the gradient `grad` of the blended elements: `grad` becomes the gradient of the new
    elements, `bypass` that of the elements before. Without zoneout it does nothing.
    """
    if not zoneout:
        return device(lambda mask, span, grad, bypass: None)
    columns = row_columns(element, shape)
    gradient = device(zoneout_gradient)
    read = make_read_columns(element, columns)
    slots = columns.slots

    @device
    def blend_gradient(mask, span, grad, bypass):
        read(mask, span.row * span.width, span.at, span.width, bypass)
        for k in range(slots):
            grad[k], bypass[k] = gradient(grad[k], bypass[k])

    return blend_gradient


# The gradient of the new state of a step, over all its ways


def make_state_gradient(
    element: ElementType, shape: RowShape, *, zoneout: bool, past_every_step: bool
) -> Any:
    """Return a device function ``state_gradient(incoming, span, later, grad, bypass)``.

    It sums the gradients of the state, from `Incoming`, into the thread's array `grad`. Only the
    first `later` rows go on to a next step and have a product. Other rows end here and get dh, the
    gradient of the last state; with `past_every_step` all rows get dh. With zoneout, `bypass` gets
    the part that goes directly to the state before, and `grad` becomes the gradient of the new
    state before zoneout.
    """
    columns = row_columns(element, shape)
    compute_type = element.compute_type
    read = make_read_columns(element, columns)
    slots = columns.slots
    blend_gradient = make_blend_gradient(element, shape, zoneout=zoneout)

    @device
    def state_gradient(incoming, span, later, grad, bypass):
        other = cuda.local.array(slots, compute_type)
        row, width, at, _ = span
        first, continues = row * width, row < later
        read(incoming.dy, first, at, width, grad)
        read(incoming.product, first, at, width if continues else 0, other)
        for k in range(slots):
            grad[k] += other[k]
        read(incoming.dh, first, at, width if past_every_step or not continues else 0, other)
        for k in range(slots):
            grad[k] += other[k]
        blend_gradient(incoming.mask_h, span, grad, bypass)

    return state_gradient
