"""Code generation for Numba's struct of a contiguous array."""

from typing import Any

from numba.core import types


def contiguous(
    context: Any, builder: Any, kind: Any, data: Any, sizes: Any, memory: Any = None
) -> Any:
    """Return an array of type `kind` at the address `data`, with LLVM integers `sizes` as shape.

    `memory` is Numba's meminfo that counts its references, None for a borrowed array.
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
