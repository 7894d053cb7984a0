"""Elementwise functions of vectors: signs, limits, selections, polynomials, powers of two."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.vector import FLAGS, Vector, compiled_as, constant, fused, splat


def _call(builder: Any, name: str, *values: Any) -> Any:
    """Call an LLVM intrinsic on vectors."""
    kind = values[0].type
    suffix = {"float": "f32", "double": "f64"}[str(kind.element)]
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(kind, [value.type for value in values]),
        f"llvm.{name}.v{kind.count}{suffix}",
    )
    return builder.call(function, values)


def _make_llvm_function(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled LLVM intrinsic of a vector; without compilation it is `plain`."""

    @compiled_as(plain)
    def operation(typing_context, lanes):
        def generate(context, builder, signature, arguments):
            return _call(builder, name, *arguments)

        return lanes(lanes), generate

    return operation


def _plain_sqrt(lanes: Any) -> Any:
    with np.errstate(invalid="ignore"):
        return np.sqrt(lanes)


# Compiled ``absolute(lanes)`` and ``sqrt(lanes)``, the square root.
absolute, sqrt = _make_llvm_function("fabs", np.abs), _make_llvm_function("sqrt", _plain_sqrt)


def _plain_with_sign_of(lanes: Any, signs: Any) -> Any:
    return np.copysign(lanes, signs)


@compiled_as(_plain_with_sign_of)
def with_sign_of(typing_context, lanes, signs):
    """Return the lanes with the signs of other lanes."""

    def generate(context, builder, signature, arguments):
        return _call(builder, "copysign", *arguments)

    return lanes(lanes, signs), generate


def _plain_reciprocal(lanes: Any) -> Any:
    with np.errstate(divide="ignore"):
        return 1 / lanes


@compiled_as(_plain_reciprocal)
def reciprocal(typing_context, lanes):
    """Return 1 / lanes."""

    def generate(context, builder, signature, arguments):
        (value,) = arguments
        return builder.fdiv(constant(value.type, 1.0), value, flags=FLAGS)

    return lanes(lanes), generate


@functools.cache
def make_converted(kind: Any) -> Callable[[Any], Any]:
    """Return a compiled ``converted(lanes)``: the lanes as np.float32 or np.float64."""
    element = types.float32 if kind is np.float32 else types.float64

    def plain(lanes):
        with np.errstate(over="ignore"):
            return lanes.astype(kind)

    @compiled_as(plain)
    def operation(typing_context, lanes):
        result = Vector(element, lanes.count)

        def generate(context, builder, signature, arguments):
            if lanes == result:
                return arguments[0]
            convert = builder.fpext if element == types.float64 else builder.fptrunc
            return convert(arguments[0], context.get_value_type(result))

        return result(lanes), generate

    return operation


def _plain_where_at_most(lanes: Any, one: Any, other: Any) -> Any:
    return np.where(one <= other, lanes, lanes.dtype.type(0))


@compiled_as(_plain_where_at_most)
def where_at_most(typing_context, lanes, one, other):
    """Return the lanes where ``one <= other``, else 0; a comparison with NaN is false."""

    def generate(context, builder, signature, arguments):
        value = arguments[0]
        left, right = (
            number if isinstance(kind, Vector) else splat(builder, number, lanes.count)
            for kind, number in zip(signature.args[1:], arguments[1:], strict=True)
        )
        mask = builder.fcmp_ordered("<=", left, right)
        return builder.select(mask, value, constant(value.type, 0.0))

    return lanes(lanes, one, other), generate


def _plain_has_zero(lanes: Any) -> bool:
    return bool((lanes == 0).any())


@compiled_as(_plain_has_zero)
def has_zero(typing_context, lanes):
    """Return whether any lane is 0."""

    def generate(context, builder, signature, arguments):
        (value,) = arguments
        zero = builder.fcmp_ordered("==", value, constant(value.type, 0.0))
        bits = builder.bitcast(zero, ir.IntType(value.type.count))
        return builder.icmp_unsigned("!=", bits, bits.type(0))

    return types.boolean(lanes), generate


def _make_limited(limit: float, beyond: str) -> Callable[[Any], Any]:
    def plain(lanes):
        outside = lanes < limit if beyond == "<" else lanes > limit
        return np.where(outside, lanes.dtype.type(limit), lanes)

    @compiled_as(plain)
    def operation(typing_context, lanes):
        def generate(context, builder, signature, arguments):
            (value,) = arguments
            bound = constant(value.type, limit)
            return builder.select(builder.fcmp_ordered(beyond, value, bound), bound, value)

        return lanes(lanes), generate

    return operation


@functools.cache
def make_at_least(limit: float) -> Callable[[Any], Any]:
    """Return a compiled ``at_least(lanes)``: max(lanes, limit); NaN stays NaN."""
    return _make_limited(limit, "<")


@functools.cache
def make_at_most(limit: float) -> Callable[[Any], Any]:
    """Return a compiled ``at_most(lanes)``: min(lanes, limit); NaN stays NaN."""
    return _make_limited(limit, ">")


def _plain_maximum(lanes: Any, limit: float) -> Any:
    return np.where(lanes < limit, lanes.dtype.type(limit), lanes)


