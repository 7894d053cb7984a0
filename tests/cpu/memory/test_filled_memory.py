"""No kernel reads memory before it is written: results do not depend on what new memory holds.

Every family runs with sizes of 0 and 1 in every place, forward and backward.
"""

import itertools
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from filled_memory import NAN, ZERO, filled_memory
from norm_checks import UNCOMPILED, Norm, as_tuple

from numnorm import rnn

needs_python = pytest.mark.skipif(not UNCOMPILED, reason="compiles a kernel for each case")
SIZES = (0, 1, 3)
# 17 units and 40 columns are a whole vector and a part of one, of each width.
WIDTHS = (0, 1, 2, 17, 40)
ROW_NORMS = ["layer_norm", "rms_norm", "ada_norm", "weight_norm"]
CHANNEL_NORMS = ["batch_norm", "instance_norm", "group_norm"]
NORM_CASES = [
    Norm(name, shape, {"axis": axis})
    for name in ROW_NORMS
    for shape in itertools.product((0, 1, 3, 9), WIDTHS)
    for axis in (-1, 0)
]
NORM_CASES += [
    Norm(name, shape, {"channel_axis": axis} | ({"groups": 1} if name == "group_norm" else {}))
    for name in CHANNEL_NORMS
    for shape in itertools.product(SIZES, (0, 1, 2, 17), SIZES)
    for axis in (1, -1)
]
CELLS = {
    "lstm": ("lstm", {}),
    "lstm-normalized": ("lstm", {"variant": "normalized_cell"}),
    "lstm-per-gate": ("lstm", {"variant": "per_gate", "norm": "rms"}),
    "lstm-cell-only": ("lstm", {"variant": "cell_only", "norm": "ada"}),
    "lstm-none": ("lstm", {"norm": None}),
    "lstm-batch": ("lstm", {"norm": "batch"}),
    "gru": ("gru", {}),
    "gru-none": ("gru", {"norm": None}),
    "rnn": ("rnn", {}),
    "rnn-none": ("rnn", {"norm": None, "nonlinearity": "relu"}),
}


def same(call):
    """Check that a call gives the same bytes, or error, in any new memory."""
    results = []
    for byte in (ZERO, NAN):
        with filled_memory(byte), warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                results.append([None if a is None else np.array(a) for a in call()])
            except (TypeError, ValueError) as error:
                results.append(str(error))
    np.testing.assert_equal(*results)


def norm_results(norm, dtype):
    rng = np.random.default_rng(5)
    x, dy = (rng.standard_normal(norm.shape).astype(dtype) for _ in range(2))
    shape = norm.parameter_shape
    parameters = [rng.standard_normal(shape).astype(dtype) for _ in range(norm.parameters)]
    for given in (parameters, []):
        y, *saved = norm.forward(x, *given)
        yield from (y, *saved)
        yield from as_tuple(norm.backward(dy, x, saved, *given[:1]))


@needs_python
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", ROW_NORMS + CHANNEL_NORMS)
def test_norms(name, dtype):
    for norm in NORM_CASES:
        if norm.name == name:
            same(lambda norm=norm: norm_results(norm, dtype))


def cell_results(name, time, batch, inputs, hidden, zoneout, packed):
    kind, options = CELLS[name]
    rng = np.random.default_rng(6)
    choices = {key: value for key, value in options.items() if key != "nonlinearity"}
    init = getattr(rnn, f"{kind}_init")
    parameters = init(max(inputs, 1), hidden, rng=rng, dtype=np.float64, **choices)
    parameters = parameters._replace(weight_x=parameters.weight_x[:, :inputs])
    x = rng.standard_normal((time, batch, inputs))
    given = parameters
    if packed:
        given = getattr(rnn, f"{kind}_pack")(parameters, dtype=np.float64, **options)
    options = options | {"zoneout": zoneout}
    yield from getattr(rnn, kind)(x, given, **options)
    *states, saved = getattr(rnn, f"{kind}_forward")(x, given, **options)
    yield from states
    *gradients, of_parameters = getattr(rnn, f"{kind}_backward")(np.ones_like(states[0]), saved)
    yield from (*gradients, *of_parameters)
    if time:
        for _ in range(2):  # the second time straight to the kernel
            step = getattr(rnn, f"{kind}_cell")(x[0], given, **options)
            yield from step if isinstance(step, tuple) else (step,)


@needs_python
@pytest.mark.parametrize("name", CELLS)
def test_cells(name):
    batch_norm = CELLS[name][1].get("norm") == "batch"
    sizes = itertools.product((0, 1, 2), (0, 1, 12), (0, 1), (1, 5))
    for number, (time, batch, inputs, hidden) in enumerate(sizes):
        # Alternately with zoneout and packed, to take half the time.
        zoneout, packed = 0.25 * (number % 2), number % 3 == 0
        some = (0.0, False) if batch_norm else (zoneout, packed)
        same(lambda a=(time, batch, inputs, hidden, *some): cell_results(name, *a))


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import filled_memory
filled_memory.fill_compiled_scratch()
import numpy as np
import numnorm
from numnorm import rnn
rng = np.random.default_rng(0)
x = rng.standard_normal((5, 300), np.float32)
p = rnn.lstm_init(1, 20, rng=rng)
p = p._replace(weight_x=p.weight_x[:, :0])
with filled_memory.filled_memory(filled_memory.NAN):
    y, mean, rstd = numnorm.layer_norm_forward(x)
    dx = numnorm.layer_norm_backward(x, x, mean, rstd).dx
    assert np.isfinite(y).all() and np.isfinite(dx).all()
    y, *_, saved = rnn.lstm_forward(np.empty((3, 12, 0), np.float32), p)
    assert np.isfinite(y).all()
    gradients = rnn.lstm_backward(np.ones_like(y), saved)
    assert all(np.isfinite(a).all() for a in (gradients.dh, *gradients.parameters) if a is not None)
"""


@pytest.mark.full
@pytest.mark.skipif(UNCOMPILED, reason="needs compiled kernels")
def test_compiled_scratch(tmp_path):
    support = Path(__file__).parents[2] / "support"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", PROGRAM, str(support)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
