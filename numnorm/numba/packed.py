"""Numba's type of `Packed`, so that compiled functions take packed parameters as an argument."""

from typing import Any

from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.imputils import lower_constant
from numba.extending import (
    NativeValue,
    make_attribute_wrapper,
    models,
    register_model,
    typeof_impl,
    unbox,
)

from numnorm.rnn.parameters import Kind
from numnorm.rnn.specs import Spec


class PackedType(types.Type):
    """The type of parameters packed for one kind of cell, spec and dtype.

    `weights` is Numba's type of the named tuple of arrays that the backend packed.
    """

    def __init__(self, kind: Kind, spec: Spec, weights: Any) -> None:
        self.kind, self.spec, self.weights = kind, spec, weights
        cell = kind.parameters.__name__, spec.cell.name
        self.dtype = weights.types[0].dtype
        super().__init__(name=f"Packed({', '.join(cell)}, {weights})")


def type_of(packed: Any) -> PackedType:
    """Return the type of a `Packed`."""
    return PackedType(packed.kind, packed.spec, typeof_impl(packed.weights, None))


@register_model(PackedType)
class _Model(models.StructModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, [("weights", kind.weights)])


make_attribute_wrapper(PackedType, "weights", "weights")


@unbox(PackedType)
def _unboxed(kind: Any, value: Any, c: Any) -> NativeValue:
    weights = c.pyapi.object_getattr_string(value, "weights")
    native = c.unbox(kind.weights, weights)
    c.pyapi.decref(weights)
    result = cgutils.create_struct_proxy(kind)(c.context, c.builder)
    result.weights = native.value
    return NativeValue(result._getvalue(), native.is_error, native.cleanup)


@lower_constant(PackedType)
def _constant(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    raise TypingError("packed parameters must be an argument of the compiled function, not a global")
