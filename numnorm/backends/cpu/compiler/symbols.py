"""Calls of compiled functions by symbol, from functions that Numba may cache on disk.

A call by address would keep Numba from caching the caller, as the address differs in each process.
A symbol must be known to the linker when the cached caller is loaded. So each symbol has an
environment of Numba beside it: an object that Numba stores with every caller whose machine code
names it, however deeply the call is nested. Loading the environment defines the symbol. If numnorm
has changed meanwhile, it raises OSError instead, and Numba compiles the caller again.
"""

import functools
import hashlib
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import llvmlite.binding
from numba import core
from numba.core import cgutils
from numba.core.environment import Environment
from numba.extending import intrinsic

from numnorm.backends.cpu.compiler.jit import Function, Kernel, address_of, call_compiled
from numnorm.backends.sources import NUMBA as SOURCES

types: Any = core.types


class Source(NamedTuple):
    """How any process gets a compiled function: ``make(*arguments)``, compiled for `kinds`.

    Attributes
    ----------
    make : callable
        A function at the top of a module, which returns a `Kernel` or a compiled function.
    arguments : tuple
        Its arguments, which can be pickled.
    kinds : tuple
        The Numba types of the compiled function's arguments; for a kernel, of its launcher and of
        the tuple of the others.
    """

    make: Callable[..., Any]
    arguments: tuple[Any, ...]
    kinds: tuple[Any, ...]

    def compiled(self) -> Any:
        """Return the compiled function."""
        function = self.make(*self.arguments)
        return function.entry if isinstance(function, Kernel) else function


@functools.cache
def _build() -> str:
    """Return the name of the loaded sources; one of its own if the files have changed since."""
    return SOURCES.token() or uuid.uuid4().hex


class Symbol:
    """A symbol of a compiled function, which defines itself where it is loaded."""

    def __init__(self, source: Source) -> None:
        function = source.compiled()
        function.compile(source.kinds)
        self.source = source
        self.returned = function.overloads[source.kinds].signature.return_type
        key = repr((source.make.__module__, source.make.__qualname__, *source[1:]))
        digest = hashlib.blake2b(f"{_build()}{key}".encode(), digest_size=16).hexdigest()
        self.name = f"numnorm_{digest}"
        llvmlite.binding.add_symbol(self.name, address_of(function, source.kinds))
        self._environment = self._new_environment()

    @property
    def environment(self) -> str:
        """The name of the environment, with the prefix by which Numba finds it."""
        return f"_ZN08NumbaEnv{self.name}"

    def _new_environment(self) -> Any:
        """Return the environment, which lives as long as the symbol: Numba does not keep it."""
        environment = Environment(globals())
        environment.env_name = self.environment
        environment.consts.append(self)
        Environment._memo[self.environment] = environment
        return environment

    def __reduce__(self) -> tuple[Any, ...]:
        return load, (_build(), self.source)


def load(build: str, source: Source) -> Symbol:
    """Define the symbol of a caller from the cache; raise OSError if numnorm has changed."""
    if build != _build():
        raise OSError("numnorm has changed since the function was compiled")
    return symbol_of(source)


symbol_of = functools.cache(Symbol)


def _lent(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Return an argument whose arrays do not own their memory, like arrays from Python.

    A kernel frees each array that owns its memory, because it takes it for one that it allocated.
    """
    if isinstance(kind, types.Array):
        array = cgutils.create_struct_proxy(kind)(context, builder, value)
        array.meminfo = array.meminfo.type(None)
        return array._getvalue()
    if isinstance(kind, types.BaseTuple):
        members = zip(kind, cgutils.unpack_tuple(builder, value), strict=True)
        return context.make_tuple(
            builder, kind, [_lent(context, builder, *member) for member in members]
        )
    return value


def make_call_of(source: Source) -> Function:
    """Return ``call(arguments)`` for nopython code, whose argument is the tuple of all."""
    symbol = symbol_of(source)

    @intrinsic
    def call(typing_context, arguments):
        if tuple(arguments) != source.kinds:
            raise TypeError(f"{source.make.__name__} takes {source.kinds}, not {tuple(arguments)}")

        def generate(context, builder, signature, values):
            returned, kinds = symbol.returned, source.kinds
            kind = context.call_conv.get_function_type(returned, kinds)
            function = cgutils.get_or_insert_function(builder.module, kind, symbol.name)
            context.declare_env_global(builder.module, symbol.environment)
            members = cgutils.unpack_tuple(builder, values[0])
            values = [
                _lent(context, builder, *member) for member in zip(kinds, members, strict=True)
            ]
            return call_compiled(context, builder, function, kinds, values, returned)

        return symbol.returned(arguments), generate

    return call
