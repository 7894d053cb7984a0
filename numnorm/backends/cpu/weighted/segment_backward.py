"""The backward kernel of rows of several segments, masked or with weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.memory.kernel_arrays import window
from numnorm.backends.cpu.memory.nontemporal import (
    Writer,
    gradient_uses_write_combining,
    make_writer,
)
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.statistics.saved import MOST_LOST
from numnorm.backends.cpu.weighted.loops import (
    LANES,
    Selection,
    clear,
    is_kept,
    of_row,
    quotient,
    row_sums,
    scratch,
    total_of,
)
from numnorm.backends.formulas.norms import scale_gradient_factor

_scale_gradient_factor = inlined(scale_gradient_factor)


class Rows(NamedTuple):
    """How rows consist of segments, each of one channel, and where parameters of a channel lie.

    Attributes
    ----------
    rows, segments, segment : int
        The number of rows, of segments in a row, and of elements in a segment.
    channels : int
        The segments of all rows belong to channels 0, 1, ..., channels - 1, 0, 1, ... in turn.
    spread : int
        1 if each element of a segment has its own parameter, ``(channels, segment)``. With 0 a
        channel has one parameter, repeated in an array ``(channels, LANES)``.
    """

    rows: int
    segments: int
    segment: int
    channels: int
    spread: int


class Parameters(NamedTuple):
    """Flat arrays of float64 for gamma and beta, or for the sums of their gradients."""

    gamma: Any
    beta: Any


class Through(NamedTuple):
    """How the gradient flows through the statistics of a row.

    Attributes
    ----------
    share, more : float
        The sum of squares is divided by ``total * share + more``, with the sum of the weights.
    eps_on_deviation : float
        What is added to the deviation.
    mean, scale : int
        1, or 0 if the gradient does not flow through the mean or the scale.
    """

    share: float
    more: float
    eps_on_deviation: float
    mean: int
    scale: int


class Gradients(NamedTuple):
    """What a backward kernel reads beside x, and dx, which it writes; all are flat.

    Without centring the mean is 0.
    """

    dy: Any
    mean: Any
    rstd: Any
    dx: Any


@inlined
def _block_of(rows, i, b):
    """Return where block b of row i starts, its size, and where its parameters start."""
    blocks = (rows.segment + LANES - 1) // LANES
    segment, left = b // blocks, b % blocks * LANES
    channel = (i * rows.segments + segment) % rows.channels
    n, length = min(LANES, rows.segment - left), rows.segment if rows.spread else LANES
    return segment * rows.segment + left, n, channel * length + left * rows.spread


@inlined
def _blocks_of_row(rows):
    return rows.segments * ((rows.segment + LANES - 1) // LANES)


def _make_gradient(formula: Formula) -> Callable[..., Any]:
    """Return a compiled function for an element: dy, xhat and the gradient of xhat.

    They are 0 if the element is left out.
    """
    backward = inlined(formula.backward)

    @inlined
    def gradient(x, dy, keep, omit, statistics, gamma, beta):
        mean, lost, rstd = statistics
        kept = is_kept(keep, x, omit)
        d = dy if kept else 0.0
        xhat = ((x - mean) - lost) * rstd if kept else 0.0
        g = backward(d, xhat, gamma, beta) if kept else 0.0  # gamma may be NaN
        return d, xhat, g

    return gradient


def _make_add(formula: Formula) -> Callable[..., Any]:
    """Return a compiled function that adds a block to the sums of its row and to the totals."""
    gradient = _make_gradient(formula)

    @inlined
    def add(x, dy, keep, omit, statistics, gamma, beta, dgamma, dbeta, sums):
        sum_g, sum_g_xhat, products, copies = sums
        for k in range(x.size):
            value, d = np.float64(x[k]), np.float64(dy[k])
            d, xhat, g = gradient(value, d, keep[k], omit, statistics, gamma[k], beta[k])
            sum_g[k] += g
            sum_g_xhat[k] += g * xhat
            products[k] = d * xhat
            copies[k] = d
        for k in range(x.size):
            dgamma[k] += products[k]
        for k in range(x.size):
            dbeta[k] += copies[k]

    return add


def _make_store_dx(formula: Formula, real: Any) -> Callable[..., Any]:
    """Return a compiled function that stores dx of a block."""
    gradient = _make_gradient(formula)

    @inlined
    def store_dx(x, dy, keep, weights, omit, statistics, means, gamma, beta, dx):
        rstd, (mean_g, mean_g_xhat) = statistics[2], means
        for k in range(x.size):
            value, d = np.float64(x[k]), np.float64(dy[k])
            d, xhat, g = gradient(value, d, keep[k], omit, statistics, gamma[k], beta[k])
            result = rstd * (g - weights[k] * (mean_g + xhat * mean_g_xhat))
            dx[k] = real(result if is_kept(keep[k], value, omit) else 0.0)

    return store_dx


@inlined
def _backward_statistics(row, keep, weights, omit, mean, rstd):
    """Return the sum of the weights, and the mean, what its rounding lost, and rstd of a row."""
    total, lost, _ = row_sums(row, keep, weights, omit, 1.0, mean)
    lost = quotient(lost, total)
    # A mean that the caller changed stays as it is.
    return total, (mean, lost if abs(lost) <= MOST_LOST * abs(mean) else 0.0, rstd)


@inlined
def _means_of(total, sums, rstd, through):
    """Return the gradients through the mean and through the scale of a row."""
    mean_g = quotient(total_of(sums[0]), total) if through.mean != 0 else 0.0
    divisor = total * through.share + through.more
    factor = _scale_gradient_factor(rstd, through.eps_on_deviation)
    mean_g_xhat = quotient(total_of(sums[1]), divisor) * factor if through.scale != 0 else 0.0
    return mean_g, mean_g_xhat


def _make_add_row(formula: Formula) -> Callable[..., Any]:
    """Return a compiled function that sums a row, and adds it to the totals."""
    add = _make_add(formula)

    @inlined
    def add_row(x, dy, selected, rows, i, statistics, parameters, totals, offset, sums):
        keep, _, omit = selected
        clear(sums[0])
        clear(sums[1])
        for b in range(_blocks_of_row(rows)):
            start, n, at = _block_of(rows, i, b)
            block = window(x, start, n), window(dy, start, n), window(keep, start, n)
            given = window(parameters.gamma, at, n), window(parameters.beta, at, n)
            to = window(totals.gamma, offset + at, n), window(totals.beta, offset + at, n)
            add(*block, omit, statistics, *given, *to, sums)

    return add_row


def _make_store_row(formula: Formula, real: Any, writer: Writer) -> Callable[..., Any]:
    """Return a compiled function that stores dx of a row, and returns the writer's state."""
    store_dx = _make_store_dx(formula, real)
    _, _, target_of, written, _ = writer

    @inlined
    def store_row(x, dy, selected, rows, i, statistics, parameters, means, to):
        keep, weights, omit = selected
        dx, buffer, state, combines = to
        for b in range(_blocks_of_row(rows)):
            start, n, at = _block_of(rows, i, b)
            block = window(x, start, n), window(dy, start, n), window(keep, start, n)
            given = window(parameters.gamma, at, n), window(parameters.beta, at, n)
            target = target_of(dx, i * x.size + start, n, buffer, state, combines)
            weight = window(weights, start, n)
            store_dx(*block, weight, omit, statistics, means, *given, target)
            state = written(dx, n, buffer, state, combines)
        return state

    return store_row


