"""The compiler numba-cuda: its parts, and operations in LLVM's language, by llvmlite."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import cuda
from numba.cuda import cgutils, config, libdevice, types
from numba.cuda.cudadrv import driver, libs
from numba.cuda.dispatcher import CUDADispatcher as Dispatcher
from numba.cuda.extending import _Intrinsic as Intrinsic
from numba.cuda.extending import intrinsic

from numnorm.backends.cuda.compiler.element_type import VECTOR_BYTES

__all__ = [
    "EXTRA",
    "NAME",
    "PACKAGES",
    "Dispatcher",
    "Intrinsic",
    "compiled",
    "config",
    "cuda",
    "device",
    "driver",
    "emitted",
    "intrinsic",
    "libdevice",
    "libs",
    "types",
]

NAME = "numba-cuda"
# The end of the names of the extras that install it.
EXTRA = ""
# The packages whose versions decide on the machine code.
PACKAGES = ("numba", "llvmlite", "numba_cuda")

_KINDS = {f"i{bits}": ir.IntType(bits) for bits in (8, 16, 32, 64)}
_KINDS |= {"f16": ir.HalfType(), "f32": ir.FloatType(), "f64": ir.DoubleType()}
_INDEX, _POINTER = _KINDS["i32"], ir.PointerType(_KINDS["i8"])
_GLOBAL, _SHARED = 1, 3  # LLVM's address spaces of global and of shared memory


def device(function: Callable[..., Any]) -> Any:
    """Return a plain function as a device function, which is inlined in kernels."""
    return cuda.jit(device=True, forceinline=True)(function)


def compiled(
    function: Callable[..., Any],
    signature: Any,
    threads: int,
    capability: tuple[int, int],
    libraries: list[Path],
) -> bytes:
    """Return a kernel as intermediate code, which is optimized at link time."""
    code, _ = cuda.compile(
        function, signature, device=False, abi="numba", cc=capability, launch_bounds=threads,
        output="ltoir",
    )  # fmt: skip
    return code


def emitted(signature: Any, generate: Callable[..., Any]) -> Any:
    """Return what an intrinsic returns whose code is ``generate(emit, *values)``.

    Each value has the type in the signature; the value of a tuple is a sequence.
    """

    def lower(context, builder, signature, arguments):
        kinds = zip(signature.args, arguments, strict=True)
        values = [
            cgutils.unpack_tuple(builder, value) if isinstance(kind, types.BaseTuple) else value
            for kind, value in kinds
        ]
        result = generate(Emitter(builder), *values)
        if result is None:
            return context.get_dummy_value()
        if isinstance(result, tuple):
            return context.make_tuple(builder, signature.return_type, result)
        return result

    return signature, lower


class Emitter:
    """Operations on values, written where a builder of llvmlite stands.

    Kinds are "i8", "i16", "i32", "i64", "f16", "f32" and "f64". Memory is global, or the block's if
    `shared`.
    """

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def combine(self, operation: str, a: Any, b: Any) -> Any:
        """Return the result of an operation of LLVM on two integers; b may be Python's."""
        return getattr(self.builder, operation)(a, a.type(b) if isinstance(b, int) else b)

    def convert(self, operation: str, value: Any, kind: str) -> Any:
        """Return a value converted by an operation of LLVM."""
        return getattr(self.builder, operation)(value, _KINDS[kind])

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """Return a if a condition holds, and else b."""
        return self.builder.select(condition, a, b)

    def is_nan(self, value: Any) -> Any:
        """Return whether a float is NaN."""
        return self.builder.fcmp_unordered("uno", value, value)

    def is_not_zero(self, value: Any) -> Any:
        """Return whether an integer is not 0."""
        return self.builder.icmp_unsigned("!=", value, value.type(0))

    def load(self, kind: str, address: Any, alignment: int, *, shared: bool = False) -> Any:
        """Return the value at an address, a multiple of the alignment."""
        return self._load(_KINDS[kind], address, alignment, shared)

    def store(self, value: Any, address: Any, alignment: int, *, shared: bool = False) -> None:
        """Write a value to an address, a multiple of the alignment."""
        pointer = _pointer(self.builder, address, value.type, shared)
        self.builder.store(value, pointer, align=alignment)

    def load_vector(
        self, kind: str, count: int, address: Any, *, unchanging: bool, shared: bool
    ) -> list[Any]:
        """Return the values at an address, a multiple of all their bytes.

        Nothing writes memory that is `unchanging` while the kernel runs.
        """
        loaded = self._load(ir.VectorType(_KINDS[kind], count), address, VECTOR_BYTES, shared)
        if unchanging:
            loaded.set_metadata("invariant.load", self.builder.module.add_metadata([]))
        return [self.builder.extract_element(loaded, _INDEX(k)) for k in range(count)]

    def store_vector(self, values: Any, address: Any, *, shared: bool) -> None:
        """Write values to an address, a multiple of all their bytes."""
        vector = ir.Constant(ir.VectorType(values[0].type, len(values)), ir.Undefined)
        for k, value in enumerate(values):
            vector = self.builder.insert_element(vector, value, _INDEX(k))
        self.store(vector, address, VECTOR_BYTES, shared=shared)

    def shared_memory(self, alignment: int) -> Any:
        """Return the address of the block's dynamic shared memory."""
        kind = ir.ArrayType(_KINDS["i8"], 0)
        memory = cgutils.add_global_variable(self.builder.module, kind, "shared_memory", _SHARED)
        memory.linkage, memory.align = "external", alignment
        return self.builder.ptrtoint(memory, _KINDS["i64"])

    def assembly(self, instruction: str, constraints: str, operands: Any) -> Any:
        """Return the 32 bits that an instruction of PTX makes of its operands."""
        function = ir.FunctionType(_KINDS["i32"], [operand.type for operand in operands])
        return self.builder.asm(function, instruction, constraints, operands, False)

    def from_architecture(self, number: int, new: Callable[[], Any], old: Callable[[], Any]) -> Any:
        """Return the 32 bits that `new` makes from this architecture on, and `old` before.

        The compiler of a kernel knows the architecture, and keeps one branch.
        """
        text = bytearray(b"__CUDA_ARCH\0")
        name = ir.Constant(ir.ArrayType(_KINDS["i8"], len(text)), text)
        pointer = cgutils.global_constant(self.builder.module, "architecture", name)
        ask = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(_KINDS["i32"], [_POINTER]), "__nvvm_reflect"
        )
        found = self.builder.call(ask, [pointer.bitcast(_POINTER)])
        is_new = self.builder.icmp_signed(">=", found, _INDEX(number))
        ends = []
        with self.builder.if_else(is_new) as branches:
            for branch, make in zip(branches, (new, old), strict=True):
                with branch:
                    ends.append((make(), self.builder.block))
        chosen = self.builder.phi(_KINDS["i32"])
        for value, block in ends:
            chosen.add_incoming(value, block)
        return chosen

    def _load(self, kind: Any, address: Any, alignment: int, shared: bool) -> Any:
        loaded = self.builder.load(_pointer(self.builder, address, kind, shared))
        loaded.align = alignment
        return loaded


def _pointer(builder: Any, address: Any, kind: Any, shared: bool) -> Any:
    return builder.inttoptr(address, ir.PointerType(kind, _SHARED if shared else _GLOBAL))
