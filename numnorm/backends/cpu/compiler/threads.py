"""How many threads a parallel kernel may use: the least of what the user and the system allow."""

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba

from numnorm.backends.forking import threads_are_gone
from numnorm.operating_system import usable_processors
from numnorm.threads import limit

_NO_LIMIT = sys.maxsize


def available() -> int:
    """Return how many threads the present call may use."""
    if threads_are_gone():
        return 1
    most = min(limit.get(), numba.config.NUMBA_NUM_THREADS, _fixed_limit())
    # The cheap questions come first, and the one that starts the threads comes last.
    if most > 1:
        most = min(most, usable_processors())
    if most > 1:
        most = min(most, _openmp_limit())
    if most <= 1:
        return 1
    try:
        return min(most, int(numba.get_num_threads()))
    except ValueError:  # the requested threading layer cannot be loaded
        return 1


@functools.cache
def _fixed_limit() -> int:
    """Return the limit by the environment variable of OpenMP and by the CPU quota."""
    return min(environment_limit(os.environ.get("OMP_NUM_THREADS", "")), quota_limit())


def environment_limit(value: str) -> int:
    """Return the number of threads of the first level in a value of OMP_NUM_THREADS."""
    first = value.split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else _NO_LIMIT


def quota_limit(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int:
    """Return how many whole processors the quotas of the process's control groups allow."""
    return max(1, int(min(_quotas(root, membership), default=_NO_LIMIT)))


def _quotas(root: Path, membership: Path) -> Iterator[float]:
    """Yield the quota, in processors, of each control group with one that holds the process."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # macOS and Windows have no control groups
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # Version 2 has one tree without names of controllers.
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "cpu" if controllers else root
        folder = top / path.strip("/")
        yield from _quota_of(folder)
        # In a container the path may be the host's, and only `top` exists.
        while folder != top:
            folder = folder.parent
            yield from _quota_of(folder)


def _quota_of(folder: Path) -> Iterator[float]:
    """Yield the quota of one control group, in either version's files."""
    for files in ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"):
        try:
            quota, period = " ".join((folder / name).read_text() for name in files).split()
            if quota.isdecimal():  # neither "max" nor "-1"
                yield int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue


def _openmp_limit() -> int:
    """Return the least number of threads of the OpenMP runtimes, if threadpoolctl may limit it."""
    if "threadpoolctl" not in sys.modules:
        return _NO_LIMIT
    # Another runtime arrives with another module.
    runtimes = _openmp_runtimes(len(sys.modules))
    return min((runtime.num_threads for runtime in runtimes), default=_NO_LIMIT)


@functools.lru_cache(maxsize=1)
def _openmp_runtimes(modules: int) -> list[Any]:
    controller = getattr(sys.modules["threadpoolctl"], "ThreadpoolController", None)
    return controller().select(user_api="openmp").lib_controllers if controller else []