@compiled_as(_plain_maximum)
def maximum(typing_context, lanes, limit):
    """Return max(lanes, limit) with a scalar limit; NaN stays NaN."""

    def generate(context, builder, signature, arguments):
        value, number = arguments
        bound = splat(builder, number, lanes.count)
        return builder.select(builder.fcmp_ordered("<", value, bound), bound, value)

    return lanes(lanes, lanes.element), generate


def _plain_unless_zero(lanes: Any, others: Any) -> Any:
    return np.where(others == 0, lanes.dtype.type(0), lanes)


@compiled_as(_plain_unless_zero)
def unless_zero(typing_context, lanes, others):
    """Return 0 where the other lane is 0, else the lane itself."""

    def generate(context, builder, signature, arguments):
        value, number = arguments
        zero = constant(number.type, 0.0)
        return builder.select(builder.fcmp_ordered("==", number, zero), zero, value)

    return lanes(lanes, others), generate


# An estimate with 14 digits of eight float64, which two steps of Newton's method make exact.
_ESTIMATE = "llvm.x86.avx512.rsqrt14.pd.512"
_ESTIMATED = 8


def _plain_inverse_root(lanes: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(lanes == 0, lanes.dtype.type(0), 1 / np.sqrt(lanes))


@compiled_as(_plain_inverse_root)
def inverse_root(typing_context, lanes):
    """Return ``1 / sqrt(lanes)``, and 0 for 0; by a few units in the last place.

    A root and a division take longer than all else in a loop that needs both for each element.
    """

    def exact(builder, value):
        zero = constant(value.type, 0.0)
        inverse = builder.fdiv(constant(value.type, 1.0), _call(builder, "sqrt", value))
        return builder.select(builder.fcmp_ordered("==", value, zero), zero, inverse)

    def generate(context, builder, signature, arguments):
        (value,) = arguments
        double = str(value.type.element) == "double"
        if not (has_avx512() and double and value.type.count == _ESTIMATED):
            return exact(builder, value)
        estimated, before = _estimated_inverse_root(builder, value), builder.block
        # The steps fail where the estimate is 0, infinite or of a subnormal number.
        usual = builder.and_(
            builder.fcmp_ordered(">", value, constant(value.type, 1e-300)),
            builder.fcmp_ordered("<", value, constant(value.type, 1e300)),
        )
        bits = builder.bitcast(usual, ir.IntType(_ESTIMATED))
        with builder.if_then(builder.icmp_signed("!=", bits, bits.type(-1)), likely=False):
            # The bytes of a lane must not depend on other lanes.
            rare = builder.select(usual, estimated, exact(builder, value))
            after = builder.block
        result = builder.phi(value.type)
        result.add_incoming(estimated, before)
        result.add_incoming(rare, after)
        return result

    return lanes(lanes), generate


def _estimated_inverse_root(builder: Any, value: Any) -> Any:
    """Return the inverse root of usual numbers."""
    kind, mask = value.type, ir.IntType(8)
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind, kind, mask]), _ESTIMATE
    )
    root = builder.call(function, [value, constant(kind, 0.0), mask(-1)])
    half = builder.fmul(value, constant(kind, -0.5))
    for _ in range(2):
        error = fused(builder, builder.fmul(half, root), root, constant(kind, 0.5))
        root = fused(builder, root, error, root)
    return root


@functools.cache
def make_polynomial(coefficients: tuple[float, ...]) -> Callable[[Any], Any]:
    """Return a compiled ``polynomial(lanes)`` by Horner's rule, constant coefficient first."""

    def plain(lanes):
        result = np.full_like(lanes, coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            result = result * lanes + lanes.dtype.type(coefficient)
        return result

    @compiled_as(plain)
    def operation(typing_context, lanes):
        def generate(context, builder, signature, arguments):
            (x,) = arguments
            result = constant(x.type, coefficients[-1])
            for coefficient in coefficients[-2::-1]:
                product = builder.fmul(result, x, flags=FLAGS)
                result = builder.fadd(product, constant(x.type, coefficient), flags=FLAGS)
            return result

        return lanes(lanes), generate

    return operation


# x + ROUNDING - ROUNDING rounds x to an integer, which the sum holds in its last bits.
ROUNDING = {np.float32: 1.5 * 2.0**23, np.float64: 1.5 * 2.0**52}
# The bits of a word and of its mantissa, and the exponent bias.
_EXPONENT = {"float": (32, 23, 127), "double": (64, 52, 1023)}


def _plain_power_of_two(lanes: Any) -> Any:
    exponents = lanes.astype(np.float64) - ROUNDING[lanes.dtype.type]
    return np.ldexp(lanes.dtype.type(1), np.nan_to_num(exponents).astype(np.int32))


@compiled_as(_plain_power_of_two)
def power_of_two(typing_context, lanes):
    """Return 2**n for lanes ``ROUNDING + n`` if the results are normal numbers."""

    def generate(context, builder, signature, arguments):
        (value,) = arguments
        size, digits, bias = _EXPONENT[str(value.type.element)]
        words = ir.VectorType(ir.IntType(size), value.type.count)
        bits = builder.shl(builder.bitcast(value, words), constant(words, digits))
        return builder.bitcast(builder.add(bits, constant(words, bias << digits)), value.type)

    return lanes(lanes), generate
