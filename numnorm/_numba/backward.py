"""The backward pass of the norms of rows in nopython code, as `cpu/rows/rows.py` computes it."""

from typing import Any

import numpy as np

from numnorm._numba.arguments import check_array, check_out, is_none, real_of
from numnorm._numba.arrays import (
    array_kind,
    empty,
    has_shape,
    make_kernel_shape,
    make_optional,
    packed,
    packed_pair,
    types,
    viewed,
)
from numnorm._numba.forward import FORMULAS, make_by_variant, parameter_kinds
from numnorm._numba.helpers import helper
from numnorm._numba.layouts import Rows
from numnorm._numba.outputs import add_parts, fill, new_target, result
from numnorm.backends.contract.norms import Norm
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import summed_parts
from numnorm.backends.cpu.compiler.symbols import Source, make_call_of
from numnorm.backends.cpu.rows.rows import _backward_kernel
from numnorm.backends.cpu.simd.element_type import element_type_of

_summed_parts = helper(summed_parts)


def kernel(formula: str, dtype: str) -> Kernel:
    """Return the backward kernel of a formula."""
    return _backward_kernel(FORMULAS[formula], element_type_of(np.dtype(dtype)))


def _make_enter(norm: Norm, real: Any, given: bool, in_kernel: bool, ndim: int) -> Any:
    """Return a compiled call of the kernel for parameters of `ndim` axes.

    If not `in_kernel`, the kernel only sums the gradients of gamma and beta of each part: they have
    another dtype.
    """
    rows, statistic, dtype = array_kind(real, 2), array_kind(np.float64, 1), np.dtype(real)
    gamma, beta = parameter_kinds(norm, real, given, ndim)
    totals, results = array_kind(np.float64, 1 + ndim), array_kind(real, 1)
    arguments = (
        rows, rows, statistic if norm.formula.centred else types.none, statistic,
        gamma, beta if norm.parameters == 0 else types.none,
        *[types.int64] * 2, *[types.float64] * 3, rows,
        *(totals if norm.parameters > i else types.none for i in range(2)),
        *(results if norm.parameters > i else types.none for i in range(2)),
        *[types.int64] * 3,
    )  # fmt: skip
    source = Source(kernel, (norm.formula.name, dtype.name), (types.intp, types.Tuple(arguments)))
    call, kernel_shape = make_call_of(source), make_kernel_shape(ndim)
    norm_parameters = norm.parameters
    of_gamma, of_beta = (make_optional(norm.parameters > i) for i in range(2))

    @helper
    def enter(by_channel, segments, dy, x, mean, rstd, weights, numbers, dx, gradients):
        shape, (rows, width) = kernel_shape(segments), x.shape
        summed = segments[0] * segments[1] if ndim == 2 else segments[1]
        parts = _summed_parts(rows, width, summed if norm_parameters else 0)
        of_parts = (0 if in_kernel else parts, *shape)
        dgammas, dbetas = empty(of_parts, np.float64), empty(of_parts, np.float64)
        if not in_kernel:
            fill(dgammas, 0.0)
            fill(dbetas, 0.0)
        dgamma, dbeta = gradients if in_kernel else (empty((0,), real), empty((0,), real))
        members = (
            dy, x, mean, rstd, viewed(weights[0], shape), viewed(weights[1], shape),
            segments[0], segments[1], numbers[0], numbers[1], numbers[2], dx,
            of_gamma(dgammas), of_beta(dbetas), of_gamma(dgamma), of_beta(dbeta), parts, 0, parts,
        )  # fmt: skip
        call((0, members))
        if not in_kernel:
            add_parts(dgammas, gradients[0])
            add_parts(dbetas, gradients[1])

    return enter


def _dtypes(
    norm: Norm, rows: Rows, dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, out: Any
) -> tuple[Any, Any, Any]:
    """Check types; return the dtypes of dx, of the computation, and of the gradient of gamma."""
    names, own = norm.names, real_of("x", x)
    check_array("dy", dy, x.ndim, "the shape of x", optional=False)
    check_out(out, x, own)
    meaning = "one value for each row"
    check_array(names.rstd, rstd, rows.statistic_ndim, meaning, optional=False)
    if norm.formula.centred:
        check_array("mean", mean, rows.statistic_ndim, meaning, optional=False)
    # The dtype that holds all digits of dy and x.
    real = np.float64 if np.float64 in (own, real_of("dy", dy)) else np.float32
    if norm.parameters == 0:
        return own, real, real
    return own, real, check_array(names.gamma, gamma, rows.parameter_ndim, rows.meaning) or own


def make_backward(
    norm: Norm, rows: Rows, dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, out: Any
) -> Any:
    """Return a compiled backward pass of a norm for these types.

    It is ``backward(dy, x, mean, rstd, gamma, beta, layout, numbers, out)``, whose `numbers` are
    the fields of `GradientCoefficients`, and returns ``(dx, dgamma, dbeta)``. A norm with
    parameters has no beta here. Without centring, mean is None.
    """
    names = norm.names
    own, real, gradient = _dtypes(norm, rows, dy, x, mean, rstd, gamma, out)
    given, in_kernel = not is_none(gamma), gradient is real
    enter = make_by_variant(
        lambda ndim: _make_enter(norm, real, given, in_kernel, ndim), rows.variants
    )
    mean_error = "mean must have one value for each row"
    rstd_error = f"{names.rstd} must have one value for each row"
    gamma_error = f"{names.gamma} must have the shape of {rows.meaning}"

    @helper
    def backward(dy, x, mean, rstd, gamma, beta, layout, numbers, out):
        order, size, segments, statistic_shape, parameter_shape, by_channel = layout
        if not has_shape(dy, x.shape):
            raise ValueError("dy must have the shape of x")
        if not has_shape(out, x.shape):
            raise ValueError("out must have the shape of x")
        if not has_shape(mean, statistic_shape):
            raise ValueError(mean_error)
        if not has_shape(rstd, statistic_shape):
            raise ValueError(rstd_error)
        if not has_shape(gamma, parameter_shape):
            raise ValueError(gamma_error)
        source, grad = viewed(packed(x, order, real), size), viewed(packed(dy, order, real), size)
        means = viewed(packed(mean, None, np.float64), (size[0],))
        rstds = viewed(packed(rstd, None, np.float64), (size[0],))
        weights = packed_pair(gamma, beta, real)
        inputs = source, grad, means, rstds, weights[0], weights[1]
        dx = new_target(out, order, size, real, inputs)
        dgamma, dbeta = empty(parameter_shape, gradient), empty(parameter_shape, gradient)
        flat = viewed(dgamma, (dgamma.size,)), viewed(dbeta, (dbeta.size,))
        if size[0] * size[1] > 0:
            enter(by_channel, segments, grad, source, means, rstds, weights, numbers, dx, flat)
        else:
            fill(dgamma, 0.0)
            fill(dbeta, 0.0)
        return result(dx, x, order, out, own), dgamma, dbeta

    return backward
