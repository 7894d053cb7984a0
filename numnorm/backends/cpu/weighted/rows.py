"""The norms with statistics of each row, with weights or without some elements: the callers."""

import functools
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import check_shape
from numnorm.backends.contract.norms import Detached, Formula, Norm
from numnorm.backends.contract.norms import Scaling as NormScaling
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import run, summed_parts
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_float_array,
    as_kernel_array,
    as_parameter,
    as_statistic,
    gradient_dtype,
    in_wider_dtype,
    output_like,
    result,
    wider_dtype,
)
from numnorm.backends.cpu.memory.left_out import filling_of, kept_by
from numnorm.backends.cpu.rows.fast_path import FastPath
from numnorm.backends.cpu.rows.rows import (
    Plan,
    backward_plan,
    forward_plan,
    gradient_parameters,
    kernel_parameters,
    new_dx,
    new_output,
    new_statistics,
    one_each,
    saved_as,
)
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of, in_float64
from numnorm.backends.cpu.statistics import broadcast_parameters
from numnorm.backends.cpu.weighted.arrays import mask_of, output_for, result_of, selection_of
from numnorm.backends.cpu.weighted.fast_path import (
    make_fast_masked_backward,
    make_fast_masked_forward,
)
from numnorm.backends.cpu.weighted.loops import LANES
from numnorm.backends.cpu.weighted.row_backward import make_masked_backward
from numnorm.backends.cpu.weighted.row_forward import make_masked_forward
from numnorm.backends.cpu.weighted.segment_backward import (
    Parameters,
    Rows,
    make_weighted_backward,
)
from numnorm.layouts import RowLayout

# Rows in vectors


_NOTHING = np.empty(0)
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


@functools.cache
def _masked_forward_kernel(formula: Formula, element_type: ElementType) -> Kernel:
    return make_masked_forward(formula, element_type)


@functools.cache
def _masked_backward_kernel(formula: Formula, element_type: ElementType) -> Kernel:
    return make_masked_backward(formula, element_type)


def _element_type(dtype: Any, *, weighted: bool) -> ElementType:
    """Return the element type of the kernels of masked rows: weights are products in float64."""
    element_type = element_type_of(dtype)
    return in_float64(element_type) if weighted else element_type


class _MaskedPlan(NamedTuple):
    """What follows from norm, dtype and layout alone, for rows that are masked or have weights."""

    # That of the plain norm.
    plain: Plan
    kernel: Kernel
    element_type: ElementType
    constants: tuple[Any, ...]
    fast_paths: dict[Any, FastPath | None]


@functools.lru_cache(maxsize=1024)
def _masked_plan(
    norm: Norm, dtype: Any, layout: RowLayout, scaling: NormScaling, weighted: bool
) -> _MaskedPlan:
    plan = forward_plan(norm, dtype, layout, scaling)
    element_type = _element_type(dtype, weighted=weighted)
    segments = layout.segment, layout.channels
    constants = *segments, scaling.eps, scaling.eps_on_deviation, *divisor_of(norm, scaling)
    kernel = _masked_forward_kernel(norm.formula, element_type)
    return _MaskedPlan(plan, kernel, element_type, constants, {})


@functools.lru_cache(maxsize=1024)
def _masked_backward_plan(
    norm: Norm,
    dtype: Any,
    layout: RowLayout,
    scaling: NormScaling,
    detached: Detached,
    weighted: bool,
) -> _MaskedPlan:
    plan = backward_plan(norm, dtype, layout, scaling, detached)
    element_type = _element_type(dtype, weighted=weighted)
    flows = float(norm.formula.centred and not detached.mean), float(not detached.scale)
    through = *flows, *divisor_of(norm, scaling), scaling.eps_on_deviation
    kernel = _masked_backward_kernel(norm.formula, element_type)
    return _MaskedPlan(plan, kernel, element_type, through, {})


def divisor_of(norm: Norm, scaling: NormScaling) -> tuple[float, float]:
    """Return share and more: a sum of squares is divided by ``number * share + more``."""
    return (0.0, 1.0) if norm.of_length else (1.0, -float(scaling.ddof))


def _in_float64(parameter: Any) -> Any:
    """Return a parameter of float32 as float64, which the kernels with weights take."""
    single = type(parameter) is np.ndarray and parameter.dtype is _FLOAT32
    return parameter.astype(_FLOAT64) if single else parameter


