"""The SIMD vector type: arithmetic, sums, loads, stores and prefetches.

Explicit vectors fix the order of every sum: it is the same in every kernel and on every processor,
and does not depend on the compiler's vectorization. LLVM splits vectors into the registers of the
processor.

Arithmetic mixes vectors and scalars, so formulas of scalars also work on vectors. Without
compilation vectors are NumPy arrays.
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
# NaN and infinity still propagate. A product and a sum may be contracted to an FMA.
FLAGS = ("contract", "nsz")


class Vector(types.Type):
    """The Numba type of a vector with `count` lanes."""

    def __init__(self, element: types.Type, count: int) -> None:
        self.element = element
        self.count = count
        super().__init__(name=f"Vector({element} x {count})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        element = manager.lookup(kind.element).get_value_type()
        super().__init__(manager, kind, ir.VectorType(element, kind.count))


def constant(kind: Any, value: Any) -> Any:
    """Return a constant of an LLVM type, in every lane if it is a vector."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [value] * kind.count)
    return ir.Constant(kind, value)


def indices(values: Any) -> Any:
    """Return a constant vector of indices, for shuffles."""
    values = list(values)
    return ir.Constant(ir.VectorType(INDEX, len(values)), values)


def _undefined(kind: Any) -> Any:
    return ir.Constant(kind, ir.Undefined)


def splat(builder: Any, value: Any, count: int) -> Any:
    """Return a vector with the same value in every lane."""
    undefined = _undefined(ir.VectorType(value.type, count))
    first = builder.insert_element(undefined, value, INDEX(0))
    return builder.shuffle_vector(first, undefined, indices([0] * count))


def compiled_as(plain: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a decorator that makes an intrinsic; without compilation it returns `plain`."""
    return lambda definition: plain if config.DISABLE_JIT else intrinsic(definition)


# Arithmetic


def _as_vectors(context: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    """Return the arguments as vectors of the return type, with splats of scalars."""
    lanes, values = signature.return_type, []
    for kind, value in zip(signature.args, arguments, strict=True):
        if not isinstance(kind, Vector):
            number = context.cast(builder, value, kind, lanes.element)
            value = splat(builder, number, lanes.count)
        values.append(value)
    return values


def _arithmetic(function: Callable[..., Any], instruction: str) -> None:
    def generate(context, builder, signature, arguments):
        values = _as_vectors(context, builder, signature, arguments)
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
    """Return ``a * b + c`` of a vector a, rounded once if the processor can; b, c may be scalars.

    The compiler may also contract a written product and sum, but it need not, for example if the
    product has another use.
    """

    def generate(context, builder, signature, arguments):
        return fused(builder, *_as_vectors(context, builder, signature, arguments))

    return a(a, b, c), generate


def fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` of vectors in one instruction if the processor has one."""
    kind = a.type
    suffix = {"float": "f32", "double": "f64"}[str(kind.element)]
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fmuladd.v{kind.count}{suffix}"
    )
    return builder.call(function, [a, b, c])


def _plain_rounded_sum(a: Any, b: Any) -> Any:
    """Return ``a + b`` of two vectors, each rounded before: a product is not contracted with it."""
    return a + b


@compiled_as(_plain_rounded_sum)
def rounded_sum(typing_context, a, b):
    """Return ``a + b`` of two vectors, each rounded before: a product is not contracted with it."""

    def generate(context, builder, signature, arguments):
        # LLVM forms an FMA of a sum without flags, too; a fence stands between product and sum.
        kind = arguments[0].type
        suffix = {"float": "f32", "double": "f64"}[str(kind.element)]
        name = f"llvm.arithmetic.fence.v{kind.count}{suffix}"
        fence = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
        return builder.fadd(builder.call(fence, [arguments[0]]), arguments[1])

    return a(a, b), generate


def _plain_reduce_sum(lanes: Any) -> Any:
    """Return the sum of all lanes: repeatedly add the upper half to the lower half."""
    while lanes.size > 1:
        half = lanes.size // 2
        lanes = lanes[:half] + lanes[half:]
    return lanes[0]


@compiled_as(_plain_reduce_sum)
def reduce_sum(typing_context, lanes):
    """Return the sum of all lanes: repeatedly add the upper half to the lower half."""

    def generate(context, builder, signature, arguments):
        (value,) = arguments
        while value.type.count > 1:
            half, undefined = value.type.count // 2, _undefined(value.type)
            lower = builder.shuffle_vector(value, undefined, indices(range(half)))
            upper = builder.shuffle_vector(value, undefined, indices(range(half, 2 * half)))
            value = builder.fadd(lower, upper)
        return builder.extract_element(value, INDEX(0))

    return lanes.element(lanes), generate


# Memory


def pointer_of(context: Any, builder: Any, kind: Any, arguments: Any, count: int) -> Any:
    """Return the pointer to a vector at ``array[index]``, for arguments (array, index, ...)."""
    array = context.make_array(kind)(context, builder, arguments[0])
    address = builder.gep(array.data, [arguments[1]])
    return builder.bitcast(address, ir.VectorType(array.data.type.pointee, count).as_pointer())


def load_from(builder: Any, pointer: Any) -> Any:
    """Return the vector at a pointer."""
    return builder.load(pointer, align=alignment(pointer.type.pointee))


