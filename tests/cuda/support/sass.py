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

from cuda.core import Linker

from numnorm.backends.cuda.compiler import machine_code
from numnorm.backends.cuda.compiler.chosen import compiler

_OPERATION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")


@contextlib.contextmanager
def pretended_device(capability):
    """Compile for a compute capability, without a device."""
    device = SimpleNamespace(compute_capability=capability)
    with contextlib.ExitStack() as stack:
        if compiler.NAME == "numba-cuda":
            for module in ("dispatcher", "compiler"):
                place = f"numba.cuda.{module}.get_current_device"
                stack.enter_context(mock.patch(place, lambda: device))
        else:
            # Without a device it asks for one, even if a compilation names its capability.
            stack.enter_context(mock.patch("numba_cuda_mlir.tools._cached_cc", capability))
        yield device


def _disassembler():
    for folder in Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/bin"):
        if (folder / "nvdisasm").exists():
            return str(folder / "nvdisasm")
    return "nvdisasm"


class _TalkativeLinker:
    """A linker of `cuda.core` that keeps what ptxas reports."""

    log = ""

    def __init__(self, *parts, options):
        options.ptxas_options = ["-v"]
        self._linker = Linker(*parts, options=options)

    def link(self, kind):
        code = self._linker.link(kind)
        type(self).log = self._linker.get_info_log()
        return code

    def close(self):
        self._linker.close()


def report(kernel, capability):
    """Return the resources that ptxas reports of a kernel, and the counts of its operations."""
    with mock.patch.object(machine_code, "Linker", _TalkativeLinker):
        name, code = machine_code.compiled(
            kernel.function,
            kernel.signature,
            kernel.threads,
            capability,
            grid_barriers=getattr(kernel, "grid_barriers", False),
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        listing = subprocess.run(
            [_disassembler(), file.name], capture_output=True, text=True, check=True
        ).stdout
    operations = collections.Counter(_OPERATION.findall(_section(listing, name)))
    return {"operations": operations, **_resources(_TalkativeLinker.log)}


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
