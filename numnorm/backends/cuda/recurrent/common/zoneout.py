"""Zoneout: a step blends each element of a state with the one before it (Krueger et al. 2017)."""

from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import cuda, device
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.cells import zoneout_blend, zoneout_gradient


def make_blend(element: ElementType, shape: RowShape, *, zoneout: bool) -> Any:
    """Return a device function ``blend(mask, first, at, limit, new, before)``.

    It blends a thread's elements `new`, in place, with the elements `before`, by the row of the
    mask that begins at index `first`. Without zoneout it does nothing.
    """
    if not zoneout:
        return device(lambda mask, first, at, limit, new, before: None)
    columns, blended = row_columns(element, shape), device(zoneout_blend)
    read, slots = make_read_columns(element, columns), columns.slots
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
    columns, gradient = row_columns(element, shape), device(zoneout_gradient)
    read, slots = make_read_columns(element, columns), columns.slots

    @device
    def blend_gradient(mask, span, grad, bypass):
        read(mask, span.row * span.width, span.at, span.width, bypass)
        for k in range(slots):
            grad[k], bypass[k] = gradient(grad[k], bypass[k])

    return blend_gradient
