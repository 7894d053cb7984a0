"""The process of one library: ``python -m peers.worker LIBRARY THREADS``.

It reads a request a line from stdin, in JSON, and answers each with a line on stdout:
``{"prepare": {...}}``, with a case, by whether the library can do it and does it right, and
``{"time": CALLS}`` by the seconds of a call of the case that was prepared last.
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

# Long beside what the clock and the messages take, short enough for many rounds.
BATCH_SECONDS = 0.02
# Enough to compile, and for the memory that each call allocates to have been used before.
WARM_UP = 3

Answer = dict[str, Any]


class Library:
    """A library in the process of its own.

    Parameters
    ----------
    name : str
        One of `libraries.LIBRARIES`, or a module like those.
    threads : int
        How many threads it may use.
    """

    def __init__(self, name: str, threads: int) -> None:
        # scikit-learn warns of rounding errors at every call; once is not more than said here.
        warnings.simplefilter("ignore")
        self._adapter = load(name)
        self._adapter.start(threads)
        self._run: Callable[[], Any] | None = None

    def versions(self) -> Answer:
        """Return the versions of what it runs on."""
        packages = {name: version(name) for name in self._adapter.PACKAGES}
        return {"status": "ready", "versions": {"python": platform.python_version(), **packages}}

    def prepare(self, request: dict[str, Any]) -> Answer:
        """Make the call of a case, compare its result with the definition, and calibrate."""
        self._run = None  # what the last case left in memory is not needed any more
        case = Case(**{**request, "shape": tuple(request["shape"])})
        call = self._adapter.call_of(case, arrays_of(case))
        if call is None:
            return {"status": "missing"}
        results = [] if call.arrays is None else call.arrays(call.run())
        errors = list(errors_of(case, results)) if results else []
        for error, allowed in errors:
            # A NaN is not below the tolerance, either.
            if not error <= allowed:
                reason = f"off by {error:.1g} of the largest value, {allowed:.1g} is allowed"
                return {"status": "wrong", "detail": reason}
        self._run = call.run
        seconds = min(timeit.repeat(call.run, number=1, repeat=WARM_UP))
        calls = max(1, math.floor(BATCH_SECONDS / max(seconds, 1e-7)))
        return {"status": "ready", "calls": calls, "errors": [error for error, _ in errors]}

    def time(self, calls: int) -> Answer:
        """Return the seconds of one of `calls` calls, and how many processors they kept busy."""
        assert self._run is not None
        # Its threads are asleep, and the caches hold what the other libraries worked on.
        self._run()
        busy = time.process_time()
        seconds = timeit.timeit(self._run, number=calls)
        busy = time.process_time() - busy
        return {"status": "ready", "seconds": seconds / calls, "busy": busy / seconds}


def _answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function returns, or why it failed."""
    try:
        return function(*arguments)
    except Exception as error:  # whatever a library raises belongs into the table
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return {"status": "failed", "detail": reason[:200]}


def main() -> None:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", metavar="library")
    parser.add_argument("threads", type=int)
    options = parser.parse_args()
    # Ctrl-C is for the process that asks; this one then sees the end of its stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What a library prints goes to stderr, not among the answers.
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