def weighted_row_forward(
    weighting: Weighting,
    norm: Norm,
    x: Array,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: NormScaling,
    out: Any,
    save: bool,
) -> tuple[Array, Array | None, Array | None]:
    """Return what `row_forward` returns, with statistics of what a weighting keeps."""
    weights, order = weighting.weights, layout.order
    of_norm = _masked_plan(norm, x.dtype, layout, scaling, weights is not None)
    plan, kernel, element_type, constants, fast_paths = of_norm
    fills = weighting.fill, weighting.fill_missing
    shape = None if weights is None else weights.shape
    kinds = type(weighting.keep), shape, type(gamma), type(beta), weighting.omit
    fast_path = fast_paths.get(kinds)
    if fast_path is not None and (out is None or type(out) is np.ndarray):
        y = new_output(plan, x) if out is None else out
        mean, rstd = new_statistics(layout) if save else (_NOTHING, _NOTHING)
        if weights is not None:
            gamma, beta = _in_float64(gamma), _in_float64(beta)
        arrays = x, weighting.keep, weights, gamma, beta, y, mean, rstd
        if fast_path(*arrays, layout.rows if save else 0, *fills):
            return y, mean, rstd
    try:
        parameters = kernel_parameters(norm, gamma, beta, layout, element_type)
    except ValueError as error:
        of_all = functools.partial(weighted_row_forward, weighting)
        refill = filling_of(weighting, x)
        given = norm, x, gamma, beta, layout, scaling, out, save
        y, *saved = broadcast_parameters.forward_of_rows(of_all, error, *given)
        return refill(y), saved[0], saved[1]
    source = as_kernel_array(x, element_type, order, plan.size)
    mask = mask_of(weighting, x.shape, order, *plan.size)
    if out is None:
        target = new_output(plan, source)
    else:
        inputs = mask.keep, mask.weights, *parameters
        target = output_like(source, x, norm.names.x, out, element_type, order, inputs)
    mean, rstd = np.empty((2, layout.rows)) if save else (_NOTHING, _NOTHING)
    if plan.elements:
        arguments = source, *mask, *parameters, *constants, *fills, target, mean, rstd, plan.parts
        run(kernel, arguments, plan.work, plan.parts)
        if plan.usual and kinds not in fast_paths:
            fast_paths[kinds] = make_fast_masked_forward(
                kernel.machine_code(arguments), element_type, layout, x.shape,
                (*constants, plan.parts), mask, (weighting.keep, weights, gamma, beta), parameters,
            )  # fmt: skip
    else:
        mean[...] = rstd[...] = scaling.for_empty_row
    y = result(target, x, out, order)
    if not save:
        return y, None, None
    return y, saved_as(mean, layout, element_type), saved_as(rstd, layout, element_type)


def is_one_segment(norm: Norm, layout: RowLayout) -> bool:
    """Return whether a row has a parameter for each element, or the same numbers for all."""
    whole = layout.segment == layout.width and layout.channels == 1 and not layout.shared
    return whole or not norm.parameters


# The backward pass


_backward_kernel = functools.cache(make_weighted_backward)


def weighted_row_backward(
    weighting: Weighting,
    norm: Norm,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: NormScaling,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array | None, Array | None]:
    """Return what `row_backward` returns, with statistics of what a weighting keeps."""
    masked = is_one_segment(norm, layout)
    if masked and type(dy) is type(rstd) is np.ndarray and (out is None or type(out) is np.ndarray):
        direct = dy, x, mean, rstd, gamma, beta, layout, scaling, detached, out
        done = _backward_at_once(weighting, norm, *direct)
        if done is not None:
            return done
    grad, statistics = _checked(norm, dy, x, mean, rstd, layout)
    in_float64s = weighting.weights is not None and not masked
    wide = None if in_float64s else wider_dtype(norm.names.dy, grad, x)
    if wide is not None:
        others = beta, layout, scaling, detached, None
        return in_wider_dtype(
            wide, x, norm.names.x, gamma, layout.parameter_shape, out,
            lambda x, gamma: weighted_row_backward(
                weighting, norm, grad, x, mean, rstd, gamma, *others
            ),
        )  # fmt: skip
    element_type = _element_type(x.dtype, weighted=weighting.weights is not None)
    try:
        parameters: Any = (
            gradient_parameters(norm, gamma, beta, layout, element_type)
            if masked
            else _parameters(norm, gamma, beta, layout)
        )
    except ValueError as error:
        given = norm, grad, x, *statistics, gamma, layout, scaling, detached, out
        return _broadcast_backward(weighting, error, *given)
    arrays, options = (grad, x, statistics, parameters), (layout, scaling, detached, out)
    if masked:
        dx, totals = _masked_backward(weighting, norm, *arrays, (mean, gamma, beta), *options)
    else:
        dx, totals = _backward(weighting, norm, *arrays, *options)
    return dx, *_of_parameters(norm, totals, gamma, x, layout)


