"""Running a kernel serially or in parallel, without ever risking the process.

Both variants give the same bytes, so the choice is free. Three facts decide it. Numba's workqueue
layer aborts the process when two threads enter it at once. GNU OpenMP kills a forked child at its
first parallel region. And a launch costs more than a small array's work.
"""

import os
import threading
from collections.abc import Callable
from typing import Any

import numba

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, launcher_address
from numnorm.backends.forking import threads_are_gone

_workqueue_lock = threading.Lock()


def _after_fork_in_child() -> None:
    """Replace the lock: a thread of the parent that held it does not exist in the child."""
    global _workqueue_lock
    _workqueue_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def run(kernel: Kernel, arguments: tuple[Any, ...], elements: int, parts: int) -> bool:
    """Run all parts of a kernel's work; return whether the serial variant did it."""
    if is_serial(elements, parts) or not in_parallel(_run_parallel, kernel, arguments, parts):
        kernel.serial(*arguments, 0, parts)
        return True
    return False


def _run_parallel(kernel: Kernel, arguments: tuple[Any, ...], parts: int) -> bool:
    kernel.entry(launcher_address(), *arguments, 0, parts)
    return True


def in_parallel(call: Callable[..., bool], *arguments: Any) -> bool:
    """Return ``call(*arguments)``, which enters a parallel region; False if it may not.

    It may not while another thread is in a parallel region of the workqueue layer.
    """
    if numba.threading_layer() != "workqueue":
        return call(*arguments)
    if not _workqueue_lock.acquire(blocking=False):
        return False
    try:
        return call(*arguments)
    finally:
        _workqueue_lock.release()


def is_serial(elements: int, parts: int) -> bool:
    """Return whether one call of the serial variant is the faster way to do all parts."""
    if not _worth_it(elements, parts):
        return True
    least = tuning.PARALLEL_WORKQUEUE_LEAST_ELEMENTS
    return numba.threading_layer() == "workqueue" and elements < least


def is_small(elements: int) -> bool:
    """Return whether the work takes less time than starting threads."""
    return elements < tuning.PARALLEL_LEAST_ELEMENTS


def _worth_it(elements: int, parts: int) -> bool:
    return not is_small(elements) and parts > 1 and _has_threads()


def threads() -> int:
    """Return how many threads a parallel kernel would use."""
    return int(numba.get_num_threads()) if _has_threads() else 1


def _has_threads() -> bool:
    # The cheap questions come first.
    if threads_are_gone() or numba.config.NUMBA_NUM_THREADS == 1:
        return False
    try:
        return bool(numba.get_num_threads() > 1)  # starts them at the first call
    except ValueError:  # the requested threading layer cannot be loaded
        return False


def row_parts(rows: int, elements: int, least: int = 1) -> int:
    """Return into how many parts to divide independent rows, each of at least `least` rows."""
    return max(1, min(tuning.PARTS_MOST, rows // least, elements // tuning.PART_LEAST_ELEMENTS))


def summed_parts(rows: int, row_elements: int, summed: int) -> int:
    """Return into how many parts to divide rows that are summed, with `summed` sums a part.

    It depends on the shapes alone, so that the sums do not depend on the threads. Each part is
    worth a thread, and the sums of all parts together stay small beside the input.
    """
    by_work = rows * row_elements // tuning.SUMMED_PART_LEAST_ELEMENTS
    by_memory = rows * row_elements // (tuning.SUMMED_PART_INPUTS_PER_SUM * max(summed, 1))
    return max(1, min(tuning.SUMMED_PARTS_MOST, rows, by_work, by_memory))
