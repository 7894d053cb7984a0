"""Measure numnorm on a GPU: ``python -m gpu --help``."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from numnorm.commands.outputs import appearing

from .cases import Case, all_cases
from .contestants import Maker, load
from .devices import Device, TorchDevice
from .measure import measured
from .report import line, markdown
from .sequences import SequenceCase, all_sequences

RESULTS = Path(__file__).parent.parent / "gpu_results"
_LIBRARIES = (
    "numnorm",
    "numba_cuda",
    "numba_cuda_mlir",
    "torch",
    "triton",
    "cupy",
    "jax",
    "liger_kernel",
    "quack",
)


def main() -> None:
    """Measure, and write ``gpu.json`` and ``gpu.md`` after each case."""
    parser = argparse.ArgumentParser(prog="python -m gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few shapes and 3 rounds")
    parser.add_argument("--megabytes", type=int, default=256, help="the size of a norm's x (256)")
    parser.add_argument("--rounds", type=int, help="rounds for each case (10)")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases named so")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for the results")
    options = parser.parse_args()
    every = [*all_cases(options.megabytes << 20, options.quick), *all_sequences(options.quick)]
    cases = [case for case in every if options.only in case.name]
    rounds = options.rounds or (3 if options.quick else 10)
    contestants, missing = {}, []
    for family in ("norms", "cells"):
        contestants[family], absent = load(family)
        missing += absent.values()
    for result in measure(TorchDevice(), cases, rounds, contestants, missing):
        write(result, options.output)  # so that an end before the last case loses nothing


def measure(
    device: Device,
    cases: Sequence[Case | SequenceCase],
    rounds: int,
    contestants: dict[str, dict[str, Maker]],
    missing: list[str],
) -> Iterator[dict[str, Any]]:
    """Yield the results of all contestants for the cases so far, and why others are missing."""
    facts = device.description() | {
        "versions": ", ".join(f"{name} {number}" for name, number in _versions().items()),
        "rounds": str(rounds),
        "date": datetime.date.today().isoformat(),
    }
    records: list[dict[str, Any]] = []
    for case in cases:
        family = "norms" if isinstance(case, Case) else "cells"
        records.append(measured(device, case, rounds, contestants[family]))
        print(line(records[-1]), flush=True)
        yield {"device": facts, "missing": missing, "records": records}


def _versions() -> dict[str, str]:
    """Return the versions of the libraries that the contestants have imported."""
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    return {name: str(number) for name, number in versions.items() if number is not None}


def write(result: dict[str, Any], folder: Path) -> None:
    """Write both files, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("gpu.json", json.dumps(result, indent=1)), ("gpu.md", markdown(result))):
        with appearing(folder / name) as file:
            file.write(f"{text}\n".encode())


if __name__ == "__main__":
    main()
