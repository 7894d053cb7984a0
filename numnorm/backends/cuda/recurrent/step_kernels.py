"""The kernels of one step of a recurrent cell, forward and backward, for any kind of cell.

The arrays' library computes a step's matrix products; one kernel computes all the rest of the step.
A `StepKind` supplies the device functions for a row.

The kernels take their parameters in groups. In a kernel, a field with a shape is the address of the
step's first row in the array; the address is 0 if the cell has no such array. ``H`` is the number
of units, ``gates`` the number of gates of a unit, and `rows` the number of rows of the step. Host
code puts arrays into the same groups.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.recurrent.cell_norm import SMEM_PER_WARP, smem_for_parts
from numnorm.backends.cuda.threads.reductions import WARP, SumsOf, make_team_sums
from numnorm.backends.cuda.threads.row_columns import row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape

# Parameters


class RowSpan(NamedTuple):
    """The part of a row that a thread works on.

    Attributes
    ----------
    row, width : int
        The row's index, and the number of units of a row.
    at : int
        The thread's first unit.
    limit : int
        A thread stores only units below it: the width, or 0 for a thread without a row.
    """

    row: Any
    width: Any
    at: Any
    limit: Any


class Products(NamedTuple):
    """The products that the gates of a forward step are computed from. Read.

    Attributes
    ----------
    z : (rows, gates * H)
        The product W_h h with the state.
    xp : (rows, gates * H)
        The product W_x x.
    """

    z: Any
    xp: Any


class StepStates(NamedTuple):
    """The states around a forward step. A new state may overwrite the state before.

    Attributes
    ----------
    mask_h, mask_c : (rows, H)
        The zoneout masks of h and of an LSTM's cell. Read.
    h_before, c_before : (rows, H)
        The states before the step. Read.
    h, c : (rows, H)
        The new states. Written.
    """

    mask_h: Any
    mask_c: Any
    h_before: Any
    c_before: Any
    h: Any
    c: Any


class StepSaved(NamedTuple):
    """Arrays that a forward step writes for the backward pass; the address is 0 to save nothing.

    Attributes
    ----------
    sums : (rows, gates * H)
        ``z + xp``, unless each product has its own norm. May be the array of xp.
    cell : (rows, H)
        An LSTM's cell before its norm, if the next step gets another cell.
    table : (rows, sites, NUMBERS)
        The statistics.
    """

    sums: Any
    cell: Any
    table: Any


class ReadBack(NamedTuple):
    """Arrays of the forward pass that a backward step reads.

    Attributes
    ----------
    z, xp : (rows, gates * H)
        The products. Unless each product has its own norm, z is their sum and there is no xp.
    cell : (rows, H)
        An LSTM's cell before its norm.
    before : (rows, H)
        The step's input state: the cell of an LSTM, else h.
    table : (rows, sites, NUMBERS)
        The statistics.
    """

    z: Any
    xp: Any
    cell: Any
    before: Any
    table: Any


class Incoming(NamedTuple):
    """The gradients that a backward step starts from, and the zoneout masks.

    Attributes
    ----------
    dy : (rows, H)
        The gradient of the step's output. Read.
    product : (later, H)
        The gradient of h through the product of the next step, which has `later` rows. Read.
    dh, dc : (rows, H)
        The gradients of h and of the cell by all other ways; before the first backward step, the
        gradients of the last states. Read, then overwritten with the same gradients of the step's
        input states.
    mask_h, mask_c : (rows, H)
        The zoneout masks. Read.
    """

    dy: Any
    product: Any
    dh: Any
    dc: Any
    mask_h: Any
    mask_c: Any


class Results(NamedTuple):
    """Gradients that a backward step writes.

    Attributes
    ----------
    dz, dxp : (rows, gates * H)
        The gradients of both products, if they are normalized.
    gates : (rows, gates * H)
        The gradients of the gates' inputs: of the norm's result or, without a norm, of z.
    other : array
        More gradients, which the sums over all steps read. LSTM ``(rows, H)``: of the norm's result
        for the cell, if that norm has parameters. GRU ``(rows, 3H)``: as `gates`, for the product
        with x.
    """

    dz: Any
    dxp: Any
    gates: Any
    other: Any


class AdaNumbers(NamedTuple):
    """The numbers that a norm uses where it has no arrays gamma and beta.

    Attributes
    ----------
    gain, bias : number
        The two numbers of AdaNorm in place of gamma and beta; 1 and 0 for other norms.
    """

    gain: Any
    bias: Any


class ScalingNumbers(NamedTuple):
    """How a norm in a forward step turns its sums into a mean and a deviation.

    Attributes
    ----------
    inv_count : number
        1 / N for a norm of N elements.
    inv_divisor : number
        1 over the divisor of the sum of squared deviations.
    eps, eps_on_deviation : number
        What is added to the variance and to the deviation.
    root_eps : number
        The square root of eps.
    """

    inv_count: Any
    inv_divisor: Any
    eps: Any
    eps_on_deviation: Any
    root_eps: Any


class GradientCoefficients(NamedTuple):
    """The numbers in the gradient of a norm in a backward step.

    Attributes
    ----------
    inv_count : number
        1 / N for a norm of N elements, 0 if it is not centred.
    inv_divisor, eps_on_deviation : number
        As in `ScalingNumbers`.
    """

    inv_count: Any
    inv_divisor: Any
    eps_on_deviation: Any


class OfNorms(NamedTuple):
    """One group of numbers for each of a cell's two norms.

    Attributes
    ----------
    gates : group
        For the norm of the gates.
    other : group
        For the norm of an LSTM's cell or of a GRU's candidate. A plain RNN does not use it.
    """

    gates: Any
    other: Any


# Kernels

_THREADS = 128  # of a block that adds up gradients


@dataclasses.dataclass(frozen=True)
class StepKind:
    """The device functions for a row in a step of one kind of cell.

    The functions' first argument is the cell's spec. The device functions take the groups of
    parameters above, and in ``smem`` the shared memory of the gates' norm and of the other norm.

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
    lanes = row_columns(element, shape).lanes
    team, teams = shape.team, shape.teams

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
    compute_type = element.compute_type
    span_of = _make_span(element, shape)
    step = kind.make_step(spec, element, shape)
    gate_parts, other_parts = kind.parts(spec)
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
    compute_type = element.compute_type
    span_of = _make_span(element, shape)
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


def make_added_gradients(element: ElementType) -> Kernel:
    """Return the kernel that adds up the gradients of a step's states, for a projection of them.

    It takes the addresses ``dy, product, dh`` of `Incoming` and ``result``; and the numbers of
    elements of the product and of the result.
    """
    load, store = make_load_one(element), make_store_one(element)

    def kernel(dy, product, dh, result, later, count):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            store(result, i, load(dy, i) + load(product if i < later else dh, i))

    return Kernel(kernel, ("address",) * 4 + ("index",) * 2, _THREADS)
