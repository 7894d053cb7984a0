"""The time of statistics that are streamed."""

import numnorm

from .arrays import drawn
from .calls import MANY_SAMPLES


class Moments:
    """Statistics of the columns of float32 and float64."""

    params = ("float32", "float64")
    param_names = ("dtype",)
    repeat = MANY_SAMPLES

    def setup(self, dtype: str) -> None:
        """Make one chunk and the moments before it."""
        self.chunk, _ = drawn((4096, 1024), dtype)
        self.before = numnorm.batch_moments(self.chunk)

    def time_batch_moments_after(self, _: str) -> None:
        """One more chunk."""
        numnorm.batch_moments(self.chunk, after=self.before)

    def time_merge(self, _: str) -> None:
        """Two parts that were streamed apart."""
        self.before.merge(self.before)
