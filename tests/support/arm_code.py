"""Counts of instructions in the machine code of kernels for 64-bit ARM, which is not run.

A process of its own compiles it, on any processor::

    python arm_code.py TARGET [NAMES [DTYPES]]

TARGET is one of `cross_compile.TARGETS`; names of norms and cells, and dtypes, have commas between
them. It prints a line of JSON for each kernel.
"""

import argparse
import collections
import importlib
import json
import re
from typing import Any

from cross_compile import TARGETS, attempt, compile_for

FAMILIES = "layer_norm,batch_norm,moving_norm,exponential_norm,robust_norm,lstm"
FUSED = {"fmla", "fmls", "fmad", "fmsb", "fnmla", "fnmls"}
SCALAR_FUSED = {"fmadd", "fmsub", "fnmadd", "fnmsub"}
INSTRUCTION = re.compile(r"\t([a-z]\w*)(\.\w+)?(?:\t([^;/]*))?")
COUNTS = ["instructions", "fused_neon", "fused_sve", "fused_scalar", "prefetch", "nontemporal"]
COUNTS += ["spilled_vectors", "reloaded_vectors"]


def counts_of(assembly: str) -> dict[str, int]:
    """Return how many instructions of each kind there are in assembly."""
    counts = collections.Counter(dict.fromkeys(COUNTS, 0))
    for line in assembly.splitlines():
        match = INSTRUCTION.match(line)
        if match is None:
            continue
        name, operands = match[1], match[3] or ""
        counts["instructions"] += 1
        counts["fused_sve"] += name in FUSED and operands.startswith("z")
        counts["fused_neon"] += name in FUSED and not operands.startswith("z")
        counts["fused_scalar"] += name in SCALAR_FUSED
        counts["prefetch"] += name == "prfm"
        counts["nontemporal"] += name == "stnp"
        counts["spilled_vectors"] += "Spill" in line and operands.startswith("q")
        counts["reloaded_vectors"] += "Reload" in line and operands.startswith("q")
    return counts


def report(library: Any) -> None:
    """Print the counts of a kernel; other libraries are parts of kernels."""
    kernel = re.search(r"numnorm_[a-z0-9_]+", str(library._final_module))
    if kernel:
        machine = library._codegen._tm
        machine.set_asm_verbosity(True)  # which names spills
        # To emit code changes a module.
        counts = counts_of(machine.emit_assembly(library._final_module.clone()))
        print(json.dumps({"kernel": kernel[0], **counts}), flush=True)


def main() -> None:
    """Compile."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("names", nargs="?", default=FAMILIES)
    parser.add_argument("dtypes", nargs="?", default="float32")
    options = parser.parse_args()
    compile_for(TARGETS[options.target], report)
    jobs = importlib.import_module("numnorm.commands.compile.calls").jobs
    for job in jobs(options.names.split(","), options.dtypes.split(",")):
        attempt(job.run)


if __name__ == "__main__":
    main()
