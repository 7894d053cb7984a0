"""The arrays of moving norms on a device: masks, statistics and outputs."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    Output,
    as_parameter,
    output_like,
    result,
    with_array,
)
from numnorm.backends.cuda.arrays.gather_rows import in_wider_dtype
from numnorm.backends.cuda.arrays.launch import on_device_of
from numnorm.backends.cuda.arrays.masks import in_rows
from numnorm.backends.cuda.compiler.element_type import (
    ELEMENT_TYPES,
    FLOAT32,
    FLOAT64,
    ElementType,
)
from numnorm.backends.cuda.moving.arguments import (
    NOTHING_MISSING,
    Missing,
    Sequences,
    StepStatistics,
)
from numnorm.layouts import MovingLayout


class Given(NamedTuple):
    """What the kernels of a pass are handed.

    Attributes
    ----------
    x : DeviceArray
        Its array is C-contiguous.
    absent : Missing or None
        None if all steps count.
    sequences : Sequences
        The shape of x.
    """

    x: DeviceArray
    absent: Missing | None
    sequences: Sequences

    @property
    def missing(self) -> bool:
        """Whether steps may be missing."""
        return self.absent is not None

    @property
    def marks(self) -> Missing:
        """Which steps are missing, as an argument of `launch`."""
        return NOTHING_MISSING if self.absent is None else self.absent


def contiguous(x: DeviceArray) -> DeviceArray:
    """Return x with a C-contiguous array, copied only if it must be."""
    return with_array(x, x.lib.contiguous(x.array))


def given(x: DeviceArray, weighting: Weighting | None, layout: MovingLayout) -> Given:
    """Return the arrays of a pass, on the device of x, which is the current one."""
    absent = None if weighting is None else _missing(weighting, x)
    sequences = Sequences(layout.outer, layout.steps, layout.inner)
    return Given(x, absent, sequences)


def _missing(weighting: Weighting, x: DeviceArray) -> Missing:
    keep, _ = in_rows(weighting.keep, x, None, 1, math.prod(x.shape))
    return Missing(keep, int(weighting.omit), weighting.fill, weighting.fill_missing)


def output_apart(x: DeviceArray, out: Any, inputs: tuple[Any, ...]) -> Output:
    """Return an output that overlaps no input: threads read steps whose results others write."""
    return output_like(x, None, out, inputs, in_place=False)


def new_statistics(x: DeviceArray, save: bool) -> tuple[ElementType, StepStatistics]:
    """Return the type of saved statistics, and new arrays for them if they are to be saved."""
    saved = ELEMENT_TYPES[x.lib.statistic_name(x.element.name)]
    if not save:
        return saved, StepStatistics(None, None)
    mean, rstd = (x.lib.empty(x.array, x.shape, saved.name) for _ in range(2))
    return saved, StepStatistics(mean, rstd)


def given_statistics(mean: Any, rstd: Any, x: DeviceArray) -> tuple[ElementType, StepStatistics]:
    """Return the statistics that a forward pass has saved, and their type."""
    names = {"mean": mean, "rstd": rstd}
    of_mean, of_rstd = (
        as_parameter(name, value, x.shape, "the shape of x", x) for name, value in names.items()
    )
    if of_mean.element != of_rstd.element or of_mean.element not in (FLOAT32, FLOAT64):
        raise TypeError(
            "mean and rstd must have one dtype, float32 or float64, got "
            f"{of_mean.element.name} and {of_rstd.element.name}"
        )
    return of_mean.element, StepStatistics(of_mean.array, of_rstd.array)


Normalize = Callable[[Given, ElementType, Any, StepStatistics], Any]
"""A function of x, the type of the statistics, and what it writes: y, and the statistics."""


def normalized(
    launch_norm: Normalize,
    x: DeviceArray,
    weighting: Weighting | None,
    layout: MovingLayout,
    out: Any,
    save: bool,
    state: tuple[Any, ...] = (),
) -> tuple[Any, Any, Any]:
    """Return y, mean and rstd for the caller, from a function that launches the kernels.

    The `state` is other arrays that these read; some may be None.
    """
    with on_device_of(x):
        source = contiguous(x)
        of_x = given(source, weighting, layout)
        output = output_apart(x, out, (source.array, of_x.marks.keep, *state))
        element, saved = new_statistics(x, save)
        if 0 not in x.shape:
            launch_norm(of_x, element, output.target, saved)
        return result(output, x, None), *saved


Gradient = Callable[[DeviceArray, Given, ElementType, StepStatistics, Any], Any]
"""A function of dy, x and its missing steps, the type of the statistics, the statistics, and what
it writes."""


def dx_of(
    launch_gradient: Gradient,
    weighting: Weighting | None,
    dy: Any,
    x: DeviceArray,
    mean: Any,
    rstd: Any,
    layout: MovingLayout,
    out: Any,
) -> Any:
    """Return dx for the caller, from a function that launches the kernels of arrays of one dtype.

    The inputs that it gets are C-contiguous.
    """

    def of_one_dtype(dy: DeviceArray, x: DeviceArray, out: Any) -> tuple[Any]:
        source = contiguous(x)
        of_x = given(source, weighting, layout)
        inputs = dy.array, source.array, of_x.marks.keep, statistics.mean, statistics.rstd
        output = output_apart(x, out, inputs)
        if 0 not in x.shape:
            launch_gradient(dy, of_x, saved, statistics, output.target)
        return (result(output, x, None),)

    with on_device_of(x):
        grad = as_parameter("dy", dy, x.shape, "the shape of x", x)
        saved, statistics = given_statistics(mean, rstd, x)
        if grad.element == x.element:
            return of_one_dtype(grad, x, out)[0]
        return in_wider_dtype(grad, x, out, of_one_dtype)[0]
