"""Whether parallel calls of a kernel are the faster ones, by the time that calls have taken.

Beside another program that keeps a processor busy, a parallel call waits for the thread that got no
processor, often for longer than a serial call takes. No system call tells this beforehand.
"""

import functools
import math
from typing import Any

from numnorm.backends.cpu import tuning


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
