"""Faults that the default tests must find: ``python tests/project/mutations.py [NUMBER ...]``.

Each fault changes one line of a kernel or a formula in a copy of the package. The tests of
`tests/support/default_tests.py` then run on the copy, up to the first that fails. The program
prints which test finds each fault, and ends with status 1 if one is not found. All take half an
hour.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = REPOSITORY / "tests" / "support" / "default_tests.py"


class Mutation(NamedTuple):
    """A fault: in a file, `before` stands once, and `after` in its place is wrong."""

    fault: str
    file: str
    before: str
    after: str


FORMULAS, CPU = "backends/formulas", "backends/cpu"
MUTATIONS = [
    Mutation(
        "the rounding error of a mean is lost",
        f"{FORMULAS}/norms.py",
        "return multiply_add(deviation, rstd, -(mean_lo * rstd))",
        "return multiply_add(deviation, rstd, -(0 * mean_lo * rstd))",
    ),
    Mutation(
        "a variance is taken around the pivot instead of the mean",
        f"{FORMULAS}/norms.py",
        "return second - first * mean_lo",
        "return second - 0 * first * mean_lo",
    ),
    Mutation(
        "a constant row without epsilon is divided by 1",
        f"{FORMULAS}/norms.py",
        "if deviation == 0.0:\n        return 0.0",
        "if deviation == 0.0:\n        return 1.0",
    ),
    Mutation(
        "dx has a wrong sign in one of its terms",
        f"{FORMULAS}/norms.py",
        "return rstd * (g - mean_g - xhat * mean_g_xhat)",
        "return rstd * (g - mean_g + xhat * mean_g_xhat)",
    ),
    Mutation(
        "dx of a channel lacks a term",
        f"{FORMULAS}/norms.py",
        "* rstd * xhat_factor - offset",
        "* rstd * xhat_factor - 0 * offset",
    ),
    Mutation(
        "the distance between groups counts half in their variance",
        f"{FORMULAS}/norms.py",
        "between = half * (4.0",
        "between = half * (2.0",
    ),
    Mutation(
        "a running statistic without weight spreads a NaN",
        f"{FORMULAS}/norms.py",
        "(new * weight if weight > 0.0 else 0.0)",
        "new * weight",
    ),
    Mutation(
        "the gradient of an LSTM's candidate is wrong",
        f"{FORMULAS}/cells.py",
        "dg = dc * i * (one - g * g)",
        "dg = dc * i * (one - g)",
    ),
    Mutation(
        "a GRU keeps what it must forget",
        f"{FORMULAS}/cells.py",
        "return keep * h_prev + (one - keep) * candidate",
        "return (one - keep) * h_prev + keep * candidate",
    ),
    Mutation(
        "zoneout passes no gradient to the previous state",
        f"{FORMULAS}/cells.py",
        "return dy - mask * dy, mask * dy",
        "return dy - mask * dy, 0 * mask * dy",
    ),
    Mutation(
        "sums of a moving window are moved wrongly to another pivot",
        f"{FORMULAS}/moving.py",
        "return moved, multiply_add(distance, first + moved, second)",
        "return moved, multiply_add(distance, first + first, second)",
    ),
    Mutation(
        "a tie of the quantile method nearest is rounded up",
        f"{FORMULAS}/order.py",
        "(share == 0.5 and lower % 2 == 1)",
        "share == 0.5",
    ),
    Mutation(
        "gain has no gradient from the last elements of a row",
        f"{CPU}/statistics/accumulators.py",
        "    if partial is not None:\n        total += partial",
        "    if partial is not None:\n        total[..., :-1] += partial[..., :-1]",
    ),
    Mutation(
        "compiled partial sums of a gradient are added twice",
        f"{CPU}/statistics/accumulators.py",
        "        total[j] += partial[j]\n        partial[j] = 0",
        "        total[j] += partial[j]",
    ),
    Mutation(
        "a channel norm omits the rows after the last group of rows",
        f"{CPU}/columns/loops.py",
        "                end = whole * width + shift\n            else:",
        "                end = begin\n            else:",
    ),
    Mutation(
        "the variance of a channel whose squares vanish is not computed again",
        f"{CPU}/columns/moments_kernels.py",
        "wrong += 0 if (least < squares) & (squares < np.inf) else 1",
        "wrong += 0",
    ),
    Mutation(
        "an element without weight counts in a weighted norm",
        f"{CPU}/weighted/row_forward.py",
        "deviation = where_kept(deviation, counted, values, omit)",
        "deviation = where_kept(deviation, None, values, omit)",
    ),
    Mutation(
        "the gradient of a window at the beginning is that of a whole window",
        f"{CPU}/moving/window_kernels.py",
        "inverse = 1.0 / min(i - origin + 1, window)",
        "inverse = 1.0 / window",
    ),
    Mutation(
        "an exponential norm forgets too slowly",
        f"{CPU}/moving/exponential_kernels.py",
        "        older = (1.0 - alpha) * weight\n",
        "        older = (1.0 - alpha * alpha) * weight\n",
    ),
    Mutation(
        "columns of a sparse matrix lose the values after the last four",
        f"{CPU}/sparse/kernels.py",
        "for k in range(stop - (stop - begin) % 4, stop):",
        "for k in range(stop, stop):",
    ),
    Mutation(
        "selection of an order statistic counts equal elements as smaller",
        f"{CPU}/order/selection.py",
        "            k -= below + equal",
        "            k -= below",
    ),
    Mutation(
        "a bfloat16 is truncated instead of rounded",
        f"{CPU}/simd/element_type.py",
        "rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1)))",
        "rounded = (bits + np.uint64(0x0000) + ((bits >> np.uint64(16)) & np.uint64(0)))",
    ),
    Mutation(
        "a compiled vector loses its last lane in a sum",
        f"{CPU}/simd/vector.py",
        "indices(range(half, 2 * half))",
        "indices([*range(half, 2 * half - 1), half])",
    ),
    Mutation(
        "compiled tails of products of matrices are wrong",
        f"{CPU}/recurrent/matmul.py",
        "masked_load(a[k], left, 0, count)",
        "masked_load(a[k], left, 0, count - 1)",
    ),
    Mutation(
        "a line of a result that is written around the caches is stored one element too late",
        f"{CPU}/memory/nontemporal.py",
        "return skipped, stop - full, base + full",
        "return skipped, stop - full, base + full + 1",
    ),
    Mutation(
        "the part of a thread begins one row too late",
        f"{CPU}/rows/forward_kernel.py",
        "start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts",
        "start, stop = -(-first * x.shape[0] // parts), last * x.shape[0] // parts",
    ),
]


def mutate(package: Path, mutation: Mutation) -> None:
    """Change the line of a fault in a copy of the package."""
    path = package / mutation.file
    text = path.read_text(encoding="utf-8")
    assert text.count(mutation.before) == 1, f"{mutation.file} has not once: {mutation.before}"
    path.write_text(text.replace(mutation.before, mutation.after), encoding="utf-8")


def finder(mutation: Mutation) -> str | None:
    """Return the first test that fails with a fault; None if all pass."""
    with tempfile.TemporaryDirectory() as folder:
        package = shutil.copytree(
            REPOSITORY / "numnorm",
            Path(folder, "numnorm"),
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        mutate(package, mutation)
        env = {**os.environ, "PYTHONPATH": folder, "NUMBA_CACHE_DIR": str(Path(folder, "kernels"))}
        run = subprocess.run(
            [sys.executable, "-P", PROGRAM, "--first"],
            env=env,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
        )
        if run.returncode == 0:
            return None
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
        return failed[1] if failed else (run.stdout + run.stderr).strip().splitlines()[-1]


def main() -> int:
    """Print which test finds each fault, and return 1 if one is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="only these, from 1 on")
    chosen = parser.parse_args().numbers or range(1, len(MUTATIONS) + 1)
    missed = 0
    for number in chosen:
        mutation = MUTATIONS[number - 1]
        found = finder(mutation)
        missed += found is None
        print(f"{number:3d} {mutation.fault}: {found or 'NOT FOUND'}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
