"""Compare numnorm with its peers: ``python -m peers --help``."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from numnorm.commands.progress import progress_bar
from numnorm.commands.wholefile import appearing

from . import machine
from .cases import Case, all_cases
from .libraries import LIBRARIES
from .picture import draw
from .report import markdown
from .rounds import compare

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Time, then write ``peers.json``, ``peers.md`` and ``peers.png``."""
    options = _options()
    cases = [case for case in all_cases(options.quick) if options.only in case.name]
    if not cases:
        raise SystemExit(f"--only: no case has {options.only!r} in its name; --list lists them")
    if options.list:
        print(*(case.name for case in cases), sep="\n")
        return
    rounds = options.rounds or (3 if options.quick else 20)
    result = _compare(cases, options.libraries, options.threads, rounds)
    directory = options.output or (RESULTS / "quick" if options.quick else RESULTS)
    _write(result, directory)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few shapes and 3 rounds")
    parser.add_argument("--rounds", type=_positive, help="rounds for each case (20)")
    parser.add_argument("--threads", type=_positive, nargs="+", default=[1, 2], help="(1 2)")
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases named so")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--output", type=Path, help="the folder for the results")
    parser.add_argument(
        "--libraries",
        nargs="+",
        default=list(LIBRARIES),
        help=f"of {', '.join(LIBRARIES)}, or a module of your own like those in libraries/",
    )
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _compare(
    cases: list[Case], libraries: list[str], threads: list[int], rounds: int
) -> dict[str, Any]:
    """Return all that was found out; after Ctrl-C, what was found out until then."""
    result: dict[str, Any] = {"machine": machine.description(), "rounds": rounds}
    result |= {"libraries": {}, "records": []}
    with progress_bar("Timing", len(cases) * len(threads)) as advance, suppress(KeyboardInterrupt):
        for greetings, records in compare(cases, libraries, threads, rounds, advance):
            result["libraries"] |= greetings
            result["records"] += records
    return result


def _write(result: dict[str, Any], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with appearing(directory / "peers.json") as file:
        file.write(json.dumps(result, indent=1).encode())
    with appearing(directory / "peers.md") as file:
        file.write(markdown(result).encode())
    with appearing(directory / "peers.png") as file:
        draw(result["records"], file)
    print(f"{directory}: peers.json, peers.md, peers.png", file=sys.stderr)


if __name__ == "__main__":
    main()
