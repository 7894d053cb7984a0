"""Compile a kernel to the machine code of a GPU, which needs no GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from cuda.core import Linker, LinkerOptions, ObjectCode
from numba import cuda
from numba.cuda.cudadrv import libs

# What PTX calls where the blocks of a kernel wait for each other.
_GRID_BARRIER = "cudaCGSynchronize"


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
    function: Callable[..., Any], signature: Any, threads: int, capability: tuple[int, int]
) -> MachineCode:
    """Return the machine code of a kernel whose blocks have `threads` threads."""
    ptx, _ = cuda.compile(
        function, signature, device=False, abi="numba", cc=capability, launch_bounds=threads
    )
    parts = [ObjectCode.from_ptx(ptx.encode())]
    if _GRID_BARRIER in ptx:
        parts.append(ObjectCode.from_library(device_runtime().read_bytes()))
    options = LinkerOptions(arch=f"sm_{capability[0]}{capability[1]}")
    linker = Linker(*parts, options=options)
    try:
        return MachineCode(_entry_of(ptx), bytes(linker.link("cubin").code))
    finally:
        linker.close()


def device_runtime() -> Path:
    """Return the path of CUDA's library for grid barriers, which some installations lack."""
    return Path(libs.get_cudalib("cudadevrt", static=True))


def _entry_of(ptx: str) -> str:
    """Return the name of the only kernel in PTX."""
    return ptx.partition(".entry ")[2].partition("(")[0].strip()
