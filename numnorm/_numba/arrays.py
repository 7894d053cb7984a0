"""Arrays in nopython code: copies that kernels take, views of results, and shapes.

Small intrinsics take the place of NumPy's functions, which take seconds to compile for a caller.
An `order` is a tuple, the permutation of the axes that makes rows contiguous, or None.
"""

import functools
from typing import Any

import numpy as np
from llvmlite import ir
from numba import core
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed, impl_ret_new_ref
from numba.extending import intrinsic
from numba.np import arrayobj

from numnorm._numba.allocate import new_array

types: Any = core.types
_SIZE = types.intp


def number_kind(real: Any) -> Any:
    """Return the type of a number np.float32 or np.float64."""
    return types.float32 if real is np.float32 else types.float64


def array_kind(real: Any, ndim: int) -> Any:
    """Return the type of a C-contiguous array in a kernel."""
    return types.Array(number_kind(real), ndim, "C")


def _sizes(context: Any, builder: Any, kind: Any, value: Any) -> list[Any]:
    """Return the members of a tuple of integers."""
    members = cgutils.unpack_tuple(builder, value)
    return [context.cast(builder, m, k, _SIZE) for m, k in zip(members, kind, strict=True)]


def _tuple_of(count: int) -> Any:
    return types.UniTuple(_SIZE, count)


def _make_tuple(context: Any, builder: Any, members: list[Any]) -> Any:
    return context.make_tuple(builder, _tuple_of(len(members)), members)


def _indexable(builder: Any, members: list[Any]) -> Any:
    """Store members where a run-time index finds them."""
    kind = ir.IntType(64) if not members else members[0].type
    array = cgutils.alloca_once(builder, ir.ArrayType(kind, len(members)))
    for i, member in enumerate(members):
        builder.store(member, cgutils.gep_inbounds(builder, array, 0, i))
    return array


def _take(context: Any, builder: Any, members: list[Any], order: Any, values: Any) -> list[Any]:
    """Return the members in an order, or as they are if it is None."""
    if isinstance(order, types.NoneType):
        return members
    array = _indexable(builder, members)
    indices = _sizes(context, builder, order, values)
    return [builder.load(cgutils.gep_inbounds(builder, array, 0, i)) for i in indices]


def _put(context: Any, builder: Any, members: list[Any], order: Any, values: Any) -> list[Any]:
    """Return the members back from an order, in which `_take` took them."""
    if isinstance(order, types.NoneType):
        return members
    array = _indexable(builder, members)
    for i, member in zip(_sizes(context, builder, order, values), members, strict=True):
        builder.store(member, cgutils.gep_inbounds(builder, array, 0, i))
    places = range(len(members))
    return [builder.load(cgutils.gep_inbounds(builder, array, 0, i)) for i in places]


def _product(builder: Any, members: list[Any]) -> Any:
    return functools.reduce(builder.mul, members, ir.IntType(_SIZE.bitwidth)(1))


def _strides(builder: Any, shape: list[Any], itemsize: Any) -> list[Any]:
    """Return the strides of a C-contiguous array."""
    strides = [itemsize]
    for size in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], size))
    return strides[: len(shape)]


def _parts(context: Any, builder: Any, kind: Any, value: Any) -> tuple[Any, list[Any], list[Any]]:
    """Return the struct of an array, its shape and its strides."""
    array = arrayobj.make_array(kind)(context, builder, value)
    shape, strides = (
        cgutils.unpack_tuple(builder, t, kind.ndim) for t in (array.shape, array.strides)
    )
    return array, shape, strides


def _view(
    context: Any, builder: Any, kind: Any, source: Any, shape: list[Any], strides: list[Any]
) -> Any:
    """Return the memory of another array as an array of this shape."""
    array = arrayobj.make_array(kind)(context, builder)
    arrayobj.populate_array(
        array, source.data, shape, strides, source.itemsize, source.meminfo, source.parent
    )
    return impl_ret_borrowed(context, builder, kind, array._getvalue())


def _copy(
    context: Any, builder: Any, target: tuple[Any, Any], source: tuple[Any, Any], strides: list[Any]
) -> None:
    """Store the elements of `source`, walked through by these strides, in `target`."""
    (to_kind, to), (from_kind, from_) = target, source
    shape = cgutils.unpack_tuple(builder, to.shape, to_kind.ndim)
    to_strides = cgutils.unpack_tuple(builder, to.strides, to_kind.ndim)
    with cgutils.loop_nest(builder, shape, shape[0].type if shape else None) as indices:
        item, place = (
            cgutils.get_item_pointer2(context, builder, data, shape, steps, "A", indices)
            for data, steps in ((from_.data, strides), (to.data, to_strides))
        )
        value = arrayobj.load_item(context, builder, from_kind, item)
        value = context.cast(builder, value, from_kind.dtype, to_kind.dtype)
        arrayobj.store_item(context, builder, to_kind, value, place)


