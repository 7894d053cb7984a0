"""Arrays without reference counts, for loops that slice them.

Every slice of an array counts a reference up and down, atomically: some ten nanoseconds, as much
as the work on a narrow row. The caller of a kernel holds its arrays anyway.
"""

from numba.core import cgutils, types
from numba.extending import intrinsic, overload


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
