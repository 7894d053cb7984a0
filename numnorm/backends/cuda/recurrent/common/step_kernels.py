"""The kernels of one step of a recurrent cell, forward and backward, for any kind of cell.

The arrays' library computes a step's matrix products; one kernel computes all the rest of the step.
A `StepKind` supplies the device functions for a row.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import Kernel, cuda, device
from numnorm.backends.cuda.recurrent.common.cell_norm import SMEM_PER_WARP, smem_for_parts
from numnorm.backends.cuda.recurrent.common.step_parameters import (
    AdaNumbers,
    GradientCoefficients,
    Incoming,
    OfNorms,
    Products,
    ReadBack,
    Results,
    RowSpan,
    ScalingNumbers,
    StepSaved,
    StepStates,
)
from numnorm.backends.cuda.threads.group_reductions import WARP, SumsOf, make_team_sums
from numnorm.backends.cuda.threads.row_columns import row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape


@dataclasses.dataclass(frozen=True)
class StepKind:
    """The device functions for a row in a step of one kind of cell.

    The functions' first argument is the cell's spec. The device functions take the groups of
    `step_parameters`, and in ``smem`` the shared memory of the gates' norm and of the other norm.

    Parameters
    ----------
    weights : type
        The NamedTuple of the addresses of all parameters but the weight matrices.
    parts : callable
        Returns the number of parts in a row that each of the two norms has.
    make_step : callable
        Makes ``step(products, weights, states, saved, span, ada, scalings, smem)``; `ada` is
        `AdaNumbers`, `scalings` is `OfNorms` of `ScalingNumbers`.
    make_step_back : callable
        Makes ``step_back(saved, weights, incoming, results, span, later, ada, coefficients,
        smem)``; `saved` is `ReadBack`, `later` the number of rows of the next step, `coefficients`
        is `OfNorms` of `GradientCoefficients`. Its last argument sums over a row, in the shared
        memory.
    """

    weights: type
    parts: Callable[[Any], tuple[int, int]]
    make_step: Callable[[Any, ElementType, RowShape], Any]
    make_step_back: Callable[[Any, ElementType, RowShape, SumsOf], Any]


def _addresses(group: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the kind of a kernel's parameter that is a group of addresses."""
    return group, ("address",) * len(group._fields)


def _numbers(group: Any, element: ElementType) -> tuple[Any, tuple[str, ...]]:
    """Return the kind of a parameter that is a group of numbers of the compute type."""
    return group, (element.compute_name,) * len(group._fields)


def _make_span(element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``span_of(rows, width)`` of the thread's `RowSpan`."""
    lanes, team, teams = row_columns(element, shape).lanes, shape.team, shape.teams

    @device
    def span_of(rows, width):
        row = cuda.blockIdx.x * teams + cuda.threadIdx.x // team
        at = cuda.threadIdx.x % team * lanes
        # A team past the last row takes part in the barriers, but stores nothing.
        row, limit = (row, width) if row < rows else (rows - 1, 0)
        return RowSpan(row, width, at, limit)

    return span_of


def make_cell_forward(kind: StepKind, spec: Any, element: ElementType, shape: RowShape) -> Kernel:
    """Return the kernel of one step.

    It takes `Products`, the kind's weights, `StepStates`, `StepSaved`, the numbers of rows and of
    units, `AdaNumbers`, and `OfNorms` of `ScalingNumbers`.
    """
    compute_type, span_of = element.compute_type, _make_span(element, shape)
    step, (gate_parts, other_parts) = kind.make_step(spec, element, shape), kind.parts(spec)
    offset = SMEM_PER_WARP * smem_for_parts(gate_parts, shape)
    warps = max(1, shape.threads // WARP)  # for the sum that broadcasts the pivot of a cell's norm
    size = offset + SMEM_PER_WARP * smem_for_parts(other_parts, shape) + warps

    def kernel(products, weights, states, saved, rows, width, ada, scalings):
        shared = cuda.shared.array(size, compute_type)
        smem = shared, shared[offset:]
        step(products, weights, states, saved, span_of(rows, width), ada, scalings, smem)

    scaling = _numbers(ScalingNumbers, element)
    parameters = (
        *map(_addresses, (Products, kind.weights, StepStates, StepSaved)), "index", "index",
        _numbers(AdaNumbers, element), (OfNorms, (scaling, scaling)),
    )  # fmt: skip
    return Kernel(kernel, parameters, shape.threads)


def make_cell_backward(kind: StepKind, spec: Any, element: ElementType, shape: RowShape) -> Kernel:
    """Return the kernel of one backward step.

    It takes `ReadBack`, the kind's weights, `Incoming`, `Results`, the numbers of rows, of rows of
    the next step and of units, `AdaNumbers`, and `OfNorms` of `GradientCoefficients`.
    """
    compute_type, span_of = element.compute_type, _make_span(element, shape)
    sums_of = functools.partial(make_team_sums, shape.team)
    step_back = kind.make_step_back(spec, element, shape, sums_of)
    gate_parts, other_parts = kind.parts(spec)
    offset, size = (smem_for_parts(n, shape) for n in (gate_parts, gate_parts + other_parts))

    def kernel(saved, weights, incoming, results, rows, later, width, ada, coefficients):
        shared = cuda.shared.array(size, compute_type)
        smem, span = (shared, shared[offset:]), span_of(rows, width)
        step_back(saved, weights, incoming, results, span, later, ada, coefficients, smem)

    flow = _numbers(GradientCoefficients, element)
    parameters = (
        *map(_addresses, (ReadBack, kind.weights, Incoming, Results)), *("index",) * 3,
        _numbers(AdaNumbers, element), (OfNorms, (flow, flow)),
    )  # fmt: skip
    return Kernel(kernel, parameters, shape.threads)
