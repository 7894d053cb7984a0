"""Recurrent cells on real device arrays, beside those of the host."""

import numpy as np
import pytest

from numnorm import rnn

pytestmark = pytest.mark.gpu

# What two ways to sum up products of float32 differ by, after some steps.
TOLERANCE = 5e-5
KINDS = pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])


@pytest.fixture(params=[True, False], ids=["at once", "step by step"])
def way(request, monkeypatch):
    """All steps in one kernel, or one by one."""
    from numnorm.backends.cuda.recurrent.persistent import passes

    monkeypatch.setattr(passes, "_planned", certain(passes._planned))
    with rnn.persistent_kernels(request.param):
        yield


def certain(planned):
    """The same, but that there is a plan."""

    def found(*arguments):
        run = planned(*arguments)
        if run is None:
            pytest.skip("the device has no room for all steps at once")
        return run

    return found


# Parts of a warp with 16 bytes of each gate, and several warps with single elements.
@pytest.mark.parametrize("norm, variant", [
    ("layer", "paper"),
    ("layer", "normalized_cell"),
    ("rms", "per_gate"),
    ("ada", "paper"),
    ("layer", "cell_only"),
    (None, "paper"),
])  # fmt: skip
@pytest.mark.parametrize("units", [64, 331])
def test_lstm(library, way, units, norm, variant):
    check(library, "lstm", units, norm=norm, variant=variant)


@pytest.mark.parametrize("units", [64, 331])
@pytest.mark.parametrize("norm", ["layer", "rms", "ada", None])
def test_gru(library, way, norm, units):
    check(library, "gru", units, norm=norm)


@pytest.mark.parametrize("norm, nonlinearity", [
    ("layer", "tanh"),
    ("rms", "relu"),
    ("ada", "tanh"),
    (None, "tanh"),
])  # fmt: skip
@pytest.mark.parametrize("units", [64, 331])
def test_rnn(library, way, units, norm, nonlinearity):
    check(library, "rnn", units, norm=norm, nonlinearity=nonlinearity)


@pytest.mark.parametrize("units", [64, 331])
@pytest.mark.parametrize("norm", ["layer", None])
def test_gru_that_resets_before(library, norm, units):
    check(library, "gru", units, norm=norm, reset_after=False)


@pytest.mark.parametrize("units", [64, 331])
@pytest.mark.parametrize("norm", ["layer", None])
def test_projections(library, norm, units):
    check(library, "lstm", units, norm=norm, proj_size=40)


@KINDS
def test_zoneout(library, way, kind):
    check(library, kind, 64, zoneout=0.25)


def check(library, kind, units, **options):
    """The states and all gradients of ragged sequences, with parameters packed on the device."""
    pytest.importorskip("cupy")  # which makes the products of Numba's arrays
    forward, backward, pack, init = (
        getattr(rnn, f"{kind}_{what}") for what in ("forward", "backward", "pack", "init")
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 12, 20)).astype(np.float32)
    dy = rng.normal(size=(9, 12, options.get("proj_size", units))).astype(np.float32)
    of_init = {name: options[name] for name in ("norm", "variant", "proj_size") if name in options}
    options.pop("proj_size", None)
    parameters = init(20, units, rng=rng, dtype=np.float32, **of_init)
    of_form = {name: value for name, value in options.items() if name != "zoneout"}
    packed = pack(taken(library, parameters), **of_form)
    options["lengths"] = rng.integers(1, 10, 12)
    *results, saved = forward(library.take(x), packed, **options)
    *expected, saved_here = forward(x, parameters, **options)
    compare(library, results, expected)
    gradients = backward(library.take(dy), saved)
    compare(library, gradients, backward(dy, saved_here))


@KINDS
def test_dropout_of_a_sequence_without_batch(library, way, kind):
    """The gradients of the last state alone, with one mask of each kind for all steps."""
    pytest.importorskip("cupy")  # which makes the products of Numba's arrays
    forward, backward, init = (
        getattr(rnn, f"{kind}_{what}") for what in ("forward", "backward", "init")
    )
    rng = np.random.default_rng(0)
    x, dh = rng.normal(size=(9, 20)).astype(np.float32), rng.normal(size=64).astype(np.float32)
    parameters = init(20, 64, rng=rng, dtype=np.float32)

    def run(take, parameters):
        mask = {"dropout": 0.5, "recurrent_dropout": 0.25, "rng": np.random.default_rng(1)}
        *results, saved = forward(take(x), parameters, **mask)
        return [*results, *backward(None, saved, take(dh))]

    found = run(library.take, taken(library, parameters))
    compare(library, found, run(lambda array: array, parameters))


@KINDS
@pytest.mark.parametrize("batch", [(12,), ()], ids=["batch", "no batch"])
def test_step(library, kind, batch):
    pytest.importorskip("cupy")
    forward, backward, init = (
        getattr(rnn, f"{kind}_{what}") for what in ("cell_forward", "cell_backward", "init")
    )
    rng = np.random.default_rng(0)
    x, h, dh = (rng.normal(size=(*batch, n)).astype(np.float32) for n in (20, 64, 64))
    parameters = init(20, 64, rng=rng, dtype=np.float32)

    def run(take, parameters):
        *results, saved = forward(take(x), parameters, take(h))
        return [*results, *backward(take(dh), saved)]

    compare(
        library,
        run(library.take, taken(library, parameters)),
        run(lambda array: array, parameters),
    )


