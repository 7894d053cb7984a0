"""Rows that are normalized two at a time have the bytes of rows that are normalized alone."""

import importlib

import kernels
import numpy as np
import pytest
from every_call import COMPILED

import numnorm

# Without compilation NumPy warns where squares overflow, before the row is scaled.
pytestmark = [] if COMPILED else [pytest.mark.filterwarnings("ignore::RuntimeWarning")]

importlib.import_module("ml_dtypes")  # NumPy knows the name bfloat16 from then on
DTYPES = ("float16", "bfloat16", "float32", "float64")


def rows(count, width, dtype):
    """Return rows of which some are guessed badly, overflow, or are not finite."""
    x = np.random.default_rng(count * width).standard_normal((count, width))
    x[1::7] += 1000
    x[2::7, :16] += 100  # where the mean is guessed
    x[3::7] *= 1e4 if dtype == "float16" else 1e25
    x[4::11, width // 2] = np.nan
    x[5::13, -1] = np.inf
    x[6::17] = 3
    return x.astype(np.dtype(dtype))


FORWARD = {
    "layer_norm": lambda x, weights: numnorm.layer_norm_forward(x, *weights),
    "rms_norm": lambda x, weights: numnorm.rms_norm_forward(x, weights[0]),
    "ada_norm": lambda x, _: numnorm.ada_norm_forward(x),
}


@kernels.each({name: name for name in FORWARD}, DTYPES, ["none", "both"], always=False)
@pytest.mark.parametrize("width", [65, 96, 127, 768, 2048, 2049])
def test_rows_together_and_alone(name, dtype, which, width):
    x, weights = rows(19, width, dtype), (None, None)
    if which == "both":
        weights = np.random.default_rng(1).standard_normal((2, width))
    together = FORWARD[name](x, weights)
    for i in range(len(x)):
        alone = FORWARD[name](x[i : i + 1], weights)
        for whole, one in zip(together, alone, strict=True):
            assert whole[i : i + 1].tobytes() == one.tobytes()


def test_results_too_large_for_the_caches():
    """Rows of a large array go one by one; each is the same there as among few."""
    x = np.random.default_rng(0).standard_normal((1400, 1024), dtype=np.float32)
    assert x.nbytes > 5 << 20
    np.testing.assert_array_equal(
        numnorm.layer_norm(x)[:700], numnorm.layer_norm(x[:700]), strict=True
    )
