"""Compile most kernels of `nox -s all_tests`, in two processes, before the tests start.

The test workers find the compiled kernels in the cache; otherwise each would compile the same
ones::

    python tests/support/compile_kernels.py
"""

import kernels
import numpy as np

from numnorm.commands.compile.calls import (
    Job,
    backward,
    cell,
    channels,
    compile_ahead,
    forward,
    launcher,
)

PROCESSES = 2


def jobs():
    """Yield calls that compile each kernel once, the slowest to compile first."""
    of_rows = [
        (norm, dtype, which == "both", wide)
        for wide in (True, False)
        for norm, cases in kernels.DEFAULT.items()
        if norm not in ("batch_norm", "instance_norm")  # the latter has those of group norm
        for dtype, which in sorted(cases)
    ]
    for dtype in sorted({dtype for dtype, _ in kernels.DEFAULT["batch_norm"]}):
        yield Job(channels, (dtype,))
    yield from (Job(backward, one) for one in of_rows)
    for norm, variant in kernels.LSTMS:
        yield Job(cell, ("lstm", np.float64, {"norm": norm, "variant": variant}))
    yield from (Job(forward, ((norm,), *one)) for norm, *one in of_rows)
    for norm, variant in kernels.FLOAT32_LSTMS:
        yield Job(cell, ("lstm", np.float32, {"norm": norm, "variant": variant}))
    for kind, norms in (("gru", kernels.GRUS), ("rnn", kernels.RNNS)):
        yield from (Job(cell, (kind, np.float64, {"norm": norm})) for norm in norms)
        yield Job(cell, (kind, np.float32, {"norm": "layer"}))
    yield Job(launcher, ())


if __name__ == "__main__":
    compile_ahead(list(jobs()), PROCESSES)
