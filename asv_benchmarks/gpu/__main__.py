"""Measure numnorm on a GPU: ``python -m gpu --help``."""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from pathlib import Path
from typing import Any

from numnorm.commands.wholefile import appearing

from .cases import Case, all_cases
from .contestants import CONTESTANTS, Arrays, Maker
from .devices import Device, TorchDevice
from .report import OWN, markdown

RESULTS = Path(__file__).parent.parent / "gpu_results"


def main() -> None:
    """Measure, then write ``gpu.json`` and ``gpu.md``."""
    parser = argparse.ArgumentParser(prog="python -m gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few shapes and 3 rounds")
    parser.add_argument("--megabytes", type=int, default=256, help="the size of x (256)")
    parser.add_argument("--rounds", type=int, help="rounds for each case (10)")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases named so")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for the results")
    options = parser.parse_args()
    cases = [
        case
        for case in all_cases(options.megabytes << 20, options.quick)
        if options.only in case.name
    ]
    rounds = options.rounds or (3 if options.quick else 10)
    write(measure(TorchDevice(), cases, rounds, CONTESTANTS), options.output)


def measure(
    device: Device, cases: list[Case], rounds: int, contestants: dict[str, Maker]
) -> dict[str, Any]:
    """Return what each contestant takes for each case, the contestants taking turns."""
    today = datetime.date.today().isoformat()
    records = [_measured(device, case, rounds, contestants) for case in cases]
    return {"device": device.description() | {"date": today}, "records": records}


def _measured(
    device: Device, case: Case, rounds: int, contestants: dict[str, Maker]
) -> dict[str, Any]:
    arrays = Arrays(device, case)
    calls = {name: make(case, arrays) for name, make in contestants.items()}
    ready = {name: call for name, call in calls.items() if call is not None}
    times: dict[str, list[float]] = {name: [] for name in ready}
    for call in ready.values():
        device.seconds(call)  # which compiles it, and fills the caches
    for _ in range(rounds):
        for name, call in ready.items():
            times[name].append(device.seconds(call))
    seconds = {name: statistics.median(those) for name, those in times.items()}
    print(
        case.name, {name: f"{case.bytes_moved / s / 1e9:.0f} GB/s" for name, s in seconds.items()}
    )
    host = device.host_seconds(ready[OWN])
    moved = case.bytes_moved
    return {**case._asdict(), "bytes_moved": moved, "seconds": seconds, "host_seconds": host}


def write(result: dict[str, Any], folder: Path) -> None:
    """Write both files, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("gpu.json", json.dumps(result, indent=1)), ("gpu.md", markdown(result))):
        with appearing(folder / name) as file:
            file.write(f"{text}\n".encode())


if __name__ == "__main__":
    main()
