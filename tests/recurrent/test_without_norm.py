"""Converted parameters say that they have no norm: another one raises, and tells what to write."""

import io

import numpy as np
import pytest

from numnorm import rnn

KINDS = {"lstm": 4, "gru": 3, "rnn": 1}
INPUTS, HIDDEN = 3, 2
X = np.random.default_rng(4).standard_normal((5, 2, INPUTS))


def converted(kind, library="torch"):
    rng, rows = np.random.default_rng(0), KINDS[kind] * HIDDEN
    w, r = rng.normal(size=(rows, INPUTS)), rng.normal(size=(rows, HIDDEN))
    biases = rng.normal(size=(2, rows))
    arrays = (w, r, *biases) if library == "torch" else (w[None], r[None], biases.reshape(1, -1))
    return getattr(rnn, f"{kind}_from_{library}")(*arrays)


def plain(kind, parameters):
    """Return the same parameters without the gains."""
    gains = [name for name in parameters._fields if name.startswith("gamma")]
    return parameters._replace(**dict.fromkeys(gains))


CALLS = {
    "sequence": lambda kind, p, **norm: getattr(rnn, kind)(X, p, **norm),
    "forward": lambda kind, p, **norm: getattr(rnn, f"{kind}_forward")(X, p, **norm)[:2],
    "cell": lambda kind, p, **norm: getattr(rnn, f"{kind}_cell")(X[0], p, **norm),
    "stacked": lambda kind, p, **norm: rnn.stacked(X, [p], **norm).y,
    "pack": lambda kind, p, **norm: getattr(rnn, kind)(
        X, getattr(rnn, f"{kind}_pack")(p, dtype=np.float64, **norm), **norm
    ),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("library", ["torch", "onnx"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_norm_raises(kind, library, call):
    parameters = converted(kind, library)
    for norm in ({}, {"norm": "layer"}, {"norm": "rms"}, {"norm": "ada"}):
        with pytest.raises(ValueError, match=r"norm must be None for .* write norm=None, or param"):
            CALLS[call](kind, parameters, **norm)
    got = CALLS[call](kind, parameters, norm=None)
    expected = CALLS[call](kind, plain(kind, parameters), norm=None)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("norm", ["batch", rnn.RecurrentBatchNorm(rnn.lstm_statistics_init(5, 2))])
def test_batch_norm_raises(norm):
    with pytest.raises(ValueError, match="norm must be None for parameters"):
        rnn.lstm(X, converted("lstm"), norm=norm)


def test_variant_without_norm_of_the_gates_raises():
    with pytest.raises(ValueError, match="norm must be None for parameters"):
        rnn.lstm(X, converted("lstm"), variant="cell_only")


@pytest.mark.parametrize("kind", KINDS)
def test_packed_for_no_norm_refuses_another(kind):
    packed = getattr(rnn, f"{kind}_pack")(converted(kind), norm=None, dtype=np.float64)
    with pytest.raises(ValueError, match="packed for the same norm"):
        getattr(rnn, kind)(X, packed)


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_message_says_gives_gains_of_one(kind):
    parameters = plain(kind, converted(kind))
    ones = parameters._replace(
        **{
            name: np.ones(parameters.bias.size if name != "gamma_c" else HIDDEN)
            for name in parameters._fields
            if name.startswith("gamma")
        }
    )
    for one, other in zip(
        getattr(rnn, kind)(X, parameters), getattr(rnn, kind)(X, ones), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_files_and_optimizers_keep_it(kind):
    parameters, file = converted(kind), io.BytesIO()
    np.savez(file, **{n: a for n, a in parameters._asdict().items() if a is not None})
    file.seek(0)
    loaded = type(parameters)(**np.load(file))
    y, *_, saved = getattr(rnn, f"{kind}_forward")(X, loaded, norm=None)
    gradients = getattr(rnn, f"{kind}_backward")(np.ones_like(y), saved).parameters
    moved = type(loaded)(
        *(None if p is None else p - 0.1 * g for p, g in zip(loaded, gradients, strict=True))
    )
    with pytest.raises(ValueError, match="norm must be None for parameters"):
        getattr(rnn, kind)(X, moved)


@pytest.mark.parametrize("kind", KINDS)
def test_lists_keep_it(kind):
    """As a program has them that stores weights as JSON."""
    parameters = converted(kind)
    lists = type(parameters)(*(p if p is None else p.tolist() for p in parameters))
    one, other = (getattr(rnn, kind)(X, p, norm=None)[0] for p in (lists, parameters))
    np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="norm must be None for parameters"):
        getattr(rnn, kind)(X, lists)