def _packed(array: Any, order: Any, real: Any) -> tuple[Any, Any]:
    """Return the type of `packed`, and ``generate(context, builder, array, order)``."""
    if isinstance(array, types.NoneType):
        return array, lambda context, builder, value, axes: value
    if isinstance(array, types.Number):
        kind = real.dtype
        return kind, lambda context, builder, value, axes: context.cast(builder, value, array, kind)
    result = types.Array(real.dtype, array.ndim, "C")
    as_is = array.layout == "C" and array.aligned and array.dtype == real.dtype
    as_is = as_is and (isinstance(order, types.NoneType) or array.ndim < 2)

    def generate(context, builder, value, axes):
        source, shape, strides = _parts(context, builder, array, value)
        if as_is:
            return _view(context, builder, result, source, shape, strides)
        shape, strides = (
            _take(context, builder, members, order, axes) for members in (shape, strides)
        )
        target = new_array(context, builder, result, shape)
        _copy(context, builder, (result, target), (array, source), strides)
        return impl_ret_new_ref(context, builder, result, target._getvalue())

    return result, generate


@intrinsic
def packed(typing_context, array, order, real):
    """Return an array of dtype `real` in this order, C-contiguous; the array itself if it is.

    None remains None, and a number gets this dtype.
    """
    result, generate = _packed(array, order, real)

    def generated(context, builder, signature, values):
        return generate(context, builder, *values[:2])

    return result(array, order, real), generated


@intrinsic
def packed_pair(typing_context, gamma, beta, real):
    """Return two arrays, numbers or None as `packed` does, with no axis moved."""
    both = [_packed(kind, types.none, real) for kind in (gamma, beta)]
    result = types.Tuple([kind for kind, _ in both])

    def generate(context, builder, signature, values):
        members = [
            make(context, builder, value, None)
            for (_, make), value in zip(both, values[:2], strict=True)
        ]
        return context.make_tuple(builder, result, members)

    return result(gamma, beta, real), generate


@functools.cache
def make_kernel_shape(ndim: int) -> Any:
    """Return a compiled ``shape(segments)``: the shape of parameters of `ndim` axes in a kernel.

    It is ``(channels,)`` or ``(channels, segment)``.
    """

    @intrinsic
    def shape(typing_context, segments):
        def generate(context, builder, signature, values):
            segment, channels = _sizes(context, builder, segments, values[0])
            return _make_tuple(context, builder, [channels, segment][:ndim])

        return _tuple_of(ndim)(segments), generate

    return shape


@functools.cache
def make_optional(exists: bool) -> Any:
    """Return a compiled ``optional(value)``: the value if `exists`, else None."""

    @intrinsic
    def optional(typing_context, value):
        result = value if exists else types.none

        def generate(context, builder, signature, values):
            if not exists:
                return context.get_dummy_value()
            return impl_ret_borrowed(context, builder, value, values[0])

        return result(value), generate

    return optional


@intrinsic
def empty(typing_context, shape, real):
    """Return an uninitialized C-contiguous array."""
    result = types.Array(real.dtype, len(shape), "C")

    def generate(context, builder, signature, values):
        sizes = _sizes(context, builder, shape, values[0])
        array = new_array(context, builder, result, sizes)
        return impl_ret_new_ref(context, builder, result, array._getvalue())

    return result(shape, real), generate


@intrinsic
def viewed(typing_context, array, shape):
    """Return a C-contiguous array in another shape; None and numbers as they are."""
    if not isinstance(array, types.Array):
        return array(array, shape), lambda context, builder, signature, values: values[0]
    result = types.Array(array.dtype, len(shape), "C")

    def generate(context, builder, signature, values):
        source, _, _ = _parts(context, builder, array, values[0])
        sizes = _sizes(context, builder, shape, values[1])
        strides = _strides(builder, sizes, source.itemsize)
        return _view(context, builder, result, source, sizes, strides)

    return result(array, shape), generate


@intrinsic
def restored(typing_context, array, x, order):
    """Return a C-contiguous array, which has the axes of x in this order, in the shape of x."""
    layout = "C" if isinstance(order, types.NoneType) else "A"
    result = types.Array(array.dtype, x.ndim, layout)

    def generate(context, builder, signature, values):
        source, _, _ = _parts(context, builder, array, values[0])
        _, shape, _ = _parts(context, builder, x, values[1])
        taken = _take(context, builder, shape, order, values[2])
        strides = _strides(builder, taken, source.itemsize)
        strides = _put(context, builder, strides, order, values[2])
        return _view(context, builder, result, source, shape, strides)

    return result(array, x, order), generate


