"""Moving norm of data in several parts: the steps beside a part that its windows hold."""

from __future__ import annotations


def steps_around(
    start: int, stop: int, steps: int, window: int, *, center: bool, backward: bool = False
) -> tuple[int, int]:
    """Return the steps from which the results of a part of them follow, to the bit.

    They begin at a multiple of the window: there lie the anchors of the sums. The windows of the
    part lie in them as they lie in all steps.

    Parameters
    ----------
    start, stop : int
        The part.
    steps : int
        The number of all steps.
    window, center
        As for `moving_norm`.
    backward : bool
        Whether the results are gradients, which all windows that hold a step pass on to it.

    Returns
    -------
    tuple of int
        The first step, and the one after the last.
    """
    window = max(1, min(window, steps))
    before, after = (window // 2, window - 1 - window // 2) if center else (window - 1, 0)
    if backward:
        before = after = window  # not in windows that move inwards at other ends
    first = max(0, min(start - before, steps - window)) // window * window
    return first, min(steps, max(stop + after, first + window))
