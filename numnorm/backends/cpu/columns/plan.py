"""What follows from the dtype and layout of an array of channels: kernels, parts, tables."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import Shape
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.columns.kernels import (
    make_dx_across,
    make_dx_along,
    make_forward_across,
    make_forward_along,
    make_frozen_statistics_across,
    make_frozen_statistics_along,
    make_sums_across,
    make_sums_along,
)
from numnorm.backends.cpu.columns.moments_kernels import (
    make_moments_across,
    make_moments_along,
)
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import is_small, row_parts, run
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_kernel_array,
    output_like,
)
from numnorm.backends.cpu.memory.placement import LINE, empty_like, empty_table, peel_elements
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.backends.cpu.simd.processor import has_avx
from numnorm.layouts import ColumnLayout


class Family(NamedTuple):
    """The kernel factories of one layout."""

    moments: Callable[..., Kernel]
    forward: Callable[..., Kernel]
    sums: Callable[..., Kernel]
    dx: Callable[..., Kernel]
    frozen_statistics: Callable[..., Kernel]


# Without inner axes the loops run across the channels, with inner axes along each channel.
ACROSS = Family(
    moments=functools.cache(make_moments_across),
    forward=functools.cache(make_forward_across),
    sums=functools.cache(make_sums_across),
    dx=functools.cache(make_dx_across),
    frozen_statistics=functools.cache(make_frozen_statistics_across),
)
ALONG = Family(
    moments=functools.cache(make_moments_along),
    forward=functools.cache(make_forward_along),
    sums=functools.cache(make_sums_along),
    dx=functools.cache(make_dx_along),
    frozen_statistics=functools.cache(make_frozen_statistics_along),
)


class Plan(NamedTuple):
    """Everything that follows from dtype and layout, computed once.

    Attributes
    ----------
    element_type, family, elements
        The element type, the kernels of the layout, and the number of elements.
    parts : int
        The number of parts that an elementwise kernel is divided into.
    block_parts : int
        The number of parts of a kernel that computes statistics, per block.
    small : bool
        Whether the arrays are too small to gain from threads or from aligned memory.
    aligned : bool
        Whether loops across channels start at cache lines. Each row is a whole number of lines.
    shape : tuple of int
        The shape of an array in kernels.
    channels : tuple of int
        The shape of a statistic.
    compute_dtype : numpy.dtype
        The dtype of gamma, beta and the coefficients.
    """

    element_type: ElementType
    family: Family
    elements: int
    parts: int
    block_parts: int
    small: bool
    aligned: bool
    shape: Shape
    channels: tuple[int]
    compute_dtype: np.dtype[Any]

    def run(self, kernel: Kernel, arguments: tuple[Any, ...], parts: int, arrays: int) -> None:
        """Run all parts of a kernel; it reads or writes `arrays` arrays of the size of x."""
        if self.small:
            kernel.serial(*arguments, 0, parts)
        else:
            work = arrays * self.elements * self.element_type.storage_dtype.itemsize
            run(kernel, arguments, work, parts)

    def source(self, x: Array) -> Array:
        """Return an array in the form that kernels take."""
        if x.dtype is self.element_type.storage_dtype and x.shape == self.shape and x.flags.carray:
            return x
        return as_kernel_array(x, self.element_type, None, self.shape)

    def target(
        self, source: Array, x: Array, out: Any, *others: Array | None, like_x: bool = False
    ) -> Array:
        """Return an array for the result of a kernel that reads `source` and `others`.

        `x` is the caller's form of `source`. With `like_x`, a new array gets the alignment of x, if
        loops start at cache lines: a peel is then the same for both.
        """
        if out is None:
            if self.small:
                return np.empty_like(source)
            return empty_like(source, *others[:1], aligned=like_x and self.aligned)
        return output_like(source, x, "x", out, self.element_type, None, others)

    def shift(self, target: Array) -> int:
        """Return by how many channels kernels shift the rows, to start them at cache lines."""
        return peel_elements(target) if self.aligned else 0

    def table(self, rows: int, shift: int = 0) -> Array:
        """Return an uninitialized table for coefficients, with `shift` additional columns."""
        if self.small:
            return np.empty((rows, self.channels[0]), self.compute_dtype)
        return empty_table(rows, self.channels[0] + shift, self.compute_dtype, shift)

    def repeat(self, coefficients: Array, shift: int) -> None:
        """Append the coefficients of the first `shift` channels behind the last channel's."""
        if shift:
            channels = self.channels[0]
            coefficients[:, channels : channels + shift] = coefficients[:, :shift]


@functools.lru_cache(maxsize=1024)
def plan_of(dtype: Any, layout: ColumnLayout) -> Plan:
    """Return the plan for arrays of a dtype and layout."""
    across = layout.inner == 1
    elements, element_type = layout.per_channel * layout.channels, element_type_of(dtype)
    segments = 1 if across else layout.channels
    least = tuning.PART_LEAST_GROUPS * tuning.GROUP_ROWS if across else 1
    row_bytes, small = layout.channels * element_type.storage_dtype.itemsize, is_small(elements)
    return Plan(
        element_type,
        ACROSS if across else ALONG,
        elements,
        row_parts(layout.outer * segments, elements, least),
        layout.blocks * segments,
        small,
        across and not small and has_avx() and row_bytes % LINE == 0,
        layout.kernel_shape,
        (layout.channels,),
        element_type.compute_dtype,
    )