@intrinsic
def assign(typing_context, target, source):
    """Store all elements of `source` in `target`, an array of the same shape and any dtype."""

    def generate(context, builder, signature, values):
        to, _, _ = _parts(context, builder, target, values[0])
        from_, _, strides = _parts(context, builder, source, values[1])
        _copy(context, builder, (target, to), (source, from_), strides)
        return context.get_dummy_value()

    return types.void(target, source), generate


@intrinsic
def clashes(typing_context, target, arrays):
    """Return whether storing to `target` could change an array before a kernel reads it.

    All are C-contiguous; members of `arrays` may be None or numbers. Kernels read each element
    before they write the same element.
    """

    def span_of(context, builder, kind, value):
        array, _, _ = _parts(context, builder, kind, value)
        start = builder.ptrtoint(array.data, array.nitems.type)
        return start, builder.add(start, builder.mul(array.nitems, array.itemsize))

    def generate(context, builder, signature, values):
        result = ir.Constant(ir.IntType(1), 0)
        start, end = span_of(context, builder, target, values[0])
        for kind, value in zip(arrays, cgutils.unpack_tuple(builder, values[1]), strict=True):
            if isinstance(kind, types.Array):
                first, last = span_of(context, builder, kind, value)
                compare = builder.icmp_unsigned
                overlaps = builder.and_(compare("<", start, last), compare("<", first, end))
                differs = builder.or_(compare("!=", start, first), compare("!=", end, last))
                if kind.dtype != target.dtype:
                    differs = ir.Constant(ir.IntType(1), 1)
                result = builder.or_(result, builder.and_(overlaps, differs))
        return result

    return types.boolean(target, arrays), generate


@functools.cache
def make_order(order: tuple[int, ...]) -> Any:
    """Return a compiled function of one argument that returns an order; None if no axis moves."""
    is_none = order == tuple(range(len(order)))
    result = types.none if is_none else _tuple_of(len(order))

    @intrinsic
    def constant(typing_context, axis):
        def generate(context, builder, signature, values):
            if is_none:
                return context.get_dummy_value()
            return context.get_constant_generic(builder, result, order)

        return result(axis), generate

    return constant


@functools.cache
def make_shapes(last: int) -> Any:
    """Return a compiled ``shapes(array, order) -> (first, last)``.

    They are the shape of the array in this order: the last `last` sizes, and the sizes before.
    """

    @intrinsic
    def shapes(typing_context, array, order):
        first = array.ndim - last
        result = types.Tuple((_tuple_of(first), _tuple_of(last)))

        def generate(context, builder, signature, values):
            _, shape, _ = _parts(context, builder, array, values[0])
            taken = _take(context, builder, shape, order, values[1])
            both = [_make_tuple(context, builder, t) for t in (taken[:first], taken[first:])]
            return context.make_tuple(builder, result, both)

        return result(array, order), generate

    return shapes


@intrinsic
def product(typing_context, shape):
    """Return the product of a tuple of sizes."""

    def generate(context, builder, signature, values):
        return _product(builder, _sizes(context, builder, shape, values[0]))

    return _SIZE(shape), generate


@intrinsic
def has_shape(typing_context, array, shape):
    """Return whether an array has a shape; true for None and numbers."""

    def generate(context, builder, signature, values):
        same = ir.Constant(ir.IntType(1), 1)
        if not isinstance(array, types.Array):
            return same
        _, own, _ = _parts(context, builder, array, values[0])
        sizes = _sizes(context, builder, shape, values[1])
        for one, other in zip(own, sizes, strict=True):
            same = builder.and_(same, builder.icmp_signed("==", one, other))
        return same

    return types.boolean(array, shape), generate


@functools.cache
def make_named(group: Any) -> Any:
    """Return a compiled ``named(members)``: the NamedTuple `group` of the members."""

    @intrinsic
    def named(typing_context, members):
        result = types.BaseTuple.from_types(tuple(members), group)

        def generate(context, builder, signature, values):
            parts = cgutils.unpack_tuple(builder, values[0])
            value = context.make_tuple(builder, result, parts)
            return impl_ret_borrowed(context, builder, result, value)

        return result(members), generate

    return named


@intrinsic
def address(typing_context, array):
    """Return the address of an array's first element."""

    def generate(context, builder, signature, values):
        struct, _, _ = _parts(context, builder, array, values[0])
        return builder.ptrtoint(struct.data, struct.nitems.type)

    return _SIZE(array), generate
