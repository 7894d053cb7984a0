"""Compile what the benchmarks call, two at a time, before asv times them one after the other."""

import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

# They call most kernels. `ratios` comes last: it leaves its process with one thread, for which
# other kernels are compiled.
SUITES = ("norms", "weighted", "moments", "moving", "recurrent", "ratios")


def main() -> None:
    """Run the `setup` of every benchmark of these suites."""
    sys.path.insert(0, str(Path(__file__).parent))
    chosen = [benchmarks for suite in SUITES for benchmarks in _of_suite(suite)]
    with ProcessPoolExecutor(2) as pool:
        for benchmarks in chosen:
            pool.submit(_compile, *benchmarks)


def _of_suite(suite: str) -> list[tuple[str, str, list[tuple[Any, ...]]]]:
    """Return each class of a suite with all combinations for one value of its first parameter."""
    found = []
    # What this commit cannot import yet it does not compile.
    with suppress(ImportError, AttributeError):
        module = import_module(f"benchmarks.{suite}")
        for name, kind in vars(module).items():
            own = getattr(kind, "__module__", None) == module.__name__
            if own and hasattr(kind, "params") and not name.startswith("_"):
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