def store_at(builder: Any, pointer: Any, lanes: Any) -> None:
    """Store a vector at a pointer."""
    builder.store(lanes, pointer, align=alignment(pointer.type.pointee))


def store_nontemporal_at(builder: Any, pointer: Any, lanes: Any) -> None:
    """Store a vector at a pointer with a non-temporal store: see `store_nontemporal`."""
    size = lanes.type.count * alignment(lanes.type)
    stored = builder.store(lanes, pointer, align=min(size, 64))
    stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(INDEX, 1)]))


def alignment(kind: Any) -> int:
    """Return the size of an element of a vector type in bytes, the alignment of its loads."""
    return {"float": 4, "double": 8, "i16": 2, "i8": 1}[str(kind.element)]


@functools.cache
def make_load(count: int) -> Callable[..., Any]:
    """Return a compiled ``load(array, index)`` of a vector of `count` lanes."""

    def plain(array, index):
        return array[index : index + count].copy()  # a value, not a view

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
    """Return an element of a flat array, without the check for a negative index."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load(builder.gep(data, [arguments[1]]))

    return array.dtype(array, types.intp), generate


def _plain_store(array: Any, index: int, lanes: Any) -> None:
    """Store a vector."""
    array[index : index + lanes.size] = lanes


@compiled_as(_plain_store)
def store(typing_context, array, index, lanes):
    """Store a vector."""

    def generate(context, builder, signature, arguments):
        pointer = pointer_of(context, builder, signature.args[0], arguments, lanes.count)
        store_at(builder, pointer, arguments[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


@compiled_as(_plain_store)
def store_nontemporal(typing_context, array, index, lanes):
    """Store a vector with a non-temporal store, at an address aligned to its size or to a line.

    Use it in a separate loop: LLVM may merge it with a normal store in another branch.
    """

    def generate(context, builder, signature, arguments):
        pointer = pointer_of(context, builder, signature.args[0], arguments, lanes.count)
        store_nontemporal_at(builder, pointer, arguments[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


def _plain_store_either(array: Any, index: int, lanes: Any, nontemporal: bool) -> None:
    _plain_store(array, index, lanes)


@compiled_as(_plain_store_either)
def store_either(typing_context, array, index, lanes, nontemporal):
    """Store a vector by `store` or, if the flag `nontemporal` is set, by `store_nontemporal`."""

    def generate(context, builder, signature, arguments):
        pointer = pointer_of(context, builder, signature.args[0], arguments, lanes.count)
        with builder.if_else(arguments[3]) as (then, otherwise):
            with then:
                store_nontemporal_at(builder, pointer, arguments[2])
                # Without it LLVM could merge the two stores into a normal one.
                builder.asm(ir.FunctionType(ir.VoidType(), []), "", "", [], side_effect=True)
            with otherwise:
                store_at(builder, pointer, arguments[2])
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes, types.boolean), generate


def _plain_store_fence() -> None:
    """Wait until all stores, also non-temporal ones, are visible."""


@compiled_as(_plain_store_fence)
def store_fence(typing_context):
    """Wait until all stores, also non-temporal ones, are visible."""

    def generate(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


def prefetch_at(builder: Any, pointer: Any, level: int = 3) -> None:
    """Prefetch the cache line at a pointer into L1 (level 3) or L2 (level 2)."""
    address = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    flags = [INDEX(0), INDEX(level), INDEX(1)]  # to read, and data
    kinds = [argument.type for argument in (address, *flags)]
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), kinds), "llvm.prefetch.p0"
    )
    builder.call(function, [address, *flags])


def _plain_prefetch(array: Any, index: int) -> None:
    """Prefetch the cache line at an index, inside the array or beyond."""


def _make_prefetch(level_of: Callable[[], int]) -> Callable[..., Any]:
    def prefetch(typing_context, array, index):
        def generate(context, builder, signature, arguments):
            kinds, arrays = [array], [arguments[0]]
            if not isinstance(array, types.Array):
                kinds, arrays = list(array), cgutils.unpack_tuple(builder, arguments[0])
            for kind, value in zip(kinds, arrays, strict=True):
                pointer = pointer_of(context, builder, kind, (value, arguments[1]), 1)
                prefetch_at(builder, pointer, level_of())
            return context.get_dummy_value()

        return types.void(array, types.intp), generate

    return compiled_as(_plain_prefetch)(prefetch)


# Compiled ``prefetch(array, index)``: prefetches into L2, inside the array or beyond, or the same
# index of each array of a tuple. `prefetch_l1` prefetches into L1 if that is large: in a small L1
# it would evict live data.
prefetch = _make_prefetch(lambda: 2)
prefetch_l1 = _make_prefetch(lambda: 3 if has_large_l1d() else 2)


@functools.cache
def make_zeros(kind: Any, count: int) -> Callable[[], Any]:
    """Return a compiled ``zeros()``: a vector of `count` zeros of a NumPy type."""
    result = Vector(types.float32 if kind is np.float32 else types.float64, count)

    def plain():
        return np.zeros(count, kind)

    @compiled_as(plain)
    def operation(typing_context):
        def generate(context, builder, signature, arguments):
            return ir.Constant(context.get_value_type(result), None)

        return result(), generate

    return operation
