"""What reaches the new state of a step of a recurrent cell, on the way back."""

from typing import Any

from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import cuda, device
from numnorm.backends.cuda.recurrent.common.zoneout import passed
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape


def make_state_slope(
    element: Element, shape: RowShape, *, zoneout: bool, past_every_step: bool
) -> Any:
    """Return a device function ``slope_of(addresses, row, width, at, later, slope, kept)``.

    It adds up what reaches the state: the addresses are ``dy, product, dh, keep``. The first
    `later` rows have a product, with the next step, and dh is that of the last state: of what
    goes `past_every_step` of a row, too, where anything does. With zoneout, the share that goes
    past this step is `kept`, and the slope what reaches the new state.
    """
    columns, working = row_columns(element, shape), element.working
    read, slots = make_read_columns(element, columns), columns.slots

    @device
    def slope_of(addresses, row, width, at, later, slope, kept):
        dy, product, dh, keep = addresses
        other = cuda.local.array(slots, working)
        first, goes_on = row * width, row < later
        read(dy, first, at, width, slope)
        read(product, first, at, width if goes_on else 0, other)
        for k in range(slots):
            slope[k] += other[k]
        read(dh, first, at, width if past_every_step or not goes_on else 0, other)
        for k in range(slots):
            slope[k] += other[k]
        if zoneout:
            read(keep, first, at, width, other)
            for k in range(slots):
                kept[k] = other[k] * slope[k]
                slope[k] = passed(slope[k], other[k])

    return slope_of
