"""What reaches the new state of a step of a recurrent cell, on the way back."""

from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import cuda, device
from numnorm.backends.cuda.recurrent.common.zoneout import make_blend_gradient
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape


def make_state_gradient(
    element: ElementType, shape: RowShape, *, zoneout: bool, past_every_step: bool
) -> Any:
    """Return a device function ``gradient_of(incoming, span, later, grad, kept)``.

    It adds up what reaches the state, of `Incoming`. The first `later` rows have a product, with
    the next step, and dh is that of the last state: of what goes `past_every_step` of a row, too,
    where anything does. With zoneout, the share that goes past this step is `kept`, and the
    gradient is that of the new state.
    """
    columns, compute_type = row_columns(element, shape), element.compute_type
    read, slots = make_read_columns(element, columns), columns.slots
    blend_gradient = make_blend_gradient(element, shape, zoneout=zoneout)

    @device
    def gradient_of(incoming, span, later, grad, kept):
        other = cuda.local.array(slots, compute_type)
        row, width, at, _ = span
        first, goes_on = row * width, row < later
        read(incoming.dy, first, at, width, grad)
        read(incoming.product, first, at, width if goes_on else 0, other)
        for k in range(slots):
            grad[k] += other[k]
        read(incoming.dh, first, at, width if past_every_step or not goes_on else 0, other)
        for k in range(slots):
            grad[k] += other[k]
        blend_gradient(incoming.mask_h, span, grad, kept)

    return gradient_of
