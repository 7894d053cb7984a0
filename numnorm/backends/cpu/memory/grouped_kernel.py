"""Kernels with NamedTuples, which may be nested, as arguments."""

from collections.abc import Callable, Iterator
from typing import Any

from numba.core import cgutils, types

from numnorm.backends.cpu.compiler.jit import Kernel, make_kernel
from numnorm.backends.cpu.simd.vector import compiled_as


def flattened(values: Any) -> Iterator[Any]:
    """Yield the members of nested tuples, one after the other."""
    for value in values:
        if isinstance(value, tuple):
            yield from flattened(value)
        else:
            yield value


def make_grouped_kernel(name: str, kernel: Callable[..., None]) -> Kernel:
    """Compile a kernel that callers call with the `flattened` arguments.

    Python passes flat arguments faster than nested tuples, so the entry takes flat members and
    groups them again. The annotations of `kernel` say which arguments are NamedTuples.
    """
    kinds = [kind for name, kind in kernel.__annotations__.items() if name != "return"]
    return make_kernel(name, kernel, _make_grouped(kinds))


def _make_grouped(kinds: list[Any]) -> Callable[..., Any]:
    """Return a compiled ``grouped(members)``: flat members as a tuple of arguments of `kinds`."""

    def plain(members):
        values = iter(members)
        return tuple(_filled(kind, values, lambda group, parts: group(*parts)) for kind in kinds)

    @compiled_as(plain)
    def grouped(typing_context, members):
        values = iter(members)
        tuples: Any = types

        def made_of(group, parts):
            return tuples.BaseTuple.from_types(parts, group)

        result = tuples.Tuple([_filled(kind, values, made_of) for kind in kinds])

        def generate(context, builder, signature, arguments):
            values = iter(cgutils.unpack_tuple(builder, arguments[0]))

            def made(kind):
                if not isinstance(kind, tuples.BaseTuple):
                    return next(values)
                return context.make_tuple(builder, kind, [made(member) for member in kind])

            return made(signature.return_type)

        return result(members), generate

    return grouped


def _filled(kind: Any, values: Iterator[Any], make: Callable[..., Any]) -> Any:
    """Return the next value or, if `kind` is a NamedTuple, ``make(kind, members)``."""
    if not hasattr(kind, "_fields"):
        return next(values)
    return make(kind, [_filled(member, values, make) for member in kind.__annotations__.values()])
