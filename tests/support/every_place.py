"""Prints a digest of each norm in each place, each public signature, and the text of each error.

A place is a library or a program in which the norms are called: arrays of NumPy, Dask and xarray,
autograd, JAX, compiled functions, estimators, and the command line. To see what a change of the
package changes, compare the output before and after::

    python tests/support/every_place.py > after.txt

A line has the words of a case, and the hash of all bytes of its results or the error that it
raises. ``--only PLACE ...`` prints the cases of some places, among them `signatures` and `errors`.
Places whose library is missing are left out.
"""

import argparse
import contextlib
import functools
import hashlib
import importlib
import inspect
import itertools
import os
import pkgutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import places

import numnorm

TESTS = Path(__file__).parents[1]
SHAPE = 12, 8, 6
NORMS: dict[str, dict[str, Any]] = {
    "layer_norm": {},
    "rms_norm": {},
    "ada_norm": {},
    "standard_normal_variate": {},
    "weight_norm": {"axis": (1, 2)},
    "group_norm": {"groups": 2},
    "instance_norm": {},
    "batch_norm": {},
    "moving_norm": {"window": 5, "axis": 0},
    "moving_robust_norm": {"window": 5, "axis": 0},
    "exponential_norm": {"alpha": 0.2, "axis": 0},
}
MOVING = "moving_norm", "moving_robust_norm", "exponential_norm"
# A gain, or a gain and a bias, and the axes of x that they have.
PARAMETERS = {"layer_norm": (2, 2), "rms_norm": (1, 2), "weight_norm": (1, 0)}
PARAMETERS |= dict.fromkeys(("group_norm", "instance_norm", "batch_norm"), (2, 1))
CELLS = "lstm", "gru", "rnn"

Case = tuple[str, Callable[[], Any]]


