"""Zoneout: a step keeps a share of each element of the state before it (Krueger et al. 2017)."""

from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import cuda, device
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.cells import zoneout_blend, zoneout_gradient


def make_blend(element: ElementType, shape: RowShape, *, zoneout: bool) -> Any:
    """Return a device function ``blend(mask, first, at, limit, new, before)``.

    It blends a thread's new elements with those before, by the row of the mask from `first` on;
    without zoneout it does nothing.
    """
    if not zoneout:
        return device(lambda mask, first, at, limit, new, before: None)
    columns, compute_type, blended = (
        row_columns(element, shape),
        element.compute_type,
        device(zoneout_blend),
    )
    read, slots = make_read_columns(element, columns), columns.slots

    @device
    def blend(mask, first, at, limit, new, before):
        share = cuda.local.array(slots, compute_type)
        read(mask, first, at, limit, share)
        for k in range(slots):
            new[k] = blended(new[k], before[k], share[k])

    return blend


def make_blend_gradient(element: ElementType, shape: RowShape, *, zoneout: bool) -> Any:
    """Return a device function ``blend_gradient(mask, span, grad, kept)``.

    The gradient becomes that of the new elements, and `kept` that of those before; without
    zoneout nothing happens.
    """
    if not zoneout:
        return device(lambda mask, span, grad, kept: None)
    columns, gradient = row_columns(element, shape), device(zoneout_gradient)
    read, slots = make_read_columns(element, columns), columns.slots

    @device
    def blend_gradient(mask, span, grad, kept):
        read(mask, span.row * span.width, span.at, span.width, kept)
        for k in range(slots):
            grad[k], kept[k] = gradient(grad[k], kept[k])

    return blend_gradient
