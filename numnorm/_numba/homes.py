"""The public functions that compiled code can call, and which module compiles each."""

from numnorm.norms.declared import SPECS

# ``numnorm._numba.moments.batch_moments`` compiles calls of ``numnorm.batch_moments``.
HOMES: dict[str, str] = {
    "batch_moments": "moments",
    **{f"rnn.{name}_cell": "cells" for name in ("lstm", "gru", "rnn")},
}
# ``numnorm._numba.norms.make`` compiles the functions of all norms.
NORMS = {
    function.__name__: (spec, function)
    for spec in SPECS
    for function in (spec.function, spec.forward, spec.backward, spec.step)
    if function is not None
}
