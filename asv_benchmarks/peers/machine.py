"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path

_CPU = Path("/sys/devices/system/cpu/cpu0/cache")


def description() -> dict[str, str]:
    """Return the processor, its caches, the system and the day, as far as they are known."""
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
    """Return those that the first processor sees, where Linux tells."""
    try:
        return ", ".join(
            f"L{(cache / 'level').read_text().strip()} {(cache / 'type').read_text().strip()} "
            f"{(cache / 'size').read_text().strip()}"
            for cache in sorted(_CPU.glob("index*"))
        )
    except OSError:
        return ""
