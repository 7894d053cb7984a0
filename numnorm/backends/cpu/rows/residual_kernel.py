"""The forward kernel of a norm of the sum of two arrays.

It adds a block of rows and normalizes it while the sum is in a cache: the sum goes to memory, and
is not read from there.
"""

from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.kernel_arrays import as_flat, shaped, window
from numnorm.backends.cpu.memory.nontemporal import make_writer, uses_write_combining
from numnorm.backends.cpu.rows.arguments import Parameters, Scaling, Segments, Statistics
from numnorm.backends.cpu.rows.forward_kernel import make_rows
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_store
from numnorm.backends.cpu.simd.vector import make_load, store


def _make_store_sums(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``store_sums(x, residual, total)`` of flat arrays."""
    count = 2 * element_type.lanes
    load, masked_load = make_load(count), make_masked_load(count)
    to_compute, to_storage = element_type.to_compute, element_type.to_storage

    @inlined
    def store_sums(x, residual, total):
        tail = x.size - x.size % count
        for j in range(0, tail, count):
            value = to_compute(load(x, j)) + to_compute(load(residual, j))
            store(total, j, to_storage(value))
        n = x.size - tail
        if n > 0:
            value, other = masked_load(x, tail, 0, n), masked_load(residual, tail, 0, n)
            value = to_compute(value) + to_compute(other)
            masked_store(total, tail, to_storage(value), 0, n)

    return store_sums


def make_row_added(formula: Formula, element_type: ElementType, *, narrow: bool) -> Kernel:
    """Return the forward kernel of the sum of two arrays; see `make_row_forward`.

    It takes the residual after x, and the sum before y.
    """
    most = tuning.ADDED_BLOCK_ELEMENTS
    some_rows = make_rows(formula, element_type, narrow=narrow)
    store_sums = _make_store_sums(element_type)
    make_buffer, begin, target_of, written, finish = make_writer(element_type, most)

    def kernel(
        x: Any,
        residual: Any,
        weights: Parameters,
        segments: Segments,
        scaling: Scaling,
        total: Any,
        y: Any,
        saved: Statistics,
        parts: int,
        first: int,
        last: int,
    ) -> None:
        width = x.shape[1]
        all_segments = segments.segment, width // segments.segment, segments.channels
        start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts
        flat_x, flat_residual = as_flat(x), as_flat(residual)
        sums, results = as_flat(total), as_flat(y)
        sums_combine = width <= most and uses_write_combining(total)
        results_combine = width <= most and uses_write_combining(y)
        sums_buffer, results_buffer = make_buffer(), make_buffer()
        sums_state, results_state = begin(sums, start * width), begin(results, start * width)
        block = max(1, most // width)
        for i in range(start, stop, block):
            rows = min(block, stop - i)
            at, n, shape = i * width, rows * width, (rows, width)
            of_sums = target_of(sums, at, n, sums_buffer, sums_state, sums_combine)
            of_results = target_of(results, at, n, results_buffer, results_state, results_combine)
            store_sums(window(flat_x, at, n), window(flat_residual, at, n), of_sums)
            kept = min(rows, saved.mean.size)
            statistics = window(saved.mean, i, kept), window(saved.rstd, i, kept)
            some_rows(
                shaped(of_sums, shape), scaling, all_segments, weights, shaped(of_results, shape),
                statistics, 0, rows,
            )  # fmt: skip
            sums_state = written(sums, n, sums_buffer, sums_state, sums_combine)
            results_state = written(results, n, results_buffer, results_state, results_combine)
        finish(sums, sums_buffer, sums_state, sums_combine)
        finish(results, results_buffer, results_state, results_combine)

    name = f"row_added.{formula.name}.{element_type.name}" + ".narrow" * narrow
    return make_grouped_kernel(name, kernel)
