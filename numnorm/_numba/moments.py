"""`batch_moments` in nopython code, and the methods of `Moments`."""

from typing import Any

import numpy as np
from numba.extending import overload

from numnorm._numba.arguments import (
    check_array,
    check_integer,
    is_default,
    is_none,
    real_of,
    wrong,
)
from numnorm._numba.arrays import (
    array_kind,
    assign,
    empty,
    has_shape,
    make_named,
    packed,
    types,
    viewed,
)
from numnorm._numba.columns import channel_shape, is_across
from numnorm._numba.helpers import helper
from numnorm._numba.signatures import compiled_call
from numnorm.backends.cpu.columns import serial
from numnorm.backends.cpu.compiler.symbols import Source, make_call_of
from numnorm.backends.formulas.norms import merge_moments
from numnorm.norms import batch
from numnorm.norms.moments import Moments

_CHANNELS = array_kind(np.float64, 1)
_SHAPE = types.UniTuple(types.intp, 3)
_moments, _merge_moments = make_named(Moments), helper(merge_moments)


def _check_moments(name: str, kind: Any) -> Any:
    """Return the types of the fields of `Moments`."""
    if not isinstance(kind, types.NamedTuple) or kind.instance_class is not Moments:
        raise wrong(name, "Moments", kind)
    fields = dict(zip(kind.fields, kind.types, strict=True))
    check_integer(f"{name}.count", fields.pop("count"))
    for field, array in fields.items():
        meaning, optional = "one number for each channel", field == "mean_lo"
        check_array(f"{name}.{field}", array, 1, meaning, optional=optional)
    return kind.types


def _copied(array, channels):
    """Return a new array of float64 with the values of an array of channels, zeros for None."""


@overload(_copied)
def _copied_array(array, channels):
    if is_none(array):

        def zeros(array, channels):
            result = empty((channels,), np.float64)
            for c in range(channels):
                result[c] = 0.0
            return result

        return zeros

    def copied(array, channels):
        if not has_shape(array, (channels,)):
            raise ValueError("moments must have one number for each channel")
        result = empty((channels,), np.float64)
        assign(result, array)
        return result

    return copied


def batch_moments(x, channel_axis=1, after=None, **filters):
    """Return what compiles a call for arguments of these types."""
    for name, kind in filters.items():
        if not is_default(name, kind):
            raise wrong(name, "left out of batch_moments in compiled code", kind)
    real, across = real_of("x", x), is_across(x, channel_axis)
    kinds = array_kind(real, 1), _SHAPE, types.intp, _CHANNELS, _CHANNELS, _CHANNELS
    run = make_call_of(Source(serial.make_moments, (real.__name__, across), kinds))
    if not is_none(after):
        _check_moments("after", after.type if isinstance(after, types.Optional) else after)

    @helper
    def moments(x, channel_axis, after):
        shape, source = channel_shape(x, channel_axis), packed(x, None, real)
        count, mean, m2, mean_lo = _fields(after, shape[1])
        flat = viewed(source, (source.size,))
        count = run((flat, shape, count, mean, m2, mean_lo))
        return _moments((count, mean, m2, mean_lo))

    call = "_run(x, channel_axis, after)"
    return compiled_call(batch.batch_moments, call, _run=moments)


def _fields(moments, channels):
    """Return count, mean, m2 and mean_lo in new arrays; for None a count of -1."""


@overload(_fields)
def _fields_of(moments, channels):
    @helper
    def missing(channels):
        nothing = _copied(None, channels), _copied(None, channels), _copied(None, channels)
        return np.int64(-1), *nothing

    if is_none(moments):
        return lambda moments, channels: missing(channels)

    @helper
    def given(moments, channels):
        if moments.count < 0:
            raise ValueError("the count of moments must be at least 0")
        mean, m2 = _copied(moments.mean, channels), _copied(moments.m2, channels)
        return np.int64(moments.count), mean, m2, _copied(moments.mean_lo, channels)

    if not isinstance(moments, types.Optional):
        return lambda moments, channels: given(moments, channels)

    # In a loop that merges chunks, the moments before the first chunk are None.
    def either(moments, channels):
        return missing(channels) if moments is None else given(moments, channels)

    return either


def var(self, ddof=0):
    """Return what compiles a call for arguments of these types."""
    if not _is_moments(self):
        return None
    # The type of a default, when the method is compiled.
    check_integer("ddof", ddof.value if isinstance(ddof, types.Omitted) else ddof)

    def call(self, ddof=0):
        m2 = _copied(self.m2, self.m2.size)
        divisor = _divisor(self.count, ddof)
        for c in range(m2.size):
            m2[c] /= divisor
        return m2

    return call


def std(self, ddof=0):
    """Return what compiles a call for arguments of these types."""
    if not _is_moments(self):
        return None
    # The type of a default, when the method is compiled.
    check_integer("ddof", ddof.value if isinstance(ddof, types.Omitted) else ddof)

    def call(self, ddof=0):
        m2 = _copied(self.m2, self.m2.size)
        divisor = _divisor(self.count, ddof)
        for c in range(m2.size):
            m2[c] = np.sqrt(m2[c] / divisor)
        return m2

    return call


@helper
def _divisor(count, ddof):
    if ddof < 0:
        raise ValueError("ddof must be at least 0")
    if count <= ddof:
        raise ValueError("ddof must be less than the count")
    return count - ddof


def merge(self, other):
    """Return what compiles a call for arguments of these types."""
    if not _is_moments(self):
        return None
    _check_moments("other", other)

    def call(self, other):
        count, mean, m2, mean_lo = _fields(self, self.mean.size)
        others, other_mean, other_m2, other_lo = _fields(other, self.mean.size)
        for c in range(mean.size):
            found = other_mean[c], other_lo[c], other_m2[c]
            if count > 0 and others > 0:
                own = mean[c], mean_lo[c], m2[c]
                found = _merge_moments(count, own, others, found, 1.0)
            if others > 0 or count == 0:
                mean[c], mean_lo[c], m2[c] = found
        return _moments((count + others, mean, m2, mean_lo))

    return call


def _is_moments(kind: Any) -> bool:
    """Return whether a named tuple is `Moments`, and check its fields."""
    return kind.instance_class is Moments and bool(_check_moments("moments", kind))
