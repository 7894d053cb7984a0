"""Loads and stores of elements in a device's memory, as intrinsics of numba-cuda.

A kernel has addresses instead of arrays, and elements of 16 bits have no type in Numba. So a load
or store is an intrinsic that converts between the memory's type and the compute type.
"""

import functools
from typing import Any

from llvmlite import ir
from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic

from numnorm.backends.cuda.compiler.element_type import ElementType

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_HALF, _FLOAT, _DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_WORDS = ir.VectorType(_I32, 4)
_I8_POINTER = ir.PointerType(_I8)
_GLOBAL, _SHARED = 1, 3  # LLVM's address spaces of global and of shared memory


@intrinsic
def shared_memory(context):
    """Return the address of the block's dynamic shared memory, a multiple of 16 bytes.

    Only the loads and stores that are made with `shared` take this address.
    """

    def generate(context, builder, signature, arguments):
        kind = ir.ArrayType(ir.IntType(8), 0)
        memory = cgutils.add_global_variable(builder.module, kind, "shared_memory", _SHARED)
        memory.linkage, memory.align = "external", 16
        return builder.ptrtoint(memory, _I64)

    return types.int64(), generate


def _pointer(
    builder: Any, arguments: Any, itemsize: int, kind: Any, *, shared: bool = False
) -> Any:
    """Return a pointer to the element at the first arguments, ``address, index``."""
    offset = builder.shl(arguments[1], _I64(itemsize.bit_length() - 1))
    address = builder.add(arguments[0], offset)
    return builder.inttoptr(address, ir.PointerType(kind, _SHARED if shared else _GLOBAL))


def _to_compute(builder: Any, name: str, bits: Any) -> Any:
    """Convert 16 bits to float32."""
    if name == "float16":
        return builder.fpext(builder.bitcast(bits, _HALF), _FLOAT)
    word = builder.shl(builder.zext(bits, _I32), _I32(16))
    return builder.bitcast(word, _FLOAT)


def _to_storage(builder: Any, name: str, value: Any) -> Any:
    """Convert a float32 to 16 bits, rounded to the nearest, to even at a tie."""
    if name == "float16":
        return builder.bitcast(builder.fptrunc(value, _HALF), _I16)
    bits = builder.bitcast(value, _I32)
    last = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
    rounded = builder.add(builder.add(bits, _I32(0x7FFF)), last)
    quiet = builder.or_(bits, _I32(0x400000))  # rounding could carry a NaN to infinity
    chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(builder.lshr(chosen, _I32(16)), _I16)


def _unpacked(builder: Any, name: str, word: Any) -> list[Any]:
    """Return the elements in 32 bits, in the compute type."""
    if name == "float32":
        return [builder.bitcast(word, _FLOAT)]
    halves = word, builder.lshr(word, _I32(16))
    return [_to_compute(builder, name, builder.trunc(half, _I16)) for half in halves]


def _packed(builder: Any, name: str, values: list[Any]) -> Any:
    """Return 32 bits with elements of the compute type, converted."""
    if name == "float32":
        return builder.bitcast(values[0], _I32)
    with builder.if_else(_has_conversion_of_two(builder)) as (at_once, one_by_one):
        with at_once:
            kind = {"float16": "f16x2", "bfloat16": "bf16x2"}[name]
            operands = ir.FunctionType(_I32, [_FLOAT, _FLOAT])
            convert = f"cvt.rn.{kind}.f32 $0, $2, $1;"
            fast, of_fast = builder.asm(operands, convert, "=r,f,f", values, False), builder.block
        with one_by_one:
            low, high = (builder.zext(_to_storage(builder, name, value), _I32) for value in values)
            slow, of_slow = builder.or_(low, builder.shl(high, _I32(16))), builder.block
    packed = builder.phi(_I32)
    packed.add_incoming(fast, of_fast)
    packed.add_incoming(slow, of_slow)
    return packed


def _has_conversion_of_two(builder: Any) -> Any:
    """Return whether the GPU converts two numbers in one instruction: from capability 8.0 on.

    The compiler of a kernel knows the answer, and keeps one branch.
    """
    text = bytearray(b"__CUDA_ARCH\0")
    name = ir.Constant(ir.ArrayType(_I8, len(text)), text)
    pointer = cgutils.global_constant(builder.module, "architecture", name).bitcast(_I8_POINTER)
    ask = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_I32, [_I8_POINTER]), "__nvvm_reflect"
    )
    return builder.icmp_signed(">=", builder.call(ask, [pointer]), _I32(800))


