"""The process of one library: ``python -m peers.worker LIBRARY THREADS``.

It reads requests in JSON from stdin, one a line, and answers each with a line on stdout. The answer
to ``{"prepare": {...}}``, with a case, says whether the library supports it and computes it
correctly; that to ``{"time": CALLS}`` has the seconds of a call of the last prepared case.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import sys
import time
import timeit
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from .arrays import arrays_of
from .cases import Case
from .definition import errors_of
from .libraries import load

# Long compared with the clock and the messages, short enough for many rounds.
BATCH_SECONDS = 0.02
# Enough calls to compile, and to warm up the allocator.
WARM_UP = 3
# A call that takes so long needs neither these nor one before it is timed.
LONG_SECONDS = 0.1

Answer = dict[str, Any]


class Library:
    """A library in its own process.

    Parameters
    ----------
    name : str
        One of `libraries.LIBRARIES`, or a module with the same functions.
    threads : int
        The number of threads that it may use.
    """

    def __init__(self, name: str, threads: int) -> None:
        # scikit-learn warns of rounding errors at every call.
        warnings.simplefilter("ignore")
        self._adapter = load(name)
        self._adapter.start(threads)
        self._run: Callable[[], Any] | None = None
        self._long = False

    def versions(self) -> Answer:
        """Return the versions of Python and of the library's packages."""
        packages = {name: version(name) for name in self._adapter.PACKAGES}
        return {"status": "ready", "versions": {"python": platform.python_version(), **packages}}

    def prepare(self, request: dict[str, Any]) -> Answer:
        """Make the call of a case, compare its result with the definition, and calibrate."""
        self._run = None  # frees the memory of the last case
        case = Case(**{**request, "shape": tuple(request["shape"])})
        call = self._adapter.call_of(case, arrays_of(case))
        if call is None:
            return {"status": "missing"}
        results = [] if call.arrays is None else call.arrays(call.run())
        errors = list(errors_of(case, results)) if results else []
        for error, allowed in errors:
            # `not <=`: a NaN must fail.
            if not error <= allowed:
                reason = f"off by {error:.1g} of the largest value, {allowed:.1g} is allowed"
                return {"status": "wrong", "detail": reason}
        self._run = call.run
        seconds = timeit.timeit(call.run, number=1)
        self._long = seconds > LONG_SECONDS
        if not self._long:
            seconds = min(seconds, *timeit.repeat(call.run, number=1, repeat=WARM_UP - 1))
        calls = max(1, math.floor(BATCH_SECONDS / max(seconds, 1e-7)))
        return {"status": "ready", "calls": calls, "errors": [error for error, _ in errors]}

    def time(self, calls: int) -> Answer:
        """Return the mean seconds of `calls` calls, and how many processors they kept busy."""
        assert self._run is not None
        if not self._long:
            # Wakes its threads, and fills the caches with its data.
            self._run()
        busy = time.process_time()
        seconds = timeit.timeit(self._run, number=calls)
        busy = time.process_time() - busy
        return {"status": "ready", "seconds": seconds / calls, "busy": busy / seconds}


def _answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, or why it failed."""
    try:
        return function(*arguments)
    except Exception as error:  # any error of a library is a result
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return {"status": "failed", "detail": reason[:200]}


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", metavar="library")
    parser.add_argument("threads", type=int)
    options = parser.parse_args()
    # Ctrl-C ends the parent process, and with it this one's stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The output of a library goes to stderr, so that stdout has only the answers.
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        library = _answer(Library, options.name, options.threads)
        started = isinstance(library, Library)
        print(json.dumps(_answer(library.versions) if started else library), file=answers)
        for line in sys.stdin if started else ():
            [(request, argument)] = json.loads(line).items()
            print(json.dumps(_answer(getattr(library, request), argument)), file=answers)


if __name__ == "__main__":
    main()
