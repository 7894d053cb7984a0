"""The forward and the backward kernel of all recurrent cells, and their matrix products.

The rows of a batch are independent, so threads never synchronize between steps. A step's rows are
sorted by sequence length, longest first: they are the first rows of the previous step.

Backward, the gates are recomputed from their inputs, which is faster than to store and load them.
The parameters' gradients are summed for groups of batch rows in the compute type and flushed to
float64 every few steps. The groups depend on the shape alone, so the bytes of the result do not
depend on the threads.

Two kinds of cells have a second product in a step; the weights of both are packed, one after the
other. An LSTM's state may be a projection of its outputs (Sak et al. 2014). In a GRU whose reset
gate scales the state before the candidate's product, a row of z holds the product of the gates z
and r, 2H columns, and that of the candidate, H columns.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.recurrent import CellSpec, PackedSteps
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.kernel_arrays import as_flat
from numnorm.backends.cpu.recurrent.arguments import (
    BackwardRowIndex,
    CellKind,
    Factors,
    GradientCoefficients,
    Gradients,
    Masks,
    Parameters,
    RowIndex,
    Saved,
    Scalings,
    Scratch,
    StepRange,
    Sums,
)
from numnorm.backends.cpu.recurrent.matmul import make_matmul
from numnorm.backends.cpu.recurrent.units import (
    before_step,
    flush_groups,
    make_drop,
    rows_of_groups,
    rows_of_step,
    to_next,
)
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part

# The products of a projected LSTM


def make_project(element_type: ElementType) -> Callable[..., None]:
    """Return a compiled ``project(saved, panels, batch, start, left, rows)`` of a step.

    It projects the outputs into the states. The first row is `start` of all steps and `left` of the
    batch. `panels` are the transposed weights.
    """
    lanes, matmul = element_type.lanes, make_matmul(element_type.lanes, accumulate=False)

    @inlined
    def project(saved, panels, batch, start, left, rows):
        outputs, state = saved.outputs, saved.state
        at = start if outputs.shape[0] > batch else left
        units, width = outputs.shape[1], state.shape[1]
        first = -(-4 * units // lanes) * width * lanes
        matmul(
            as_flat(outputs), at * units, units, 1, rows, panels, first, units * lanes, units,
            as_flat(state), (batch + start) * width, width, width,
        )  # fmt: skip

    return project


def make_project_gradient(element_type: ElementType) -> Callable[..., None]:
    """Return a compiled ``gradient(gradients, result, panels, start, left, to, rows)`` of a step.

    It stores the gradients of the states in `Gradients.projected`, from the row `to` on, and those
    of the outputs in the `result`, from the row `left` on. `panels` are the weights.
    """
    lanes, matmul = element_type.lanes, make_matmul(element_type.lanes, accumulate=False)

    @inlined
    def gradient(gradients, result, panels, start, left, to, rows):
        dy, dh, projected = gradients.dy, gradients.dh, gradients.projected
        width, units = projected.shape[1], result.shape[1]
        for r in range(rows):
            for j in range(width):
                projected[to + r, j] = dy[start + r, j] + dh[left + r, j]
        if rows > 0:
            matmul(
                as_flat(projected), to * width, width, 1, rows,
                panels, -(-width // lanes) * 4 * units * lanes, width * lanes, width,
                as_flat(result), left * units, units, units,
            )  # fmt: skip

    return gradient


# The products of a GRU with the reset gate before the product


def make_reset_product(element_type: ElementType) -> Callable[..., None]:
    """Return a compiled ``product(saved, panels, at, rows)`` of the candidate, from the row `at`.

    `panels` are the transposed weights of the state.
    """
    lanes, matmul = element_type.lanes, make_matmul(element_type.lanes, accumulate=False)

    @inlined
    def product(saved, panels, at, rows):
        reset, z = saved.cell, saved.z
        width, wide = reset.shape[1], z.shape[1]
        gates, panel = wide - width, width * lanes
        first = -(-gates // lanes) * panel
        matmul(
            as_flat(reset), at * width, width, 1, rows, panels, first, panel, width,
            as_flat(z), at * wide + gates, wide, width,
        )  # fmt: skip

    return product


def make_reset_gradient(second: Any, element_type: ElementType) -> Callable[..., None]:
    """Return a compiled gradient of the candidate's product and of what precedes it, for a step.

    ``gradient(saved, parameters, coefficients, masks, gradients, scratch, sums, panels, at, rows)``
    stores the gradients of the reset states in `scratch.normalized`, and then calls `second`, as
    `CellKind.make_second_gradient` returns it, for each row. `at` is a tuple: the step's first row,
    in all steps, in the batch, before the step, and in the step range. `panels` are the weights.
    """
    lanes, matmul = element_type.lanes, make_matmul(element_type.lanes, accumulate=False)

    @inlined
    def gradient(
        saved, parameters, coefficients, masks, gradients, scratch, sums, panels, at, rows
    ):
        start, left, before, to = at
        dz, result = gradients.dz, scratch.normalized
        width, wide = result.shape[1], dz.shape[1]
        gates = wide - width
        if rows > 0:
            matmul(
                as_flat(dz), to * wide + gates, wide, 1, rows,
                panels, -(-width // lanes) * gates * lanes, width * lanes, width,
                as_flat(result), left * width, width, width,
            )  # fmt: skip
        for r in range(rows):
            index = BackwardRowIndex(start + r, left + r, before + r, to + r, left, 0)
            second(
                saved, parameters, coefficients, masks, gradients, scratch,
                sums.sums[(left + r) // sums.size], index,
            )  # fmt: skip

    return gradient


# Forward


def _make_multiply(
    accumulate: bool, resets: bool, element_type: ElementType
) -> Callable[..., None]:
    """Return a compiled function that multiplies one step's rows of x and of the state.

    ``multiply(has_x, left, depths, left_rows, right, results, result_rows, rows, wide)`` takes
    pairs, x first: flat left-hand matrices, their numbers of columns and first rows, packed
    weights, flat results of `wide` columns and their first rows. It multiplies x if `has_x`. If the
    cell `resets` the state, the last columns of the product with the state are left out.
    """
    lanes = element_type.lanes
    matmul = make_matmul(lanes, accumulate=accumulate)

    @inlined
    def multiply(has_x, left, depths, left_rows, right, results, result_rows, rows, wide):
        if accumulate and has_x:
            results[0][result_rows[0] * wide : (result_rows[0] + rows) * wide] = 0
        for k in range(0 if has_x else 1, 2):
            # A loop, so that the matmul is inlined and compiled once.
            a, depth, at = (
                (left[0], depths[0], left_rows[0]) if k == 0 else (left[1], depths[1], left_rows[1])
            )
            b, c, to = (
                (right[0], results[0], result_rows[0]) if k == 0
                else (right[1], results[1], result_rows[1])
            )  # fmt: skip
            columns = wide // 3 * 2 if resets and k == 1 else wide
            matmul(
                a, at * depth, depth, 1, rows, b, 0, depth * lanes, depth,
                c, to * wide, wide, columns,
            )  # fmt: skip

    return multiply


@functools.cache
def make_forward(kind: CellKind, spec: CellSpec, element_type: ElementType) -> Kernel:
    """Return the forward kernel of a cell.

    It runs all steps for the batch rows of the parts from `first` to `last` of `parts`. `scratch`
    (batch, H) is what the first half of a row hands to the second. The other arguments are groups
    of `arguments`, whose members are passed one after the other.
    """
    each, gates = kind.norms_each_product(spec), kind.gates
    resets, reset_product = kind.resets_before(spec), make_reset_product(element_type)
    multiply = _make_multiply(not each, resets, element_type)
    drops, drop = spec.recurrent_dropout, make_drop(element_type)
    projected, project = kind.projects(spec), make_project(element_type)
    first_half, second_half = kind.make_row(spec, element_type)

    def kernel(
        steps: PackedSteps,
        factors: Factors,
        parameters: Parameters,
        saved: Saved,
        scalings: Scalings,
        masks: Masks,
        scratch: Any,
        parts: Any,
        first: Any,
        last: Any,
    ) -> None:
        offsets, batch_sizes = steps.offsets, steps.batch_sizes
        x, z, xp, state = factors.x, saved.z, saved.xp, saved.state
        batch, width = batch_sizes[0], state.shape[1]
        wide = z.shape[1] if projected else gates * width
        left, right = first * batch // parts, last * batch // parts
        from_x, operand = xp if each else z, saved.dropped if drops else state
        left_hand, depths = (as_flat(x), as_flat(operand)), (x.shape[1], width)
        right_hand = factors.panels_x, factors.panels_h
        results = as_flat(from_x), as_flat(z)
        x_saved, z_saved = from_x.shape[0] > batch, z.shape[0] > batch
        for s in range(offsets.size):
            rows = rows_of_step(batch_sizes, s, left, right)
            if rows <= 0:
                break
            start, before = offsets[s] + left, before_step(offsets, s, batch) + left
            at, x_at = start if z_saved else left, start if x_saved else left
            multiply(
                x.shape[0] > 0, left_hand, depths, (start, before), right_hand, results,
                (x_at, at), rows, wide,
            )  # fmt: skip
            for r in range(rows):
                index = RowIndex(start + r, left + r, before + r, batch)
                first_half(
                    z[at + r], part(xp, x_at + r), saved, parameters, scalings, masks,
                    scratch[left + r], index,
                )  # fmt: skip
            if resets:
                reset_product(saved, right_hand[1], at, rows)
            for r in range(rows):
                index = RowIndex(start + r, left + r, before + r, batch)
                second_half(
                    z[at + r], part(xp, x_at + r), saved, parameters, scalings, masks,
                    scratch[left + r], index,
                )  # fmt: skip
            if projected:
                project(saved, right_hand[1], batch, start, left, rows)
            if drops:
                drop(state, masks.dropout, saved.dropped, batch + start, left, rows)

    return make_grouped_kernel(f"{kind.name}_forward.{spec.name}.{element_type.name}", kernel)


# Backward


@functools.cache
def make_backward(kind: CellKind, spec: CellSpec, element_type: ElementType) -> Kernel:
    """Return the backward kernel of a cell.

    It runs the steps of a range for the groups of batch rows of the parts from `first` to `last`.
    `panels` is W_h, packed for `make_matmul`; the other arguments are groups of `arguments`, whose
    members are passed one after the other.
    """
    lanes, gates = element_type.lanes, kind.gates
    drops, accumulates = spec.recurrent_dropout, kind.accumulates(spec)
    matmul = make_matmul(lanes, accumulate=accumulates and not drops)
    drop_gradient = make_drop(element_type, accumulate=accumulates)
    row, resets = kind.make_row_gradient(spec, element_type), kind.resets_before(spec)
    projected, project_gradient = kind.projects(spec), make_project_gradient(element_type)
    second = kind.make_second_gradient(spec, element_type)
    reset_gradient = make_reset_gradient(second, element_type)

    def kernel(
        steps: StepRange,
        panels: Any,
        parameters: Parameters,
        saved: Saved,
        coefficients: GradientCoefficients,
        masks: Masks,
        gradients: Gradients,
        scratch: Scratch,
        sums: Sums,
        parts: Any,
        first: Any,
        last: Any,
    ) -> None:
        offsets, begin, dh = steps.offsets, steps.begin, gradients.dh
        (batch, width), groups, size = dh.shape, sums.sums.shape[0], sums.size
        left, right = rows_of_groups(first, last, groups, parts, size, batch)
        wide = gradients.dz.shape[1] if projected else gates * width
        products = as_flat(gradients.dz)
        depth, states = wide - width if resets else wide, as_flat(scratch.cell if drops else dh)
        between = max(1, tuning.ROWS_BETWEEN_FLUSHES // size)
        for s in range(steps.end - 1, begin - 1, -1):
            rows = rows_of_step(steps.batch_sizes, s, left, right)
            start, before = offsets[s] + left, before_step(offsets, s, batch) + left
            to = start - offsets[begin]
            if projected:
                project_gradient(gradients, scratch.outputs, panels, start, left, to, rows)
            for r in range(rows):
                distance = to_next(offsets, begin, s, r, rows)
                index = BackwardRowIndex(start + r, left + r, before + r, to + r, left, distance)
                row(
                    saved, parameters, coefficients, masks, gradients, scratch,
                    sums.sums[(left + r) // size], index,
                )  # fmt: skip
            if resets:
                reset_gradient(
                    saved, parameters, coefficients, masks, gradients, scratch, sums, panels,
                    (start, left, before, to), rows,
                )  # fmt: skip
            if rows > 0:
                matmul(
                    products, to * wide, wide, 1, rows, panels, 0, depth * lanes, depth,
                    states, left * width, width, width,
                )  # fmt: skip
            if drops:
                drop_gradient(scratch.cell, masks.dropout, dh, left, left, rows)
            if s % between == 0:
                flush_groups(sums.sums, sums.totals, left, right, size)

    return make_grouped_kernel(f"{kind.name}_backward.{spec.name}.{element_type.name}", kernel)
