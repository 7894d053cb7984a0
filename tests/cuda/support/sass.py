"""Compile kernels to machine code without a device, and count what the code uses."""

import collections
import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from numba.cuda import compiler
from numba.cuda.cudadrv import driver

_OPERATION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


@contextlib.contextmanager
def pretended_device(capability):
    """Compile for a compute capability, without a device."""
    device = SimpleNamespace(compute_capability=capability)
    with (
        mock.patch("numba.cuda.dispatcher.get_current_device", lambda: device),
        mock.patch("numba.cuda.compiler.get_current_device", lambda: device),
    ):
        yield device


def _disassembler():
    for folder in Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/bin"):
        if (folder / "nvdisasm").exists():
            return str(folder / "nvdisasm")
    return "nvdisasm"


def report(kernel, capability):
    """Return the resources that ptxas reports of a kernel, and the counts of its operations."""
    library, _ = compiler._compile_pyfunc_with_fixup(
        kernel.function,
        kernel.signature,
        device=False,
        abi="numba",
        cc=capability,
        launch_bounds=kernel.threads,
        lto=False,
    )
    library._lto = True
    library.needs_cudadevrt = library.use_cooperative  # where blocks wait for each other
    full = (*capability, "a" if capability >= (9, 0) else "")
    linker = driver._Linker(max_registers=None, cc=full, lto=True)
    options = linker._get_linker_options

    def verbose(ptx):
        found = options(ptx)
        found.ptxas_options = ["-v"]
        return found

    linker._get_linker_options = verbose
    library._link_all(linker, full)
    code = linker.complete().code
    log = linker.info_log
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        listing = subprocess.run(
            [_disassembler(), file.name], capture_output=True, text=True, check=True
        ).stdout
    log = log.decode() if isinstance(log, bytes) else log
    own = _section(listing, re.search(r"Compiling entry function '(\S+)'", log).group(1))
    operations = collections.Counter(match.group(1) for match in _OPERATION.finditer(own))
    return {"operations": operations, **_resources(log)}


def _section(listing, function):
    """Return the code of one function; the listing also has those it is linked with."""
    sections = re.split(r"^\s*\.section\s+", listing, flags=re.MULTILINE)
    return next(found for found in sections if found.startswith(f".text.{function},"))


def _resources(log):
    frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", log)
    registers = re.search(r"Used (\d+) registers", log)
    return {
        "stack": int(frame.group(1)),
        "spilled": int(frame.group(2)),
        "registers": int(registers.group(1)),
    }
