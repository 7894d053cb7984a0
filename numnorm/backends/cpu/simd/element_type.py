"""Element types: the dtype in memory, the compute type and the conversions between them.

Numba's CPU target has neither float16 nor bfloat16, so kernels see their words. Each conversion of
a word is a plain function of a scalar or an array, for runs without compilation, and an overload
for scalars and vectors in compiled code. Rounding is to nearest, ties to even.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from numnorm.backends.cpu.compiler.jit import inlined, overloaded
from numnorm.backends.cpu.simd.vector import Vector, compiled_as, constant, indices

# Conversions of words


_HALF, _FLOAT, _INT16 = ir.HalfType(), ir.FloatType(), ir.IntType(16)
_LONG = ir.IntType(32)
# AVX-512's vfpclassps tests this many float32 for these classes.
_CLASSIFIED, _NAN_OR_SUBNORMAL = 16, 0x01 | 0x20 | 0x80


class _BfloatType(ir.Type):
    """LLVM's bfloat type, which llvmlite does not have."""

    def __str__(self) -> str:
        return "bfloat"


_BFLOAT = _BfloatType()


def float16_to_float32(word: Any) -> Any:
    """Return the float32 value of the float16 with these bits."""
    return np.float32(np.uint16(word).view(np.float16))


def float32_to_float16(value: Any) -> Any:
    """Return the bits of the float16 nearest to a float32."""
    with np.errstate(over="ignore"):
        return np.float16(value).view(np.uint16)


