"""Describes the machine of the measurements, and its load by other processes."""

from __future__ import annotations

import os
import platform
import time
from datetime import date
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def description() -> dict[str, str]:
    """Return the processor, its caches, the system and the date, as far as they are known."""
    return {
        "processor": _model(),
        "logical processors": str(os.cpu_count()),
        "caches": _caches() or "not known",
        "system": platform.platform(),
        "date": date.today().isoformat(),
    }


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _caches() -> str:
    """Return the caches of the first processor, on Linux."""
    try:
        return ", ".join(
            f"L{(cache / 'level').read_text().strip()} {(cache / 'type').read_text().strip()} "
            f"{(cache / 'size').read_text().strip()}"
            for cache in sorted(_CACHES.glob("index*"))
        )
    except OSError:
        return ""


def foreign_load(seconds: float) -> float | None:
    """Return how many processors are busy while this process waits, on Linux."""
    before = _processor_times()
    time.sleep(seconds)
    if before is None or (after := _processor_times()) is None:
        return None
    idle, everything = (new - old for new, old in zip(after, before, strict=True))
    return (os.cpu_count() or 1) * (1 - idle / everything) if everything else None


def _processor_times() -> tuple[int, int] | None:
    """Return the idle time and the total time of all processors."""
    try:
        with open("/proc/stat", encoding="utf-8") as file:
            # user nice system idle iowait irq softirq steal; guests are in user already
            times = [int(field) for field in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return times[3] + times[4], sum(times)
