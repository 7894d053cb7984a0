"""Which kernels a run of the tests compiles: those of DEFAULT, or all with ``--full``.

Compiling takes most of the time of a run. By default each norm and each dtype is compiled forward
and backward, but not each norm for each dtype. Tests of the other combinations have the mark
`full`; they run with ``--full``, and without the compiler.
"""

import importlib
import itertools

import numpy as np
import pytest

importlib.import_module("ml_dtypes")  # NumPy knows the name bfloat16 from then on

full = pytest.mark.full

# The dtypes of each norm, with all of its parameters ("both") and without any ("none").
DEFAULT = {
    "layer_norm": {*itertools.product(("float32", "float64"), ("none", "both"))},
    "rms_norm": {("float32", "both"), ("bfloat16", "both")},
    "ada_norm": {("float32", "none"), ("float64", "none")},
    "weight_norm": {("float32", "both")},
    "group_norm": {("float32", "both"), ("float16", "both")},
    "instance_norm": {("float32", "both")},
    "batch_norm": {
        ("float16", "both"),
        *itertools.product(("float32", "float64"), ("none", "both")),
    },
}
WITHOUT_PARAMETERS = "ada_norm", "standard_normal_variate"
# A norm that has the kernels of another one.
COMPILED_AS = {"standard_normal_variate": "layer_norm"}
# The norms and variants of the LSTM in float64, and those in float32 as well; GRU and RNN by norm.
# The other pairs run only without the compiler: their kernels consist of the same parts.
LSTMS = [
    ("layer", "paper"),
    ("layer", "normalized_cell"),
    ("rms", "per_gate"),
    ("ada", "cell_only"),
    (None, "paper"),
]
FLOAT32_LSTMS = [("layer", "paper")]
GRUS = ["layer", "ada"]
RNNS = ["layer", None]


def lstms(specs, dtypes):
    """Return norm, variant and dtype as parameters of a test of the LSTM."""
    return [
        pytest.param(
            *spec,
            dtype,
            marks=() if dtype == np.float64 or spec in FLOAT32_LSTMS else (full,),
            id=f"{spec[0]}-{spec[1]}-{np.dtype(dtype).name}",
        )
        for spec in specs
        for dtype in dtypes
    ]


def _name(dtype):
    dtype = np.dtype(dtype)
    return "float64" if dtype.kind in "biu" else dtype.newbyteorder("=").name


def is_default(norm, dtype, parameters="none"):
    """Return whether the kernels of a norm are compiled by default."""
    # A call with one of two parameters runs the same kernel as one with both.
    given = "none" if parameters == "none" or norm in WITHOUT_PARAMETERS else "both"
    return (_name(dtype), given) in DEFAULT[COMPILED_AS.get(norm, norm)]


def marks(norm, dtype, parameters="none"):
    """Return the marks of a test that compiles the kernels of a norm."""
    return () if is_default(norm, dtype, parameters) else (full,)


def each(norms, dtypes, parameters=("none",), *, always=True):
    """Return a decorator with the parameters name, dtype and which: the whole cross product.

    `norms` has the norm's function for each name. With `always`, a name without a default case
    gets one more case, with a dtype and parameters of DEFAULT.
    """
    cases = []
    for name, norm in norms.items():
        product = list(itertools.product(dtypes, parameters))
        if always and not any(is_default(norm, *case) for case in product):
            cases.append((name, *_first(norm)))
        cases += [(name, *case) for case in product]
    return pytest.mark.parametrize(
        "name, dtype, which",
        [
            pytest.param(
                *case,
                marks=marks(norms[case[0]], *case[1:]),
                id=f"{case[0]}-{np.dtype(case[1]).name}-{case[2]}",
            )
            for case in cases
        ],
    )


def names(norms, dtype, parameters="none"):
    """Return norms as parameters of a test of one dtype."""
    norms = norms if isinstance(norms, dict) else {norm: norm for norm in norms}
    return [pytest.param(name, marks=marks(norms[name], dtype, parameters)) for name in norms]


def pairs(norms, cases, parameters="none"):
    """Return each norm with each case: a dtype, or a parameter whose first value is a dtype."""
    return [
        pytest.param(name, *values, marks=marks(norm, values[0], parameters), id=f"{name}-{label}")
        for values, label in map(_unpacked, cases)
        for name, norm in norms.items()
    ]


def _unpacked(case):
    return getattr(case, "values", (case,)), getattr(case, "id", None) or _name(case)


def _first(norm):
    name, given = min(DEFAULT[COMPILED_AS.get(norm, norm)])
    return np.dtype(name).type, given


def dtypes(norm, *chosen, parameters="none"):
    """Return dtypes as parameters of a test of one norm."""
    return [
        pytest.param(dtype, marks=marks(norm, dtype, parameters), id=np.dtype(dtype).name)
        for dtype in chosen
    ]


def each_dtype(norm, *chosen, parameters="none"):
    """Return a decorator with the parameter dtype."""
    return pytest.mark.parametrize("dtype", dtypes(norm, *chosen, parameters=parameters))
