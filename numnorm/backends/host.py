"""The CPU backend for arrays of other libraries: their results are arrays of the same library."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.array_likes import as_numpy, as_plain_array, statistics_like, writable_view
from numnorm.backends import cpu
from numnorm.backends.contract.moving import Decay, ExponentialState, MovingState, Windows
from numnorm.backends.contract.norms import ChannelSums, Detached, Norm, Scaling
from numnorm.layouts import ColumnLayout, MovingLayout, RowLayout

# Functions whose arrays all reach the caller or the next recurrent layer, so they are converted.
_STATISTICS = {"saved", "streamed_moments", "merged_moments", "variance", "deviation"}
_OF_CALLER = _STATISTICS | {
    *("pad_packed", "unsort_states", "parameter_gradient"),
    *("to_time_major", "concatenate", "split", "apply_mask", "add"),
}


class HostBackend:
    """The functions of the CPU backend; `result` turns their NumPy arrays into the caller's kind.

    `weighted` has the functions, if that is given: a CPU backend with weights.

    As in the CPU backend, x and all arrays in a private format are NumPy arrays.
    """

    # A class attribute, so that `inner` can be looked up while a copy is being made.
    weighted: Any = None

    def __init__(self, result: Callable[[Any], Any], weighted: Any = None) -> None:
        self.result, self.weighted = result, weighted
        self.statistic = statistics_like(result)

    @property
    def inner(self) -> Any:
        """What has the functions. A module could not be copied with what recurrent layers save."""
        return cpu if self.weighted is None else self.weighted

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.inner, name)
        if name not in _OF_CALLER:
            return function
        make = self.statistic if name in _STATISTICS else self.result
        return lambda *arguments: _made(make, function(*map(_without_library, arguments)))

    def row_forward(
        self,
        norm: Norm,
        x: Any,
        gamma: Any,
        beta: Any,
        layout: RowLayout,
        scaling: Scaling,
        out: Any,
        save: bool,
    ) -> tuple[Any, Any, Any]:
        """Return y and, if `save` is true, mean and rstd of each row."""
        if norm.parameters:
            gamma, beta = _plain(norm.names.gamma, gamma), _plain("beta", beta)
        target = writable_view("out", out)
        y, *saved = self.inner.row_forward(norm, x, gamma, beta, layout, scaling, target, save)
        mean, rstd = _made(self.statistic, saved) if save else (None, None)
        return self._in_out(y, out), mean, rstd

    def row_backward(
        self,
        norm: Norm,
        dy: Any,
        x: Any,
        mean: Any,
        rstd: Any,
        gamma: Any,
        beta: Any,
        layout: RowLayout,
        scaling: Scaling,
        detached: Detached,
        out: Any,
    ) -> tuple[Any, Any, Any]:
        """Return dx and, for a norm with parameters, dgamma and dbeta."""
        names, target = norm.names, writable_view("out", out)
        given = _plain(names.dy, dy), x, _plain("mean", mean), _plain(names.rstd, rstd)
        gamma = _plain(names.gamma, gamma) if norm.parameters else gamma
        options = layout, scaling, detached, target
        dx, *gradients = self.inner.row_backward(norm, *given, gamma, beta, *options)
        return self._in_out(dx, out), *_made(self.result, gradients)

    def added_forward(
        self,
        norm: Norm,
        x: Any,
        residual: Any,
        gamma: Any,
        beta: Any,
        layout: RowLayout,
        scaling: Scaling,
        out: Any,
        total_out: Any,
        save: bool,
    ) -> tuple[Any, Any, Any, Any]:
        """Return y, the sum and, if `save` is true, mean and rstd of each row of the sum."""
        given = _plain("residual", residual), _plain("gamma", gamma), _plain("beta", beta)
        targets = writable_view("out", out), writable_view("total_out", total_out)
        y, total, *saved = cpu.added_forward(norm, x, *given, layout, scaling, *targets, save)
        mean, rstd = _made(self.statistic, saved)
        return self._in_out(y, out), self._in_out(total, total_out), mean, rstd

    def added_backward(
        self,
        norm: Norm,
        dy: Any,
        dtotal: Any,
        x: Any,
        mean: Any,
        rstd: Any,
        gamma: Any,
        layout: RowLayout,
        scaling: Scaling,
        detached: Detached,
        out: Any,
    ) -> tuple[Any, Any, Any]:
        """Return dx and the gradients of the parameters, where x is the sum."""
        given = _plain("dy", dy), _plain("dtotal", dtotal), x
        statistics = _plain("mean", mean), _plain("rstd", rstd), _plain("gamma", gamma)
        options = layout, scaling, detached, writable_view("out", out)
        dx, *gradients = cpu.added_backward(norm, *given, *statistics, *options)
        return self._in_out(dx, out), *_made(self.result, gradients)

    def column_forward(
        self,
        x: Any,
        mean: Any,
        m2: Any,
        divisor: float,
        eps: float,
        gamma: Any,
        beta: Any,
        layout: ColumnLayout,
        out: Any,
    ) -> tuple[Any, Any]:
        """Return x normalized with the given statistics of each channel, and rstd."""
        weights = _plain("gamma", gamma), _plain("beta", beta)
        target = writable_view("out", out)
        y, rstd = self.inner.column_forward(x, mean, m2, divisor, eps, *weights, layout, target)
        return self._in_out(y, out), rstd

    def column_backward(
        self,
        dy: Any,
        x: Any,
        mean: Any,
        rstd: Any,
        gamma: Any,
        layout: ColumnLayout,
        detached: Detached,
        out: Any,
        sums: ChannelSums | None = None,
    ) -> tuple[Any, Any, Any]:
        """Return dx, dgamma, dbeta."""
        target, weight = writable_view("out", out), _plain("gamma", gamma)
        given = _plain("dy", dy), x, _plain("mean", mean), _plain("rstd", rstd)
        of_all = () if sums is None else (sums,)  # a backend with weights takes none
        options = layout, detached, target, *of_all
        dx, *gradients = self.inner.column_backward(*given, weight, *options)
        return self._in_out(dx, out), *_made(self.result, gradients)

    def moving_forward(
        self, x: Any, layout: MovingLayout, windows: Windows, out: Any, save: bool
    ) -> tuple[Any, Any, Any]:
        """Return y and, if `save` is true, mean and rstd of each step."""
        y, *saved = self.inner.moving_forward(x, layout, windows, writable_view("out", out), save)
        mean, rstd = _made(self.statistic, saved)
        return self._in_out(y, out), mean, rstd

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
        """Return dx."""
        given = _plain("dy", dy), x, _plain("mean", mean), _plain("rstd", rstd)
        return self._in_out(
            self.inner.moving_backward(*given, layout, windows, writable_view("out", out)), out
        )

    def moving_step(
        self, x: Any, state: MovingState | None, layout: MovingLayout, windows: Windows, out: Any
    ) -> tuple[Any, MovingState]:
        """Return y of the next chunk, and the state after it, whose arrays are NumPy's."""
        y, after = self.inner.moving_step(x, state, layout, windows, writable_view("out", out))
        return self._in_out(y, out), after

    def exponential_forward(
        self, x: Any, layout: MovingLayout, decay: Decay, out: Any, save: bool
    ) -> tuple[Any, Any, Any]:
        """Return what `moving_forward` returns."""
        y, *saved = self.inner.exponential_forward(
            x, layout, decay, writable_view("out", out), save
        )
        mean, rstd = _made(self.statistic, saved)
        return self._in_out(y, out), mean, rstd

    def exponential_backward(
        self, dy: Any, x: Any, mean: Any, rstd: Any, layout: MovingLayout, decay: Decay, out: Any
    ) -> Any:
        """Return dx."""
        given = _plain("dy", dy), x, _plain("mean", mean), _plain("rstd", rstd)
        return self._in_out(
            self.inner.exponential_backward(*given, layout, decay, writable_view("out", out)), out
        )

    def exponential_step(
        self,
        x: Any,
        state: ExponentialState | None,
        layout: MovingLayout,
        decay: Decay,
        out: Any,
        save: bool,
    ) -> tuple[tuple[Any, Any, Any], ExponentialState]:
        """Return what `exponential_forward` returns, and the state, whose arrays are NumPy's."""
        (y, *saved), after = self.inner.exponential_step(
            x, state, layout, decay, writable_view("out", out), save
        )
        mean, rstd = _made(self.statistic, saved)
        return (self._in_out(y, out), mean, rstd), after

    def rounded(self, array: Any, dtype: Any, out: Any) -> Any:
        """Return a result of NumPy in a dtype."""
        return self._in_out(self.inner.rounded(array, dtype, writable_view("out", out)), out)

    def _in_out(self, array: Any, out: Any) -> Any:
        """Return `out`, in whose memory the result already is, or else the converted result."""
        return self.result(array) if out is None else out


def _made(make: Callable[[Any], Any], values: Any) -> Any:
    """Return values, of which some may be arrays, as the caller gets them."""
    if isinstance(values, tuple | list):
        return type(values)(_made(make, value) for value in values)
    return make(values) if isinstance(values, np.ndarray) else values


def _plain(name: str, value: Any) -> Any:
    """Return an argument as a NumPy array: the fast path of small calls takes nothing else."""
    return value if value is None else as_plain_array(name, value)


def _without_library(value: Any) -> Any:
    """Return an array of another library as a NumPy array, and all else as it is."""
    if isinstance(value, list):
        return [_without_library(item) for item in value]
    return as_numpy(value) if hasattr(value, "__dlpack__") else value
