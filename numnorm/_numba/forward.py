"""The forward pass of the norms of rows in nopython code, as `cpu/rows/rows.py` computes it."""

import math
from typing import Any

import numpy as np

from numnorm._numba.arguments import check_array, check_out, is_none, real_of
from numnorm._numba.arrays import (
    array_kind,
    empty,
    has_shape,
    make_kernel_shape,
    number_kind,
    packed,
    packed_pair,
    types,
    viewed,
)
from numnorm._numba.helpers import helper
from numnorm._numba.layouts import Rows
from numnorm._numba.outputs import fill, new_target, result
from numnorm.backends.contract.norms import Norm
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import row_parts
from numnorm.backends.cpu.compiler.symbols import Source, make_call_of
from numnorm.backends.cpu.rows.rows import _forward_kernel
from numnorm.backends.cpu.rows.tiles import widest
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.norms.declared import SPECS

FORMULAS = {spec.norm.formula.name: spec.norm.formula for spec in SPECS if spec.norm}
_row_parts = helper(row_parts)


def kernel(formula: str, dtype: str, narrow: bool) -> Kernel:
    """Return the forward kernel of a formula."""
    return _forward_kernel(FORMULAS[formula], element_type_of(np.dtype(dtype)), narrow)


def parameter_kinds(norm: Norm, real: Any, given: bool, ndim: int) -> tuple[Any, Any]:
    """Return the types of gamma and beta in a kernel."""
    if norm.parameters == 0:
        return number_kind(real), number_kind(real)
    kind = array_kind(real, ndim) if given else types.none
    return kind, kind if norm.parameters == 2 else types.none


def make_by_variant(make: Any, variants: tuple[int, ...]) -> Any:
    """Return a compiled ``enter(by_channel, segments, *arguments)`` of a norm's kernels.

    ``make(ndim)`` returns it for parameters that have this number of axes in a kernel: 1 for one
    parameter a channel (`by_channel`), 2 for one an element of a segment.
    """
    first, *others = [make(ndim) for ndim in variants]
    if not others:
        return first
    (second,) = others

    @helper
    def enter(by_channel, segments, *arguments):
        if by_channel:
            first(by_channel, segments, *arguments)
        else:
            second(by_channel, segments, *arguments)

    return enter


def _make_enter(norm: Norm, real: Any, given: bool, ndim: int) -> Any:
    """Return a compiled call of the kernel for parameters of `ndim` axes."""
    rows, statistic, dtype = array_kind(real, 2), array_kind(np.float64, 1), np.dtype(real)
    arguments = (
        rows, *parameter_kinds(norm, real, given, ndim), *[types.int64] * 2, *[types.float64] * 3,
        rows, statistic, statistic, *[types.int64] * 3,
    )  # fmt: skip
    kinds = types.intp, types.Tuple(arguments)
    narrow, wide = (
        make_call_of(Source(kernel, (norm.formula.name, dtype.name, is_narrow), kinds))
        for is_narrow in (True, False)
    )
    most, kernel_shape = widest(element_type_of(dtype)), make_kernel_shape(ndim)

    @helper
    def enter(by_channel, segments, x, weights, scaling, y, mean, rstd, parts):
        shape = kernel_shape(segments)
        members = (
            x, viewed(weights[0], shape), viewed(weights[1], shape), segments[0], segments[1],
            scaling[0], scaling[1], scaling[2], y, mean, rstd, parts, 0, parts,
        )  # fmt: skip
        if x.shape[1] <= most:
            narrow((0, members))
        else:
            wide((0, members))

    return enter


def make_weights(norm: Norm, gamma: Any, beta: Any) -> Any:
    """Return a compiled ``weights(gamma, beta, real)``: both for a kernel, but for the shape.

    Of two parameters, a missing one is filled if the other is given.
    """
    if norm.parameters < 2 or is_none(gamma) == is_none(beta):
        return packed_pair
    has_gamma = not is_none(gamma)

    @helper
    def weights(gamma, beta, real):
        own = packed(gamma if has_gamma else beta, None, real)
        other = empty(own.shape, real)
        fill(other, 0 if has_gamma else 1)
        return (own, other) if has_gamma else (other, own)

    return weights


def make_forward(
    norm: Norm, rows: Rows, x: Any, gamma: Any, beta: Any, out: Any, *, save: bool
) -> Any:
    """Return a compiled ``forward(x, gamma, beta, layout, scaling, out)`` for these types.

    `scaling` is ``(eps, eps_on_deviation, ddof)``. It returns ``(y, mean, rstd)``, in which mean
    and rstd have no elements if they are not saved.
    """
    real, names = real_of("x", x), norm.names
    check_out(out, x, real)
    if norm.parameters:
        check_array(names.gamma, gamma, rows.parameter_ndim, rows.meaning)
        check_array("beta", beta, rows.parameter_ndim, rows.meaning)
    given = not (is_none(gamma) and is_none(beta))
    enter = make_by_variant(
        lambda ndim: _make_enter(norm, real, given, ndim),
        rows.variants if given and norm.parameters else rows.variants[-1:],
    )
    weights_of = make_weights(norm, gamma, beta)
    gamma_error = f"{names.gamma} must have the shape of {rows.meaning}"
    beta_error = f"beta must have the shape of {rows.meaning}"

    @helper
    def forward(x, gamma, beta, layout, scaling, out):
        order, size, segments, statistic_shape, parameter_shape, by_channel = layout
        if not has_shape(gamma, parameter_shape):
            raise ValueError(gamma_error)
        if not has_shape(beta, parameter_shape):
            raise ValueError(beta_error)
        if not has_shape(out, x.shape):
            raise ValueError("out must have the shape of x")
        source = viewed(packed(x, order, real), size)
        weights = weights_of(gamma, beta, real)
        y = new_target(out, order, size, real, (source, weights[0], weights[1]))
        count, elements = (size[0] if save else 0), size[0] * size[1]
        mean, rstd = empty((count,), np.float64), empty((count,), np.float64)
        eps, eps_on_deviation, ddof = scaling
        if elements > 0:
            numbers = eps, eps_on_deviation, float(size[1] - ddof)
            parts = _row_parts(size[0], elements)
            enter(by_channel, segments, source, weights, numbers, y, mean, rstd, parts)
        else:
            fill(mean, 0.0 if ddof < 0 else math.nan)
            fill(rstd, 0.0 if ddof < 0 else math.nan)
        y = result(y, x, order, out, real)
        if save:
            return y, viewed(mean, statistic_shape), viewed(rstd, statistic_shape)
        return y, None, None

    return forward
