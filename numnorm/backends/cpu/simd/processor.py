"""What the processor can do that kernels are compiled for."""

import functools
from pathlib import Path

from llvmlite import binding
from numba.core import config

from numnorm.backends.cpu import tuning

_CACHES, _TOLD = Path("/sys/devices/system/cpu/cpu0/cache"), ("level", "type", "size")


@functools.cache
def _has(feature: str) -> bool:
    named = config.CPU_FEATURES or ""
    if named:
        return f"+{feature}" in named.split(",")
    return bool(binding.get_host_cpu_features().get(feature, False))


def has_avx512() -> bool:
    """Return whether there are registers of 64 bytes, and masks for whatever is stored."""
    return _has("avx512f")


def has_avx() -> bool:
    """Return whether numbers of four and eight bytes can be loaded with a mask."""
    return _has("avx")


@functools.cache
def has_large_l1d() -> bool:
    """Return whether the first-level cache has room for what is asked for besides what is in use.

    It is not known where Linux does not tell.
    """
    for cache in _CACHES.glob("index*"):
        try:
            level, kind, size = ((cache / of).read_text().strip() for of in _TOLD)
            if (level, kind) == ("1", "Data"):
                return int(size.removesuffix("K")) >= tuning.LARGE_L1D_LEAST_KIB
        except (OSError, ValueError):  # not told, or in other words
            continue
    return False
