"""What the processor can do that kernels are compiled for."""

import functools

from llvmlite import binding
from numba.core import config


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
