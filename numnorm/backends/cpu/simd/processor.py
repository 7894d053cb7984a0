"""Features of the processor that kernels are compiled for."""

import functools
from pathlib import Path

from llvmlite import binding
from numba.core import config

from numnorm.backends.cpu import tuning

_CACHES, _FILES = Path("/sys/devices/system/cpu/cpu0/cache"), ("level", "type", "size")


@functools.cache
def _has(feature: str) -> bool:
    chosen = config.CPU_FEATURES or ""
    if chosen:
        return f"+{feature}" in chosen.split(",")
    return bool(binding.get_host_cpu_features().get(feature, False))


def has_avx512() -> bool:
    """Return whether the processor has 64-byte registers, and masks for all loads and stores."""
    return _has("avx512f")


def has_avx() -> bool:
    """Return whether floats of four and eight bytes can be loaded with a mask."""
    return _has("avx")


@functools.cache
def has_large_l1d() -> bool:
    """Return whether the L1 data cache is large enough for prefetched lines; False if unknown."""
    for cache in _CACHES.glob("index*"):
        try:
            level, kind, size = ((cache / name).read_text().strip() for name in _FILES)
            if (level, kind) == ("1", "Data"):
                return int(size.removesuffix("K")) >= tuning.LARGE_L1D_LEAST_KIB
        except (OSError, ValueError):  # missing, or in another format
            continue
    return False
