"""Each norm in each place with each keyword: calls, and the page that says what works where.

A place is a library or a compiler in whose functions or with whose arrays the norms are called. The
norms and their keywords are read from the declarations. ``python tests/support/places.py`` writes
the page.
"""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import numnorm
from numnorm.derived import parameters_of
from numnorm.norms.declared import SPECS
from numnorm.norms.spec import COUNTING, NormSpec

DIMS = "a", "b", "c"
KEYWORDS = *COUNTING, "times"
"""The keywords with which norms are called."""

# What each family is called with, beside the arguments that a norm requires.
_OF_FAMILY: dict[str, dict[str, Any]] = {
    "rows": {"axis": -1},
    "groups": {},
    "channels": {},
    "windows": {"axis": 0},
    "decay": {"axis": 0},
}
# The dimensions that xarray's functions take in the place of axes.
_DIMS = {
    "rows": {"dim": "c"},
    "groups": {"channel_dim": "b", "dim": "c"},
    "channels": {"channel_dim": "b"},
    "windows": {"dim": "a"},
    "decay": {"dim": "a"},
}

Results = list[Any]


class Case(NamedTuple):
    """A call of a norm with one keyword.

    Attributes
    ----------
    spec : NormSpec
    keyword : str
        One of `KEYWORDS`, or "" for none.
    seed : int
        0 for arrays in which all that shares statistics has values; with another one, lengths, what
        is left out, labels and chunks are random.
    """

    spec: NormSpec
    keyword: str
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.spec.name} {self.keyword}".strip()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of x; the number of channels is even, for groups of two."""
        if not self.seed:
            return 6, 4, 5
        samples, pairs, width = np.random.default_rng([self.seed, 1]).integers(1, (6, 4, 8))
        return int(samples), 2 * int(pairs), int(width)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The lengths of chunks along each axis."""
        rng = np.random.default_rng([self.seed, 2])
        return (
            (4, 3, 2) if not self.seed else tuple(rng.integers(1, np.add(self.shape, 1)).tolist())
        )

    def mask(self, rng: np.random.Generator) -> Any:
        """Return which elements count: most of them, one alone, or none."""
        kept = rng.random(self.shape) > 0.2
        if not self.seed:
            kept[:, :, -1] = True
            return kept
        kinds = (
            kept,
            np.arange(kept.size).reshape(self.shape) == rng.integers(kept.size),
            kept & False,
        )
        return kinds[rng.choice(3, p=[0.6, 0.2, 0.2])]

    def arguments(self, like: Callable[[Any], Any] = np.asarray) -> dict[str, Any]:
        """Return the arguments of the public function; `like` converts what is as large as x."""
        rng, shape = np.random.default_rng([self.seed, 3]), self.shape
        x, weights = rng.uniform(1, 3, shape), rng.uniform(0, 2, shape)
        mask = self.mask(rng)
        labels = np.array(["b", "a", "b", "a", "b", "c"])
        labels = rng.choice(labels, shape[0]) if self.seed else labels
        keywords: dict[str, dict[str, Any]] = {
            "": {},
            "where": {"where": like(mask)},
            "weights": {"weights": like(weights)},
            "nan_policy": {"nan_policy": "omit"},
            "fill": {"nan_policy": "omit", "fill": -7.0},
            "labels": {"labels": labels},
            "statistics": {"labels": labels},
            "times": {"times": np.cumsum(rng.integers(0, 3, shape[0])).astype(np.float64)},
        }
        own = keywords[self.keyword]
        if self.keyword == "statistics":
            own["statistics"] = numnorm.batch_moments(x + 1, labels=labels)
            own["training"] = False
        if "nan_policy" in own:
            x[~mask] = np.nan
        options = self.options
        if self.keyword == "times" and self.spec.family == "windows":
            options["window"] = 2.5
        elif self.keyword == "times":
            del options["alpha"]
            options["halflife"] = 2.0
        return {"x": like(x), **options, **own}

    @property
    def options(self) -> dict[str, Any]:
        """The options after x by position, those without a default, and those of the family."""
        example = self.spec.example_arguments
        parameters = list(parameters_of(self.spec.function).values())[1:]
        arrays = self.spec.arrays_of(self.spec.function)
        own = {
            p.name
            for p in parameters
            if p.default is p.empty or (p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in arrays)
        }
        options = {name: value for name, value in example.items() if name in own}
        for name in self.spec.constants:
            options[name] = np.sin(np.arange(self.shape[-1]))  # no polynomial, which emsc refuses
        return options | _OF_FAMILY[self.spec.family]

    @property
    def gradient(self) -> Any:
        """The gradient of the result that backward passes get: 0 where the result is NaN."""
        y = self.spec.function(**self.arguments())
        return np.where(np.isfinite(y), np.random.default_rng(5).standard_normal(self.shape), 0.0)

    def backward_arguments(self, arguments: dict[str, Any], saved: Any) -> dict[str, Any]:
        """Return the arguments of the backward pass but dy."""
        taken = arguments | dict(zip(self.spec.saved, saved, strict=True))
        return {n: v for n, v in taken.items() if n in parameters_of(self.spec.backward)}


def cases() -> Iterator[Case]:
    """Yield each norm plain, and with each keyword that it takes."""
    for spec in SPECS:
        taken = parameters_of(spec.function)
        yield Case(spec, "")
        yield from (Case(spec, keyword) for keyword in KEYWORDS if keyword in taken)


def passes(case: Case, like: Callable[[Any], Any] = np.asarray) -> Results:
    """Return y and the gradient of x by the public functions of `numnorm`."""
    arguments = case.arguments(like)
    y, *saved = case.spec.forward(**arguments)
    found = case.spec.backward(like(case.gradient), **case.backward_arguments(arguments, saved))
    return [y, found[0] if isinstance(found, tuple) else found]


# The places


def _dask(case: Case) -> Results:
    lazy = importlib.import_module("dask.array")
    results = passes(case, lambda array: lazy.from_array(array, chunks=case.chunks))
    # Together, as both need the statistics of the forward pass.
    return list(lazy.compute(*results, scheduler="synchronous"))


def _xarray(case: Case, *, chunked: bool) -> Results:
    xarray = importlib.import_module("xarray")
    place = importlib.import_module("numnorm.xarray")

    def like(array: Any) -> Any:
        labelled = xarray.DataArray(array, dims=DIMS)
        return labelled.chunk(dict(zip(DIMS, case.chunks, strict=True))) if chunked else labelled

    arguments = case.arguments(like)
    arguments.pop("axis", None)
    named = arguments | _DIMS[case.spec.family]
    return [getattr(place, case.spec.name)(**named).values]


def _autograd(case: Case) -> Results:
    grad = importlib.import_module("autograd").grad
    norm = getattr(importlib.import_module("numnorm.autograd"), case.spec.name)
    arguments = case.arguments()
    x, dy = arguments.pop("x"), case.gradient
    y = norm(x, **arguments)
    counts = np.isfinite(y)
    gradient = grad(lambda x: (norm(x, **arguments)[counts] * dy[counts]).sum())(x)
    return [y, gradient]


def _jax(case: Case) -> Results:
    jax = importlib.import_module("jax")
    norm = getattr(importlib.import_module("numnorm.jax"), case.spec.name)
    with jax.enable_x64(True):
        arguments = case.arguments(jax.numpy.asarray)
        x, dy = arguments.pop("x"), case.gradient
        forward = jax.jit(lambda x: norm(x, **arguments))
        y = forward(x)
        counts = np.isfinite(np.asarray(y))

        def loss(x: Any) -> Any:
            # Not y[counts]: where nothing counts, JAX would leave the backward pass out.
            return (jax.numpy.where(counts, forward(x), 0.0) * dy).sum()

        gradient = jax.jit(jax.grad(loss))(x)
        return [np.asarray(y), np.asarray(gradient)]


def _array_api(case: Case) -> Results:
    library = importlib.import_module("array_api_strict")
    results = passes(case, library.asarray)
    assert all(type(result) is library.asarray(0.0).__class__ for result in results)
    return [np.asarray(result) for result in results]


def _torch(case: Case) -> Results:
    library = importlib.import_module("torch")
    results = passes(case, library.from_numpy)
    assert all(isinstance(result, library.Tensor) for result in results)
    return [result.numpy() for result in results]


def _njit(case: Case) -> Results:
    numba = importlib.import_module("numba")
    arguments = case.arguments()
    constants = {n: v for n, v in arguments.items() if type(v) in (bool, float, int, str, tuple)}
    arrays = {n: v for n, v in arguments.items() if n not in constants}
    words = [*(f"{n}={v!r}" for n, v in constants.items()), *(f"{n}={n}" for n in arrays)]
    source = f"def call({', '.join(arrays)}):\n    return norm({', '.join(words)})"
    names: dict[str, Any] = {"norm": case.spec.function}
    exec(source, names)
    return [numba.njit(names["call"])(*arrays.values())]


PLACES: dict[str, Callable[[Case], Results]] = {
    "Dask": _dask,
    "xarray": lambda case: _xarray(case, chunked=False),
    "xarray, lazy": lambda case: _xarray(case, chunked=True),
    "autograd": _autograd,
    "array API": _array_api,
    "PyTorch": _torch,
    "JAX": _jax,
    "njit": _njit,
}

ON_DEVICE = "CUDA"
"""Arrays on a device: tests/cuda has their test, on the simulated device."""


# The functions that are no norms


def others(name: str, like: Callable[[Any], Any] = np.asarray) -> Results:
    """Return the results of a function of `numnorm` that is no norm, for arrays by `like`."""
    rng = np.random.default_rng(7)
    x, mean, rstd = rng.normal(5, 2, (6, 4)), rng.normal(size=6), rng.uniform(1, 2, 6)
    if name == "denormalize":
        return [numnorm.denormalize(like(x), like(mean), like(rstd))]
    if name == "quantiles":
        return [numnorm.quantiles(like(x)).median()]
    if name in ("add_layer_norm", "add_rms_norm"):
        return list(getattr(numnorm, name)(like(x), like(x[::-1].copy())))
    moments = numnorm.batch_moments(like(x))
    return [moments.mean, moments.var()]


def _others_of_dask(name: str) -> Results:
    lazy = importlib.import_module("dask.array")
    results = others(name, lambda array: lazy.from_array(array, chunks=2))
    return [each.compute(scheduler="synchronous") for each in results]


def _others_by_name(name: str, *, chunked: bool) -> Results:
    xarray = importlib.import_module("xarray")
    place = importlib.import_module("numnorm.xarray")

    def like(array: Any) -> Any:
        labelled = xarray.DataArray(array, dims=DIMS[: array.ndim])
        return labelled.chunk(a=2) if chunked else labelled

    arrays: list[Any] = []
    others(name, lambda array: arrays.append(like(array)) or array)
    if name == "denormalize":
        return [place.denormalize(*arrays).values]
    moments = place.batch_moments(*arrays, channel_dim="b")
    return [moments.mean.values, moments.var().values]


def _others_in(module: str, name: str) -> Results:
    arrays: list[Any] = []
    others(name, lambda array: arrays.append(array) or array)
    return [np.asarray(getattr(importlib.import_module(module), name)(*arrays))]


def _others_of_jax(name: str) -> Results:
    with importlib.import_module("jax").enable_x64(True):
        return _others_in("numnorm.jax", name)


def _others_like(library: str, convert: str, name: str) -> Results:
    results = others(name, getattr(importlib.import_module(library), convert))
    return [np.asarray(each) for each in results]


_OF_SUMS: dict[str, Callable[[str], Results]] = {
    "Dask": _others_of_dask,
    "array API": lambda name: _others_like("array_api_strict", "asarray", name),
    "PyTorch": lambda name: _others_like("torch", "from_numpy", name),
}

OTHERS: dict[str, dict[str, Callable[[str], Results]]] = {
    "add_layer_norm": _OF_SUMS,
    "add_rms_norm": _OF_SUMS,
    "batch_moments": {
        "Dask": _others_of_dask,
        "xarray": lambda name: _others_by_name(name, chunked=False),
        "xarray, lazy": lambda name: _others_by_name(name, chunked=True),
        "array API": lambda name: _others_like("array_api_strict", "asarray", name),
        "PyTorch": lambda name: _others_like("torch", "from_numpy", name),
    },
    "denormalize": {
        "Dask": _others_of_dask,
        "xarray": lambda name: _others_by_name(name, chunked=False),
        "xarray, lazy": lambda name: _others_by_name(name, chunked=True),
        "autograd": lambda name: _others_in("numnorm.autograd", name),
        "array API": lambda name: _others_like("array_api_strict", "asarray", name),
        "PyTorch": lambda name: _others_like("torch", "from_numpy", name),
        "JAX": _others_of_jax,
    },
    "quantiles": {
        "Dask": _others_of_dask,
        "array API": lambda name: _others_like("array_api_strict", "asarray", name),
        "PyTorch": lambda name: _others_like("torch", "from_numpy", name),
    },
}
"""How functions that are no norms are called in the places that have them."""


# What a place does not do


class Reason(NamedTuple):
    """Why some calls raise in a place.

    Attributes
    ----------
    place : str
    norms : tuple of str
    sentence : str
        It is in the message of the error.
    keyword : str or None
        That of the calls; None for all calls.
    """

    place: str
    norms: tuple[str, ...]
    sentence: str
    keyword: str | None = None


REASONS = tuple(
    Reason(ON_DEVICE, (norm,), f"{norm} is not supported on a device: copy x to the host first")
    for norm in ("emsc", "moving_robust_norm", "pcen", "robust_norm")
)
REASONS += tuple(
    Reason(ON_DEVICE, (norm,), f"times of {norm} is not supported on a device", "times")
    for norm in ("moving_norm", "exponential_norm")
)
OTHERS_ON_DEVICE = {
    "denormalize": "denormalize is not supported on a device: copy y to the host first",
    "quantiles": "quantiles is not supported on a device: copy x to the host first",
}
"""The sentences in the errors of functions that are no norms; the others take device arrays."""


def reason(place: str, case: Case) -> str | None:
    """Return the sentence that the error of a call has; None for a call that works."""
    for each in REASONS:
        if each.place != place or case.spec.name not in each.norms:
            continue
        if each.keyword in (None, case.keyword):
            return each.sentence
    return None


# The page

PAGE = Path(__file__).parents[2] / "docs" / "places.md"
_TOP = """\
<!-- tests/support/places.py writes this page. -->