@KINDS
@pytest.mark.parametrize("time, batch", [(0, 2), (3, 0)])
def test_nothing(library, kind, time, batch):
    pytest.importorskip("cupy")
    forward, backward, init = (
        getattr(rnn, f"{kind}_{what}") for what in ("forward", "backward", "init")
    )
    parameters = init(20, 64, rng=np.random.default_rng(0), dtype=np.float32)
    x, dy = (np.ones((time, batch, n), np.float32) for n in (20, 64))

    def run(take, parameters):
        *results, saved = forward(take(x), parameters)
        return [*results, *backward(take(dy), saved)]

    found = run(library.take, taken(library, parameters))
    for mine, exact in zip(found, run(lambda array: array, parameters), strict=True):
        pairs = zip(mine, exact, strict=True) if isinstance(exact, tuple) else [(mine, exact)]
        for one, other in pairs:
            if other is not None:
                np.testing.assert_array_equal(library.give(one), other)


def test_layers_without_a_batch(library):
    pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    x, dy = (rng.normal(size=(9, n)).astype(np.float32) for n in (20, 48))
    both = rnn.lstm_init(20, 32, rng=rng), rnn.rnn_init(20, 32, rng=rng)
    layers = [both, rnn.gru_init(64, 48, rng=rng)]

    def run(take, layers):
        mask = {"dropout": 0.3, "rng": np.random.default_rng(1)}
        *results, saved = rnn.stacked_forward(take(x), layers, lengths=[7], **mask)
        return [*results, *rnn.stacked_backward(take(dy), saved)]

    compare(library, run(library.take, taken(library, layers)), run(lambda array: array, layers))


def test_stream_of_numba():
    """All work is on the stream of x, that of CuPy too."""
    pytest.importorskip("cupy")
    from device_arrays import OfNumba
    from numba import cuda

    class OnStream(OfNumba):
        stream = cuda.stream()

        def take(self, host):
            return cuda.to_device(host, stream=self.stream)

        def give(self, array):
            return array.copy_to_host(stream=self.stream)

    library, rng = OnStream(), np.random.default_rng(0)
    x, dy = (rng.normal(size=(9, 12, n)).astype(np.float32) for n in (20, 64))
    parameters = rnn.lstm_init(20, 64, rng=rng, dtype=np.float32)
    *found, saved = rnn.lstm_forward(library.take(x), taken(library, parameters))
    *expected, saved_here = rnn.lstm_forward(x, parameters)
    found += rnn.lstm_backward(library.take(dy), saved)
    compare(library, found, [*expected, *rnn.lstm_backward(dy, saved_here)])


def test_stacked(library):
    pytest.importorskip("cupy")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 12, 20)).astype(np.float32)
    dy = rng.normal(size=(9, 12, 48)).astype(np.float32)
    both = rnn.lstm_init(20, 32, rng=rng), rnn.rnn_init(20, 32, rng=rng)
    layers = [both, rnn.lstm_init(64, 48, rng=rng)]
    options = {"lengths": rng.integers(1, 10, 12), "dropout": 0.3, "zoneout": 0.1}
    *results, saved = rnn.stacked_forward(
        library.take(x), taken(library, layers), rng=np.random.default_rng(1), **options
    )
    *expected, saved_here = rnn.stacked_forward(x, layers, rng=np.random.default_rng(1), **options)
    compare(library, results, expected)
    gradients = rnn.stacked_backward(library.take(dy), saved)
    compare(library, gradients, rnn.stacked_backward(dy, saved_here))


def taken(library, value):
    """Arrays in any structure, those of parameters included, on the device."""
    if not isinstance(value, list | tuple):
        return None if value is None else library.take(value)
    found = [taken(library, element) for element in value]
    return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)


@pytest.mark.parametrize("training", [None, True, False], ids=["batch", "training", "inference"])
@pytest.mark.parametrize("variant", ["paper", "normalized_cell", "per_gate", "cell_only"])
def test_batch_norm(library, variant, training):
    pytest.importorskip("cupy")  # which makes the products of Numba's arrays
    if training and type(library).__name__ == "OfJax":
        pytest.skip("running statistics of JAX cannot be updated")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 70, 20)).astype(np.float32)
    dy, h, c = (rng.normal(size=(*n, 70, 36)).astype(np.float32) for n in ((5,), (), ()))
    parameters = rnn.lstm_init(20, 36, rng=rng, variant=variant, dtype=np.float32)
    statistics = rnn.lstm_statistics_init(4, 36, variant=variant)
    options = {"variant": variant, "lengths": rng.integers(1, 6, 70)}

    def run(take, norm):
        given = type(parameters)(*(None if p is None else take(p) for p in parameters))
        states = take(h), take(c)
        *results, saved = rnn.lstm_forward(take(x), given, *states, norm=norm, **options)
        return [*results, *rnn.lstm_backward(take(dy), saved)]

    of_device = type(statistics)(*(None if s is None else library.take(s) for s in statistics))
    norms = [
        "batch" if training is None else rnn.RecurrentBatchNorm(s, training=training)
        for s in (of_device, statistics)
    ]
    compare(library, run(library.take, norms[0]), run(lambda array: array, norms[1]))
    compare(library, of_device, statistics)


def compare(library, found, expected):
    """All arrays, those of parameters included, relative to the largest."""
    for mine, exact in zip(found, expected, strict=True):
        if isinstance(exact, tuple):
            compare(library, mine, exact)
        elif exact is not None:
            np.testing.assert_allclose(
                library.give(mine), exact, rtol=0, atol=TOLERANCE * np.abs(exact).max()
            )
