"""A norm of arrays of Dask as a norm of NumPy arrays: divided into chunks, and computed."""

import numpy as np
from norm_checks import Norm


def computed(result):
    """Compute a lazy result; check that dtypes and shapes were known before."""
    if isinstance(result, tuple):
        return type(result)(*map(computed, result))
    array = result.compute(scheduler="synchronous")
    assert (array.dtype, array.shape) == (result.dtype, result.shape)
    assert tuple(map(sum, result.chunks)) == result.shape
    return np.asarray(array)  # some are numbers of NumPy


def divided(shape, rng):
    """Return random chunks of a shape, of which some may be empty."""
    chunks = []
    for length in shape:
        borders = sorted(rng.integers(0, length + 1, rng.integers(4)))
        chunks.append(tuple(np.diff([0, *borders, length]).tolist()))
    return tuple(chunks)


class LazyNorm(Norm):
    """A norm whose arrays are given in random chunks.

    `module` is that of the lazy arrays; a seed chooses the chunks.
    """

    module, seed = None, 0

    @classmethod
    def of(cls, norm, module, seed=0):
        lazy = cls(*norm)
        lazy.module, lazy.seed = module, seed
        return lazy

    def lazy(self, array, place=0):
        if array is None:
            return None
        chunks = divided(array.shape, np.random.default_rng([self.seed, place]))
        return self.module.from_array(array, chunks=chunks)

    def plain(self, x, *parameters):
        return computed(super().plain(self.lazy(x), *map(self.lazy, parameters)))

    def forward(self, x, *parameters):
        return computed(super().forward(self.lazy(x), *map(self.lazy, parameters)))

    def backward(self, dy, x, saved, *gamma):
        dy, saved = self.lazy(dy, 1), [self.lazy(array, 2) for array in saved]
        return computed(super().backward(dy, self.lazy(x), saved, *map(self.lazy, gamma)))
