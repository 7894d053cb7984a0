"""float16 and bfloat16 as 16-bit words: Numba's CPU target has neither type.

Each conversion is a plain function of one number, which runs as it stands without compilation,
and beside it the same conversion for compiled code. Rounding is to nearest, ties to even.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

_HALF, _FLOAT, _WORD = ir.HalfType(), ir.FloatType(), ir.IntType(16)
_LONG = ir.IntType(32)


def float16_to_float32(word: np.uint16) -> np.float32:
    """Return the float32 value of the float16 with these bits."""
    return np.float32(np.uint16(word).view(np.float16))


def float32_to_float16(value: np.float32) -> np.uint16:
    """Return the bits of the float16 nearest to a float32."""
    with np.errstate(over="ignore"):
        return np.float16(value).view(np.uint16)


def bfloat16_to_float32(word: np.uint16) -> np.float32:
    """Return the float32 value of the bfloat16 with these bits: they are its upper half."""
    return (np.uint32(word) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(value: np.float32) -> np.uint16:
    """Return the bits of the bfloat16 nearest to a float32."""
    if np.isnan(value):
        return np.uint16(0x7FC0)
    bits = int(np.float32(value).view(np.uint32))
    return np.uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)


def _compiled_as(
    function: Callable[..., Any], result: types.Type, argument: types.Type, generate: Any
) -> None:
    @intrinsic
    def convert(typing_context, value):
        def code(context, builder, signature, arguments):
            source = context.cast(builder, arguments[0], signature.args[0], argument)
            return generate(builder, source, _has_half_instructions(context))

        return result(value), code

    @overload(function, inline="always")
    def _implementation(value):
        return lambda value: convert(value)


def _has_half_instructions(context: Any) -> bool:
    """Return whether LLVM has instructions for float16, and not calls that nothing resolves."""
    triple, _, features = context.codegen().magic_tuple()
    return "aarch64" in triple or "arm64" in triple or "+f16c" in features


def _extend_half(builder: Any, word: Any, instructions: bool) -> Any:
    if instructions:
        return builder.fpext(builder.bitcast(word, _HALF), _FLOAT)
    word = builder.zext(word, _LONG)
    sign = builder.shl(builder.and_(word, _LONG(0x8000)), _LONG(16))
    magnitude = builder.shl(builder.and_(word, _LONG(0x7FFF)), _LONG(13))
    # The exponents' biases differ by 112; the product is exact, for subnormal numbers too.
    scaled = builder.fmul(builder.bitcast(magnitude, _FLOAT), _FLOAT(2.0**112))
    finite = builder.bitcast(scaled, _LONG)
    special = builder.or_(magnitude, _LONG(0x7F800000))
    is_special = builder.icmp_unsigned(">=", magnitude, _LONG(0x7C00 << 13))
    return builder.bitcast(builder.or_(sign, builder.select(is_special, special, finite)), _FLOAT)


def _truncate_to_half(builder: Any, value: Any, instructions: bool) -> Any:
    if instructions:
        return builder.bitcast(builder.fptrunc(value, _HALF), _WORD)
    bits = builder.bitcast(value, _LONG)
    sign = builder.and_(builder.lshr(bits, _LONG(16)), _LONG(0x8000))
    magnitude = builder.and_(bits, _LONG(0x7FFFFFFF))
    lowest_kept = builder.and_(builder.lshr(magnitude, _LONG(13)), _LONG(1))
    rounded = builder.add(magnitude, builder.add(lowest_kept, _LONG(0xFFF)))
    normal = builder.lshr(builder.sub(rounded, _LONG(112 << 23)), _LONG(13))
    # One half has the same last place as the subnormal numbers, so the addition rounds to it.
    half = _LONG(0x3F000000)
    shifted = builder.fadd(builder.bitcast(magnitude, _FLOAT), builder.bitcast(half, _FLOAT))
    subnormal = builder.sub(builder.bitcast(shifted, _LONG), half)
    is_nan = builder.icmp_unsigned(">", magnitude, _LONG(0x7F800000))
    special = builder.select(is_nan, _LONG(0x7E00), _LONG(0x7C00))
    is_special = builder.icmp_unsigned(">=", magnitude, _LONG(0x47800000))
    is_subnormal = builder.icmp_unsigned("<", magnitude, _LONG(0x38800000))
    finite = builder.select(is_subnormal, subnormal, normal)
    word = builder.or_(sign, builder.select(is_special, special, finite))
    return builder.trunc(word, _WORD)


def _extend_bfloat(builder: Any, word: Any, _: bool) -> Any:
    return builder.bitcast(builder.shl(builder.zext(word, _LONG), _LONG(16)), _FLOAT)


def _truncate_to_bfloat(builder: Any, value: Any, _: bool) -> Any:
    bits = builder.bitcast(value, _LONG)
    lowest_kept = builder.and_(builder.lshr(bits, _LONG(16)), _LONG(1))
    rounded = builder.lshr(builder.add(bits, builder.add(lowest_kept, _LONG(0x7FFF))), _LONG(16))
    is_nan = builder.fcmp_unordered("uno", value, value)
    return builder.trunc(builder.select(is_nan, _LONG(0x7FC0), rounded), _WORD)


_compiled_as(float16_to_float32, types.float32, types.uint16, _extend_half)
_compiled_as(float32_to_float16, types.uint16, types.float32, _truncate_to_half)
_compiled_as(bfloat16_to_float32, types.float32, types.uint16, _extend_bfloat)
_compiled_as(float32_to_bfloat16, types.uint16, types.float32, _truncate_to_bfloat)
