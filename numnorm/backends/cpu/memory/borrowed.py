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

from numnorm.backends.cpu.memory.array_struct import contiguous
from numnorm.backends.cpu.simd.vector import compiled_as

_TYPES = {np.dtype(kind.name): kind for kind in (types.float32, types.float64, types.uint16)}


def type_of(kind: Any) -> Any:
    """Return Numba's type of an element."""
    return _TYPES[np.dtype(kind)]


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


def _plain_shaped(array: Any, shape: Any) -> Any:
    return np.reshape(array, shape)


@compiled_as(_plain_shaped)
def shaped(typing_context, array, shape):
    """Return the elements of a contiguous array in another shape, which nobody checks."""
    result = types.Array(array.dtype, len(shape), "C")

    def generate(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[0]).data
        sizes = cgutils.unpack_tuple(builder, arguments[1])
        return contiguous(context, builder, result, data, sizes)

    return result(array, shape), generate


def make_scratch(kind: Any, size: int) -> Callable[[], Any]:
    """Return a compiled ``scratch()``: an array for use until the kernel returns, of any content.

    It lies on the stack, because to allocate it would cost a small kernel a tenth of its time,
    and a process that loads a kernel which allocates imports half of Numba.
    """
    element = type_of(kind)

    def plain():
        return np.zeros(size, kind)

    @compiled_as(plain)
    def scratch(typing_context):
        result = types.Array(element, 1, "C")

        def generate(context, builder, signature, arguments):
            # Not by `cgutils.alloca_once`, which fills it with zeros: the kernel would do so in
            # every call, and LLVM would think for seconds about how.
            with builder.goto_entry_block():
                space = builder.alloca(ir.ArrayType(context.get_value_type(element), size))
            space.align = 64
            sizes = [context.get_constant(types.intp, size)]
            return contiguous(context, builder, result, space, sizes)

        return result(), generate

    return scratch
