"""Kernels whose arguments come in groups: NamedTuples, which may hold others."""

from collections.abc import Callable, Iterator
from typing import Any

from numba.core import cgutils
from numba.core.types import Array
from numba.core.types.containers import BaseTuple, Tuple

from numnorm.backends.cpu.compiler.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.simd.vector import compiled_as


def flattened(values: Any) -> list[Any]:
    """Return the members of tuples, and of the tuples in them."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, tuple):
            found += flattened(value)
        else:
            found.append(value)
    return found


def grouped_twins(name: str, kernel: Callable[..., None]) -> Twins:
    """Compile a kernel that is called with all members of its arguments, one after the other.

    Numba's parallel loops take no tuple in a tuple. Which arguments are groups the kernel's
    annotations say. It finds its arrays borrowed.
    """
    kinds = [kind for name, kind in kernel.__annotations__.items() if name != "return"]
    grouped, body = _make_grouped(kinds), inlined(kernel)

    def entered(*members):
        stand_alone()
        body(*grouped(members))

    return twins(name, entered)


def _make_grouped(kinds: list[Any]) -> Callable[..., Any]:
    """Return a compiled function that puts members back into groups."""

    def plain(members):
        values = iter(members)
        return tuple(_filled(kind, values, lambda group, found: group(*found)) for kind in kinds)

    @compiled_as(plain)
    def grouped(typing_context, members):
        values = iter(members)
        result = Tuple(
            [
                _filled(kind, values, lambda group, found: BaseTuple.from_types(found, group))
                for kind in kinds
            ]
        )

        def generate(context, builder, signature, arguments):
            given = cgutils.unpack_tuple(builder, arguments[0])
            pairs = zip(signature.args[0], given, strict=True)
            values = iter([_borrowed(context, builder, kind, value) for kind, value in pairs])

            def made(kind):
                if not isinstance(kind, BaseTuple):
                    return next(values)
                return context.make_tuple(builder, kind, [made(member) for member in kind])

            return made(signature.return_type)

        return result(members), generate

    return grouped


def _filled(kind: Any, values: Iterator[Any], make: Callable[..., Any]) -> Any:
    """Return the next of some values, or a group of them."""
    if not hasattr(kind, "_fields"):
        return next(values)
    return make(kind, [_filled(member, values, make) for member in kind.__annotations__.values()])


def _borrowed(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """Return an array without what counts its references; anything else as it is."""
    if not isinstance(kind, Array):
        return value
    view = context.make_array(kind)(context, builder, value)
    view.meminfo = cgutils.get_null_value(view.meminfo.type)
    view.parent = cgutils.get_null_value(view.parent.type)
    return view._getvalue()
