"""What the processor can do that kernels are compiled for."""

import functools

from llvmlite import binding
from numba.core import config


@functools.cache
def has_avx512() -> bool:
    """Return whether there are registers of 64 bytes, and masks for what is loaded and stored."""
    named = config.CPU_FEATURES or ""
    if named:
        return "+avx512f" in named
    return bool(binding.get_host_cpu_features().get("avx512f", False))
