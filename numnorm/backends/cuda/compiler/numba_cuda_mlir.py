"""The compiler numba-cuda-mlir: its parts, and operations in LLVM's dialect of MLIR."""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from numba_cuda_mlir import cuda, extending, mlir_optimization
from numba_cuda_mlir._mlir import ir
from numba_cuda_mlir._mlir.dialects import func, llvm, scf
from numba_cuda_mlir.cuda import libdevice
from numba_cuda_mlir.descriptor import MLIRDispatcher as Dispatcher
from numba_cuda_mlir.extending import _Intrinsic as Intrinsic
from numba_cuda_mlir.lowering_utilities import convert, get_or_insert_function
from numba_cuda_mlir.numba_cuda import types
from numba_cuda_mlir.numba_cuda.core import config
from numba_cuda_mlir.numba_cuda.core.compiler_lock import global_compiler_lock
from numba_cuda_mlir.numba_cuda.cudadrv import driver, libs

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

NAME = "numba-cuda-mlir"
# The end of the names of the extras that install it.
EXTRA = "-mlir"
# The packages whose versions decide on the machine code.
PACKAGES = ("numba_cuda_mlir",)

_lower = extending.lowering_registry.lower

_GLOBAL, _SHARED = 1, 3  # LLVM's address spaces of global and of shared memory


def device(function: Callable[..., Any]) -> Any:
    """Return a plain function as a device function, which is inlined in kernels.

    LLVM inlines better than MLIR. But a call cannot hand over a function, and shared arrays of a
    called function are lost: where there are such, the function is inlined before both.
    """
    _let_make_tuples(function)
    early = "multiply_add" in function.__code__.co_varnames or _shares(function)
    return cuda.jit(device=True, inline="always" if early else "never")(function)


