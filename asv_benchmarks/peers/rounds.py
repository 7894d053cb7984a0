"""The rounds: in each one every library times its calls once, while the others wait."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cases import Case
from .machine import foreign_load

# Idle threads of OpenMP and of ONNX Runtime spin for some milliseconds, and would take a processor
# from the next library.
SPIN_SECONDS = 0.08
# Ten ticks of the Linux counters.
IDLE_SECONDS = 0.1

# NPROC is for XLA.
_THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "NPROC"),
)

Answer = dict[str, Any]
Record = dict[str, Any]


class Worker:
    """A library in its own process, because two OpenMP runtimes in one process conflict.

    Parameters
    ----------
    library : str
        Its name.
    threads : int
        The number of threads that it may use.
    """

    def __init__(self, library: str, threads: int) -> None:
        self.name = library
        self._command = [sys.executable, "-m", f"{__package__}.worker", library, str(threads)]
        self._env = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(threads))}
        self.start()

    def start(self) -> None:
        """Start the process; its first answer is in `greeting`."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._env,
            cwd=Path(__file__).parents[1],
        )
        self.greeting = self._read()

    def ask(self, request: str, argument: Any) -> Answer:
        """Return the answer to a request, or that the process has ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `_read` tells
            print(json.dumps({request: argument}), file=self._process.stdin, flush=True)
        return self._read()

    def _read(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            answer: Answer = json.loads(line)
            return answer
        return {"status": "failed", "detail": f"its process ended with {self._process.wait()}"}

    def revive(self) -> None:
        """Start a new process, if the last one has ended."""
        if self._process.poll() is not None:
            self.close()
            self.start()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@contextmanager
def workers(libraries: list[str], threads: int) -> Iterator[list[Worker]]:
    """Run a process for each library during the block."""
    with ExitStack() as stack:
        running = []
        for library in libraries:
            running.append(Worker(library, threads))
            stack.callback(running[-1].close)
        yield running


def time_case(case: Case, running: list[Worker], rounds: int, threads: int) -> list[Record]:
    """Return a record for each library: whether it supports the case, its errors and times."""
    records = {}
    for worker in running:
        worker.revive()
        answer = worker.ask("prepare", asdict(case))
        records[worker] = {"library": worker.name, **asdict(case), "threads": threads, **answer}
    ready = [worker for worker in running if records[worker]["status"] == "ready"]
    time.sleep(SPIN_SECONDS)
    busy_elsewhere = foreign_load(IDLE_SECONDS)
    samples: dict[Worker, list[Answer]] = {worker: [] for worker in ready}
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        # So that no library always follows the same one.
        shuffle(ready)
        for worker in ready:
            if threads > 1:
                time.sleep(SPIN_SECONDS)
            samples[worker].append(worker.ask("time", records[worker]["calls"]))
    for worker, answers in samples.items():
        records[worker].update(_summary(answers), foreign_load=busy_elsewhere)
    return list(records.values())


def _summary(answers: list[Answer]) -> Record:
    """Return the median and the quartiles of the rounds."""
    failures = [answer for answer in answers if answer["status"] != "ready"]
    if failures:
        return failures[0]
    seconds = [answer["seconds"] for answer in answers]
    quartiles = statistics.quantiles(seconds, method="inclusive") if len(seconds) > 1 else seconds
    return {
        "seconds": statistics.median(seconds),
        "quartiles": [quartiles[0], quartiles[-1]],
        "busy": statistics.median(answer["busy"] for answer in answers),
        "samples": seconds,
    }


def compare(
    cases: list[Case],
    libraries: list[str],
    threads: list[int],
    rounds: int,
    advance: Callable[[int], None],
) -> Iterator[tuple[dict[str, Answer], list[Record]]]:
    """Yield, after each case, the greetings of the libraries and the records of the case."""
    for count in threads:
        with workers(libraries, count) as running:
            greetings = {worker.name: worker.greeting for worker in running}
            present = [worker for worker in running if worker.greeting["status"] == "ready"]
            for case in cases:
                yield greetings, time_case(case, present, rounds, count)
                advance(1)
