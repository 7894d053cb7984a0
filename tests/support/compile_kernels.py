"""Compile the kernels of a default run of the tests, in two processes, before the tests start.

The test workers find the compiled kernels in the cache; otherwise each would compile the same
ones::

    python tests/support/compile_kernels.py
"""

import concurrent.futures
import multiprocessing

import every_call
import kernels
import numpy as np

import numnorm
from numnorm import rnn

PROCESSES = 2


def forward(norm, dtype, which):
    x, gamma, beta = arguments(norm, dtype, which)
    options = {"groups": 2} if norm == "group_norm" else {}
    given = {"ada_norm": (), "rms_norm": (gamma,), "weight_norm": (gamma,)}
    getattr(numnorm, f"{norm}_forward")(x, *given.get(norm, (gamma, beta)), **options)


def backward(norm, dtype, which):
    x, gamma, _ = arguments(norm, dtype, which)
    options = {"groups": 2} if norm == "group_norm" else {}
    statistics = np.ones({"group_norm": (3, 2), "instance_norm": (3, 4)}.get(norm, 3))
    saved = (statistics,) if norm in ("rms_norm", "weight_norm") else (statistics, statistics)
    given = () if norm == "ada_norm" else (gamma,)
    getattr(numnorm, f"{norm}_backward")(x, x, *saved, *given, **options)


def arguments(norm, dtype, which):
    """Return x, gamma and beta."""
    shape = (3, 4, 5) if norm in ("group_norm", "instance_norm") else (3, 4)
    x = np.ones(shape, dtype)
    weight = np.ones(3 if norm == "weight_norm" else 4, dtype) if which == "both" else None
    return x, weight, weight


def channels(dtype):
    """Run batch norm for one dtype, across the channels and along them."""
    for shape in ((3, 4), (3, 4, 5)):
        x = np.ones(shape, dtype)
        for gamma in (None, np.ones(4, dtype)):
            _, *saved = numnorm.batch_norm_forward(x, gamma, gamma)
            for training in (True, False):
                numnorm.batch_norm_backward(x, x, *saved, gamma, training=training)
        running = {"running_mean": np.ones(4), "running_var": np.ones(4)}
        numnorm.batch_norm(x, training=False, **running)


def cell(kind, dtype, **options):
    """Run the forward and the backward pass of a cell."""
    rng = np.random.default_rng(0)
    parameters = getattr(rnn, f"{kind}_init")(3, 4, rng=rng, dtype=dtype, **options)
    x, state = np.ones((2, 2, 3), dtype), np.ones((2, 4), dtype)
    states = (state, state) if kind == "lstm" else (state,)
    y, *_, saved = getattr(rnn, f"{kind}_forward")(x, parameters, *states, **options)
    getattr(rnn, f"{kind}_backward")(y, saved)


def case(label):
    """Run a call that is large enough for the parallel kernels."""
    every_call.results_of(every_call.CASES[label])


def jobs():
    """Yield calls that compile each kernel once, the slowest to compile first."""
    of_rows = [
        (norm, *case)
        for norm, cases in kernels.DEFAULT.items()
        if norm not in ("batch_norm", "instance_norm")  # the latter has those of group norm
        for case in sorted(cases)
    ]
    yield from (
        (channels, dtype) for dtype in sorted({d for d, _ in kernels.DEFAULT["batch_norm"]})
    )
    yield from ((backward, *one) for one in of_rows)
    for norm, variant in kernels.LSTMS:
        yield cell, "lstm", np.float64, {"norm": norm, "variant": variant}
    # Group and weight norm have the forward kernels of layer and RMS norm.
    known = set()
    for norm, *one in of_rows:
        formula = {"group_norm": "layer_norm", "weight_norm": "rms_norm"}.get(norm, norm)
        if (formula, *one) not in known:
            known.add((formula, *one))
            yield forward, norm, *one
    for norm, variant in kernels.FLOAT32_LSTMS:
        yield cell, "lstm", np.float32, {"norm": norm, "variant": variant}
    for kind, norms in (("gru", kernels.GRUS), ("rnn", kernels.RNNS)):
        yield from ((cell, kind, np.float64, {"norm": norm}) for norm in norms)
        yield cell, kind, np.float32, {"norm": "layer"}
    yield from ((case, name) for name, one in every_call.CASES.items() if one.size == "medium")


def run(function, *arguments):
    options = arguments[-1] if isinstance(arguments[-1], dict) else {}
    function(*(value for value in arguments if value is not options), **options)


def main():
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, context) as pool:
        for future in [pool.submit(run, *job) for job in jobs()]:
            future.result()


if __name__ == "__main__":
    main()
