"""Compile a kernel to the machine code of a GPU, which needs no GPU."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cuda.core import Linker, LinkerOptions, ObjectCode
from numba import cuda
from numba.cuda.cudadrv import libs

# The section of a kernel's arguments in machine code. Its name ends with that of the kernel, which
# Numba begins so; the kernels of CUDA's own library begin with another letter.
_ARGUMENTS = re.compile(rb"\.nv\.constant0\.(_Z[\w$]+)\0")


class MachineCode(NamedTuple):
    """The machine code of a kernel.

    Attributes
    ----------
    name : str
        The name of the kernel in the code.
    cubin : bytes
        The code, as an ELF file for one compute capability.
    """

    name: str
    cubin: bytes


def compiled(
    function: Callable[..., Any],
    signature: Any,
    threads: int,
    capability: tuple[int, int],
    *,
    grid_barriers: bool,
) -> MachineCode:
    """Return the machine code of a kernel whose blocks have `threads` threads.

    `grid_barriers` says whether the blocks wait for each other.
    """
    # Optimized once more at link time, kernels take fewer registers, and more of them run at once.
    code, _ = cuda.compile(
        function, signature, device=False, abi="numba", cc=capability, launch_bounds=threads,
        output="ltoir",
    )  # fmt: skip
    parts = [ObjectCode.from_ltoir(code)]
    if grid_barriers:
        parts.append(ObjectCode.from_library(device_runtime().read_bytes()))
    architecture = f"sm_{capability[0]}{capability[1]}"
    options = LinkerOptions(arch=architecture, link_time_optimization=True)
    linker = Linker(*parts, options=options)
    try:
        cubin = bytes(linker.link("cubin").code)
    finally:
        linker.close()
    (name,) = set(_ARGUMENTS.findall(cubin))
    return MachineCode(name.decode(), cubin)


def device_runtime() -> Path:
    """Return the path of CUDA's library for grid barriers, which some installations lack."""
    return Path(libs.get_cudalib("cudadevrt", static=True))
