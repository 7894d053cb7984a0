"""Kernels that normalize channels by given statistics."""

from typing import Any

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.columns.loops import make_output_row, make_store_output_rows
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.alignment import make_peel
from numnorm.backends.cpu.memory.borrowed import as_flat, window
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, is_large, use_nontemporal
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part, present


@inlined
def _unpacked(coefficients: Any, scaled: Any) -> Any:
    """Return scale, mean_hi, factor and offset of all channels."""
    size = coefficients.shape[1]
    scale = present(scaled, window(coefficients, 0, size))
    mean_hi, factor = window(coefficients, size, size), window(coefficients, 2 * size, size)
    return scale, mean_hi, factor, window(coefficients, 3 * size, size)


def make_forward_across(element_type: ElementType) -> Kernel:
    """Return a kernel that normalizes ``x (outer, channels)``.

    Its arguments are ``x``, the ``coefficients`` of `make_output_coefficients`, ``scaled``, which
    is None if every scale is 1, ``y``, ``shift`` and ``parts``. If ``shift`` is not 0, it works on
    shifted rows, and the first ``shift`` columns of ``coefficients`` follow the last ones.
    """
    output_rows = make_store_output_rows(element_type)
    least_width = tuning.GROUP_LEAST_ROW_BYTES // element_type.storage_dtype.itemsize

    def kernel(x, coefficients, scaled, y, shift, parts, first, last):
        count, width = x.shape
        rows = first * count // parts, last * count // parts
        # Groups of rows gain only where x comes from memory: caches are faster row by row.
        in_groups = width >= least_width and is_large(y)
        nontemporal = use_nontemporal(y, width, shift)
        given, how = _unpacked(coefficients, scaled), (in_groups, nontemporal)
        output_rows((as_flat(x),), rows, width, shift, given, as_flat(y), how)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_forward.across.{element_type.name}", kernel)


def make_forward_along(element_type: ElementType) -> Kernel:
    """Return a kernel that normalizes ``x (outer, channels, inner)``.

    It has the arguments of the kernel of `make_forward_across`, and ignores ``shift``.
    """
    output_row, peel_of = make_output_row(element_type), make_peel(element_type)

    def kernel(x, coefficients, scaled, y, shift, parts, first, last):
        outer, channels, inner = x.shape
        x, y = as_flat(x), as_flat(y)
        scale, mean_hi, factor, offset = _unpacked(coefficients, scaled)
        segments = outer * channels
        nontemporal = use_nontemporal(y, inner, peel_of(y, inner))
        for t in range(first * segments // parts, last * segments // parts):
            c = t % channels
            of_channel = part(scale, c), mean_hi[c], factor[c], offset[c]
            output_row((x,), t * inner, inner, of_channel, 0, y, nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_forward.along.{element_type.name}", kernel)