def _compute_type(element: ElementType) -> Any:
    return getattr(types, element.compute_name)


@functools.cache
def make_load(element: ElementType, *, unchanging: bool = False, shared: bool = False) -> Any:
    """Return a device function ``load(address, index)`` of 16 bytes of elements, as a tuple.

    The elements begin at a multiple of 16 bytes. If nothing writes them while the kernel runs they
    are `unchanging`, and the read-only cache may load them. The address is in `shared_memory` if
    `shared`, and in global memory otherwise.
    """

    @intrinsic
    def load(context, address, index):
        result = types.UniTuple(_compute_type(element), element.vector)

        def generate(context, builder, signature, arguments):
            double = element.name == "float64"
            kind = ir.VectorType(_DOUBLE, 2) if double else _WORDS
            pointer = _pointer(builder, arguments, element.itemsize, kind, shared=shared)
            loaded = builder.load(pointer)
            loaded.align = 16
            if unchanging:
                loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
            parts = [builder.extract_element(loaded, _I32(k)) for k in range(kind.count)]
            if not double:
                parts = [v for word in parts for v in _unpacked(builder, element.name, word)]
            return context.make_tuple(builder, signature.return_type, parts)

        return result(types.int64, types.int64), generate

    return load


@functools.cache
def make_store(element: ElementType, *, shared: bool = False) -> Any:
    """Return a device function ``store(address, index, values)`` of 16 bytes of elements."""

    @intrinsic
    def store(context, address, index, values):
        kind = types.UniTuple(_compute_type(element), element.vector)

        def generate(context, builder, signature, arguments):
            values = cgutils.unpack_tuple(builder, arguments[2], element.vector)
            double = element.name == "float64"
            vector = ir.VectorType(_DOUBLE, 2) if double else _WORDS
            if not double:
                per_word = element.vector // vector.count
                values = [
                    _packed(builder, element.name, values[k * per_word : (k + 1) * per_word])
                    for k in range(vector.count)
                ]
            whole = ir.Constant(vector, ir.Undefined)
            for k, value in enumerate(values):
                whole = builder.insert_element(whole, value, _I32(k))
            pointer = _pointer(builder, arguments, element.itemsize, vector, shared=shared)
            builder.store(whole, pointer, align=16)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, kind), generate

    return store


@intrinsic
def load_index(context, address, index):
    """Return an int32 in global memory as an index."""

    def generate(context, builder, signature, arguments):
        loaded = builder.load(_pointer(builder, arguments, 4, _I32))
        loaded.align = 4
        return builder.sext(loaded, _I64)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def load_flag(context, address, index):
    """Return whether a byte in global memory is not 0."""

    def generate(context, builder, signature, arguments):
        loaded = builder.load(_pointer(builder, arguments, 1, _I8))
        loaded.align = 1
        return builder.icmp_unsigned("!=", loaded, _I8(0))

    return types.boolean(types.int64, types.int64), generate


@functools.cache
def make_load_one(element: ElementType, *, shared: bool = False) -> Any:
    """Return a device function ``load_one(address, index)`` of one element."""

    @intrinsic
    def load_one(context, address, index):
        def generate(context, builder, signature, arguments):
            kind = {"float32": _FLOAT, "float64": _DOUBLE}.get(element.name, _I16)
            pointer = _pointer(builder, arguments, element.itemsize, kind, shared=shared)
            loaded = builder.load(pointer)
            loaded.align = element.itemsize
            return loaded if kind is not _I16 else _to_compute(builder, element.name, loaded)

        return _compute_type(element)(types.int64, types.int64), generate

    return load_one


@functools.cache
def make_store_one(element: ElementType, *, shared: bool = False) -> Any:
    """Return a device function ``store_one(address, index, value)`` of one element."""

    @intrinsic
    def store_one(context, address, index, value):
        def generate(context, builder, signature, arguments):
            value = arguments[2]
            kind = {"float32": _FLOAT, "float64": _DOUBLE}.get(element.name, _I16)
            if kind is _I16:
                value = _to_storage(builder, element.name, value)
            pointer = _pointer(builder, arguments, element.itemsize, kind, shared=shared)
            builder.store(value, pointer, align=element.itemsize)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, _compute_type(element)), generate

    return store_one
