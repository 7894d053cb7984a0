"""Kernels that normalize channels by given statistics."""

from typing import Any

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.columns.loops import make_is_wide, make_output_group, make_output_row
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.alignment import make_peel
from numnorm.backends.cpu.memory.borrowed import borrowed
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, is_large, use_nontemporal
from numnorm.backends.cpu.memory.shifted_rows import shifted_rows
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part, present


@inlined
def _unpacked(coefficients: Any, scaled: Any, start: int) -> Any:
    """Return scale, mean_hi, factor and offset of the channels from `start` on."""
    scale = present(scaled, coefficients[0][start:])
    return scale, coefficients[1][start:], coefficients[2][start:], coefficients[3][start:]


def make_forward_across(element_type: ElementType) -> Kernel:
    """Return a kernel that normalizes ``x (outer, channels)``.

    Its arguments are ``x``, the ``coefficients`` of `make_output_coefficients`, ``scaled``, which
    is None if every scale is 1, ``y``, ``shift`` and ``parts``. If ``shift`` is not 0, it works on
    the `shifted_rows`, and the first ``shift`` columns of ``coefficients`` follow the last ones.
    """
    output_row, output_group = make_output_row(element_type), make_output_group(element_type)
    is_wide = make_is_wide(element_type)

    def kernel(x, coefficients, scaled, y, shift, parts, first, last):
        x, y, coefficients = borrowed(x), borrowed(y), borrowed(coefficients)
        start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts
        # Groups of rows gain only where x comes from memory: caches are faster row by row.
        unpacked, in_groups = _unpacked(coefficients, scaled, 0), is_wide(x) and is_large(y)
        nontemporal = use_nontemporal(y, y.shape[1], shift)
        if shift > 0 and start < stop:
            stop -= 1
            output_row((x[start][:shift],), unpacked, y[start][:shift], False)
            unpacked = _unpacked(coefficients, scaled, shift)
            output_row((x[stop][shift:],), unpacked, y[stop][shift:], False)
            x, y = shifted_rows(x, shift), shifted_rows(y, shift)
        grouped = stop - (stop - start) % tuning.GROUP_ROWS if in_groups else start
        for i in range(start, grouped, tuning.GROUP_ROWS):
            output_group((x,), i, unpacked, y, nontemporal)
        for i in range(grouped, stop):
            output_row((x[i],), unpacked, y[i], nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_forward.across.{element_type.name}", kernel)


def make_forward_along(element_type: ElementType) -> Kernel:
    """Return a kernel that normalizes ``x (outer, channels, inner)``.

    It has the arguments of the kernel of `make_forward_across`, and ignores ``shift``.
    """
    output_row, peel_of = make_output_row(element_type), make_peel(element_type)

    def kernel(x, coefficients, scaled, y, shift, parts, first, last):
        x, y, coefficients = borrowed(x), borrowed(y), borrowed(coefficients)
        scale, mean_hi, factor, offset = _unpacked(coefficients, scaled, 0)
        segments = x.shape[0] * x.shape[1]
        nontemporal = use_nontemporal(y, y.shape[2], peel_of(y, y.shape[2]))
        for t in range(first * segments // parts, last * segments // parts):
            i, c = t // x.shape[1], t % x.shape[1]
            of_channel = part(scale, c), mean_hi[c], factor[c], offset[c]
            output_row((x[i, c],), of_channel, y[i, c], nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_forward.along.{element_type.name}", kernel)
