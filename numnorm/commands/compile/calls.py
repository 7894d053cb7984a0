"""Calls that compile the kernels of each norm and of each recurrent cell, in several processes.

Small arrays suffice, as kernels are compiled for a dtype and not for a shape. Only narrow and wide
rows have different ones.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np

import numnorm
from numnorm.commands.terminal import CommandError, progress_bar
from numnorm.derived import parameters_of
from numnorm.layouts import RowLayout
from numnorm.norms.declared import SPECS
from numnorm.norms.spec import COUNTING, NormSpec
from numnorm.operating_system import most_processes, usable_processors
from numnorm.rnn import cells as rnn_cells

_WITH_KERNELS = {spec.name: spec for spec in SPECS if spec.norm or spec.family == "channels"}

PARAMETERS = {name: len(spec.parameters) for name, spec in _WITH_KERNELS.items()}
"""The number of parameters of each norm of rows or channels."""

MOVING = {
    spec.name: {n: v for n, v in spec.example_arguments.items() if n != "axis"}
    for spec in SPECS
    if spec.family in ("windows", "decay") and not spec.parameters
}
"""The norms whose statistics move along an axis, with the options that they need.

One with parameters computes with another one's kernels.
"""

ORDER = ("robust_norm",)
"""The norms of rows by order statistics."""

CELLS = tuple(rnn_cells.CELLS)
"""The recurrent cells, which are compiled without a norm and with layer norm."""

DTYPES = ("float16", "bfloat16", "float32", "float64")

ACROSS = (3, 4)
ALONG = (3, 4, 5)
"""Shapes for which batch norm loops across the channels, and along each channel."""

WIDE = 1200
"""The width of rows that no kernel of narrow rows takes; other rows are as narrow as `ACROSS`."""

_FIRST = {spec.norm: name for name, spec in reversed(_WITH_KERNELS.items()) if spec.norm}
_SAME_KERNELS = {name: _FIRST[s.norm] for name, s in _WITH_KERNELS.items() if s.norm}
"""The norm whose kernels a norm has."""

_FORMULAS = {norm.formula: None for norm in _FIRST}
_SAME_FORWARD = [
    tuple(name for norm, name in reversed(_FIRST.items()) if norm.formula is formula)
    for formula in reversed(_FORMULAS)
]
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
        Of `PARAMETERS`, `MOVING`, `ORDER` and `CELLS`.
    dtypes : iterable of str
        Of `DTYPES`.

    Returns
    -------
    list of Job
        The jobs.
    """
    known = list(dict.fromkeys(_SAME_KERNELS.get(name, name) for name in names))
    found = [job for dtype in dict.fromkeys(dtypes) for job in _of_dtype(known, dtype)]
    found.sort(
        key=lambda job: (cells, channels, order, moving, backward, forward).index(job.function)
    )
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
    for name in ORDER:
        if name in names:
            yield Job(order, (name, dtype))
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


def forward(names: Sequence[str], dtype: str, with_parameters: bool, wide: bool) -> None:
    """Run the forward passes of norms of rows, with their parameters or without."""
    for name in names:
        x, parameters, options = _arguments(name, dtype, with_parameters, wide)
        getattr(numnorm, f"{name}_forward")(x, *parameters, **options)


def backward(name: str, dtype: str, with_parameters: bool, wide: bool) -> None:
    """Run the backward pass of a norm of rows, with its parameters or without."""
    x, parameters, options = _arguments(name, dtype, with_parameters, wide)
    spec = _WITH_KERNELS[name]
    saved = [np.ones(_layout(spec, x.shape).statistic_shape)] * len(spec.saved)
    spec.backward(x, x, *saved, *parameters[:1], **options)


def _arguments(
    name: str, dtype: str, with_parameters: bool, wide: bool
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Return x, the parameters of a norm, and its options."""
    spec = _WITH_KERNELS[name]
    channels = (4,) if spec.family == "groups" else ()
    x = np.ones((3, *channels, WIDE if wide else ACROSS[-1] + len(channels)), dtype)
    shape = _layout(spec, x.shape).parameter_shape
    weight = np.ones(shape, dtype) if with_parameters else None
    return x, [weight] * PARAMETERS[name], _needed(spec)


def _layout(spec: NormSpec, shape: tuple[int, ...]) -> RowLayout:
    """Return the rows of an array."""
    assert spec.row_call is not None
    defaults = {
        name: parameter.default
        for name, parameter in parameters_of(spec.backward).items()
        if parameter.kind is parameter.KEYWORD_ONLY and name not in (*COUNTING, "out")
    }
    return spec.row_call(shape, **defaults | _needed(spec)).layout


def _needed(spec: NormSpec) -> dict[str, Any]:
    """Return the options of a norm of rows that have no default."""
    needed = [n for n, p in parameters_of(spec.function).items() if p.default is p.empty]
    return {n: v for n, v in spec.example_arguments.items() if n in needed}


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


def order(name: str, dtype: str) -> None:
    """Run a norm by order statistics, both passes of which have one kernel."""
    getattr(numnorm, name)(np.ones(ACROSS, dtype))


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


def missing(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs of which a kernel is not in the cache; the others are run, which loads them.

    Parameters
    ----------
    jobs : sequence of Job
        The jobs.

    Returns
    -------
    list of Job
        Those that have something to compile.
    """
    from numnorm.backends.cpu.compiler.cache import NotCached, only_load

    def is_missing(job: Job) -> bool:
        try:
            with only_load():
                job.run()
        except NotCached:
            return True
        return False

    return [job for job in jobs if is_missing(job)]


def prepare(jobs: Sequence[Job]) -> None:
    """Compile in parallel what jobs need, unless it is in the cache or cannot be kept there.

    If that is not possible, nothing happens: the calls themselves compile.

    Parameters
    ----------
    jobs : sequence of Job
        The jobs, the slowest first.
    """
    from numnorm.backends.cpu.compiler.cache import is_kept

    todo = missing(jobs)
    processes = usable_processors()
    if len(todo) > 1 and processes > 1 and is_kept():
        # Some systems have no semaphores for a pool of processes.
        with contextlib.suppress(CommandError, ImportError, NotImplementedError, OSError):
            compile_ahead(todo, processes)


def compile_ahead(jobs: Sequence[Job], processes: int) -> None:
    """Run jobs in new processes, with a progress bar; their kernels are in the cache then.

    Parameters
    ----------
    jobs : sequence of Job
        The jobs, in this order.
    processes : int
        The largest number of processes at a time.

    Raises
    ------
    CommandError
        If a process ends before its work is done.
    """
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")
    processes = most_processes(min(processes, len(jobs)))
    pool = ProcessPoolExecutor(processes, context, initializer=_end_with_others)
    try:
        with progress_bar("compiling", len(jobs)) as done:
            futures = [pool.submit(job.run) for job in jobs]
            for future in as_completed(futures):
                future.result()
                done(1)
    except BrokenProcessPool as error:
        raise CommandError(
            "a process that compiled was ended: is there too little memory?"
        ) from error
    except BaseException:
        # Nobody waits for what is being compiled: a file is written whole, or not at all.
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_others() -> None:
    """Let this process end at Ctrl+C, and when the process that started it has ended.

    It prints nothing then. A signal that is ignored (nohup) stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A process that is killed outright sends nothing to those that it started.
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
