"""Vectors of a fixed number of elements, worked on at once: the loops' unit of work.

How a loop over numbers is vectorized is the compiler's choice, and changes with what surrounds
it. In terms of lanes it is ours: which elements are summed together, and in what order, is the
same in every kernel and on every processor, and no sum needs permission to be reordered. LLVM
cuts lanes into the registers that there are.

Lanes mix with numbers in arithmetic, so that a formula of plain numbers works on them as well.
Without compilation they are NumPy arrays.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, config, types
from numba.core.typing import signature as typed
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import intrinsic, lower_builtin, models, register_model

from numnorm.backends.cpu.simd.processor import has_large_l1d

INDEX = ir.IntType(32)
# NaN and infinity still propagate. A product and a sum may become one instruction.
FLAGS = ("contract", "nsz")


class Vector(types.Type):
    """The type of `count` elements at once."""

    def __init__(self, element: types.Type, count: int) -> None:
        self.element = element
        self.count = count
        super().__init__(name=f"Lanes({element} x {count})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        element = manager.lookup(kind.element).get_value_type()
        super().__init__(manager, kind, ir.VectorType(element, kind.count))


def constant(kind: Any, value: Any) -> Any:
    """Return a constant of an LLVM type, the same in every lane."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [value] * kind.count)
    return ir.Constant(kind, value)


def numbered(numbers: Any) -> Any:
    """Return lanes of these constants."""
    numbers = list(numbers)
    return ir.Constant(ir.VectorType(INDEX, len(numbers)), numbers)


def _nothing(kind: Any) -> Any:
    return ir.Constant(kind, ir.Undefined)


def splat(builder: Any, value: Any, count: int) -> Any:
    """Return lanes that are all the same value."""
    nothing = _nothing(ir.VectorType(value.type, count))
    first = builder.insert_element(nothing, value, INDEX(0))
    return builder.shuffle_vector(first, nothing, numbered([0] * count))


