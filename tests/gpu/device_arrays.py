"""Arrays on a real device, of Numba and of what else is installed; what results are held to."""

import numpy as np
import pytest
import reference


class OfNumba:
    dtypes = ("float16", "float32", "float64")

    def take(self, host):
        from numba import cuda

        return cuda.to_device(host)

    def give(self, array):
        return array.copy_to_host()


class OfTorch:
    dtypes = ("float16", "bfloat16", "float32", "float64")

    def __init__(self):
        self.torch = pytest.importorskip("torch")

    def take(self, host):
        if host.dtype.name == "bfloat16":
            return self.torch.from_numpy(host.view(np.int16)).cuda().view(self.torch.bfloat16)
        return self.torch.from_numpy(host).cuda()

    def give(self, array):
        if array.dtype == self.torch.bfloat16:
            import ml_dtypes

            return array.view(self.torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
        return array.cpu().numpy()


class OfCupy:
    dtypes = ("float16", "float32", "float64")

    def __init__(self):
        self.cupy = pytest.importorskip("cupy")

    def take(self, host):
        return self.cupy.asarray(host)

    def give(self, array):
        return array.get()


class OfJax:
    dtypes = ("float16", "bfloat16", "float32")

    def __init__(self):
        self.jax = pytest.importorskip("jax")
        if self.jax.default_backend() != "gpu":
            pytest.skip("JAX has no GPU here")

    def take(self, host):
        return self.jax.device_put(host)

    def give(self, array):
        return np.asarray(array)


LIBRARIES = {"numba": OfNumba, "torch": OfTorch, "cupy": OfCupy, "jax": OfJax}


def dtype_of(name):
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def draw(shape, dtype, seed=0):
    return np.random.default_rng(seed).normal(3, 2, shape).astype(dtype)


def check(got, expected, roundings, terms=0):
    """A few roundings of the working type, relative to the largest, and one of what is stored.

    For sums, `terms` is the sum of the absolute values of their terms, which may cancel.
    """
    assert got.shape == expected.shape
    epsilon = float(np.finfo(np.float64 if got.dtype == np.float64 else np.float32).eps)
    storage = float(reference.exact(np.spacing(np.ones(1, got.dtype)))[0])
    largest = np.maximum(np.abs(expected).max(), terms)
    bound = roundings * epsilon * largest + storage / 2 * np.abs(expected)
    assert np.all(np.abs(reference.exact(got) - expected) <= bound)