class Data:
    """Arrays for a norm, the same ones in every process."""

    def __init__(self, dtype: str) -> None:
        rng = np.random.default_rng(3)
        self.x, self.dy = ((rng.standard_normal(SHAPE) + c).astype(dtype) for c in (5, 0))
        self.mask = rng.random(SHAPE) > 0.2
        self.weights = rng.random(SHAPE) + 0.1
        self.holed = np.where(self.mask, self.x, np.array(np.nan, dtype))
        self.labels = np.repeat([0, 1, 2], SHAPE[0] // 3)
        self.parameters = rng.standard_normal((2, max(SHAPE))).astype(dtype)

    def of(self, kind: str, convert: Callable[[Any], Any]) -> tuple[Any, dict[str, Any]]:
        """Return x, and the keywords of one kind for missing values, weights or labels."""
        keywords = {
            "plain": {},
            "where": {"where": self.mask},
            "weights": {"weights": self.weights},
            "nan_policy": {"nan_policy": "omit"},
            "labels": {"labels": self.labels},
        }[kind]
        x = self.holed if kind == "nan_policy" else self.x
        arrays = "where", "weights"
        return convert(x), {k: convert(v) if k in arrays else v for k, v in keywords.items()}

    def parameters_of(self, norm: str) -> list[Any]:
        """Return the gain, and the bias, if the norm has them."""
        count, axis = PARAMETERS.get(norm, (0, 0))
        return list(self.parameters[:count, : SHAPE[axis]])


def kinds_of(norm: str) -> list[str]:
    """Return the kinds of keywords that a norm takes beside its own."""
    weights = [] if norm in MOVING else ["weights"]
    labels = ["labels"] if norm == "batch_norm" else []
    return ["plain", "where", *weights, "nan_policy", *labels]


def combinations(dtypes: tuple[str, ...] = ("float64",)) -> Iterator[tuple[str, str, Data]]:
    """Yield each norm with each kind of keywords, and arrays of each dtype."""
    for norm, dtype in itertools.product(NORMS, dtypes):
        for kind in kinds_of(norm):
            yield norm, kind, data_of(dtype)


@functools.cache
def data_of(dtype: str) -> Data:
    """Return the arrays of a dtype."""
    return Data(dtype)


def options_of(norm: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the norm's own arguments: by position and by keyword."""
    options = dict(NORMS[norm])
    given = [options.pop(name) for name in ("window", "alpha") if name in options]
    return given, options


def in_numpy() -> Iterator[Case]:
    """The functions of `numnorm` on arrays: forward and backward, two layouts, several dtypes."""
    layouts = {"C": np.ascontiguousarray, "F": np.asfortranarray}
    for norm, kind, data in combinations(("float16", "float32", "float64")):
        for layout, convert in layouts.items():
            words = f"{norm} {kind} {data.x.dtype} {layout}"
            yield words, functools.partial(numpy_results, norm, kind, data, convert)


def numpy_results(norm: str, kind: str, data: Data, convert: Callable[[Any], Any]) -> Any:
    """Return the results of all functions of a norm."""
    x, keywords = data.of(kind, convert)
    given, options = options_of(norm)
    parameters = data.parameters_of(norm)
    results = [getattr(numnorm, norm)(x, *given, *parameters, **options, **keywords)]
    if hasattr(numnorm, f"{norm}_forward"):
        forward = getattr(numnorm, f"{norm}_forward")
        backward = getattr(numnorm, f"{norm}_backward")
        y, *saved = forward(x, *given, *parameters, **options, **keywords)
        dy = convert(data.dy)
        if norm in MOVING:
            results.append(backward(dy, x, *saved, *given, **options, **keywords))
        else:
            results.append(backward(dy, x, *saved, *parameters[:1], **options, **keywords))
        results += [y, *saved]
    if hasattr(numnorm, f"{norm}_step"):
        step = getattr(numnorm, f"{norm}_step")
        first, state = step(x, *given, **options, **keywords)
        results += [first, *step(x, *given, state, **options, **keywords)]
    if norm == "batch_norm":
        moments = numnorm.batch_moments(x, **keywords)
        results += [moments, numnorm.batch_moments(x, after=moments, **keywords)]
    return results


def in_cells() -> Iterator[Case]:
    """The recurrent cells, forward and backward."""
    for kind, norm in itertools.product(CELLS, (None, "layer", "batch")):
        for dtype in ("float32", "float64"):
            yield f"{kind} {norm} {dtype}", functools.partial(cell_results, kind, norm, dtype)


def cell_results(kind: str, norm: str | None, dtype: str) -> Any:
    """Return the results of a cell over a sequence."""
    rnn = importlib.import_module("numnorm.rnn")
    rng = np.random.default_rng(5)
    x = rng.standard_normal((7, 4, 5)).astype(dtype)
    parameters = getattr(rnn, f"{kind}_init")(5, 9, rng=rng, norm=norm, dtype=dtype)
    *results, saved = getattr(rnn, f"{kind}_forward")(x, parameters, norm=norm)
    dy = rng.standard_normal((7, 4, 9)).astype(dtype)
    return [*results, getattr(rnn, f"{kind}_backward")(dy, saved)]


def in_dask() -> Iterator[Case]:
    """Arrays of Dask, whole along the axes of the statistics and divided along all axes."""
    dask_array = importlib.import_module("dask.array")

    def result(norm: str, kind: str, data: Data, chunks: Any) -> Any:
        x, keywords = data.of(kind, lambda a: dask_array.from_array(a, chunks=chunks))
        given, options = options_of(norm)
        arguments = *given, *data.parameters_of(norm)
        results = getattr(numnorm, norm)(x, *arguments, **options, **keywords)
        return importlib.import_module("dask").compute(results, scheduler="synchronous")

    for norm, kind, data in combinations():
        for words, chunks in (("whole", SHAPE), ("divided", (5, 3, 4))):
            yield f"{norm} {kind} {words}", functools.partial(result, norm, kind, data, chunks)


def in_places(library: str, *names: str) -> Iterator[Case]:
    """The calls of `places.py` in the places of a library."""
    importlib.import_module(library)
    for case, name in itertools.product(places.cases(), names):
        yield f"{case} {name}", functools.partial(places.PLACES[name], case)


def in_autograd() -> Iterator[Case]:
    """Values and gradients of `numnorm.autograd`."""
    grad = importlib.import_module("autograd").grad
    functions = importlib.import_module("numnorm.autograd")

    def result(norm: str, kind: str, data: Data) -> Any:
        x, keywords = data.of(kind, np.asarray)
        given, options = options_of(norm)

        def value(x: Any, *parameters: Any) -> Any:
            found = getattr(functions, norm)(x, *given, *parameters, **options, **keywords)
            return found[0] if isinstance(found, tuple) else found

        parameters = data.parameters_of(norm)
        gradients = grad(
            lambda *arrays: (value(*arrays) * data.dy)[data.mask].sum(),
            argnum=tuple(range(1 + len(parameters))),
        )
        return [value(x, *parameters), *gradients(x, *parameters)]

    for norm, kind, data in combinations():
        yield f"{norm} {kind}", functools.partial(result, norm, kind, data)


def in_sklearn() -> Iterator[Case]:
    """The estimators."""
    estimators = importlib.import_module("numnorm.sklearn")

    def result(name: str, data: Data, policy: str) -> Any:
        x = (data.holed if policy == "omit" else data.x).reshape(SHAPE[0], -1)
        estimator = getattr(estimators, name)(nan_policy=policy)
        y = estimator.fit_transform(x)
        back = hasattr(estimator, "inverse_transform")
        return [y, *([estimator.inverse_transform(y)] if back else [])]

    for name, dtype in itertools.product(estimators.__all__, ("float32", "float64")):
        for policy in ("propagate", "omit"):
            words = f"{name} {dtype} {policy}"
            yield words, functools.partial(result, name, data_of(dtype), policy)


def in_command() -> Iterator[Case]:
    """`numnorm apply` from one .npy file to another."""
    main = importlib.import_module("numnorm.__main__").main

    def result(norm: str, kind: str, data: Data) -> Any:
        x, _ = data.of(kind, np.asarray)
        words: list[str] = []
        for name, value in NORMS[norm].items():
            words += [f"--{name}", *map(str, np.atleast_1d(value))]
        words += ["--nan-policy", "omit"] if kind == "nan_policy" else []
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            np.save("x.npy", x)
            with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
                status = main(["apply", norm, "x.npy", "y.npy", *words])
            return [np.array(status), np.load("y.npy")]

    for norm, kind, data in combinations(("float32", "float64")):
        if kind in ("plain", "nan_policy") and norm != "weight_norm":
            yield f"{norm} {kind} {data.x.dtype}", functools.partial(result, norm, kind, data)


def modules() -> Iterator[Any]:
    """Yield `numnorm` and the public modules of its first level."""
    yield numnorm
    for found in pkgutil.iter_modules(numnorm.__path__):
        if not found.name.startswith("_"):
            with contextlib.suppress(ImportError):
                module = importlib.import_module(f"numnorm.{found.name}")
                if hasattr(module, "__all__"):
                    yield module


def in_signatures() -> Iterator[Case]:
    """The signature of each public function and class, as text."""

    def signature(value: Any) -> str:
        try:
            return str(inspect.signature(value))
        except ValueError:
            return "none"

    for module in modules():
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                yield f"{module.__name__}.{name}", functools.partial(signature, value)


class Errors:
    """A plugin of pytest that prints the text of each error that a test expects."""

    def pytest_runtest_call(self, item: Any) -> None:
        """Remember the test, to whose name its errors belong."""
        self.test = item.nodeid
        self.number = 0

    def pytest_configure(self, config: Any) -> None:
        """Have `pytest.raises` tell what it has caught."""
        raises = importlib.import_module("_pytest.raises").RaisesExc
        leave = raises.__exit__

        def told(context: Any, kind: Any, error: Any, traceback: Any) -> Any:
            if error is not None and hasattr(self, "test"):
                text = f"{kind.__name__}: {error}".replace("\n", "\\n")
                print(f"\nERROR {self.test} {self.number}\t{text}", file=sys.__stdout__)
                self.number += 1
            return leave(context, kind, error, traceback)

        raises.__exit__ = told


def in_errors() -> Iterator[Case]:
    """The text of each error in tests/api."""
    program = "import sys, pytest, every_place; "
    program += "pytest.main(sys.argv[1:], plugins=[every_place.Errors()])"
    ended = subprocess.run(
        [sys.executable, "-c", program, "-q", "-s", "-p", "no:cacheprovider", "tests/api"],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        check=False,
        text=True,
    )
    for line in ended.stdout.splitlines():
        if line.startswith("ERROR "):
            words, _, text = line.removeprefix("ERROR ").partition("\t")
            yield words, functools.partial(str, text)


def listed(results: Any) -> Iterator[Any]:
    """Yield all arrays and texts among results, some of which are tuples, lists or None."""
    if isinstance(results, tuple | list):
        for result in results:
            yield from listed(result)
    elif results is not None:
        yield results


def digest(results: Any) -> str:
    """Return a text as it is, or a hash of the bytes, shapes and dtypes of arrays."""
    if isinstance(results, str):
        return results
    hashed = hashlib.sha256()
    for result in listed(results):
        array = np.asarray(result)
        hashed.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
    return hashed.hexdigest()[:16]


PLACES: dict[str, Callable[[], Iterator[Case]]] = {
    "numpy": in_numpy,
    "cells": in_cells,
    "dask": in_dask,
    "xarray": functools.partial(in_places, "xarray", "xarray", "xarray, lazy"),
    "autograd": in_autograd,
    "jax": functools.partial(in_places, "jax", "JAX"),
    "njit": functools.partial(in_places, "numba", "njit"),
    "sklearn": in_sklearn,
    "command": in_command,
    "signatures": in_signatures,
    "errors": in_errors,
}


def lines(place: str) -> Iterator[str]:
    """Yield the lines of a place; one that says what is missing, if its library is."""
    try:
        cases = list(PLACES[place]())
    except ImportError as error:
        yield f"{place}: left out, as {error.name} is missing"
        return
    for words, results in cases:
        try:
            found = digest(results())
        except Exception as error:  # the text of any error is what is compared
            found = f"raises {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        yield f"{place}: {words}: {found}"


def main() -> None:
    """Print the lines of the chosen places."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=PLACES, default=list(PLACES))
    for place in parser.parse_args().only:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for line in lines(place):
                print(line, flush=True)


if __name__ == "__main__":
    main()
