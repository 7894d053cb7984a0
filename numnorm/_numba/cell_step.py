"""The compiled function of one step of a cell, which numnorm keeps on disk for its callers."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm._numba.packed import weights_of
from numnorm.backends.contract.recurrent import CellSpec
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_function, overloaded
from numnorm.backends.cpu.compiler.symbols import Source, make_call_of
from numnorm.backends.cpu.memory.kernel_arrays import (
    as_flat,
    make_aligned_zeros,
    make_scratch,
    release,
    shaped,
    window,
)
from numnorm.backends.cpu.recurrent.cells import KINDS
from numnorm.backends.cpu.recurrent.kernels import make_forward
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.simd.optional import present
from numnorm.rnn.cells import CELLS
from numnorm.rnn.specs import projected


def _spec(cell: str, choices: tuple[Any, ...], projects: bool) -> CellSpec:
    spec = CELLS[cell].kind.make_spec(*choices)
    return (projected(spec) if projects else spec).cell


def forward_kernel(cell: str, choices: tuple[Any, ...], projects: bool, dtype: str) -> Kernel:
    """Return the forward kernel of a cell."""
    spec = _spec(cell, choices, projects)
    return make_forward(KINDS[type(spec)], spec, element_type_of(np.dtype(dtype)))


def step_function(cell: str, choices: tuple[Any, ...], projects: bool, dtype: str) -> Any:
    """Return a compiled ``step(x, h, c, packed, eps)``, which updates h and c in place.

    All arrays have an axis for the batch; c is None without a cell. The kernel gets what
    `passes.prepared` gives it.
    """
    spec = _spec(cell, choices, projects)
    kind = KINDS[type(spec)]
    call = _make_call(forward_kernel, (cell, choices, projects, dtype))
    gates, ((_, first), (_, second)) = kind.gates, kind.norms(spec, 1)
    # True or None, as `present` takes them.
    has_cell = "c" in CELLS[cell].kind.states or None
    uses_outputs = projects or None
    each, apart = kind.norms_each_product(spec) or None, kind.keeps_cell_apart(spec) or None
    uses_inner = has_cell or apart
    integer, number = make_scratch(np.int64, 1), make_scratch(np.float64, 1)
    zeros = make_aligned_zeros(dtype, 1)

    def step(x, h, c, packed, eps):
        weights = weights_of(packed, packed.contents.table)
        (batch, outer), width = h.shape, packed.contents.units
        wide, p = gates * width, weights.others
        work = zeros((batch * (2 * outer + 2 * wide + 4 * width),), 0)
        state, at = _table(work, 0, 2 * batch, outer)
        carried, at = _table(work, at, batch, width)
        inner, at = _table(work, at, batch, width)
        outputs, at = _table(work, at, batch, width)
        scratch, at = _table(work, at, batch, width)
        xp, at = _table(work, at, batch, wide)
        z, at = _table(work, at, batch, wide)
        _copy(as_flat(h), work)
        if has_cell:
            _copy(as_flat(c), as_flat(carried))
        offsets, batch_sizes, nothing = integer(), integer(), window(number(), 0, 0)
        offsets[0], batch_sizes[0] = 0, batch
        # Two tuples, as Numba cannot compile a display of more than 30 elements.
        read = (
            offsets, batch_sizes, x, weights.panels_x, weights.panels_h,
            p.offset, p.offset_h, p.gamma_h, p.beta_h, p.gamma_x, p.beta_x, p.gamma_c, p.beta_c,
        )  # fmt: skip
        written = (
            z if each else xp, present(each, xp), state, None, present(has_cell, carried),
            present(uses_inner, inner if apart else carried), present(uses_outputs, outputs),
            nothing, nothing, nothing, nothing, nothing, nothing,
            eps, 0.0, float(first * width), eps, 0.0, float(second * width),
            None, None, None, scratch, 1, 0, 1,
        )  # fmt: skip
        if batch > 0:
            call((0, read + written))
        _copy(window(work, h.size, h.size), as_flat(h))
        if has_cell:
            _copy(as_flat(carried), as_flat(c))
        release((work,))

    return make_function(f"{cell}_step.{spec.name}.{dtype}", step)


def _make_call(make: Callable[..., Kernel], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """Return ``call(values)`` for nopython code, of the kernel for values of any types."""

    def call(values):
        """Call the kernel."""

    @overloaded(call)
    def typed(values):
        call_kernel = make_call_of(Source(make, arguments, tuple(values)))
        return lambda values: call_kernel(values)

    return call


@inlined
def _table(work, start, rows, columns):
    """Return a borrowed part of `work` as a matrix, and the index after it."""
    size = rows * columns
    return shaped(window(work, start, size), (rows, columns)), start + size


@inlined
def _copy(source, target):
    """Copy a flat array."""
    for i in range(source.size):
        target[i] = source[i]