def bfloat16_to_float32(word: Any) -> Any:
    """Return the float32 value of the bfloat16 with these bits, the upper half of a float32."""
    return (np.uint32(word) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(value: Any) -> Any:
    """Return the bits of the bfloat16 nearest to a float32."""
    bits = np.uint64(np.float32(value).view(np.uint32))
    rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.uint16(np.where(np.isnan(value), np.uint64(0x7FC0), rounded))


def _compiled_as(function: Callable[..., Any], result: types.Type, generate: Any) -> None:
    argument = types.float32 if result is types.uint16 else types.uint16

    @intrinsic
    def convert(typing_context, value):
        is_vector = isinstance(value, Vector)
        converted = Vector(result, value.count) if is_vector else result

        def code(context, builder, signature, arguments):
            source = arguments[0]
            if not is_vector:
                source = context.cast(builder, source, value, argument)
            return generate(_Bits(context, builder, source.type), source)

        return converted(value), code

    @overloaded(function)
    def _implementation(value):
        return lambda value: convert(value)


class _Bits:
    """An LLVM builder with constants and types in the shape of a scalar or a vector."""

    def __init__(self, context: Any, builder: Any, shape: Any) -> None:
        self.builder = builder
        self.count = shape.count if isinstance(shape, ir.VectorType) else None
        self.triple, _, features = context.codegen().magic_tuple()
        self._features = features.split(",")

    def can(self, *features: str) -> bool:
        """Return whether the target processor has these features."""
        return all(f"+{feature}" in self._features for feature in features)

    def of(self, kind: Any) -> Any:
        """Return a scalar type in the shape."""
        return kind if self.count is None else ir.VectorType(kind, self.count)

    def long(self, value: int) -> Any:
        """Return a 32-bit integer constant."""
        return constant(self.of(_LONG), value)

    def single(self, value: float) -> Any:
        """Return a float32 constant."""
        return constant(self.of(_FLOAT), value)


def _has_half_instructions(bits: _Bits) -> bool:
    """Return whether the target converts float16 with instructions, not with library calls."""
    return "aarch64" in bits.triple or "arm64" in bits.triple or bits.can("f16c")


def _extend_half(bits: _Bits, word: Any) -> Any:
    builder, long, of = bits.builder, bits.long, bits.of
    if _has_half_instructions(bits):
        return builder.fpext(builder.bitcast(word, of(_HALF)), of(_FLOAT))
    word = builder.zext(word, of(_LONG))
    sign = builder.shl(builder.and_(word, long(0x8000)), long(16))
    magnitude = builder.shl(builder.and_(word, long(0x7FFF)), long(13))
    # The exponent biases differ by 112. The product is exact, also for subnormal numbers.
    scaled = builder.fmul(builder.bitcast(magnitude, of(_FLOAT)), bits.single(2.0**112))
    finite = builder.bitcast(scaled, of(_LONG))
    special = builder.or_(magnitude, long(0x7F800000))
    is_special = builder.icmp_unsigned(">=", magnitude, long(0x7C00 << 13))
    result = builder.or_(sign, builder.select(is_special, special, finite))
    return builder.bitcast(result, of(_FLOAT))


def _truncate_to_half(bits: _Bits, value: Any) -> Any:
    builder, long, of = bits.builder, bits.long, bits.of
    if _has_half_instructions(bits):
        return builder.bitcast(builder.fptrunc(value, of(_HALF)), of(_INT16))
    source = builder.bitcast(value, of(_LONG))
    sign = builder.and_(builder.lshr(source, long(16)), long(0x8000))
    magnitude = builder.and_(source, long(0x7FFFFFFF))
    lowest_kept = builder.and_(builder.lshr(magnitude, long(13)), long(1))
    rounded = builder.add(magnitude, builder.add(lowest_kept, long(0xFFF)))
    normal = builder.lshr(builder.sub(rounded, long(112 << 23)), long(13))
    # The last bit of 0.5 has the weight of the subnormals' last bit: the addition rounds to it.
    half = long(0x3F000000)
    shifted = builder.fadd(builder.bitcast(magnitude, of(_FLOAT)), bits.single(0.5))
    subnormal = builder.sub(builder.bitcast(shifted, of(_LONG)), half)
    is_nan = builder.icmp_unsigned(">", magnitude, long(0x7F800000))
    special = builder.select(is_nan, long(0x7E00), long(0x7C00))
    is_special = builder.icmp_unsigned(">=", magnitude, long(0x47800000))
    is_subnormal = builder.icmp_unsigned("<", magnitude, long(0x38800000))
    finite = builder.select(is_subnormal, subnormal, normal)
    word = builder.or_(sign, builder.select(is_special, special, finite))
    return builder.trunc(word, of(_INT16))


def _extend_bfloat(bits: _Bits, word: Any) -> Any:
    builder, of = bits.builder, bits.of
    return builder.bitcast(builder.shl(builder.zext(word, of(_LONG)), bits.long(16)), of(_FLOAT))


def _truncate_to_bfloat(bits: _Bits, value: Any) -> Any:
    count = bits.count or 1
    if count % _CLASSIFIED or not bits.can("avx512bf16", "avx512dq"):
        return _round_to_bfloat(bits, value)
    # The instruction flushes subnormal numbers to 0 and keeps the payload of a NaN.
    builder, before = bits.builder, bits.builder.block
    word = builder.bitcast(builder.fptrunc(value, bits.of(_BFLOAT)), bits.of(_INT16))
    with builder.if_then(_some_are_nan_or_subnormal(builder, value, count), likely=False):
        rounded, after = _round_to_bfloat(bits, value), builder.block
    result = builder.phi(word.type)
    result.add_incoming(word, before)
    result.add_incoming(rounded, after)
    return result


def _some_are_nan_or_subnormal(builder: Any, lanes: Any, count: int) -> Any:
    kinds = [ir.VectorType(_FLOAT, _CLASSIFIED), _LONG]
    signature = ir.FunctionType(ir.VectorType(ir.IntType(1), _CLASSIFIED), kinds)
    name = "llvm.x86.avx512.fpclass.ps.512"
    classify, any_bits = cgutils.get_or_insert_function(builder.module, signature, name), _LONG(0)
    for start in range(0, count, _CLASSIFIED):
        part = builder.shuffle_vector(lanes, lanes, indices(range(start, start + _CLASSIFIED)))
        mask = builder.call(classify, [part, _LONG(_NAN_OR_SUBNORMAL)])
        any_bits = builder.or_(any_bits, builder.zext(builder.bitcast(mask, _INT16), _LONG))
    return builder.icmp_unsigned("!=", any_bits, _LONG(0))


def _round_to_bfloat(bits: _Bits, value: Any) -> Any:
    builder, long, of = bits.builder, bits.long, bits.of
    source = builder.bitcast(value, of(_LONG))
    lowest_kept = builder.and_(builder.lshr(source, long(16)), long(1))
    rounded = builder.add(source, builder.add(lowest_kept, long(0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", value, value)
    word = builder.select(is_nan, long(0x7FC0), builder.lshr(rounded, long(16)))
    return builder.trunc(word, of(_INT16))


_compiled_as(float16_to_float32, types.float32, _extend_half)
_compiled_as(float32_to_float16, types.uint16, _truncate_to_half)
_compiled_as(bfloat16_to_float32, types.float32, _extend_bfloat)
_compiled_as(float32_to_bfloat16, types.uint16, _truncate_to_bfloat)


# Element types


def _plain_same(value: Any) -> Any:
    return value


@compiled_as(_plain_same)
def _same(typing_context, value):
    return value(value), lambda context, builder, signature, arguments: arguments[0]


def _plain_widened(value: Any) -> Any:
    return None if value is None else np.float64(value)


@compiled_as(_plain_widened)
def widened(typing_context, value):
    """Return a number or vector of float32 or float64 in float64; None as it is."""
    is_vector = isinstance(value, Vector)
    result = Vector(types.float64, value.count) if is_vector else types.float64
    if value in (result, types.none):
        return value(value), lambda context, builder, signature, arguments: arguments[0]

    def generate(context, builder, signature, arguments):
        return builder.fpext(arguments[0], context.get_value_type(result))

    return result(value), generate


def _plain_narrowed(value: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.float32(value)


@compiled_as(_plain_narrowed)
def _narrowed(typing_context, value):
    is_vector = isinstance(value, Vector)
    result = Vector(types.float32, value.count) if is_vector else types.float32

    def generate(context, builder, signature, arguments):
        return builder.fptrunc(arguments[0], context.get_value_type(result))

    return result(value), generate


@dataclasses.dataclass(frozen=True, eq=False)
class ElementType:
    """An element type: its storage dtype in kernels, its compute type, its conversions.

    `saved` is the dtype of statistics that are returned to the caller.
    """

    name: str
    storage_dtype: np.dtype[Any]
    compute_type: Any
    to_compute: Callable[[Any], Any]
    to_storage: Callable[[Any], Any]
    saved: np.dtype[Any]

    @functools.cached_property
    def compute_dtype(self) -> np.dtype[Any]:
        """The compute type as a dtype."""
        return np.dtype(self.compute_type)

    @property
    def lanes(self) -> int:
        """The number of elements of the compute type in 64 bytes."""
        return 64 // self.compute_dtype.itemsize

    @property
    def smallest_variance(self) -> float:
        """The variance below which squares lose digits to underflow in the compute type."""
        return 1e-30 if self.compute_type is np.float32 else 1e-280

    @property
    def largest(self) -> float:
        """The largest finite number of the compute type."""
        return float(np.finfo(self.compute_dtype).max)

    @property
    def largest_exponent(self) -> int:
        """The largest exponent e of a power of two that kernels scale by.

        Both 2**e and 2**-e are normal numbers of the compute type, with some room to its ends.
        """
        return 120 if self.compute_type is np.float32 else 1000


_WORD, _SINGLE, _DOUBLE = np.dtype(np.uint16), np.dtype(np.float32), np.dtype(np.float64)

_ELEMENT_TYPES = {
    element_type.name: element_type
    for element_type in (
        ElementType("float32", _SINGLE, np.float32, _same, _same, _DOUBLE),
        ElementType("float64", _DOUBLE, np.float64, _same, _same, _DOUBLE),
        ElementType(
            "float16",
            _WORD,
            np.float32,
            float16_to_float32,
            float32_to_float16,
            _SINGLE,
        ),
        ElementType(
            "bfloat16",
            _WORD,
            np.float32,
            bfloat16_to_float32,
            float32_to_bfloat16,
            _DOUBLE,  # a norm or rstd may exceed the range of float32
        ),
    )
}


@functools.cache
def in_float64(element_type: ElementType) -> ElementType:
    """Return the element type with the same dtype in memory and the compute type float64."""
    if element_type.compute_type is np.float64:
        return element_type
    to_single, to_storage = element_type.to_compute, element_type.to_storage
    return dataclasses.replace(
        element_type,
        name=f"{element_type.name}.in_float64",
        compute_type=np.float64,
        to_compute=inlined(lambda value: widened(to_single(value))),
        to_storage=inlined(lambda value: to_storage(_narrowed(value))),
    )


@functools.cache
def element_type_of(dtype: np.dtype[Any]) -> ElementType:
    """Return the element type of a supported dtype."""
    return _ELEMENT_TYPES[dtype.name]