def _kinds_of_gradients(weighting: Weighting, mean: Any, gamma: Any, beta: Any) -> tuple[Any, ...]:
    """Return the key of a fast path."""
    shape = None if weighting.weights is None else weighting.weights.shape
    return type(weighting.keep), shape, type(mean), type(gamma), type(beta), weighting.omit


def _backward_at_once(
    weighting: Weighting,
    norm: Norm,
    dy: Array,
    x: Array,
    mean: Any,
    rstd: Array,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: NormScaling,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array | None, Array | None] | None:
    """Return what `row_backward` returns by the fast path; None where there is none."""
    weights = weighting.weights
    of_norm = _masked_backward_plan(norm, x.dtype, layout, scaling, detached, weights is not None)
    fast_path = of_norm.fast_paths.get(_kinds_of_gradients(weighting, mean, gamma, beta))
    if fast_path is None:
        return None
    if weights is not None and type(gamma) is np.ndarray:
        if gamma.dtype is not x.dtype:  # its gradient has its dtype
            return None
        gamma = _in_float64(gamma)
    dx = new_dx(of_norm.plain, x, dy) if out is None else out
    gradients = one_each(norm.parameters, np.empty, layout.parameter_shape, x.dtype)
    arrays = dy, x, rstd, dx, weighting.keep, weights, mean, gamma, beta, *gradients
    return (dx, *gradients) if fast_path(*arrays) else None


def _masked_backward(
    weighting: Weighting,
    norm: Norm,
    grad: Array,
    x: Array,
    statistics: tuple[Array, Array],
    parameters: tuple[Any, Any],
    given: tuple[Any, Any, Any],
    layout: RowLayout,
    scaling: NormScaling,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array]:
    """Return dx of rows of one segment, and the totals of dgamma and dbeta of each part.

    `given` are the mean, gamma and beta of the caller.
    """
    of_norm = _masked_backward_plan(
        norm, x.dtype, layout, scaling, detached, weighting.weights is not None
    )
    plan, kernel, element_type, through, fast_paths = of_norm
    order = layout.order
    source = as_kernel_array(x, element_type, order, plan.size)
    grad = as_kernel_array(grad.astype(x.dtype, copy=False), element_type, order, plan.size)
    mask = mask_of(weighting, x.shape, order, *plan.size)
    mean = statistics[0] if norm.formula.centred else None
    if out is None:
        target = new_dx(plan, source, grad)
    else:
        inputs = grad, mask.keep, mask.weights, *statistics, *parameters
        target = output_like(source, x, norm.names.x, out, element_type, order, inputs)
    totals = np.zeros((2, plan.parts, 1, layout.width))
    sums = tuple(totals[k] if k < norm.parameters else None for k in range(2))
    if plan.elements:
        arguments = (
            grad, source, *mask, mean, statistics[1], *parameters, *through, target, *sums,
            plan.parts,
        )  # fmt: skip
        run(kernel, arguments, plan.work, plan.parts)
        kinds = _kinds_of_gradients(weighting, *given)
        if plan.usual and kinds not in fast_paths:
            fast_paths[kinds] = make_fast_masked_backward(
                kernel.machine_code(arguments), element_type, layout, x.shape,
                (*through, plan.parts), mask, (weighting.keep, weighting.weights, *given),
                (mean, *parameters),
                one_each(norm.parameters, np.empty, 0, x.dtype),
            )  # fmt: skip
    return result(target, x, out, order), totals


