"""The gates and the candidate of a GRU whose reset gate scales the state before the product."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.borrowed import window
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm, make_normalized
from numnorm.backends.cpu.recurrent.gru.gates import make_gate_input
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.simd.element_type import ElementType


def make_gates(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``gates(hp, xp, parameters, statistics, width, j, tail)``: 1 - z and r."""
    gate_input, sigmoid = (
        make_gate_input(spec, element_type, access),
        make_sigmoid(element_type.compute_type),
    )

    @inlined
    def gates(hp, xp, parameters, statistics, width, j, tail):
        keep = sigmoid(gate_input(hp, xp, parameters, statistics, j, tail) * -1.0)
        return keep, sigmoid(gate_input(hp, xp, parameters, statistics, j + width, tail))

    return gates


def make_candidate(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``candidate(hp, xp, parameters, statistics, width, j, tail)``."""
    read, normalized = access.read, make_normalized(spec.norm, element_type, access)
    tanh = make_tanh(element_type.compute_type)

    @inlined
    def candidate(hp, xp, parameters, statistics, width, j, tail):
        (stats_h, stats_x), k = statistics, j + 2 * width
        from_h = normalized(hp, stats_h, parameters.gamma_h, parameters.beta_h, k, tail)
        from_x = normalized(xp, stats_x, parameters.gamma_x, parameters.beta_x, k, tail)
        from_h = from_h + read(parameters.offset_h, j, tail)
        return tanh(from_x + read(parameters.offset, k, tail) + from_h)

    return candidate


class PartNorm(NamedTuple):
    """Compiled functions for the gates (part 0) or the candidate (part 1) of both products' rows.

    Attributes
    ----------
    compute : callable
        ``compute(hp, xp, scaling, saved, i, part)``: a pair of statistics, which are saved unless
        the arrays of `saved`, a `Statistics`, have size 0.
    load : callable
        ``load(saved, i, part)``: the same, as they were saved.
    gradient : callable
        ``gradient(dy, hp, xp, saved, i, part, parameters, coefficients, sums, results)`` maps the
        gradient of the norms' outputs to the gradient of both rows, and adds gamma's gradient to
        `sums`.
    """

    compute: Callable[..., Any]
    load: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_part_norm(spec: GRUSpec, element_type: ElementType) -> PartNorm:
    """Return the norm of the gates or of the candidate."""
    norm = make_cell_norm(spec.norm, element_type)

    @inlined
    def bounds(row, part):
        middle = row.size // 3 * 2
        return (0, middle) if part == 0 else (middle, row.size)

    @inlined
    def compute(hp, xp, scaling, saved, i, part):
        first, stop = bounds(hp, part)
        stats_h = norm.statistics(hp[first:stop], scaling)
        stats_x = norm.statistics(xp[first:stop], scaling)
        if saved.mean_h.size > 0:
            norm.save(stats_h, saved.mean_h, saved.rstd_h, 2 * i + part)
            norm.save(stats_x, saved.mean_x, saved.rstd_x, 2 * i + part)
        return stats_h, stats_x

    @inlined
    def load(saved, i, part):
        k = 2 * i + part
        stats_h = norm.saved(saved.mean_h, saved.rstd_h, k)
        return stats_h, norm.saved(saved.mean_x, saved.rstd_x, k)

    @inlined
    def gradient(dy, hp, xp, saved, i, part, parameters, coefficients, sums, results):
        (first, stop), k = bounds(hp, part), 2 * i + part
        norm.gradient(
            dy, hp[first:stop], saved.mean_h, saved.rstd_h, k,
            window(parameters.gamma_h, first, dy.size), window(parameters.beta_h, first, dy.size),
            coefficients, (sums[0][first:stop], None), results[0][first:stop],
        )  # fmt: skip
        norm.gradient(
            dy, xp[first:stop], saved.mean_x, saved.rstd_x, k,
            window(parameters.gamma_x, first, dy.size), window(parameters.beta_x, first, dy.size),
            coefficients, (sums[1][first:stop], None), results[1][first:stop],
        )  # fmt: skip

    return PartNorm(compute, load, gradient)
