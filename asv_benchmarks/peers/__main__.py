"""Compare numnorm with its peers: ``python -m peers --help``."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from numnorm.commands.outputs import appearing, check_writable
from numnorm.commands.terminal import CommandError, progress_bar

from . import machine
from .cases import Case, all_cases
from .libraries import LIBRARIES
from .picture import draw
from .report import markdown
from .rounds import compare

RESULTS = Path(__file__).parent / "results"
FILES = ("peers.json", "peers.md", "peers.png")


def main() -> None:
    """Time, then write ``peers.json``, ``peers.md`` and ``peers.png``."""
    options = _options()
    cases = [case for case in all_cases(options.quick) if any(t in case.name for t in options.only)]
    if not cases:
        texts = " or ".join(map(repr, options.only))
        raise SystemExit(f"--only: no case has {texts} in its name; --list lists them")
    if options.list:
        print(*(case.name for case in cases), sep="\n")
        return
    directory = options.output or RESULTS / _folder(options)
    try:
        _check(directory)
    except (OSError, CommandError) as error:
        raise SystemExit(f"--output: {error}") from None
    rounds = options.rounds or (3 if options.quick else 20)
    result, whole = _compare(cases, options.libraries, options.threads, rounds)
    if result["records"]:
        # An interrupted comparison must not replace complete results.
        _write(result, directory if whole or directory != RESULTS else RESULTS / "partial")
    if not whole:
        raise SystemExit(130)


def _folder(options: argparse.Namespace) -> str:
    """Return the folder of the results; partial comparisons have their own."""
    if options.quick:
        return "quick"
    all_of_it = options.only == [""] and options.libraries == list(LIBRARIES)
    return "" if all_of_it and options.threads == [1, 2] else "partial"


def _check(directory: Path) -> None:
    """Raise if the results cannot be written, before anything is timed."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        check_writable(directory / name)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few shapes and 3 rounds")
    parser.add_argument("--rounds", type=_positive, help="rounds for each case (20)")
    parser.add_argument("--threads", type=_positive, nargs="+", default=[1, 2], help="(1 2)")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="the cases named so, or so"
    )
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
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, got {text}")
    return int(text)


def _compare(
    cases: list[Case], libraries: list[str], threads: list[int], rounds: int
) -> tuple[dict[str, Any], bool]:
    """Return the results, and whether they are complete: Ctrl-C ends the comparison early."""
    whole = False
    result: dict[str, Any] = {"machine": machine.description(), "rounds": rounds}
    result |= {"libraries": {}, "records": []}
    with progress_bar("Timing", len(cases) * len(threads)) as advance, suppress(KeyboardInterrupt):
        for greetings, records in compare(cases, libraries, threads, rounds, advance):
            result["libraries"] |= greetings
            result["records"] += records
        whole = True
    return result, whole


def _write(result: dict[str, Any], directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    json_file, table, picture = (directory / name for name in FILES)
    with appearing(json_file) as file:
        file.write(json.dumps(result, indent=1).encode())
    with appearing(table) as file:
        file.write(markdown(result).encode())
    with appearing(picture) as file:
        draw(result["records"], file)
    print(f"{directory}: {', '.join(FILES)}", file=sys.stderr)


if __name__ == "__main__":
    main()
