"""Reading the call frames of XLA's foreign function interface.

The structs of ``xla/ffi/api/c_api.h`` define the offsets, with pointers of 64 bits. They are the
same in all versions 0.x of the interface.
"""

import ctypes
import functools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from numnorm.backends.cpu.memory.kernel_arrays import contiguous, type_of
from numnorm.backends.cpu.simd.vector import compiled_as

# XLA_FFI_CallFrame
EXTENSION, API = 8, 16
ARGUMENT_COUNT, ARGUMENTS, RESULT_COUNT, RESULTS, ATTRIBUTES = 56, 72, 96, 112, 160
# XLA_FFI_Buffer
DTYPE, DATA, RANK, SHAPE = 16, 24, 32, 40
# XLA_FFI_Array, and XLA_FFI_ByteSpan of a string
ARRAY_DATA, STRING_DATA, STRING_SIZE = 16, 0, 8
# XLA_FFI_Extension_Base, XLA_FFI_Metadata_Extension
EXTENSION_TYPE, METADATA = 8, 24
METADATA_TYPE = 1
# XLA_FFI_Metadata
MAJOR, MINOR, TRAITS = 24, 28, 32
# XLA_FFI_Api
ERROR_CREATE = 48

# The numbers of XLA_FFI_DataType.
_DTYPES = {
    **{1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64"},
    **{6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64"},
    **{10: "float16", 11: "float32", 12: "float64", 16: "bfloat16"},
}


def _plain_word(address: int, offset: int) -> int:
    return ctypes.c_ssize_t.from_address(address + offset).value


def _plain_real(address: int, offset: int) -> float:
    return ctypes.c_double.from_address(address + offset).value


def _load(kind: Any) -> Any:
    """Return the code of an intrinsic that loads a value of a type from an address and offset."""

    def load(typing_context, address, offset):
        def generate(context, builder, signature, arguments):
            pointer = ir.PointerType(context.get_value_type(kind))
            return builder.load(builder.inttoptr(builder.add(*arguments), pointer))

        return kind(types.intp, types.intp), generate

    return load


word = compiled_as(_plain_word)(_load(types.intp))
real = compiled_as(_plain_real)(_load(types.float64))


def plain_array(address: int, shape: Any, kind: Any) -> Any:
    """Return an array on the memory at an address, which somebody else owns."""
    dtype = np.dtype(kind)
    nbytes = int(math.prod(shape)) * dtype.itemsize
    memory: Any = (ctypes.c_char * nbytes).from_address(int(address))
    return np.ndarray(shape, dtype, memory)


def make_array_at(kind: Any, ndim: int) -> Callable[..., Any]:
    """Return a compiled ``array_at(address, shape)``: a borrowed C-contiguous array."""

    def plain(address, shape):
        return plain_array(address, shape, kind)

    @compiled_as(plain)
    def array_at(typing_context, address, shape):
        result = types.Array(type_of(kind), ndim, "C")

        def generate(context, builder, signature, arguments):
            start = builder.inttoptr(arguments[0], cgutils.voidptr_t)
            sizes = cgutils.unpack_tuple(builder, arguments[1])
            return contiguous(context, builder, result, start, sizes)

        return result(types.intp, shape), generate

    return array_at


def buffers(frame: int, first: int, count: int) -> list[Any]:
    """Return the arguments or the results of a call as NumPy arrays."""
    arrays = []
    for buffer in _words(_plain_word(frame, first), _plain_word(frame, count)):
        # One read of the whole struct: each costs much in Python.
        fields = _words(buffer, SHAPE // 8 + 1)
        shape = tuple(_words(fields[SHAPE // 8], fields[RANK // 8]))
        kind = _dtype(fields[DTYPE // 8] & 0xFFFFFFFF)
        arrays.append(plain_array(fields[DATA // 8], shape, kind))
    return arrays


def _words(address: int, count: int) -> Any:
    return (ctypes.c_ssize_t * count).from_address(address)


@functools.cache
def _dtype(number: int) -> np.dtype[Any]:
    import ml_dtypes  # noqa: F401  # it registers bfloat16 with NumPy

    return np.dtype(_DTYPES[number])


def options(frame: int) -> Any:
    """Return the only attribute of a call, a string of JSON."""
    attribute = _plain_word(_plain_word(frame, ATTRIBUTES), 0)
    size = _plain_word(attribute, STRING_SIZE)
    return _parsed(ctypes.string_at(_plain_word(attribute, STRING_DATA), size))


@functools.lru_cache(maxsize=1024)
def _parsed(text: bytes) -> Any:
    return json.loads(text)
