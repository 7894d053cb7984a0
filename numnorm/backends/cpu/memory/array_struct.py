"""Arrays of contiguous elements, put together by what generates code for them."""

from typing import Any

from numba.core import types


def contiguous(
    context: Any, builder: Any, kind: Any, data: Any, sizes: Any, memory: Any = None
) -> Any:
    """Return an array of a type at an address, of LLVM's integers as its shape.

    `memory` is what counts its references: none where nobody does.
    """
    from numba.np.arrayobj import populate_array

    array = context.make_array(kind)(context, builder)
    strides = [context.get_constant(types.intp, kind.dtype.bitwidth // 8)]
    for size in reversed(sizes[1:]):
        strides.insert(0, builder.mul(strides[0], size))
    populate_array(
        array,
        data=builder.bitcast(data, array.data.type),
        shape=sizes,
        strides=strides,
        itemsize=strides[-1],
        meminfo=memory,
    )
    return array._getvalue()
