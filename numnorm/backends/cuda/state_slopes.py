"""What reaches the state of a recurrent cell in one step of the backward pass."""

from typing import Any

from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.row_columns import make_read_columns, make_write_columns, row_columns
from numnorm.backends.cuda.row_shape import RowShape
from numnorm.backends.cuda.target import cuda, device
from numnorm.backends.cuda.zoneout import passed


def make_state_slope(element: Element, shape: RowShape, *, zoneout: bool) -> Any:
    """Return a device function ``slope_of(addresses, row, width, at, limit, later, slope)``.

    It adds up what reaches the state: the addresses are ``dy, product, dh, keep``. With zoneout,
    the share that goes past the step is left in dh.
    """
    columns, working = row_columns(element, shape), element.working
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots = columns.slots

    @device
    def slope_of(addresses, row, width, at, limit, later, slope):
        dy, product, dh, keep = addresses
        other = cuda.local.array(slots, working)
        first, goes_on = row * width, row < later
        read(dy, first, at, width, slope)
        read(product, first, at, width if goes_on else 0, other)
        for k in range(slots):
            slope[k] += other[k]
        read(dh, first, at, width if zoneout or not goes_on else 0, other)
        for k in range(slots):
            slope[k] += other[k]
        if zoneout:
            read(keep, first, at, width, other)
            for k in range(slots):
                share = other[k]
                other[k] = share * slope[k]
                slope[k] = passed(slope[k], share)
            write(dh, first, at, limit, other)

    return slope_of
