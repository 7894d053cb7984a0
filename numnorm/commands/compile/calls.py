"""Calls that compile the kernels of each norm and of each recurrent cell.

Small arrays suffice, as kernels are compiled for a dtype and not for a shape. Only narrow and wide
rows have different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import numnorm
from numnorm.rnn import cells as rnn_cells

PARAMETERS = {
    "layer_norm": 2,
    "rms_norm": 1,
    "ada_norm": 0,
    "group_norm": 2,
    "instance_norm": 2,
    "weight_norm": 1,
    "batch_norm": 2,
}
"""The number of parameters of each norm."""

MOVING: dict[str, dict[str, Any]] = {
    "moving_norm": {"window": 3},
    "exponential_norm": {"alpha": 0.5},
}
"""The norms whose statistics move along an axis, with the options that they need."""

CELLS = tuple(rnn_cells.CELLS)
"""The recurrent cells, which are compiled without a norm and with layer norm."""

DTYPES = ("float16", "bfloat16", "float32", "float64")

ACROSS, ALONG = (3, 4), (3, 4, 5)
"""Shapes for which batch norm loops across the channels, and along each channel."""

WIDE = 1200
"""The width of rows that no kernel of narrow rows takes; other rows are as narrow as `ACROSS`."""

_SAME_KERNELS = {"instance_norm": "group_norm"}
_SAME_FORWARD = (("layer_norm", "group_norm"), ("rms_norm", "weight_norm"), ("ada_norm",))
"""Norms that share their forward kernels where they get no parameters."""


class Job(NamedTuple):
    """A call that compiles kernels, as it is sent to another process.

    Attributes
    ----------
    function : callable
        A function of this module.
    arguments : tuple
        Its arguments.
    """

    function: Callable[..., None]
    arguments: tuple[Any, ...]

    def run(self) -> None:
        """Call the function."""
        if "bfloat16" in self.arguments:
            import ml_dtypes  # noqa: F401  # NumPy knows the name from then on
        self.function(*self.arguments)


def jobs(names: Iterable[str], dtypes: Iterable[str]) -> list[Job]:
    """Return jobs that compile the kernels of some norms and cells, the slowest first.

    No kernel is compiled by two of them.

    Parameters
    ----------
    names : iterable of str
        Of `PARAMETERS`, `MOVING` and `CELLS`.
    dtypes : iterable of str
        Of `DTYPES`.

    Returns
    -------
    list of Job
        The jobs.
    """
    known = list(dict.fromkeys(_SAME_KERNELS.get(name, name) for name in names))
    found = [job for dtype in dict.fromkeys(dtypes) for job in _of_dtype(known, dtype)]
    found.sort(key=lambda job: (cells, channels, moving, backward, forward).index(job.function))
    return [*found, Job(launcher, ())] if found else []


def _of_dtype(names: Sequence[str], dtype: str) -> Iterator[Job]:
    kinds = tuple(name for name in names if name in CELLS)
    if kinds:
        yield Job(cells, (kinds, dtype))
    if "batch_norm" in names:
        yield Job(channels, (dtype,))
    for name in MOVING:
        if name in names:
            yield from (Job(moving, (name, dtype, across)) for across in (True, False))
    for family in _SAME_FORWARD:
        chosen = tuple(name for name in family if name in names)
        for wide in (True, False):
            for name in chosen:
                yield Job(backward, (name, dtype, False, wide))
                if PARAMETERS[name]:
                    yield Job(backward, (name, dtype, True, wide))
                    yield Job(forward, ((name,), dtype, True, wide))
            if chosen:
                yield Job(forward, (chosen, dtype, False, wide))


def forward(names: Sequence[str], dtype: str, given: bool, wide: bool) -> None:
    """Run the forward passes of norms of rows, with their parameters if `given`."""
    for name in names:
        x, parameters, options = _arguments(name, dtype, given, wide)
        getattr(numnorm, f"{name}_forward")(x, *parameters, **options)


def backward(name: str, dtype: str, given: bool, wide: bool) -> None:
    """Run the backward pass of a norm of rows, with its parameters if `given`."""
    x, parameters, options = _arguments(name, dtype, given, wide)
    statistics = np.ones({"group_norm": (3, 2), "instance_norm": (3, 4)}.get(name, 3))
    saved = (statistics,) if name in ("rms_norm", "weight_norm") else (statistics, statistics)
    getattr(numnorm, f"{name}_backward")(x, x, *saved, *parameters[:1], **options)


def _arguments(
    name: str, dtype: str, given: bool, wide: bool
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return x, the parameters of a norm, and its options."""
    if name in ("group_norm", "instance_norm"):
        x = np.ones((3, 4, WIDE) if wide else ALONG, dtype)
        size = 4
    else:
        x = np.ones((3, WIDE) if wide else ACROSS, dtype)
        size = x.shape[0 if name == "weight_norm" else 1]
    weight = np.ones(size, dtype) if given else None
    return x, [weight] * PARAMETERS[name], {"groups": 2} if name == "group_norm" else {}


def channels(dtype: str, shapes: Sequence[tuple[int, ...]] = (ACROSS, ALONG)) -> None:
    """Run all passes of batch norm, in training and with stored statistics."""
    for shape in shapes:
        x = np.ones(shape, dtype)
        running: dict[str, Any] = {"running_mean": np.zeros(4), "running_var": np.ones(4)}
        single = {name: value.astype(np.float32) for name, value in running.items()}
        for gamma in (None, np.ones(4, dtype)):
            _, mean, rstd = numnorm.batch_norm_forward(x, gamma, gamma, **running)
            for training in (True, False):
                numnorm.batch_norm_backward(x, x, mean, rstd, gamma, training=training)
            for stored in (running, single):
                numnorm.batch_norm(x, gamma, gamma, training=False, **stored)
        numnorm.batch_moments(x, after=numnorm.batch_moments(x))


def moving(name: str, dtype: str, across: bool) -> None:
    """Run both passes of a moving norm, across many channels or along few."""
    for shape, axis in [((20, 8), 0)] if across else [((3, 20), 1), ((20, 3), 0)]:
        x = np.ones(shape, dtype)
        options = {**MOVING[name], "axis": axis}
        _, mean, rstd = getattr(numnorm, f"{name}_forward")(x, **options)
        getattr(numnorm, f"{name}_backward")(x, x, mean, rstd, **options)


def cells(kinds: Sequence[str], dtype: str, norms: Sequence[str | None] = (None, "layer")) -> None:
    """Run the forward and the backward pass of recurrent cells with each norm."""
    for kind in kinds:
        for norm in norms:
            cell(kind, dtype, {"norm": norm})


def cell(name: str, dtype: Any, options: dict[str, Any]) -> None:
    """Run the forward and the backward pass of a recurrent cell with a norm and a variant."""
    functions = rnn_cells.CELLS[name]
    rng = np.random.default_rng(0)
    parameters = functions.init(3, 4, rng=rng, dtype=dtype, **options)
    x = np.ones((2, 2, 3), dtype)
    states = [np.ones((2, 4), dtype)] * len(functions.kind.states)
    y, *_, saved = functions.forward(x, parameters, *states, **options)
    functions.backward(y, saved)


def launcher() -> None:
    """Compile what starts threads, which is the same for all kernels."""
    from numnorm.backends.cpu.compiler.jit import launcher_address

    launcher_address()
