"""The examples of kernels that call the device functions, on a device in Python."""

import importlib.util
import json
import re
import textwrap
from pathlib import Path

import numpy as np
import reference
from simulated_numba import instead_of_numba

import numnorm.cuda

ROOT = Path(__file__).parents[3]


def test_gallery(capsys, order):
    path = ROOT / "docs" / "gallery" / "fused_layer_norm.py"
    spec = importlib.util.spec_from_file_location("fused_layer_norm", path)
    example = importlib.util.module_from_spec(spec)
    with instead_of_numba():
        spec.loader.exec_module(example)
    example.BLOCKS = 2
    errors = example.main(rows=3, width=1000)
    # Roundings of float32, of an erf and an exp besides.
    assert max(errors) < 2e-6
    recorded = json.loads((path.parent / "runs" / "fused_layer_norm.json").read_text("utf-8"))
    assert len(recorded) == len(errors) and max(recorded.values()) < 2e-6
    assert capsys.readouterr().out.count("off by") == 5


def run_example(page, start, stop, **names):
    """Run what stands between two patterns of a page, and return all names."""
    found = re.search(rf"{start}( *import numpy as np\n *from numba import .*?){stop}", page, re.S)
    with instead_of_numba():
        exec(textwrap.dedent(found.group(1)), names)
    return names


def draw(*shape, seed):
    return np.random.default_rng(seed).normal(3, 2, shape).astype(np.float32)


def test_example_of_the_module(order):
    x, residual = draw(2, 3, 1000, seed=0)
    gamma, beta = draw(2, 1000, seed=1)
    arrays = {"x": x, "residual": residual, "gamma": gamma, "beta": beta, "y": np.zeros_like(x)}
    y = run_example(numnorm.cuda.__doc__, "::\n\n", r"\n\*\*Teams", **arrays)["y"]
    expected = np.float64(reference.layer_norm(x + residual, gamma, beta)[0])
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_example_of_the_page_on_devices(order):
    x, (bias, gamma, beta) = draw(3, 1000, seed=0), draw(3, 1000, seed=1)
    arrays = {"x": x, "bias": bias, "gamma": gamma, "beta": beta, "y": np.zeros_like(x)}
    page = (ROOT / "docs" / "devices.md").read_text("utf-8")
    y = run_example(page, "```python\n", "```", **arrays)["y"]
    expected = np.float64(reference.layer_norm(np.maximum(x + bias, 0), gamma, beta)[0])
    np.testing.assert_allclose(y, expected, atol=1e-5)
