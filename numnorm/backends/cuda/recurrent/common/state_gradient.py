"""The gradient of the new state of a recurrent cell's step, summed over all its ways."""

from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import cuda, device
from numnorm.backends.cuda.recurrent.common.zoneout import make_blend_gradient
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape


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
    columns, compute_type = row_columns(element, shape), element.compute_type
    read, slots = make_read_columns(element, columns), columns.slots
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
