"""Arrays without reference counts, for loops that slice them.

Every slice of an array counts a reference up and down, atomically: some ten nanoseconds, as much
as the work on a narrow row. The caller of a kernel holds its arrays anyway, and a small array for
a kernel's own use can lie on the stack.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

from numnorm.backends.cpu.lanes import compiled_as

_TYPES = {np.dtype(kind.name): kind for kind in (types.float32, types.float64, types.uint16)}


def borrowed(value):
    """Return an array as a kernel's loops should use it; anything else as it is."""
    return value


@intrinsic
def _without_owner(typing_context, array):
    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.return_type)(context, builder, arguments[0])
        view.meminfo = cgutils.get_null_value(view.meminfo.type)
        view.parent = cgutils.get_null_value(view.parent.type)
        return view._getvalue()

    return array(array), generate


@overload(borrowed)
def _borrowed(value):
    if isinstance(value, types.Array):
        return lambda value: _without_owner(value)
    return lambda value: value


def make_scratch(kind: Any, size: int) -> Callable[[], Any]:
    """Return a compiled ``scratch()``: an array for use until the kernel returns, of any content.

    It lies on the stack, because to allocate it would cost a small kernel a tenth of its time,
    and a process that loads a kernel which allocates imports half of Numba.
    """
    dtype, itemsize = _TYPES[np.dtype(kind)], np.dtype(kind).itemsize

    def plain():
        return np.zeros(size, kind)

    @compiled_as(plain)
    def scratch(typing_context):
        result = types.Array(dtype, 1, "C")

        def generate(context, builder, signature, arguments):
            from numba.np.arrayobj import populate_array

            space = cgutils.alloca_once(builder, ir.ArrayType(context.get_value_type(dtype), size))
            space.align = 64
            array = context.make_array(result)(context, builder)
            populate_array(
                array,
                data=builder.bitcast(space, array.data.type),
                shape=[context.get_constant(types.intp, size)],
                strides=[context.get_constant(types.intp, itemsize)],
                itemsize=context.get_constant(types.intp, itemsize),
                meminfo=None,
            )
            return array._getvalue()

        return result(), generate

    return scratch
