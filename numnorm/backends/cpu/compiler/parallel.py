"""Running a kernel serially or in parallel, without ever risking the process.

Both ways give the same bytes, so the choice is free. Four facts decide it. Numba's workqueue layer
aborts the process when two threads enter it at once. GNU OpenMP kills a forked child at its first
parallel region. A launch costs more than a small array's work. And beside another program that
keeps a processor busy, a parallel call waits for the thread that got no processor, often for longer
than a serial call takes. No system call tells this beforehand: the time that calls have taken does.
"""

import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numba

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, launcher_address
from numnorm.backends.cpu.compiler.threads import available
from numnorm.operating_system import at_fork

# Whether parallel calls of a kernel are the faster ones


class Timings:
    """How long calls of one kernel, of about one size, have taken.

    Races between threads do no harm: they only change which way comes next.

    Attributes
    ----------
    serial : bool
        Whether the next call is to be serial.
    """

    def __init__(self) -> None:
        self.serial = False
        self._rate = math.inf  # of serial calls, in nanoseconds for each unit of work
        self._saved = 0.0  # by parallel calls, in nanoseconds
        self._left = 0.0  # nanoseconds before the other way is tried

    def add(self, serial: bool, work: int, duration: int) -> None:
        """Take the duration of a call in nanoseconds into account."""
        self._left -= duration
        if serial:
            rate = duration / work
            self._rate = min(rate, (self._rate + rate) / 2)
        else:
            saved = self._saved + self._rate * work - duration
            self._saved = min(saved, tuning.PARALLEL_SAVED_MOST_NS)
        if self._saved < 0:
            self.serial, self._saved, self._left = True, 0.0, _retry_after(duration)
        elif self._left <= 0:
            # One serial call among parallel ones is enough to renew the rate.
            self._left = _retry_after(duration) if self.serial else 0.0
            self.serial = not self.serial


def _retry_after(duration: int) -> float:
    return min(tuning.PARALLEL_RETRY * duration, tuning.PARALLEL_RETRY_MOST_NS)


@functools.lru_cache(maxsize=4096)
def timings_of(kernel: Any, work_bits: int) -> Timings:
    """Return the timings of a kernel's calls with work of this bit length."""
    return Timings()


# Running a kernel


_workqueue_lock = threading.Lock()


def _after_fork_in_child() -> None:
    """Replace the lock: a thread of the parent that held it does not exist in the child."""
    global _workqueue_lock
    _workqueue_lock = threading.Lock()


at_fork(after_in_child=_after_fork_in_child)


def run(kernel: Kernel, arguments: tuple[Any, ...], work: int, parts: int) -> bool:
    """Run all parts of a kernel's work; return whether they ran serially.

    `work` is the number of bytes that the kernel reads and writes, or that take as long.
    """
    if is_serial(work, parts):
        kernel.serial(*arguments, 0, parts)
        return True
    if work >= tuning.PARALLEL_TIMED_BELOW_WORK:
        return _run(False, kernel, arguments, parts)
    timings = timings_of(kernel, work.bit_length())
    start = time.perf_counter_ns()
    serial = _run(timings.serial, kernel, arguments, parts)
    timings.add(serial, work, time.perf_counter_ns() - start)
    return serial


def _run(serial: bool, kernel: Kernel, arguments: tuple[Any, ...], parts: int) -> bool:
    if serial or not in_parallel(_run_parallel, kernel, arguments, parts):
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
        return _with_threads(call, *arguments)
    if not _workqueue_lock.acquire(blocking=False):
        return False
    try:
        return _with_threads(call, *arguments)
    finally:
        _workqueue_lock.release()


def _with_threads(call: Callable[..., bool], *arguments: Any) -> bool:
    own, count = numba.get_num_threads(), available()
    if count == own:
        return call(*arguments)
    numba.set_num_threads(count)
    try:
        return call(*arguments)
    finally:
        numba.set_num_threads(own)


def is_serial(work: int, parts: int) -> bool:
    """Return whether threads gain too little for the work, or there are none."""
    if not _worth_it(work, parts):
        return True
    least = tuning.PARALLEL_WORKQUEUE_LEAST_WORK
    return numba.threading_layer() == "workqueue" and work < least


def is_small(elements: int) -> bool:
    """Return whether a result is too small to look for the place where stores are fast."""
    return elements < tuning.PLACE_LEAST_ELEMENTS


def _worth_it(work: int, parts: int) -> bool:
    return parts > 1 and threads(work) > 1


def threads(work: int) -> int:
    """Return how many threads a parallel kernel may use for its work."""
    return available() if work >= tuning.PARALLEL_LEAST_WORK else 1


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
