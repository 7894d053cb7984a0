"""Arrays for the results of kernels with weights, and the results in the dtype of the caller."""

from typing import Any

from numnorm.array_likes import check_out
from numnorm.backends.cpu.memory.host_arrays import Array, Order, output_like, rounded
from numnorm.backends.cpu.memory.host_arrays import result as in_place
from numnorm.backends.cpu.memory.placement import empty_like
from numnorm.backends.cpu.simd.element_type import element_type_of


def output_for(
    source: Array,
    wide: Array,
    x: Array,
    out: Any,
    inputs: tuple[Any, ...],
    *,
    name: str = "x",
    order: Order = None,
) -> Array:
    """Return an array for the result of a kernel, in the memory of `out` if possible.

    `source` is the kernel's array of x, and `wide` is x in the dtype that the kernel computes in.
    """
    if out is not None:
        check_out(out, x, name)
    if out is None or wide.dtype != x.dtype:
        return empty_like(source)
    return output_like(source, x, name, out, element_type_of(x.dtype), order, inputs)


def result_of(target: Array, wide: Array, x: Array, out: Any, *, order: Order = None) -> Array:
    """Return the result of a kernel in the dtype of x, in `out` if that is given."""
    if wide.dtype == x.dtype:
        return in_place(target, x, out, order)
    y: Array = rounded(in_place(target, wide, None, order), x.dtype, out)
    return y
