"""The gates of an LSTM and the norms of their inputs.

A row of a product holds the gates f, i, o and g, one after the other. Each product, their sum as
one row, or each gate of the sum is normalized.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.borrowed import window
from numnorm.backends.cpu.recurrent.common.cell_norm import (
    CellNorm,
    make_cell_norm,
    make_normalized,
)
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.simd.element_type import ElementType


class GateNorm(NamedTuple):
    """Compiled functions for one row of the products.

    `z` is the product W_h h with the state and `xp` the product W_x x; unless each is normalized,
    `z` is their sum and `xp` None. Each gate's statistics are a pair, for z and for xp.

    Attributes
    ----------
    compute : callable
        ``compute(z, xp, scaling, saved, i)``: the statistics of the gates f, i, o, g. It also
        saves them in `saved`, a `Statistics`, unless its arrays have size 0.
    load : callable
        ``load(saved, i)``: the same, as they were saved.
    gradient : callable
        ``gradient(dz, z, xp, saved, i, parameters, coefficients, sums, results)`` maps the
        gradients of the gates' inputs to those of z and xp, the `results`, and adds those of both
        gammas to `sums`.
    """

    compute: Callable[..., Any]
    load: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_gate_norm(spec: LSTMSpec, element_type: ElementType) -> GateNorm:
    """Return the norm of the gates of a spec."""
    norm = make_cell_norm(spec.gates, element_type)
    if spec.norm_each_product:
        return _norm_each_product(norm)
    return _separate(norm) if spec.separate else _none()


def _norm_each_product(norm: CellNorm) -> GateNorm:
    @inlined
    def compute(z, xp, scaling, saved, i):
        both = norm.statistics(z, scaling), norm.statistics(xp, scaling)
        if saved.mean_h.size > 0:
            norm.save(both[0], saved.mean_h, saved.rstd_h, i)
            norm.save(both[1], saved.mean_x, saved.rstd_x, i)
        return both, both, both, both

    @inlined
    def load(saved, i):
        stats_z = norm.saved(saved.mean_h, saved.rstd_h, i)
        both = stats_z, norm.saved(saved.mean_x, saved.rstd_x, i)
        return both, both, both, both

    @inlined
    def gradient(dz, z, xp, saved, i, parameters, coefficients, sums, results):
        norm.gradient(
            dz, z, saved.mean_h, saved.rstd_h, i, parameters.gamma_h, parameters.beta_h,
            coefficients, (sums[0], None), results[0],
        )  # fmt: skip
        norm.gradient(
            dz, xp, saved.mean_x, saved.rstd_x, i, parameters.gamma_x, parameters.beta_x,
            coefficients, (sums[1], None), results[1],
        )  # fmt: skip

    return GateNorm(compute, load, gradient)


def _separate(norm: CellNorm) -> GateNorm:
    @inlined
    def compute_one(z, scaling, saved, i, k):
        width = z.size // 4
        stats = norm.statistics(z[k * width : (k + 1) * width], scaling)
        if saved.mean_h.size > 0:
            norm.save(stats, saved.mean_h, saved.rstd_h, 4 * i + k)
        return stats

    @inlined
    def compute(z, xp, scaling, saved, i):
        f = i_ = o = g = compute_one(z, scaling, saved, i, 0)
        for k in range(1, 4):  # a loop, so that it is compiled once
            f, i_, o, g = i_, o, g, compute_one(z, scaling, saved, i, k)
        return (f, None), (i_, None), (o, None), (g, None)

    @inlined
    def load_one(saved, i, k):
        return norm.saved(saved.mean_h, saved.rstd_h, 4 * i + k), None

    @inlined
    def load(saved, i):
        f, i_ = load_one(saved, i, 0), load_one(saved, i, 1)
        return f, i_, load_one(saved, i, 2), load_one(saved, i, 3)

    @inlined
    def gradient(dz, z, xp, saved, i, parameters, coefficients, sums, results):
        width = dz.size // 4
        for k in range(4):
            left, right = k * width, (k + 1) * width
            norm.gradient(
                dz[left:right], z[left:right], saved.mean_h, saved.rstd_h, 4 * i + k,
                window(parameters.gamma_h, left, width), window(parameters.beta_h, left, width),
                coefficients, (sums[0][left:right], None), results[0][left:right],
            )  # fmt: skip

    return GateNorm(compute, load, gradient)


def _none() -> GateNorm:
    @inlined
    def load(saved, i):
        none = None, None
        return none, none, none, none

    @inlined
    def compute(z, xp, scaling, saved, i):
        return load(saved, i)

    @inlined
    def gradient(dz, z, xp, saved, i, parameters, coefficients, sums, results):
        pass

    return GateNorm(compute, load, gradient)


def make_gates(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``gates(z, xp, parameters, statistics, width, j, tail)`` of a vector.

    It returns f, i, o and g; `statistics` are those of `GateNorm`.
    """
    gate_input = _make_gate_input(spec, element_type, access)
    sigmoid, tanh = make_sigmoid(element_type.compute_type), make_tanh(element_type.compute_type)

    @inlined
    def gates(z, xp, parameters, statistics, width, j, tail):
        f = sigmoid(gate_input(z, xp, parameters, statistics[0], j, tail))
        i = sigmoid(gate_input(z, xp, parameters, statistics[1], j + width, tail))
        o = sigmoid(gate_input(z, xp, parameters, statistics[2], j + 2 * width, tail))
        g = tanh(gate_input(z, xp, parameters, statistics[3], j + 3 * width, tail))
        return f, i, o, g

    return gates


def _make_gate_input(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``gate_input(z, xp, parameters, statistics, j, tail)`` of one gate."""
    read, normalized = access.read, make_normalized(spec.gates, element_type, access)

    @inlined
    def of_sum(z, xp, parameters, statistics, j, tail):
        value = normalized(z, statistics[0], parameters.gamma_h, parameters.beta_h, j, tail)
        return value + read(parameters.offset, j, tail)

    @inlined
    def of_both(z, xp, parameters, statistics, j, tail):
        from_x = normalized(xp, statistics[1], parameters.gamma_x, parameters.beta_x, j, tail)
        return of_sum(z, xp, parameters, statistics, j, tail) + from_x

    return of_both if spec.norm_each_product else of_sum
