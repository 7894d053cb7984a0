"""Compile what the benchmarks call, two at a time, before asv times them one after the other."""

import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

SUITES = ("norms", "ratios", "weighted", "moments", "moving", "recurrent")


def main() -> None:
    """Run the `setup` of every benchmark."""
    sys.path.insert(0, str(Path(__file__).parent))
    chosen = [benchmarks for suite in SUITES for benchmarks in _of_suite(suite)]
    with ProcessPoolExecutor(2) as pool:
        for benchmarks in chosen:
            pool.submit(_compile, *benchmarks)


def _of_suite(suite: str) -> list[tuple[str, str, list[tuple[Any, ...]]]]:
    """Return the classes of a suite with combinations of parameters, one list for each first."""
    found = []
    # What this commit cannot import yet it does not compile.
    with suppress(ImportError, AttributeError):
        module = import_module(f"benchmarks.{suite}")
        for name, kind in vars(module).items():
            if getattr(kind, "__module__", None) == module.__name__ and hasattr(kind, "params"):
                lists = kind.params if isinstance(kind.params[0], list) else (kind.params,)
                first, *others = lists
                found += [(suite, name, list(product([one], *others))) for one in first]
    return found


def _compile(suite: str, name: str, combinations: list[tuple[Any, ...]]) -> None:
    for combination in combinations:
        # asv reports what fails or is skipped.
        with suppress(Exception):
            getattr(import_module(f"benchmarks.{suite}"), name)().setup(*combination)


if __name__ == "__main__":
    main()
