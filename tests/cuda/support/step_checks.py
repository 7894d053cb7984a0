"""What the tests of one step of each cell share."""

import numpy as np

ROWS = 9
DTYPES = ("float32", "float64")


def scaling_numbers(eps, count):
    return 1 / count, 1 / count, eps, 0.0, np.sqrt(eps)


def assert_close(found, expected, dtype, what="", scale=1.0):
    """Within 1e-10 in float64, and some roundings of the largest in float32."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, what
    bound = scale * (1e-10 if dtype == "float64" else 1e-5) * max(1, np.abs(expected).max())
    assert np.all(np.abs(found - expected) <= bound), (what, np.abs(found - expected).max(), bound)


def flow_numbers(norm, count):
    return 1 / count if norm is not None and norm.formula.centred else 0.0, 1 / count, 0.0
