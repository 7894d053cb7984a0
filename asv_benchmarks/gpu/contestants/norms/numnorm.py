"""numnorm, with an existing output array."""

from __future__ import annotations

import numnorm

from ...arrays import Arrays
from ...cases import Case
from .. import Call


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return a pass of numnorm."""
    x, dy, gamma, beta, out = arrays.x, arrays.dy, arrays.gamma, arrays.beta, arrays.out
    weights = {"rms_norm": (gamma,), "ada_norm": ()}.get(case.norm, (gamma, beta))
    if case.direction == "forward":
        forward = getattr(numnorm, case.norm)
        return Call(lambda: forward(x, *weights, out=out))
    saved = getattr(numnorm, f"{case.norm}_forward")(x, *weights)[1:]
    backward = getattr(numnorm, f"{case.norm}_backward")
    return Call(lambda: backward(dy, x, *saved, *weights[:1], out=out))
