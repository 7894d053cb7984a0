"""C functions that XLA calls, made with LLVM: around compiled code, or around Python."""

import ctypes
import itertools
import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from numnorm.backends.cpu.compiler.jit import address_of
from numnorm.backends.cpu.xla import frames

# A runtime loads handlers of its own version of the interface and of older ones.
_MINOR_VERSION = 1
_INTERNAL_ERROR = 13
# MXCSR: flush to zero, denormals are zero; FPCR: the same, of halves and of the others.
_SSE_FLAGS, _ARM_FLAGS = 0x8040, 1 << 24 | 1 << 19

_POINTER = cgutils.voidptr_t
_INT = ir.IntType(32)
_WORD = ir.IntType(64)
_C_FUNCTION = ir.FunctionType(_POINTER, [_POINTER])
_OUT_OF_MEMORY = ctypes.create_string_buffer(b"a kernel of numnorm ran out of memory")

_numbers = itertools.count()
# The code and the callbacks live as long as the process, as XLA's registry does.
_kept: list[Any] = []
_messages: dict[str, Any] = {}


def compiled_handler(function: Any, constants: tuple[int, ...]) -> int:
    """Return the address of a handler that calls ``function(*constants, frame)``.

    The function is compiled for integers, and returns nothing.
    """
    kinds = (types.intp,) * (len(constants) + 1)
    function.compile(kinds)
    address = address_of(function, kinds)
    _kept.append(function)

    def call(context: Any, builder: Any, frame: Any) -> Any:
        kind = context.call_conv.get_function_type(types.none, kinds)
        target = builder.inttoptr(_WORD(address), kind.as_pointer())
        values = [*(_WORD(constant) for constant in constants), builder.ptrtoint(frame, _WORD)]
        status, _ = context.call_conv.call_function(builder, target, types.none, kinds, values)
        message = builder.inttoptr(_WORD(ctypes.addressof(_OUT_OF_MEMORY)), _POINTER)
        return builder.select(status.is_error, message, ir.Constant(_POINTER, None))

    return _handler(call)


def python_handler(function: Callable[[int], None]) -> int:
    """Return the address of a handler that takes the GIL and calls ``function(frame)``."""

    def checked(frame: int) -> int | None:
        try:
            function(frame)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
            # XLA copies a message after this function has returned.
            kept = _messages.setdefault(text, ctypes.create_string_buffer(text.encode()))
            return ctypes.addressof(kept)
        return None

    callback = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(checked)
    _kept.append(callback)
    address = ctypes.cast(callback, ctypes.c_void_p).value

    def call(context: Any, builder: Any, frame: Any) -> Any:
        target = builder.inttoptr(_WORD(address), _C_FUNCTION.as_pointer())
        return builder.call(target, [frame])

    return _handler(call)


@global_compiler_lock
def _handler(call: Callable[..., Any]) -> int:
    """Return the address of a C function for XLA, which fails if `call` returns a message."""
    context = cpu_target.target_context
    name = f"numnorm_xla_{next(_numbers)}"
    library = context.codegen().create_library(name)
    module = library.create_ir_module(name)
    function = ir.Function(module, _C_FUNCTION, name)
    builder, nothing = ir.IRBuilder(function.append_basic_block()), ir.Constant(_POINTER, None)
    (frame,) = function.args
    extension = _field(builder, frame, frames.EXTENSION)
    with builder.if_then(builder.icmp_unsigned("!=", extension, nothing)):
        kind = _field(builder, extension, frames.EXTENSION_TYPE, _INT)
        with builder.if_then(builder.icmp_unsigned("==", kind, _INT(frames.METADATA_TYPE))):
            metadata = _field(builder, extension, frames.METADATA)
            for offset, value in (
                (frames.MAJOR, 0),
                (frames.MINOR, _MINOR_VERSION),
                (frames.TRAITS, 0),
            ):
                builder.store(_INT(value), _at(builder, metadata, offset, _INT))
            builder.ret(nothing)
    restore = _keep_subnormals(builder)
    message = call(context, builder, frame)
    restore()
    with builder.if_then(builder.icmp_unsigned("==", message, nothing)):
        builder.ret(nothing)
    builder.ret(_error(builder, frame, message))
    library.add_ir_module(module)
    library.finalize()
    _kept.append(library)
    return int(library.get_pointer_to_function(name))


def _keep_subnormals(builder: Any) -> Callable[[], None]:
    """Clear the flags with which XLA rounds subnormal numbers to 0; return what restores them."""
    machine, module = platform.machine().lower(), builder.module
    if machine in ("x86_64", "amd64"):
        kind = ir.FunctionType(ir.VoidType(), [_POINTER])
        read, write = (
            ir.Function(module, kind, f"llvm.x86.sse.{n}") for n in ("stmxcsr", "ldmxcsr")
        )
        slots = [builder.alloca(_INT) for _ in range(2)]
        one, other = (builder.bitcast(slot, _POINTER) for slot in slots)
        builder.call(read, [one])
        builder.store(builder.and_(builder.load(slots[0]), _INT(~_SSE_FLAGS)), slots[1])
        builder.call(write, [other])
        return lambda: builder.call(write, [one])
    if machine in ("aarch64", "arm64"):
        get = ir.Function(module, ir.FunctionType(_WORD, []), "llvm.aarch64.get.fpcr")
        put = ir.Function(module, ir.FunctionType(ir.VoidType(), [_WORD]), "llvm.aarch64.set.fpcr")
        before = builder.call(get, [])
        builder.call(put, [builder.and_(before, _WORD(~_ARM_FLAGS))])
        return lambda: builder.call(put, [before])
    return lambda: None


def _error(builder: Any, frame: Any, message: Any) -> Any:
    """Return a new error of XLA with a message."""
    with builder.goto_entry_block():
        arguments = builder.alloca(ir.LiteralStructType([_WORD, _POINTER, _POINTER, _INT]))
    size = _WORD(28)  # of the struct, without its padding
    fields = size, ir.Constant(_POINTER, None), message, _INT(_INTERNAL_ERROR)
    for index, value in enumerate(fields):
        builder.store(value, builder.gep(arguments, [_INT(0), _INT(index)]))
    api = _field(builder, frame, frames.API)
    create = _field(builder, api, frames.ERROR_CREATE, _C_FUNCTION.as_pointer())
    return builder.call(create, [builder.bitcast(arguments, _POINTER)])


def _at(builder: Any, struct: Any, offset: int, kind: Any) -> Any:
    return builder.bitcast(builder.gep(struct, [_INT(offset)]), kind.as_pointer())


def _field(builder: Any, struct: Any, offset: int, kind: Any = _POINTER) -> Any:
    """Load a field of a struct."""
    return builder.load(_at(builder, struct, offset, kind))
