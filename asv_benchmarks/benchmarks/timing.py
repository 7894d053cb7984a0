"""How often asv times a call, and what it skips."""

from inspect import signature

import numnorm


class Timed:
    """How often asv times a call: all suites of a commit take about three minutes."""

    # At least, at most, and seconds. With a `setup`, which runs before each, a sample is one call.
    repeat = (5, 200, 0.2)
    rounds = 1
    warmup_time = 0.02


def need(name: str, *keywords: str) -> None:
    """Have asv skip a benchmark of what a commit does not have yet."""
    found = getattr(numnorm, name, None)
    if found is None or (keywords and not {*keywords} <= signature(found).parameters.keys()):
        raise NotImplementedError(f"this commit has no {name}({', '.join(keywords)})")
