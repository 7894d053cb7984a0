"""The selection of a device array, as kernels take it."""

from typing import NamedTuple

from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import DeviceArray, Order
from numnorm.backends.cuda.arrays.masks import in_rows
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, FLOAT64, ElementType
from numnorm.backends.cuda.weighted.selection import Selection


class Selected(NamedTuple):
    """The selection as an argument of `launch`, and the type of its weights."""

    selection: Selection
    weights: ElementType


def selection_of(
    weighting: Weighting, x: DeviceArray, order: Order, rows: int, width: int
) -> Selected:
    """Return the selection of x, whose axes in this order are rows."""
    size = rows, width
    keep, keep_step = in_rows(weighting.keep, x, order, *size)
    weights, weight_step = in_rows(weighting.weights, x, order, *size)
    element = FLOAT64 if weights is None else ELEMENT_TYPES[x.lib.dtype_name(weights)]
    omit = int(weighting.omit)
    return Selected(Selection(keep, keep_step, weights, weight_step, omit), element)
