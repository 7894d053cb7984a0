"""Rows of a matrix that are cut again at cache lines.

If rows are whole numbers of cache lines but the array begins inside a line, each row has a partial
line at both ends. Cut `shift` elements later, at the first line, all rows are aligned. Their
columns are rotated by `shift`, and the first and last few elements of the array are left over.
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import pack_array, unpack_tuple

from numnorm.backends.cpu.simd.vector import compiled_as


def _plain_shifted_rows(array: Any, shift: int) -> Any:
    """Return the rows of a 2-D array, each from its element `shift` to that of the next row."""
    rows, width = array.shape
    return array.reshape(-1)[shift : shift + (rows - 1) * width].reshape(rows - 1, width)


@compiled_as(_plain_shifted_rows)
def shifted_rows(typing_context, array, shift):
    """Return the rows of a 2-D array, each from its element `shift` to that of the next row.

    The result has one row less.
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
