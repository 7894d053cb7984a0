"""Running jobs in several processes, so that their kernels are compiled at the same time."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from numnorm.commands.compile.calls import Job
from numnorm.commands.errors import CommandError
from numnorm.commands.progress import progress_bar
from numnorm.threads import usable_processors


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

    todo, processes = missing(jobs), usable_processors()
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
    processes = min(processes, len(jobs))
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
