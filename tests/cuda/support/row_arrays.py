"""Arrays for the public row norms on a device, and checks of their results."""

import ml_dtypes
import numpy as np
import reference

DTYPES = ("float16", "bfloat16", "float32", "float64")


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def draw(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).normal(3, 2, shape).astype(dtype_of(dtype))


def assert_close(got, expected, dtype):
    """Check to a few roundings of the compute type and one of the storage dtype."""
    storage = dtype_of(dtype)
    epsilon = float(np.finfo(np.float64 if dtype == "float64" else np.float32).eps)
    rounding = float(reference.exact(np.spacing(np.ones(1, storage)))[0])
    bound = 8 * epsilon * np.abs(expected).max() + rounding / 2 * np.abs(expected)
    assert got.dtype == storage
    assert np.all(np.abs(reference.exact(got) - expected) <= bound)


# name: the shapes of x and of the parameters, the number of parameters, options
NORMS = {
    "layer_norm": ((3, 45), (45,), 2, {}),
    "rms_norm": ((5, 16), (16,), 1, {"eps": 1e-3}),
    "ada_norm": ((2, 21), (), 0, {"ddof": 1, "eps_in": "std", "scale": 1.5, "k": 0.2}),
    "group_norm": ((2, 6, 5), (6,), 2, {"groups": 3}),
    "instance_norm": ((2, 3, 4, 2), (3,), 2, {}),
    "weight_norm": ((4, 9), (4,), 1, {}),
}


def supports(library, dtype):
    return dtype != "bfloat16" or library.called != "numba"


def check(found, expected, dtype):
    """Check to a few roundings of the largest value in the compute type, and one of the storage.

    The bound has room for the gradients of gamma and beta, which are sums over rows.
    """
    epsilon = float(np.finfo(np.float64 if dtype == "float64" else np.float32).eps)
    rounding = float(reference.exact(np.spacing(np.ones(1, dtype_of(dtype))))[0])
    for got, wanted in zip(found, expected, strict=True):
        assert got.host.dtype == dtype_of(dtype)
        assert got.host.shape == wanted.shape
        bound = 24 * epsilon * np.abs(wanted).max() + rounding / 2 * np.abs(wanted)
        # The saved statistics of halves are float32, rounded once more.
        assert np.all(np.abs(reference.exact(got.host) - wanted) <= bound)
