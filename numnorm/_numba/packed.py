"""Numba's type of `Packed`, so that compiled functions take packed parameters as an argument.

Passing a dozen arrays takes long to compile. So compiled code passes one: a table of their
addresses and shapes, which keeps them alive.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import typeof
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.imputils import lower_constant
from numba.extending import (
    NativeValue,
    intrinsic,
    make_attribute_wrapper,
    models,
    register_model,
    unbox,
)

from numnorm._numba.arrays import types
from numnorm.backends.cpu.memory.grouped_kernel import flattened
from numnorm.backends.cpu.memory.kernel_arrays import contiguous
from numnorm.rnn.parameters import Kind
from numnorm.rnn.specs import Spec

# The numbers of an array in a table: its address, and the sizes of its two axes.
_ENTRY = 3


class Contents(NamedTuple):
    """What compiled code gets of packed parameters.

    Attributes
    ----------
    table : array of int
        The address and the shape of each of the weights.
    inputs, outputs, units : int
        The number of elements of x, of the state, and of the cell.
    """

    table: Any
    inputs: int
    outputs: int
    units: int


class _Table:
    """An array that keeps others alive."""

    def __init__(self, table: Any, arrays: list[Any]) -> None:
        self._table, self._arrays = table, arrays
        self.__array_interface__ = table.__array_interface__


def contents_of(packed: Any) -> Contents:
    """Return the contents of a `Packed`."""
    weights = packed.weights
    arrays = [np.asarray(0 if leaf is None else leaf) for leaf in flattened(weights)]
    table = np.zeros((len(arrays), _ENTRY), np.int64)
    for entry, array in zip(table, arrays, strict=True):
        entry[: array.ndim + 1] = array.ctypes.data, *array.shape
    rows, outputs = weights.h.shape
    table = np.asarray(_Table(table.reshape(-1), arrays))
    return Contents(table, weights.x.shape[1], outputs, rows // len(packed.kind.gates))


class PackedType(types.Type):
    """The type of parameters packed for one kind of cell, spec and dtype.

    `weights` is Numba's type of the weights that the backend packed.
    """

    def __init__(self, kind: Kind, spec: Spec, weights: Any, contents: Any) -> None:
        self.kind, self.spec, self.weights, self.contents = kind, spec, weights, contents
        self.dtype = weights.types[0].dtype
        super().__init__(f"Packed({kind.parameters.__name__}, {spec.cell.name}, {weights})")


def type_of(packed: Any) -> PackedType:
    """Return the type of a `Packed`."""
    contents = typeof(packed.numba_contents)
    return PackedType(packed.kind, packed.spec, typeof(packed.weights), contents)


@register_model(PackedType)
class _Model(models.StructModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, [("contents", kind.contents)])


make_attribute_wrapper(PackedType, "contents", "contents")


@unbox(PackedType)
def _unboxed(kind: Any, value: Any, c: Any) -> NativeValue:
    contents = c.pyapi.object_getattr_string(value, "numba_contents")
    native = c.unbox(kind.contents, contents)
    c.pyapi.decref(contents)
    result = cgutils.create_struct_proxy(kind)(c.context, c.builder)
    result.contents = native.value
    return NativeValue(result._getvalue(), native.is_error, native.cleanup)


@lower_constant(PackedType)
def _constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    raise TypingError("parameters must be an argument of the compiled function, not a global")


@intrinsic
def weights_of(typing_context, packed, table):
    """Return the weights of packed parameters with this table, borrowed."""

    def generate(context, builder, signature, values):
        numbers = context.make_array(table)(context, builder, values[1]).data
        entries = iter(range(0, 1 << 20, _ENTRY))

        def filled(kind):
            if isinstance(kind, types.BaseTuple):
                return context.make_tuple(builder, kind, [filled(member) for member in kind])
            start = next(entries)
            address, *shape = (
                builder.load(builder.gep(numbers, [ir.IntType(64)(start + i)]))
                for i in range(_ENTRY)
            )
            if isinstance(kind, types.Array):
                data = builder.inttoptr(address, ir.IntType(8).as_pointer())
                return contiguous(context, builder, kind, data, shape[: kind.ndim])
            if isinstance(kind, types.NoneType):
                return context.get_dummy_value()
            pointer = context.get_value_type(kind).as_pointer()
            return builder.load(builder.inttoptr(address, pointer))

        return filled(packed.weights)

    return packed.weights(packed, table), generate
