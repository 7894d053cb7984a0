"""Which rows a kernel of recurrent steps takes: those of a step are the first of the one before."""

from numnorm.backends.cpu.jit import inlined


@inlined
def rows_of_step(counts, s, left, right):
    """Return how many of the batch's rows from left to right a step has, or less than 0."""
    return min(counts[s], right) - left


@inlined
def before_step(starts, s, batch):
    """Return where the states before a step begin: those given come first."""
    return batch + starts[s - 1] if s > 0 else 0
