"""The time of norms of data with missing values or weights, and of groups of samples."""

from functools import lru_cache, partial
from typing import Any

import numpy as np

import numnorm

from .arrays import Array, drawn
from .timing import Timed, need

SHAPE = (4096, 1024)
MISSING = 0.1
WORDS = ("where", "nan_policy", "weights")


# Cached as in `arrays`.
@lru_cache(maxsize=1)
def _selected(word: str) -> tuple[Array, dict[str, Any]]:
    """Return x and the keyword that leaves out a tenth of it, or gives each element a weight."""
    x, _ = drawn(SHAPE)
    generator = np.random.default_rng(1)
    if word == "weights":
        return x, {word: generator.uniform(0.5, 1.5, x.shape)}
    missing = generator.random(x.shape) < MISSING
    if word == "where":
        return x, {word: ~missing}
    return np.where(missing, x.dtype.type(np.nan), x), {word: "omit"}


class Weighted(Timed):
    """A tenth of float32 left out by a mask or as NaN, or weights; `plain` has all elements."""

    params = (["layer_norm", "batch_norm"], ["plain", *WORDS])
    param_names = ("norm", "keyword")

    def setup(self, norm: str, word: str) -> None:
        """Make the data, and what the backward pass needs; compile."""
        need(norm, *([] if word == "plain" else [word]))
        x, dy = drawn(SHAPE)
        x, selecting = (x, {}) if word == "plain" else _selected(word)
        _, *saved = getattr(numnorm, f"{norm}_forward")(x, **selecting)
        self.forward = partial(getattr(numnorm, norm), x, **selecting)
        self.backward = partial(getattr(numnorm, f"{norm}_backward"), dy, x, *saved, **selecting)
        self.forward()
        self.backward()

    def time_forward(self, *_: object) -> None:
        """Only the output, newly allocated."""
        self.forward()

    def time_backward(self, *_: object) -> None:
        """The gradient, newly allocated."""
        self.backward()


class WeightedMoments(Timed):
    """Statistics of the columns of the same."""

    params = WORDS
    param_names = ("keyword",)

    def setup(self, word: str) -> None:
        """Make the data; compile."""
        need("batch_moments", word)
        x, selecting = _selected(word)
        self.moments = partial(numnorm.batch_moments, x, **selecting)
        self.moments()

    def time_batch_moments(self, *_: object) -> None:
        """One call."""
        self.moments()


class Groups(Timed):
    """Samples of float32 that are normalized beside those of the same label."""

    params = (4, 64)
    param_names = ("labels",)

    def setup(self, labels: int) -> None:
        """Draw a label for each sample; compile."""
        need("batch_norm", "labels")
        self.x, _ = drawn(SHAPE)
        self.labels = np.random.default_rng(1).integers(labels, size=SHAPE[0])
        self.time_batch_norm(labels)
        self.time_batch_moments(labels)

    def time_batch_norm(self, *_: object) -> None:
        """Only the output, newly allocated."""
        numnorm.batch_norm(self.x, labels=self.labels)

    def time_batch_moments(self, *_: object) -> None:
        """The moments of all labels."""
        numnorm.batch_moments(self.x, labels=self.labels)