def make_weighted_backward(formula: Formula, dtype: Any) -> Kernel:
    """Return the backward kernel of a formula for x, flat, of float32 or float64.

    The totals, ``(parts, channels, length)`` and zeros at first, are the sums of the gradients of
    gamma and beta. Where a channel has one parameter, its gradient is the sum of `LANES` totals.
    """
    writer, add_row = make_writer(element_type_of(np.dtype(dtype)), LANES), _make_add_row(formula)
    store_row = _make_store_row(formula, np.dtype(dtype).type, writer)
    make_buffer, begin, _, _, finish = writer

    def kernel(
        x: Any,
        selection: Selection,
        rows: Rows,
        parameters: Parameters,
        through: Through,
        gradients: Gradients,
        totals: Parameters,
        parts: int,
        first: int,
        last: int,
    ) -> None:
        width, of_part = rows.segments * rows.segment, totals.gamma.size // parts
        sums, buffer, dx = (
            (scratch(), scratch(), scratch(), scratch()),
            make_buffer(),
            gradients.dx,
        )
        combines = gradient_uses_write_combining(dx)
        state = begin(dx, first * rows.rows // parts * width)
        for p in range(first, last):
            for i in range(p * rows.rows // parts, (p + 1) * rows.rows // parts):
                row, dy = window(x, i * width, width), window(gradients.dy, i * width, width)
                selected = of_row(selection, i, width)
                mean, rstd = gradients.mean[i], gradients.rstd[i]
                total, statistics = _backward_statistics(row, *selected, mean, rstd)
                given = row, dy, selected, rows, i, statistics, parameters
                add_row(*given, totals, p * of_part, sums)
                means = _means_of(total, sums, rstd, through)
                state = store_row(*given, means, (dx, buffer, state, combines))
        finish(dx, buffer, state, combines)

    return make_grouped_kernel(f"weighted.row_backward.{formula.name}.{np.dtype(dtype)}", kernel)
