"""Parts that follow one another along time, each with the state after the one before."""

from __future__ import annotations

from numnorm import ExponentialState
from numnorm.commands.apply.blocks import Box
from numnorm.commands.apply.formats.protocol import Array
from numnorm.commands.apply.journal import Journal
from numnorm.commands.apply.methods import Job


class Stream:
    """A job whose boxes come in order, along time without others between them.

    Parameters
    ----------
    job : Job
        The norm with its options.
    journal : Journal
        It keeps the states for a later run.
    first : int
        The number of the first box that comes; a run before has written those before it.
    """

    def __init__(self, job: Job, journal: Journal, first: int) -> None:
        self.job = job
        self.journal = journal
        self.number = first
        self.state: ExponentialState | None = None

    def needed(self, box: Box) -> Box:
        """Return the part of the array from which the result in a part of it follows.

        Parameters
        ----------
        box : Box
            The part of the result.

        Returns
        -------
        Box
            As `Job.needed`.
        """
        return self.job.needed(box)

    def normalize(self, x: Array, box: Box, out: Array) -> None:
        """Normalize the next part, as `Job.normalize`.

        Parameters
        ----------
        x : ndarray
            The elements of the whole array in what `needed` returns for `box`.
        box : Box
            The part.
        out : ndarray
            Where the result goes.
        """
        if box[self.job.time_axis or 0].start == 0:
            self.state = None
        elif self.state is None:
            self.state = ExponentialState(**self.journal.state(self.number - 1))
        self.state = self.job.step(x, box, self.state, out)
        # Before the box is written: a run that goes on behind it finds the state.
        self.journal.keep(self.number, self.state._asdict())
        self.number += 1
