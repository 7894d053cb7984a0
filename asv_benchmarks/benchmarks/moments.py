"""The time of streamed statistics."""

import numnorm

from .arrays import drawn
from .timing import Timed


class Moments(Timed):
    """Statistics of the columns of float32 and float64."""

    params = ("float32", "float64")
    param_names = ("dtype",)

    def setup(self, dtype: str) -> None:
        """Make one chunk and the moments before it."""
        self.chunk, _ = drawn((4096, 1024), dtype)
        self.before = numnorm.batch_moments(self.chunk)

    def time_batch_moments_after(self, _: str) -> None:
        """One more chunk."""
        numnorm.batch_moments(self.chunk, after=self.before)

    def time_merge(self, _: str) -> None:
        """The merge of two parts."""
        self.before.merge(self.before)