def compiled_as(plain: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a decorator that makes an intrinsic; without compilation it is `plain` instead."""
    return lambda definition: plain if config.DISABLE_JIT else intrinsic(definition)


# Arithmetic


def _in_lanes(context: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    """Return arguments in lanes like those that are returned, numbers the same in each."""
    lanes, values = signature.return_type, []
    for kind, value in zip(signature.args, arguments, strict=True):
        if not isinstance(kind, Vector):
            number = context.cast(builder, value, kind, lanes.element)
            value = splat(builder, number, lanes.count)
        values.append(value)
    return values


def _arithmetic(function: Callable[..., Any], instruction: str) -> None:
    def generate(context, builder, signature, arguments):
        values = _in_lanes(context, builder, signature, arguments)
        return getattr(builder, instruction)(*values, flags=FLAGS)

    @infer_global(function)
    class _Typing(AbstractTemplate):
        def generic(self, arguments, keywords):
            lanes = [kind for kind in arguments if isinstance(kind, Vector)]
            return typed(lanes[0], *arguments) if lanes else None

    for kinds in ((Vector, Vector), (Vector, types.Number), (types.Number, Vector)):
        lower_builtin(function, *kinds)(generate)


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")


def _plain_multiply_add(a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c``."""
    return a * b + c


@compiled_as(_plain_multiply_add)
def multiply_add(typing_context, a, b, c):
    """Return ``a * b + c`` of lanes, rounded once wherever the processor can; b, c may be numbers.

    Of a product and a sum that are written as such the compiler makes one instruction or two as it
    likes: two where the product is used once more. It also chooses the sign of a 0.
    """

    def generate(context, builder, signature, arguments):
        return fused(builder, *_in_lanes(context, builder, signature, arguments))

    return a(a, b, c), generate


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` of lanes in one instruction, if there is one."""
    kind = a.type
    suffix = {"float": "f32", "double": "f64"}[str(kind.element)]
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fmuladd.v{kind.count}{suffix}"
    )
    return builder.call(function, [a, b, c])


def _plain_reduce_sum(lanes: Any) -> Any:
    """Return the sum of all lanes: of both halves lane by lane, and so on."""
    while lanes.size > 1:
        half = lanes.size // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes[0]


@compiled_as(_plain_reduce_sum)
def reduce_sum(typing_context, lanes):
    """Return the sum of all lanes: of both halves lane by lane, and so on."""

    def generate(context, builder, signature, arguments):
        (value,) = arguments
        while value.type.count > 1:
            half, nothing = value.type.count // 2, _nothing(value.type)
            lower = builder.shuffle_vector(value, nothing, numbered(range(half)))
            upper = builder.shuffle_vector(value, nothing, numbered(range(half, 2 * half)))
            value = builder.fadd(lower, upper)
        return builder.extract_element(value, INDEX(0))

    return lanes.element(lanes), generate


# Memory


def pointer_of(context: Any, builder: Any, kind: Any, arguments: Any, count: int) -> Any:
    """Return the address of an element as one of lanes, for arguments (array, index, ...)."""
    array = context.make_array(kind)(context, builder, arguments[0])
    address = builder.gep(array.data, [arguments[1]])
    return builder.bitcast(address, ir.VectorType(array.data.type.pointee, count).as_pointer())


def load_from(builder: Any, pointer: Any) -> Any:
    """Return the lanes at a place."""
    return builder.load(pointer, align=alignment(pointer.type.pointee))


def store_at(builder: Any, pointer: Any, lanes: Any) -> None:
    """Store lanes at a place."""
    builder.store(lanes, pointer, align=alignment(pointer.type.pointee))


def alignment(kind: Any) -> int:
    """Return how many bytes an element of lanes takes."""
    return {"float": 4, "double": 8, "i16": 2}[str(kind.element)]


@functools.cache
def make_load(count: int) -> Callable[..., Any]:
    """Return a compiled ``load(array, index)`` of `count` lanes."""

    def plain(array, index):
        return array[index : index + count].copy()  # what is stored there later changes nothing

    @compiled_as(plain)
    def operation(typing_context, array, index):
        def generate(context, builder, signature, arguments):
            pointer = pointer_of(context, builder, signature.args[0], arguments, count)
            return load_from(builder, pointer)

        return Vector(array.dtype, count)(array, types.intp), generate

    return operation


def _plain_load_scalar(array: Any, index: int) -> Any:
    return array[index]


@compiled_as(_plain_load_scalar)
def load_scalar(typing_context, array, index):
    """Return an element of a flat array, without the look whether the index is negative."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load(builder.gep(data, [arguments[1]]))

    return array.dtype(array, types.intp), generate


def _plain_store(array: Any, index: int, lanes: Any) -> None:
    """Store all lanes."""
    array[index : index + lanes.size] = lanes


@compiled_as(_plain_store)
def store(typing_context, array, index, lanes):
    """Store all lanes."""

    def generate(context, builder, signature, arguments):
        pointer = pointer_of(context, builder, signature.args[0], arguments, lanes.count)
        store_at(builder, pointer, arguments[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


@compiled_as(_plain_store)
def store_nontemporal(typing_context, array, index, lanes):
    """Store all lanes past the caches, where a line begins or, if they are half of one, its half.

    In a loop of its own: of two stores to choose from the compiler would make a common one.
    """

    def generate(context, builder, signature, arguments):
        pointer = pointer_of(context, builder, signature.args[0], arguments, lanes.count)
        size = lanes.count * alignment(pointer.type.pointee)
        told = builder.store(arguments[2], pointer, align=min(size, 64))
        told.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(INDEX, 1)]))
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


def _plain_store_fence() -> None:
    """Wait until all that has been stored can be seen, what was streamed included."""


@compiled_as(_plain_store_fence)
def store_fence(typing_context):
    """Wait until all that has been stored can be seen, what was streamed included."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def prefetch_at(builder: Any, pointer: Any, level: int = 3) -> None:
    """Ask for what lies at a place, in the first-level cache (3) or the second (2)."""
    address = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    flags = [INDEX(0), INDEX(level), INDEX(1)]  # to read, and data
    kinds = [argument.type for argument in (address, *flags)]
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
    )
    builder.call(function, [address, *flags])


def _plain_prefetch(array: Any, index: int) -> None:
    """Ask for what lies at an index, inside the array or beyond."""


def _make_prefetch(level_of: Callable[[], int]) -> Callable[..., Any]:
    def prefetch(typing_context, array, index):
        def generate(context, builder, signature, arguments):
            pointer = pointer_of(context, builder, signature.args[0], arguments, 1)
            prefetch_at(builder, pointer, level_of())
            return context.get_dummy_value()

        return types.void(array, types.intp), generate

    return compiled_as(_plain_prefetch)(prefetch)


# Compiled ``prefetch(array, index)``, which asks for what lies there, inside the array or beyond,
# in the second-level cache, and the same for the first if there is room: in a small one what is
# asked for drives out what is in use.
prefetch = _make_prefetch(lambda: 2)
prefetch_l1 = _make_prefetch(lambda: 3 if has_large_l1d() else 2)


@functools.cache
def make_zeros(kind: Any, count: int) -> Callable[[], Any]:
    """Return a compiled ``zeros()``: `count` lanes of a NumPy type."""
    result = Vector(types.float32 if kind is np.float32 else types.float64, count)

    def plain():
        return np.zeros(count, kind)

    @compiled_as(plain)
    def operation(typing_context):
        def generate(context, builder, signature, arguments):
            return ir.Constant(context.get_value_type(result), None)

        return result(), generate

    return operation


@functools.cache
def make_reduce_rows(count: int) -> Callable[..., Any]:
    """Return a compiled ``totals(array)`` of as many lanes, one after another, as they have each.

    Its lane i is the `reduce_sum` of the i-th of them, but for the order of the sum.
    """

    def plain(array):
        rows = list(array[: count * count].reshape(count, count))
        lane = np.arange(count)
        while len(rows) > 1:
            half = len(rows) // 2
            low = (lane & half) == 0
            rows = [
                np.where(low, a, b) + np.where(low, a[lane ^ half], b[lane ^ half])
                for a, b in zip(rows[:half], rows[half:], strict=True)
            ]
        return rows[0]

    @compiled_as(plain)
    def operation(typing_context, array):
        lanes = Vector(array.dtype, count)

        def generate(context, builder, signature, arguments):
            start = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            kind = context.get_value_type(lanes)
            start = builder.bitcast(start, kind.as_pointer())
            rows = [load_from(builder, builder.gep(start, [INDEX(i)])) for i in range(count)]
            return _sums_across(builder, rows)

        return lanes(array), generate

    return operation


def _sums_across(builder: Any, rows: list[Any]) -> Any:
    """Return lanes whose i-th is the sum of the i-th row: two rows become one, again and again."""
    count = len(rows)
    while len(rows) > 1:
        half = len(rows) // 2
        same, other = [], []
        for lane in range(count):
            from_second = count if lane & half else 0
            same.append(lane + from_second)
            other.append((lane ^ half) + from_second)
        rows = [
            builder.fadd(
                builder.shuffle_vector(a, b, numbered(same)),
                builder.shuffle_vector(a, b, numbered(other)),
            )
            for a, b in zip(rows[:half], rows[half:], strict=True)
        ]
    return rows[0]