def _shares(function: Callable[..., Any]) -> bool:
    """Return whether a function makes shared arrays, itself or in functions that it calls."""
    called = [cell.cell_contents for cell in function.__closure__ or ()]
    within = (_shares(found.py_func) for found in called if isinstance(found, Dispatcher))
    return "shared" in function.__code__.co_names or any(within)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Return an intrinsic of the compiler, also when this has compiled before."""
    found = extending.intrinsic(function)
    extending.refresh_registries()
    return found


def compiled(
    function: Callable[..., Any],
    signature: Any,
    threads: int,
    capability: tuple[int, int],
    libraries: list[Path],
) -> bytes:
    """Return a kernel as intermediate code, which is optimized at link time.

    The compiler also links it with the libraries, in vain.
    """
    _let_make_tuples(function)
    kernel = cuda.jit(cc=capability, launch_bounds=threads, link=list(map(str, libraries)))(
        function
    )
    with global_compiler_lock, _variables_in_registers():
        return kernel.compile(signature, output="ltoir").metadata["ltoir"]


@contextlib.contextmanager
def _variables_in_registers() -> Iterator[None]:
    """Let MLIR's own passes take variables out of memory before all others.

    Some of these merge blocks that use different variables, which then stay in memory for good.
    """
    plain = mlir_optimization.get_base_pipeline
    first = "builtin.module(gpu.module(func.func(sroa,mem2reg),gpu.func(sroa,mem2reg)),"
    text = plain().replace("builtin.module(", first, 1)
    mlir_optimization.get_base_pipeline = lambda: text
    try:
        yield
    finally:
        mlir_optimization.get_base_pipeline = plain


# What kernels use and version 0.6 has no code for.


@functools.cache
def _let_make(kind: Any) -> None:
    _lower(kind, types.VarArg(types.Any))(_make_tuple)
    extending.refresh_registries()


def _let_make_tuples(function: Callable[..., Any]) -> None:
    """Let a function make the NamedTuples that it names."""
    for name in function.__code__.co_names:
        kind = function.__globals__.get(name)
        if isinstance(kind, type) and issubclass(kind, tuple):
            _let_make(kind)


def _make_tuple(builder, target, arguments, keywords):
    builder.store_var(target, tuple(builder.load_vars(arguments)))


@_lower("static_getitem", types.BaseTuple, types.SliceLiteral)
def _slice(builder, target, arguments, keywords):
    builder.store_var(target, builder.load_var(arguments[0])[arguments[1]])


@_lower(operator.is_, types.Array, types.NoneType)
def _is_none(builder, target, arguments, keywords):
    builder.store_var(target, _constant(_type("i1"), 0))


# Operations


def emitted(signature: Any, generate: Callable[..., Any]) -> Any:
    """Return what an intrinsic returns whose code is ``generate(emit, *values)``.

    Each value has the type in the signature; the value of a tuple is a sequence.
    """

    def lower(builder, target, arguments, keywords):
        # Literals and indices come in other types of MLIR.
        values = [
            _converted(builder, kind, value)
            for kind, value in zip(signature.args, builder.load_vars(arguments), strict=True)
        ]
        builder.store_var(target, generate(Emitter(builder.mlir_gpu_module), *values))

    return signature, lower


def _converted(builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.BaseTuple):
        return [_converted(builder, *pair) for pair in zip(kind.types, value, strict=True)]
    return convert(value, builder.get_mlir_type(kind))


class Emitter:
    """Operations on values, written where MLIR's current point of insertion is.

    Kinds are "i8", "i16", "i32", "i64", "f16", "f32" and "f64". Memory is global, or the block's if
    `shared`.
    """

    def __init__(self, module: Any) -> None:
        self.module = module

    def combine(self, operation: str, a: Any, b: Any) -> Any:
        """Return the result of an operation of LLVM on two integers; b may be Python's."""
        if isinstance(b, int):
            b = _constant(a.type, b)
        flags = (llvm.IntegerOverflowFlags.none,) if operation in ("add", "shl") else ()
        return getattr(llvm, operation)(a, b, *flags)

    def convert(self, operation: str, value: Any, kind: str) -> Any:
        """Return a value converted by an operation of LLVM."""
        flags = (llvm.IntegerOverflowFlags.none,) if operation == "trunc" else ()
        return getattr(llvm, operation)(_type(kind), value, *flags)

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """Return a if a condition holds, and else b."""
        return llvm.select(condition, a, b)

    def is_nan(self, value: Any) -> Any:
        """Return whether a float is NaN."""
        return llvm.fcmp(llvm.FCmpPredicate.uno, value, value)

    def is_not_zero(self, value: Any) -> Any:
        """Return whether an integer is not 0."""
        return llvm.icmp(llvm.ICmpPredicate.ne, value, _constant(value.type, 0))

    def load(self, kind: str, address: Any, alignment: int, *, shared: bool = False) -> Any:
        """Return the value at an address, a multiple of the alignment."""
        return llvm.load(_type(kind), _pointer(address, shared), alignment=alignment)

    def store(self, value: Any, address: Any, alignment: int, *, shared: bool = False) -> None:
        """Write a value to an address, a multiple of the alignment."""
        llvm.store(value, _pointer(address, shared), alignment=alignment)

    def load_vector(
        self, kind: str, count: int, address: Any, *, unchanging: bool, shared: bool
    ) -> list[Any]:
        """Return the values at an address, a multiple of all their bytes.

        Nothing writes memory that is `unchanging` while the kernel runs.
        """
        vector, pointer = ir.VectorType.get([count], _type(kind)), _pointer(address, shared)
        loaded = llvm.load(vector, pointer, alignment=VECTOR_BYTES, invariant=unchanging)
        return [llvm.extractelement(loaded, _constant(_type("i32"), k)) for k in range(count)]

    def store_vector(self, values: Any, address: Any, *, shared: bool) -> None:
        """Write values to an address, a multiple of all their bytes."""
        vector = llvm.mlir_undef(ir.VectorType.get([len(values)], values[0].type))
        for k, value in enumerate(values):
            vector = llvm.insertelement(vector, value, _constant(_type("i32"), k))
        self.store(vector, address, VECTOR_BYTES, shared=shared)

    def shared_memory(self, alignment: int) -> Any:
        """Return the address of the block's dynamic shared memory."""
        kind = ir.Type.parse("!llvm.array<0 x i8>")
        self._global("shared_memory", kind, "external", addr_space=_SHARED, alignment=alignment)
        memory = llvm.mlir_addressof(llvm.PointerType.get(_SHARED), "shared_memory")
        return llvm.ptrtoint(_type("i64"), memory)

    def assembly(self, instruction: str, constraints: str, operands: Any) -> Any:
        """Return the 32 bits that an instruction of PTX makes of its operands."""
        return llvm.inline_asm(_type("i32"), operands, instruction, constraints)

    def from_architecture(self, number: int, new: Callable[[], Any], old: Callable[[], Any]) -> Any:
        """Return the 32 bits that `new` makes from this architecture on, and `old` before.

        The compiler of a kernel knows the architecture, and keeps one branch.
        """
        text = "__CUDA_ARCH\0"
        kind = ir.Type.parse(f"!llvm.array<{len(text)} x i8>")
        self._global("architecture", kind, "internal", value=ir.StringAttr.get(text), constant=True)
        pointer, i32 = llvm.PointerType.get(), _type("i32")
        ask = ir.FunctionType.get([pointer], [i32])
        callee = get_or_insert_function("__nvvm_reflect", ask, self.module)
        name = llvm.mlir_addressof(pointer, "architecture")
        found = func.call([i32], callee.name.value, [name])
        is_new = llvm.icmp(llvm.ICmpPredicate.sge, found, _constant(i32, number))
        branches = scf.IfOp(is_new, [i32], has_else=True)
        for block, make in ((branches.then_block, new), (branches.else_block, old)):
            with ir.InsertionPoint(block):
                scf.yield_([make()])
        return branches.results[0]

    def _global(self, name: str, kind: Any, linkage: Any, **options: Any) -> None:
        """Declare a variable of the module, once."""
        body = self.module.regions[0].blocks[0]
        if not any(isinstance(op, llvm.GlobalOp) and op.sym_name.value == name for op in body):
            with ir.InsertionPoint.at_block_begin(body):
                linkage = ir.Attribute.parse(f"#llvm.linkage<{linkage}>")
                llvm.mlir_global(kind, name, linkage, **options)


def _type(kind: str) -> Any:
    return ir.Type.parse(kind)


def _constant(kind: Any, value: int) -> Any:
    return llvm.mlir_constant(ir.IntegerAttr.get(kind, value))


def _pointer(address: Any, shared: bool) -> Any:
    return llvm.inttoptr(llvm.PointerType.get(_SHARED if shared else _GLOBAL), address)
