"""The kernels of one step of a recurrent cell, forward and backward, of any kind of cell.

The products are those of a library: a step waits for the one before it, and a kernel does what
follows from the products of one step. A kind of cell tells what becomes of a row.
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
    FlowNumbers,
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
    """What a step of one kind of cell makes of a row; each function begins with the cell's form.

    Parameters
    ----------
    weights : type
        The group of its parameters besides the weights: addresses.
    parts : callable
        Of how many parts of a row each of both norms takes statistics.
    make_step : callable
        Makes ``step(products, weights, states, saved, span, ada, scalings, smem_sizes)``; each norm
        has a room of shared memory.
    make_step_back : callable
        Makes ``step_back(saved, weights, incoming, results, span, later, ada, coefficients, smem_sizes)``,
        with sums over a row, which take the rooms.
    """

    weights: type
    parts: Callable[[Any], tuple[int, int]]
    make_step: Callable[[Any, ElementType, RowShape], Any]
    make_step_back: Callable[[Any, ElementType, RowShape, SumsOf], Any]


def _addresses(group: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the kind of a parameter that is a group of addresses."""
    return group, ("address",) * len(group._fields)


def _numbers(group: Any, element: ElementType) -> tuple[Any, tuple[str, ...]]:
    """Return the kind of a group of numbers."""
    return group, (element.compute_name,) * len(group._fields)


def _make_span(element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``span_of(rows, width)`` of the part of a row that a thread has."""
    lanes, team, teams = row_columns(element, shape).lanes, shape.team, shape.teams

    @device
    def span_of(rows, width):
        row = cuda.blockIdx.x * teams + cuda.threadIdx.x // team
        at = cuda.threadIdx.x % team * lanes
        # A team behind the last row goes along, for the barriers' sake, and stores nothing.
        row, limit = (row, width) if row < rows else (rows - 1, 0)
        return RowSpan(row, width, at, limit)

    return span_of


def make_cell_forward(kind: StepKind, spec: Any, element: ElementType, shape: RowShape) -> Kernel:
    """Return the kernel of one step.

    It takes `Products`, the kind's weights, `StepStates`, `StepSaved`, the number of rows and
    the units of each, `AdaNumbers`, and of both norms `ScalingNumbers`.
    """
    compute_type, span_of = element.compute_type, _make_span(element, shape)
    step, (of_gates, of_other) = kind.make_step(spec, element, shape), kind.parts(spec)
    behind = SMEM_PER_WARP * smem_for_parts(of_gates, shape)
    warps = max(1, shape.threads // WARP)  # for what all threads of a cell's norm begin with
    size = behind + SMEM_PER_WARP * smem_for_parts(of_other, shape) + warps

    def kernel(products, weights, states, saved, rows, width, ada, scalings):
        shared = cuda.shared.array(size, compute_type)
        smem_sizes = shared, shared[behind:]
        step(products, weights, states, saved, span_of(rows, width), ada, scalings, smem_sizes)

    scaling = _numbers(ScalingNumbers, element)
    parameters = (
        *map(_addresses, (Products, kind.weights, StepStates, StepSaved)), "index", "index",
        _numbers(AdaNumbers, element), (OfNorms, (scaling, scaling)),
    )  # fmt: skip
    return Kernel(kernel, parameters, shape.threads)


def make_cell_backward(kind: StepKind, spec: Any, element: ElementType, shape: RowShape) -> Kernel:
    """Return the kernel of one step back.

    It takes `ReadBack`, the kind's weights, `Incoming`, `Results`, the number of rows, how many
    of them the next step has, the units of each, `AdaNumbers`, and of both norms `FlowNumbers`.
    """
    compute_type, span_of = element.compute_type, _make_span(element, shape)
    sums_of = functools.partial(make_team_sums, element, shape.team)
    step_back = kind.make_step_back(spec, element, shape, sums_of)
    of_gates, of_other = kind.parts(spec)
    behind, size = smem_for_parts(of_gates, shape), smem_for_parts(of_gates + of_other, shape)

    def kernel(saved, weights, incoming, results, rows, later, width, ada, coefficients):
        shared = cuda.shared.array(size, compute_type)
        smem_sizes = shared, shared[behind:]
        span = span_of(rows, width)
        step_back(saved, weights, incoming, results, span, later, ada, coefficients, smem_sizes)

    flow = _numbers(FlowNumbers, element)
    parameters = (
        *map(_addresses, (ReadBack, kind.weights, Incoming, Results)), *("index",) * 3,
        _numbers(AdaNumbers, element), (OfNorms, (flow, flow)),
    )  # fmt: skip
    return Kernel(kernel, parameters, shape.threads)
