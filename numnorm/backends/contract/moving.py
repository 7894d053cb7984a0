"""Moving norms: their windows and weights, the state of a stream, the functions of a backend."""

import dataclasses
import functools
from typing import Any, NamedTuple, Protocol

from numnorm.arguments import check_integer
from numnorm.layouts import MovingLayout


class Bounds(NamedTuple):
    """Windows by the times of steps.

    Attributes
    ----------
    both : array of int64
        The first step of the window of each step, and behind all those the step after its last.
        Neither decreases.
    later : int
        The first step that windows of later steps may hold.
    """

    both: Any
    later: int

    @property
    def starts(self) -> Any:
        """The first step of each window."""
        return self.both[: self.both.size // 2]

    @property
    def stops(self) -> Any:
        """The step after the last one of each window."""
        return self.both[self.both.size // 2 :]


@dataclasses.dataclass(frozen=True, eq=False)
class Windows:
    """The windows of a moving norm, and what it does with their statistics.

    They are compared and hashed by identity: `windows_by` gives the only object with these values,
    without `bounds`.

    Attributes
    ----------
    window : int
        The number of steps of a window.
    center : bool
        Whether the windows lie around their step, or else end with it.
    min_window : int
        The number of steps of the first trailing windows.
    centred, scaled : bool
        Whether the mean is subtracted, and whether the result is divided by the deviation.
    eps : float
        Added to the variance.
    bounds : Bounds, optional
        Where steps have times, the windows of the steps; the first three have no meaning then.
    """

    window: int
    center: bool
    min_window: int
    centred: bool
    scaled: bool
    eps: float
    bounds: Any = None


@functools.lru_cache(maxsize=1024)
def windows_by(
    window: int, center: bool, min_window: int, *, centred: bool, scaled: bool, eps: float
) -> Windows:
    """Return the only `Windows` with these values."""
    return Windows(window, center, min_window, centred, scaled, eps)


def ends_of(windows: Windows, steps: int) -> tuple[int, tuple[int, int, int, int]]:
    """Return at which step the first window ends, and the `windows` of kernels.

    These are the window, the distance from the end of a window to its output, and how many more
    outputs the first and the last window have.
    """
    window = max(1, min(windows.window, steps))
    if not windows.center:
        begin = min(windows.min_window, window) - 1
        return begin, (window, 0, begin, 0)
    shift = window // 2 - (window - 1)
    return window - 1, (window, shift, window - 1 + shift, -shift)


@dataclasses.dataclass(frozen=True, eq=False)
class Decay:
    """The weights of an exponential norm.

    They are compared and hashed by identity: `decay_by` gives the only object with these values,
    without `fading`.

    Attributes
    ----------
    alpha : float
        The weight of a new step.
    adjust : bool
        Whether the weights of all steps so far are divided by their sum.
    initial : int
        The number of first steps that share the statistics of their block.
    eps : float
        The least deviation.
    fading : array of float64, optional
        Where steps have times: the factor by which each step reduces all older weights, for all
        steps, then 1 less each factor. Alpha has no meaning then.
    """

    alpha: float
    adjust: bool
    initial: int
    eps: float
    fading: Any = None


@functools.lru_cache(maxsize=1024)
def decay_by(alpha: float, adjust: bool, initial: int, eps: float) -> Decay:
    """Return the only `Decay` with these values."""
    return Decay(alpha, adjust, initial, eps)


class MovingState(NamedTuple):
    """What `moving_norm_step` keeps between the chunks of a stream.

    Attributes
    ----------
    steps : int
        The number of steps so far.
    values : array
        The last values along the axis, at most a window less one; of the dtype of x.
    kept : array of bool, optional
        Which of the values count; None if all do.
    times : array, optional
        Their times, where steps have times.
    anchors : array of int64, optional
        The step of each channel around whose value sums are taken, among the values; -1 for none.
        For windows by duration.
    window : tuple, optional
        Where steps have times: the duration of the windows, and which of their ends are closed.

    Examples
    --------
    >>> import numnorm
    >>> y, state = numnorm.moving_norm_step([[1.0, 2.0, 4.0]], 2, axis=-1)
    >>> state.steps, state.values
    (3, array([[4.]]))
    """

    steps: int
    values: Any
    kept: Any = None
    times: Any = None
    anchors: Any = None
    window: Any = None


class ExponentialState(NamedTuple):
    """What `exponential_norm_step` keeps between the chunks of a stream.

    Attributes
    ----------
    weight : float or array of float64
        The sum of the weights of all steps so far, 0 before the first one; without `adjust`, the
        weight that the statistics have kept since the last value. One for each channel if values
        were missing, and on a device.
    mean, mean_lo, variance : array of float64
        The statistics of each channel, of the shape of x without the axis; ``mean_lo`` is what the
        mean lost when it was rounded.
    time : scalar, optional
        The time of the last step, where steps have times.

    Examples
    --------
    >>> import numnorm
    >>> y, state = numnorm.exponential_norm_step([[1.0, 2.0, 4.0]], 0.5, axis=-1)
    >>> state.weight, state.mean
    (1.75, array([3.]))
    """

    weight: Any
    mean: Any
    mean_lo: Any
    variance: Any
    time: Any = None


def check_values(values: Any, x: Any, axis: int) -> None:
    """Raise unless the values of a state, an array, fit a chunk x."""
    shape, held = list(x.shape), tuple(values.shape)
    shape[axis] = held[axis] if len(held) == len(shape) else 0
    if held != tuple(shape) or values.dtype != x.dtype:
        raise ValueError(
            f"state must be of chunks like x, which has shape {x.shape} and dtype {x.dtype.name}, "
            f"got values of shape {held} and dtype {values.dtype.name}"
        )


def checked_steps(state: MovingState, values: Any, x: Any, axis: int, window: int) -> int:
    """Return the steps of a state, if its values, an array, fit a chunk x and a window."""
    steps = check_integer("state.steps", state.steps, 0)
    check_values(values, x, axis)
    if values.shape[axis] != min(window - 1, steps):
        raise ValueError(f"state must be of a window of {window} steps, got one of another window")
    return steps


class MovingBackend(Protocol):
    """Norms with statistics that move along an axis."""

    def moving_forward(
        self, x: Any, layout: MovingLayout, windows: Windows, out: Any, save: bool
    ) -> tuple[Any, Any, Any]:
        """Return y and, if `save` is true, mean and rstd of each step; all are the caller's."""

    def moving_backward(
        self,
        dy: Any,
        x: Any,
        mean: Any,
        rstd: Any,
        layout: MovingLayout,
        windows: Windows,
        out: Any,
    ) -> Any:
        """Return dx for the caller."""

    def exponential_forward(
        self, x: Any, layout: MovingLayout, decay: Decay, out: Any, save: bool
    ) -> tuple[Any, Any, Any]:
        """Return what `moving_forward` returns."""

    def exponential_backward(
        self, dy: Any, x: Any, mean: Any, rstd: Any, layout: MovingLayout, decay: Decay, out: Any
    ) -> Any:
        """Return dx for the caller."""

    def moving_step(
        self, x: Any, state: MovingState | None, layout: MovingLayout, windows: Windows, out: Any
    ) -> tuple[Any, MovingState]:
        """Return y of the next chunk for the caller, and the state after it."""

    def exponential_step(
        self,
        x: Any,
        state: ExponentialState | None,
        layout: MovingLayout,
        decay: Decay,
        out: Any,
        save: bool,
    ) -> tuple[tuple[Any, Any, Any], ExponentialState]:
        """Return what `exponential_forward` returns for the next chunk, and the state after it."""


class PcenBackend(MovingBackend, Protocol):
    """What PCEN needs besides: the CPU's alone."""

    def rounded(self, array: Any, dtype: Any, out: Any) -> Any:
        """Return a result of NumPy in a dtype for the caller; in `out`, if that is given."""
