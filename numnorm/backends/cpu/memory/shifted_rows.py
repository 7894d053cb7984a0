"""Rows of channels taken from the first cache line of each, and what lies before it last.

Stores in whole lines are the fastest, and the rows of an array that begins inside of a line have
a part of one at either end. But such rows follow each other without a gap: where each is a whole
number of lines, the end of one and the beginning of the next make up lines, too. Taken from line
to line, they are rows whose channels are turned by the few before the first line, and only the
array's first and last elements are left over.
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import pack_array, unpack_tuple

from numnorm.backends.cpu.simd.vector import compiled_as


def _plain_shifted_rows(array: Any, shift: int) -> Any:
    """Return the rows of a 2-D array, each from its `shift`-th element to that of the next."""
    rows, width = array.shape
    return array.reshape(-1)[shift : shift + (rows - 1) * width].reshape(rows - 1, width)


@compiled_as(_plain_shifted_rows)
def shifted_rows(typing_context, array, shift):
    """Return the rows of a 2-D array, each from its `shift`-th element to that of the next.

    There is one row less, and nobody owns them.
    """

    def generate(context, builder, signature, arguments):
        view = context.make_array(array)(context, builder, arguments[0])
        rows, width = unpack_tuple(builder, view.shape)
        fewer = builder.sub(rows, ir.Constant(rows.type, 1))
        view.data = builder.gep(view.data, [arguments[1]])
        view.shape = pack_array(builder, [fewer, width])
        view.nitems = builder.mul(fewer, width)
        return view._getvalue()

    return array(array, types.intp), generate
