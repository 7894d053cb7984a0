"""Random calls of all cells: sizes of 0 and 1 in every place, odd layouts, new memory of NaN."""

import functools

import numpy as np
import pytest
import recurrent_reference as recurrent
from filled_memory import NAN, filled_memory
from layouts import LAYOUTS

from numnorm import rnn

pytestmark = pytest.mark.slow

VARIANTS = ("paper", "normalized_cell", "per_gate", "cell_only")


def chosen(rng, values):
    return values[rng.integers(len(values))]


def drawn(rng, shape, dtype):
    """Return a random array in a random layout."""
    array = np.asarray(rng.standard_normal(shape)).astype(dtype)
    pick = rng.integers(len(LAYOUTS) + 2)
    return LAYOUTS[pick](array) if pick < len(LAYOUTS) else array


def drawn_parameters(kind, inputs, hidden, options, rng, dtype):
    choices = {key: options[key] for key in ("norm", "variant") if key in options}
    like = getattr(rnn, f"{kind}_init")(max(inputs, 1), hidden, rng=rng, **choices)
    like = like._replace(weight_x=like.weight_x[:, :inputs])
    given = {
        name: None
        if a is None or (a.ndim == 1 and rng.random() < 0.2)
        else drawn(rng, a.shape, dtype)
        for name, a in like._asdict().items()
    }
    return type(like)(**given)


def definition(kind, options, parameters, norm):
    """Return the step of a cell in longdouble."""
    p = {
        name: None if a is None else np.asarray(a).astype(np.longdouble)
        for name, a in parameters._asdict().items()
    }
    if kind == "lstm":
        return functools.partial(recurrent.lstm_step, norm, options["variant"], p)
    if kind == "gru":
        return lambda x, h: (recurrent.gru_step(norm, p, x, h),)
    return lambda x, h: (recurrent.rnn_step(norm, p, x, h, options["nonlinearity"]),)


def check_call(rng):
    kind, dtype = chosen(rng, ("lstm", "gru", "rnn")), chosen(rng, (np.float32, np.float64))
    norm_name, eps = chosen(rng, ("layer", "rms", "ada", None)), float(chosen(rng, (1e-2, 0.5)))
    options = {"norm": norm_name}
    options |= {"variant": chosen(rng, VARIANTS)} if kind == "lstm" else {}
    options |= {"nonlinearity": chosen(rng, ("tanh", "relu"))} if kind == "rnn" else {}
    time, batch, inputs, hidden = (
        int(chosen(rng, sizes))
        for sizes in ((0, 1, 1, 2, 4), (0, 1, 1, 2, 8, 12), (0, 1, 3, 5), (1, 2, 5, 9))
    )
    x = drawn(rng, (time, batch, inputs), dtype)
    parameters = drawn_parameters(kind, inputs, hidden, options, rng, dtype)
    count = 2 if kind == "lstm" else 1
    states = [drawn(rng, (batch, hidden), dtype) for _ in range(count)]
    zoneout = float(chosen(rng, (0.0, 0.0, 0.25, 1.0)))
    lengths = rng.integers(0, time + 1, batch) if rng.random() < 0.5 else None
    calls = options | {
        "eps": eps, "zoneout": zoneout, "lengths": lengths, "reverse": bool(rng.random() < 0.3),
        "batch_first": bool(rng.random() < 0.3),
    }  # fmt: skip
    given, label = parameters, (kind, dtype.__name__, time, batch, inputs, hidden, calls)
    if rng.random() < 0.4:
        given = getattr(rnn, f"{kind}_pack")(parameters, dtype=dtype, **options)
    swapped = x.swapaxes(0, 1) if calls["batch_first"] else x
    dy = drawn(rng, (time, batch, hidden), dtype)
    with filled_memory(NAN):
        *results, saved = getattr(rnn, f"{kind}_forward")(swapped, given, *states, **calls)
        d_given = dy.swapaxes(0, 1) if calls["batch_first"] else dy
        dx, *gradients = getattr(rnn, f"{kind}_backward")(d_given, saved)
    keeps = [np.full((time, batch, hidden), zoneout)] * count
    norm = recurrent.Norm(norm_name, eps)
    run = functools.partial(
        recurrent.sequences, definition(kind, options, parameters, norm),
        states=states, keeps=keeps, lengths=lengths, reverse=calls["reverse"],
    )  # fmt: skip
    wide = np.asarray(x).astype(np.longdouble)
    expected = run(x=wide)
    if calls["batch_first"]:
        results[0], dx = results[0].swapaxes(0, 1), dx.swapaxes(0, 1)
    # Sums of a dozen terms and rstd of up to 10, over four steps: a wrong number is off by more.
    bound = 1e6 * np.finfo(dtype).eps
    for got, exact in zip(results, expected, strict=True):
        assert got.shape == exact.shape and got.dtype == dtype, label
        scale = max(1, np.abs(exact).max(initial=0))
        assert np.abs(got - exact).max(initial=0) <= 1e-2 * bound * scale, label
    assert all(np.isfinite(g).all() for g in (dx, *gradients[:-1])), label
    assert all(np.isfinite(g).all() for g in gradients[-1] if g is not None), label
    if options.get("nonlinearity") == "relu" or not x.size:
        return
    direction, distance = rng.standard_normal(x.shape), np.longdouble(1e-7)
    losses = []
    for sign in (1, -1):
        norm.rerun()
        losses.append((run(x=wide + sign * distance * direction)[0] * dy).sum())
    slope = (losses[0] - losses[1]) / (2 * distance)
    size = max(1, np.abs(dx * direction).sum())
    assert abs((dx * direction).sum() - slope) <= bound * size + 1e-7 * size, label


@pytest.mark.parametrize("seed", range(40))
def test_random_calls(seed):
    rng = np.random.default_rng(seed)
    for _ in range(250):
        check_call(rng)
