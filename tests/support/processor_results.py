"""What calls return on one processor, to compare it with what they return on another.

::

    python processor_results.py write FILE.npz   # on each of the processors
    python processor_results.py compare ONE.npz OTHER.npz

The norms of rows and channels are the calls of `every_call.py`; they agree to the byte. Moving
norms and cells sum up in other orders with wider registers, and agree closely.
"""

import argparse
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import every_call
import numpy as np

import numnorm
from numnorm.rnn.cells import CELLS

Array = np.ndarray[Any, Any]
# Of the largest value. Tests hold cells to half of this from their definitions.
TOLERANCES = {"float32": 8e-6, "float64": 2e-13}
MOVING = {"moving_norm": 7, "exponential_norm": 0.1}


def calls() -> Iterator[tuple[str, bool, Callable[[], list[Array]]]]:
    """Yield the name of each call, whether its bytes are compared, and what returns its results."""
    for label, case in every_call.CASES.items():
        yield label, True, functools.partial(every_call.results_of, case)
    for dtype in TOLERANCES:
        for name, parameter in MOVING.items():
            for shape, axis in (((97, 37), 0), ((3, 97), 1)):
                call = functools.partial(_moving, name, dtype, parameter, shape, axis)
                yield f"{name} {dtype} {shape}", False, call
        for name in CELLS:
            yield f"{name} {dtype}", False, functools.partial(_cell, name, dtype)


def _moving(name: str, dtype: str, parameter: Any, shape: Any, axis: int) -> list[Array]:
    x, dy = np.random.default_rng(1).normal(size=(2, *shape)).astype(dtype)
    forward, backward = (getattr(numnorm, f"{name}_{way}") for way in ("forward", "backward"))
    y, *saved = forward(x, parameter, axis=axis)
    return [y, *saved, backward(dy, x, *saved, parameter, axis=axis)]


def _cell(name: str, dtype: str) -> list[Array]:
    functions, rng = CELLS[name], np.random.default_rng(1)
    parameters = functions.init(19, 23, rng=rng, dtype=dtype, norm="layer")
    x = rng.normal(size=(11, 7, 19)).astype(dtype)
    states = list(rng.normal(size=(len(functions.kind.states), 7, 23)).astype(dtype))
    y, *last, saved = functions.forward(x, parameters, *states, norm="layer")
    given = functions.backward(np.ones_like(y), saved)
    return [y, *last, *_arrays(given)]


def _arrays(values: Any) -> Iterator[Array]:
    """Yield the arrays in nested tuples."""
    if isinstance(values, np.ndarray):
        yield values
    elif isinstance(values, tuple):
        for value in values:
            yield from _arrays(value)


def write(path: Path) -> None:
    """Write all results into a file, and the names of the calls."""
    arrays, names = {}, []
    for label, exact, call in calls():
        found = call()
        names.append((label, exact, [str(array.dtype) for array in found]))
        for number, array in enumerate(found):
            bytes_only = array.dtype.kind == "V"  # bfloat16, which the file does not know
            arrays[f"{label} {number}"] = array.view(np.uint16) if bytes_only else array
    np.savez(path, calls=np.array(json.dumps(names)), **arrays)


def compare(one: Path, other: Path) -> bool:
    """Print how far the results of two files differ; return whether any differ by too much."""
    with np.load(one) as first, np.load(other) as second:
        assert first.files == second.files, "results of different calls"
        names = json.loads(str(first["calls"]))
        failed, same, most = [], 0, dict.fromkeys(TOLERANCES, 0.0)
        for label, exact, dtypes in names:
            for number, dtype in enumerate(dtypes):
                a, b = (file[f"{label} {number}"] for file in (first, second))
                if exact:
                    equal = a.tobytes() == b.tobytes()
                    same += equal
                else:
                    dtype_of_call = label.split()[1]
                    difference = float(abs(a - b).max() / abs(a).max())
                    most[dtype_of_call] = max(most[dtype_of_call], difference)
                    equal = difference <= TOLERANCES[dtype_of_call]
                if not equal:
                    failed.append(f"{label}, result {number} ({dtype})")
    print(f"{len(names)} calls; {same} arrays of rows and channels have the same bytes")
    for dtype, difference in most.items():
        print(f"moving norms and cells, {dtype}: differ by {difference:.1e} of the largest value")
    print(*(f"DIFFERS: {name}" for name in failed), sep="\n", end="")
    return bool(failed)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write").add_argument("file", type=Path)
    compared = commands.add_parser("compare")
    compared.add_argument("one", type=Path)
    compared.add_argument("other", type=Path)
    options = parser.parse_args()
    if options.command == "write":
        write(options.file)
    else:
        raise SystemExit(compare(options.one, options.other))


if __name__ == "__main__":
    main()