def _backward(
    weighting: Weighting,
    norm: Norm,
    grad: Array,
    x: Array,
    statistics: tuple[Array, Array],
    parameters: Parameters,
    layout: RowLayout,
    scaling: NormScaling,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array]:
    """Return dx, and the totals of dgamma and dbeta of each part of the rows."""
    dtype = np.result_type(
        element_type_of(x.dtype).compute_dtype, element_type_of(grad.dtype).compute_dtype
    )
    wide, size = x.astype(dtype, copy=False), (layout.rows, layout.width)
    element_type = element_type_of(dtype)
    source = as_kernel_array(wide, element_type, layout.order, size)
    grad = as_kernel_array(grad.astype(dtype, copy=False), element_type, layout.order, size)
    selection = selection_of(weighting, x.shape, layout.order, *size)
    inputs = grad, selection.keep, selection.weights, *statistics, *parameters
    target = output_for(source, wide, x, out, inputs, name=norm.names.x, order=layout.order)
    rows = _rows(layout)
    parts = summed_parts(*size, parameters.gamma.size)
    totals = np.zeros((2, parts, rows.channels, parameters.gamma.size // rows.channels))
    if source.size:
        arguments = (
            source.reshape(-1), *selection, *rows, *parameters,
            *divisor_of(norm, scaling), scaling.eps_on_deviation,
            int(norm.formula.centred and not detached.mean), int(not detached.scale),
            grad.reshape(-1), *statistics, target.reshape(-1), *totals.reshape(2, -1), parts,
        )  # fmt: skip
        run(_backward_kernel(norm.formula, dtype.name), arguments, 3 * source.nbytes, parts)
    return result_of(target, wide, x, out, order=layout.order), totals


def _parameters(norm: Norm, gamma: Any, beta: Any, layout: RowLayout) -> Parameters:
    """Return gamma and beta as kernels take them: see `Rows.spread`."""
    shape, meaning = layout.parameter_shape, layout.parameter_meaning
    arrays = []
    for name, value, missing in ((norm.names.gamma, gamma, 1.0), ("beta", beta, 0.0)):
        if value is None:
            array = np.full(layout.kernel_shape, missing)
        else:
            array = as_parameter(name, value, shape, meaning, _FLOAT64, layout.kernel_shape)
        arrays.append(np.repeat(array, LANES) if layout.shared else array.reshape(-1))
    return Parameters(*arrays)


def _rows(layout: RowLayout) -> Rows:
    segments = layout.width // layout.segment
    return Rows(layout.rows, segments, layout.segment, layout.channels, int(not layout.shared))


def _checked(
    norm: Norm, dy: Any, x: Array, mean: Any, rstd: Any, layout: RowLayout
) -> tuple[Array, tuple[Array, Array]]:
    """Return dy, and mean and rstd as flat arrays; the mean is 0 without centring."""
    names, shape, meaning = norm.names, layout.statistic_shape, "one for each row"
    grad = as_float_array(names.dy, dy)
    check_shape(names.dy, grad.shape, x.shape, f"the shape of {names.x}")
    rstd = as_statistic(names.rstd, rstd, shape, meaning)
    if not norm.formula.centred:
        return grad, (np.zeros(layout.rows), rstd)
    return grad, (as_statistic("mean", mean, shape, meaning), rstd)


def _of_parameters(
    norm: Norm, totals: Array, gamma: Any, x: Array, layout: RowLayout
) -> tuple[Array | None, Array | None]:
    """Return dgamma and dbeta from their totals, None for a parameter that the norm lacks."""
    if not norm.parameters:
        return None, None
    sums = totals.sum(1)
    sums = sums.sum(-1) if layout.shared else sums
    dtype = gradient_dtype(norm.names.gamma, gamma, x.dtype)
    with np.errstate(all="ignore"):  # a sum may leave the range of the dtype
        dgamma, dbeta = sums.reshape(2, *layout.parameter_shape).astype(dtype)
    return dgamma, dbeta if norm.parameters == 2 else None


def _broadcast_backward(
    weighting: Weighting,
    error: ValueError,
    norm: Norm,
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Any,
    *others: Any,
) -> tuple[Array, Array, Array]:
    """Return the gradients for a gamma that broadcasts against x."""
    of_all = functools.partial(weighted_row_backward, weighting)
    mean, rstd = (a.reshape(others[0].statistic_shape) for a in (mean, rstd))
    centre = mean if norm.formula.centred else None
    given = norm, dy, x, centre, rstd, gamma, *others
    return broadcast_parameters.backward_of_rows(of_all, error, *given, keep=kept_by(weighting, x))