# What works where

Each norm, in each place, with each keyword for missing values, weights, labels and irregular steps.
All calls that are marked give the results of NumPy's arrays, and the same gradients where a place
has gradients. The tests check each of them, and this page is made from these tests.

## Keywords

{keywords}

`fill` is for what `where` and `nan_policy` leave out; `statistics` are stored ones of labels.

## Places

{places}

And the functions beside the norms:

{others}

A number stands for an error, with the sentence below: beside ✓ some calls raise it, alone all do.
Lazy arrays are those of Dask, in any chunks. JAX means inside `jax.jit` and `jax.grad`, njit a
function that Numba compiles, array API any library that has `from_dlpack`, and CUDA the arrays of
CuPy, PyTorch, JAX and Numba on a device. `numnorm apply` runs all norms on files and takes
`--nan-policy`. `batch_moments` also stands in functions that Numba compiles. It and `batch_norm`
take [sparse matrices](norms/batch.md#sparse-columns) of SciPy. The estimators for scikit-learn are
[listed by themselves](scikit_learn.md).
"""


def page() -> str:
    """Return the text of the page."""
    keywords_of = {case.spec.name: [] for case in cases()}
    for case in cases():
        keywords_of[case.spec.name].append(case.keyword)
    keywords = [
        [f"`{name}`", *("✓" if keyword in taken else "" for keyword in KEYWORDS)]
        for name, taken in keywords_of.items()
    ]
    columns = ["NumPy", *PLACES, ON_DEVICE]
    sentences = [each.sentence for each in REASONS] + list(OTHERS_ON_DEVICE.values())
    numbers = {sentence: n for n, sentence in enumerate(sentences, 1)}
    places = []
    for spec in SPECS:
        row = [f"`{spec.name}`"]
        for place in columns:
            met = [reason(place, case) for case in cases() if case.spec is spec]
            found = sorted({numbers[sentence] for sentence in met if sentence})
            raised = ", ".join(map(str, found))
            row.append(raised if all(met) else f"✓ {raised}".strip())
        places.append(row)
    others_rows = [
        [
            *(f"`{name}`", "✓"),
            *("✓" if place in offered else "" for place in PLACES),
            str(numbers[OTHERS_ON_DEVICE[name]]) if name in OTHERS_ON_DEVICE else "✓",
        ]
        for name, offered in OTHERS.items()
    ]
    text = _TOP.format(
        keywords=_table(["", *(f"`{keyword}`" for keyword in KEYWORDS)], keywords),
        places=_table(["", *columns], places),
        others=_table(["", *columns], others_rows),
    )
    listed = [f"{number}. {sentence}" for sentence, number in numbers.items()]
    return "\n".join([text, *listed, ""]) if listed else text


def _table(head: list[str], rows: list[list[str]]) -> str:
    ruled = [head, ["---", *(":-:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
