"""Loads and stores of elements, and the shared memory of a block.

A kernel has addresses instead of arrays, and elements of 16 bits have no type in the compilers. So
a load or store is an intrinsic that converts between the memory's type and the compute type. Each
compiler has an `Emitter`, which writes single operations in the compiler's own language.
"""

import functools
from typing import Any

from numnorm.backends.cuda.compiler.chosen import compiler
from numnorm.backends.cuda.compiler.element_type import VECTOR_BYTES, ElementType

types, intrinsic, emitted = compiler.types, compiler.intrinsic, compiler.emitted

_INSTRUCTIONS = {"float16": "cvt.rn.f16x2.f32", "bfloat16": "cvt.rn.bf16x2.f32"}


@intrinsic
def shared_memory(context):
    """Return the address of the block's dynamic shared memory, a multiple of 16 bytes.

    Only the loads and stores that are made with `shared` take this address.
    """
    return emitted(types.int64(), lambda emit: emit.shared_memory(VECTOR_BYTES))


def _location(emit: Any, address: Any, index: Any, itemsize: int) -> Any:
    """Return the address of an element."""
    return emit.combine("add", address, emit.combine("shl", index, itemsize.bit_length() - 1))


def _to_compute(emit: Any, name: str, bits: Any) -> Any:
    """Convert 16 bits to float32."""
    if name == "float16":
        return emit.convert("fpext", emit.convert("bitcast", bits, "f16"), "f32")
    return emit.convert(
        "bitcast", emit.combine("shl", emit.convert("zext", bits, "i32"), 16), "f32"
    )


def _to_storage(emit: Any, name: str, value: Any) -> Any:
    """Convert a float32 to 16 bits, rounded to the nearest, to even at a tie."""
    if name == "float16":
        return emit.convert("bitcast", emit.convert("fptrunc", value, "f16"), "i16")
    bits = emit.convert("bitcast", value, "i32")
    last = emit.combine("and_", emit.combine("lshr", bits, 16), 1)
    rounded = emit.combine("add", emit.combine("add", bits, 0x7FFF), last)
    quiet = emit.combine("or_", bits, 0x400000)  # rounding could carry a NaN to infinity
    chosen = emit.select(emit.is_nan(value), quiet, rounded)
    return emit.convert("trunc", emit.combine("lshr", chosen, 16), "i16")


def _unpacked(emit: Any, name: str, word: Any) -> list[Any]:
    """Return the elements in 32 bits, in the compute type."""
    if name == "float32":
        return [emit.convert("bitcast", word, "f32")]
    halves = word, emit.combine("lshr", word, 16)
    return [_to_compute(emit, name, emit.convert("trunc", half, "i16")) for half in halves]


def _packed(emit: Any, name: str, values: list[Any]) -> Any:
    """Return 32 bits with elements of the compute type, converted."""
    if name == "float32":
        return emit.convert("bitcast", values[0], "i32")

    def at_once():
        return emit.assembly(f"{_INSTRUCTIONS[name]} $0, $2, $1;", "=r,f,f", values)

    def one_by_one():
        low, high = (
            emit.convert("zext", _to_storage(emit, name, value), "i32") for value in values
        )
        return emit.combine("or_", low, emit.combine("shl", high, 16))

    # The instruction for two numbers exists from compute capability 8.0 on.
    return emit.from_architecture(800, at_once, one_by_one)


def _compute_type(element: ElementType) -> Any:
    return getattr(types, element.compute_name)


def _words(element: ElementType) -> tuple[str, int]:
    """Return the kind of the parts of a vector, and their number."""
    return ("f64", 2) if element.name == "float64" else ("i32", 4)


@functools.cache
def make_load(element: ElementType, *, unchanging: bool = False, shared: bool = False) -> Any:
    """Return a device function ``load(address, index)`` of 16 bytes of elements, as a tuple.

    The elements begin at a multiple of 16 bytes. If nothing writes them while the kernel runs they
    are `unchanging`, and the read-only cache may load them. The address is in `shared_memory` if
    `shared`, and in global memory otherwise.
    """

    def generate(emit, address, index):
        location = _location(emit, address, index, element.itemsize)
        words = emit.load_vector(*_words(element), location, unchanging=unchanging, shared=shared)
        if element.name == "float64":
            return tuple(words)
        return tuple(v for word in words for v in _unpacked(emit, element.name, word))

    @intrinsic
    def load(context, address, index):
        result = types.UniTuple(_compute_type(element), element.vector)
        return emitted(result(types.int64, types.int64), generate)

    return load


@functools.cache
def make_store(element: ElementType, *, shared: bool = False) -> Any:
    """Return a device function ``store(address, index, values)`` of 16 bytes of elements."""

    def generate(emit, address, index, values):
        location = _location(emit, address, index, element.itemsize)
        _, count = _words(element)
        if element.name != "float64":
            n = element.vector // count
            values = [
                _packed(emit, element.name, values[k * n : (k + 1) * n]) for k in range(count)
            ]
        emit.store_vector(values, location, shared=shared)

    @intrinsic
    def store(context, address, index, values):
        kind = types.UniTuple(_compute_type(element), element.vector)
        return emitted(types.void(types.int64, types.int64, kind), generate)

    return store


@intrinsic
def load_index(context, address, index):
    """Return an int32 in global memory as an index."""

    def generate(emit, address, index):
        return emit.convert("sext", emit.load("i32", _location(emit, address, index, 4), 4), "i64")

    return emitted(types.int64(types.int64, types.int64), generate)


@intrinsic
def load_flag(context, address, index):
    """Return whether a byte in global memory is not 0."""

    def generate(emit, address, index):
        return emit.is_not_zero(emit.load("i8", _location(emit, address, index, 1), 1))

    return emitted(types.boolean(types.int64, types.int64), generate)


@intrinsic
def store_flag(context, address, index, value):
    """Store a byte in global memory: 1 for True, 0 for False."""

    def generate(emit, address, index, value):
        emit.store(emit.convert("zext", value, "i8"), _location(emit, address, index, 1), 1)

    return emitted(types.void(types.int64, types.int64, types.boolean), generate)


def _kind(element: ElementType) -> str:
    """Return the kind of one element in memory."""
    return {"float32": "f32", "float64": "f64"}.get(element.name, "i16")


@functools.cache
def make_load_one(element: ElementType, *, shared: bool = False) -> Any:
    """Return a device function ``load_one(address, index)`` of one element."""

    def generate(emit, address, index):
        location = _location(emit, address, index, element.itemsize)
        loaded = emit.load(_kind(element), location, element.itemsize, shared=shared)
        return loaded if _kind(element) != "i16" else _to_compute(emit, element.name, loaded)

    @intrinsic
    def load_one(context, address, index):
        return emitted(_compute_type(element)(types.int64, types.int64), generate)

    return load_one


@functools.cache
def make_store_one(element: ElementType, *, shared: bool = False) -> Any:
    """Return a device function ``store_one(address, index, value)`` of one element."""

    def generate(emit, address, index, value):
        if _kind(element) == "i16":
            value = _to_storage(emit, element.name, value)
        location = _location(emit, address, index, element.itemsize)
        emit.store(value, location, element.itemsize, shared=shared)

    @intrinsic
    def store_one(context, address, index, value):
        return emitted(types.void(types.int64, types.int64, _compute_type(element)), generate)

    return store_one
