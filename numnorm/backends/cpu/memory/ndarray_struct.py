"""A Numba type that reads dtype, shape and flags of a NumPy array in compiled code.

In Python these checks take as long as the work on a small array. Compiled code reads the fields of
NumPy's public ``struct PyArrayObject`` directly and counts no references. The caller must make sure
that the object is exactly a numpy.ndarray, not of a subclass.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import StructModel
from numba.extending import NativeValue, intrinsic, make_attribute_wrapper, register_model, unbox

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.kernel_arrays import contiguous, type_of

_POINTER = np.dtype(np.intp).itemsize
# Byte offsets of the fields of PyArrayObject and of its dtype, after the head of a PyObject.
_HEAD = object.__basicsize__
_DATA, _NDIM, _SHAPE = _HEAD, _HEAD + _POINTER, _HEAD + 2 * _POINTER
_DTYPE, _FLAGS = _HEAD + 5 * _POINTER, _HEAD + 6 * _POINTER
_BYTE_ORDER, _NUMBER = _HEAD + _POINTER + 2, _HEAD + _POINTER + 4
# NumPy's flags C-contiguous, aligned and writable, as in `ndarray.flags.carray`.
_CARRAY = 0x1 | 0x100 | 0x400


class NdarrayStruct(types.Type):
    """The struct of an array of any dtype and shape."""

    def __init__(self) -> None:
        super().__init__(name="NdarrayStruct")


NDARRAY_STRUCT = NdarrayStruct()
_FIELDS = {
    "address": types.intp,
    "shape": types.CPointer(types.intp),  # type: ignore[attr-defined]
    "ndim": types.int32,
    "number": types.int32,
    "order": types.uint8,
    "flags": types.int32,
}


@register_model(NdarrayStruct)
class _NdarrayStructModel(StructModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, list(_FIELDS.items()))


for _name in _FIELDS:
    make_attribute_wrapper(NdarrayStruct, _name, _name)


@unbox(NdarrayStruct)
def _unbox_ndarray_struct(kind, array, c):
    def field(struct, offset, field_type):
        begin = c.builder.bitcast(struct, cgutils.voidptr_t)
        pointer = c.builder.gep(begin, [ir.IntType(32)(offset)])
        field_type = c.context.get_value_type(field_type)
        return c.builder.load(c.builder.bitcast(pointer, field_type.as_pointer()))

    header = cgutils.create_struct_proxy(kind)(c.context, c.builder)
    dtype = field(array, _DTYPE, types.voidptr)
    for name, (struct, offset) in {
        "address": (array, _DATA),
        "shape": (array, _SHAPE),
        "ndim": (array, _NDIM),
        "number": (dtype, _NUMBER),
        "order": (dtype, _BYTE_ORDER),
        "flags": (array, _FLAGS),
    }.items():
        setattr(header, name, field(struct, offset, _FIELDS[name]))
    return NativeValue(header._getvalue())


@functools.cache
def make_as_array(kind: Any, ndim: int) -> Callable[..., Any]:
    """Return a compiled ``as_array(header, shape)``: a borrowed C-contiguous array of `kind`.

    `header` is an NdarrayStruct, and `shape` a tuple of `ndim` integers.
    """
    result = types.Array(type_of(kind), ndim, "C")

    @intrinsic
    def as_array(typing_context, header, shape):
        def generate(context, builder, signature, arguments):
            header = cgutils.create_struct_proxy(NDARRAY_STRUCT)(context, builder, arguments[0])
            start = builder.inttoptr(header.address, cgutils.voidptr_t)
            sizes = cgutils.unpack_tuple(builder, arguments[1])
            return contiguous(context, builder, result, start, sizes)

        return result(header, shape), generate

    return as_array


@inlined
def is_plain(array):
    """Return whether an array is C-contiguous, aligned and writable, as kernels take it."""
    return array.flags & _CARRAY == _CARRAY


@inlined
def is_like(array, other):
    """Return whether an array `is_plain` and has the dtype and shape of another one.

    The other array must have native byte order.
    """
    if array.number != other.number or array.order != other.order or array.ndim != other.ndim:
        return False
    for k in range(array.ndim):
        if array.shape[k] != other.shape[k]:
            return False
    return is_plain(array)


@inlined
def is_apart(target, nbytes, array, itemsize):
    """Return whether `nbytes` of a target do not overlap an array of elements of `itemsize`."""
    size = itemsize
    for k in range(array.ndim):
        size *= array.shape[k]
    begin, other = target.address, array.address
    return begin + nbytes <= other or other + size <= begin
