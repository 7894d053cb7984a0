"""The gates of an LSTM, and what enters them: the products with x and with the state, normalized.

The gates of a row are f, i, o and g, one after the other.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.cell_norm import (
    CellNorm,
    make_cell_norm,
    make_normalized,
)
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import slice_or_scalar


class GateNorm(NamedTuple):
    """Compiled functions of one row.

    Its products are `z`, with the state, and `xp`, with x; where the norm is taken of their sum,
    that is `z`, and `xp` is None. What it has of each gate are pairs: of z and of xp.

    Attributes
    ----------
    find : callable
        ``find(z, xp, scaling, saved, i)``: the statistics for each gate, f, i, o, g. They are
        also saved if there is room for them.
    again : callable
        ``again(saved, i)``: the same, as they were saved.
    gradient : callable
        ``gradient(dz, z, xp, saved, i, parameters, coefficients, sums, results)``, from the
        gradients of what enters the gates to those of z and xp; the sums are those of both gammas.
    """

    find: Callable[..., Any]
    again: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_gate_norm(spec: LSTMSpec, element_type: ElementType) -> GateNorm:
    """Return how a form's gates are normalized."""
    norm = make_cell_norm(spec.gates, element_type)
    if spec.norm_each_product:
        return _norm_each_product(norm)
    return _separate(norm) if spec.separate else _none()


def _norm_each_product(norm: CellNorm) -> GateNorm:
    @inlined
    def find(z, xp, scaling, saved, i):
        both = norm.statistics(z, scaling), norm.statistics(xp, scaling)
        if saved.mean_h.size > 0:
            norm.save(both[0], saved.mean_h, saved.rstd_h, i)
            norm.save(both[1], saved.mean_x, saved.rstd_x, i)
        return both, both, both, both

    @inlined
    def again(saved, i):
        of_z = norm.saved(saved.mean_h, saved.rstd_h, i)
        both = of_z, norm.saved(saved.mean_x, saved.rstd_x, i)
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

    return GateNorm(find, again, gradient)


def _separate(norm: CellNorm) -> GateNorm:
    @inlined
    def find_one(z, scaling, saved, i, k):
        width = z.size // 4
        found = norm.statistics(z[k * width : (k + 1) * width], scaling)
        if saved.mean_h.size > 0:
            norm.save(found, saved.mean_h, saved.rstd_h, 4 * i + k)
        return found

    @inlined
    def find(z, xp, scaling, saved, i):
        f = i_ = o = g = find_one(z, scaling, saved, i, 0)
        for k in range(1, 4):  # a loop, so that it is compiled once for all of them
            f, i_, o, g = i_, o, g, find_one(z, scaling, saved, i, k)
        return (f, None), (i_, None), (o, None), (g, None)

    @inlined
    def again_one(saved, i, k):
        return norm.saved(saved.mean_h, saved.rstd_h, 4 * i + k), None

    @inlined
    def again(saved, i):
        f, i_ = again_one(saved, i, 0), again_one(saved, i, 1)
        return f, i_, again_one(saved, i, 2), again_one(saved, i, 3)

    @inlined
    def gradient(dz, z, xp, saved, i, parameters, coefficients, sums, results):
        width = dz.size // 4
        for k in range(4):
            left, right = k * width, (k + 1) * width
            norm.gradient(
                dz[left:right], z[left:right], saved.mean_h, saved.rstd_h, 4 * i + k,
                slice_or_scalar(parameters.gamma_h, left, right), slice_or_scalar(parameters.beta_h, left, right),
                coefficients, (sums[0][left:right], None), results[0][left:right],
            )  # fmt: skip

    return GateNorm(find, again, gradient)


def _none() -> GateNorm:
    @inlined
    def again(saved, i):
        none = None, None
        return none, none, none, none

    @inlined
    def find(z, xp, scaling, saved, i):
        return again(saved, i)

    @inlined
    def gradient(dz, z, xp, saved, i, parameters, coefficients, sums, results):
        pass

    return GateNorm(find, again, gradient)


def make_gates(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``gates(z, xp, parameters, statistics, width, j, tail)`` of some units.

    It returns f, i, o and g; the statistics are those for each gate.
    """
    entering = _make_entering(spec, element_type, access)
    sigmoid, tanh = make_sigmoid(element_type.compute_type), make_tanh(element_type.compute_type)

    @inlined
    def gates(z, xp, parameters, statistics, width, j, tail):
        f = sigmoid(entering(z, xp, parameters, statistics[0], j, tail))
        i = sigmoid(entering(z, xp, parameters, statistics[1], j + width, tail))
        o = sigmoid(entering(z, xp, parameters, statistics[2], j + 2 * width, tail))
        g = tanh(entering(z, xp, parameters, statistics[3], j + 3 * width, tail))
        return f, i, o, g

    return gates


def _make_entering(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``entering(z, xp, parameters, statistics, j, tail)`` of a gate."""
    read, normalized = access.read, make_normalized(spec.gates, element_type, access)

    @inlined
    def of_sum(z, xp, parameters, statistics, j, tail):
        value = normalized(z, statistics[0], parameters.gamma_h, parameters.beta_h, j, tail)
        return value + read(parameters.offset, j, tail)

    @inlined
    def of_both(z, xp, parameters, statistics, j, tail):
        of_x = normalized(xp, statistics[1], parameters.gamma_x, parameters.beta_x, j, tail)
        return of_sum(z, xp, parameters, statistics, j, tail) + of_x

    return of_both if spec.norm_each_product else of_sum
