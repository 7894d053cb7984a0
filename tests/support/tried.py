"""Which Pythons numnorm was tried on, on which platforms and how: a file of records, and a table.

``python tests/support/tried.py record --how native --what "tests of accuracy"`` is run by the
Python that was tried, after its tests have passed; ``python tests/support/tried.py write`` writes
the tables in docs/install.md. Neither needs more than the standard library.
"""

import argparse
import csv
import datetime
import importlib.metadata
import platform
import re
import sys
import sysconfig
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
RECORDS = DOCS / "tried.csv"
PAGE = DOCS / "install.md"
BEGIN = "<!-- tests/support/tried.py writes these tables: begin -->\n"
END = "<!-- tests/support/tried.py writes these tables: end -->\n"
FIELDS = ["python", "platform", "how", "version", "numpy", "numba", "date", "what"]
# One record for each of these: a new one takes the place of the old one.
KEY = FIELDS[:3]
HOW = ["native", "emulated", "simulated"]
# Those for which NumPy, SciPy and Numba have wheels; others are added where they were tried.
PLATFORMS = ["Linux x86_64", "Linux aarch64", "macOS arm64", "Windows AMD64"]


def this_platform() -> str:
    """Return the system and the processor's architecture, as Python names them."""
    system = "macOS" if platform.system() == "Darwin" else platform.system()
    return f"{system} {platform.machine()}"


def this_python() -> str:
    """Return the version as the names of wheels have it, with a t for a free-threaded Python."""
    free_threaded = sysconfig.get_config_var("Py_GIL_DISABLED")
    return f"{sys.version_info.major}.{sys.version_info.minor}{'t' if free_threaded else ''}"


def records() -> list[dict[str, str]]:
    """Return the records, as `record` has sorted them: by Python and platform."""
    with RECORDS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def order(record: dict[str, str]) -> list[object]:
    """Return what records are sorted by."""
    return [python_order(record["python"]), *(record[name] for name in KEY[1:])]


def python_order(python: str) -> tuple[list[int], str]:
    """Return what versions of Python are sorted by."""
    return [int(number) for number in re.findall(r"\d+", python)], python


def record(how: str, what: str, on: str) -> None:
    """Write that this Python was tried into the file."""
    version = importlib.metadata.version
    new = dict.fromkeys(FIELDS, "") | {
        "python": this_python(),
        "platform": on,
        "how": how,
        "version": platform.python_version(),
        "numpy": version("numpy"),
        "numba": version("numba"),
        "date": datetime.date.today().isoformat(),
        "what": what,
    }
    others = [old for old in records() if any(old[name] != new[name] for name in KEY)]
    with RECORDS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*others, new], key=order))


def tables() -> str:
    """Return the tables of all records: one of how, and one of what."""
    tried = records()
    pythons = sorted({each["python"] for each in tried}, key=python_order)
    platforms = [*PLATFORMS, *sorted({each["platform"] for each in tried} - {*PLATFORMS})]
    cells = []
    for python in pythons:
        ways = {on: [] for on in platforms}
        for each in tried:
            if each["python"] == python:
                ways[each["platform"]].append(each["how"])
        cells.append([f"Python {python}", *(", ".join(w) or "not tried" for w in ways.values())])
    runs = []
    for each in tried:
        version = each["version"] + "t" * each["python"].endswith("t")
        columns = ("platform", "how", "numpy", "numba", "date", "what")
        runs.append([version, *(each[name] for name in columns)])
    heads = ["Python", "platform", "how", "NumPy", "Numba", "date", "what ran"]
    return f"{_table(['', *platforms], cells)}\n\n{_table(heads, runs)}\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    ruled = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled)


def page() -> str:
    """Return the text of the page, with the tables of what is recorded."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="write the tables in docs/install.md")
    tried = commands.add_parser("record", help="record that this Python was tried")
    tried.add_argument("--how", required=True, choices=HOW)
    tried.add_argument("--what", required=True, help="what ran, in a few words")
    tried.add_argument(
        "--platform", default=this_platform(), help="for a platform that is simulated on this one"
    )
    options = parser.parse_args()
    if options.command == "write":
        PAGE.write_text(page(), "utf-8")
    else:
        record(options.how, options.what, options.platform)


if __name__ == "__main__":
    main()
