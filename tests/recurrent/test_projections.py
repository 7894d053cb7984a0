"""LSTMs whose state is a projection of their outputs: the definition, gradients, steps, errors."""

import functools

import numpy as np
import pytest
import recurrent_reference as recurrent
from every_call import COMPILED
from gradients import TOLERANCE, numerical_gradient

from numnorm import rnn

HIDDEN, SIZE = 5, 2
FORMS = [("layer", "paper"), (None, "paper")]
if not COMPILED:
    FORMS += [("rms", "per_gate"), ("ada", "paper"), ("layer", "normalized_cell")]
    FORMS += [("layer", "cell_only")]


def problem(norm, variant, *, time=3, batch=3, inputs=2, hidden=HIDDEN, size=SIZE, seed=3):
    """Parameters, input and states, none of them special."""
    rng = np.random.default_rng(seed)
    options = {"norm": norm, "variant": variant, "dtype": np.float64}
    parameters = rnn.lstm_init(inputs, hidden, rng=rng, proj_size=size, **options)
    parameters = rnn.ProjectedLSTMParameters(
        *(p if p is None else p + rng.normal(size=p.shape) * 0.3 for p in parameters)
    )
    shapes = (time, batch, inputs), (batch, size), (batch, hidden)
    return parameters, *(rng.normal(size=shape) for shape in shapes)


@pytest.mark.parametrize("lengths", [None, [2, 0, 3]], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_definition_and_gradients(form, lengths):
    parameters, *arrays = problem(*form)
    options = {"norm": form[0], "variant": form[1], "lengths": lengths, "reverse": lengths is None}
    *found, saved = rnn.lstm_forward(arrays[0], parameters, *arrays[1:], **options)
    plain = rnn.lstm(arrays[0], parameters, *arrays[1:], **options)
    assert all(np.array_equal(a, b) for a, b in zip(plain, found, strict=True))

    exact = {
        name: None if p is None else np.array(p, np.longdouble)
        for name, p in parameters._asdict().items()
    }
    x, h, c = (np.array(a, np.longdouble) for a in arrays)
    norm = recurrent.Norm(form[0], 1e-5)
    step = functools.partial(recurrent.lstm_step, norm, form[1], exact)
    of_sequences = {"lengths": lengths, "reverse": lengths is None}
    expected = recurrent.sequences(step, x, [h, c], **of_sequences)
    # States of size 1, three steps of sums of a dozen products.
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() < 4e-14

    rng = np.random.default_rng(1)
    grads = [rng.normal(size=a.shape) for a in found]
    gradients = rnn.lstm_backward(grads[0], saved, *grads[1:])

    def loss():
        norm.rerun()
        new = recurrent.sequences(step, x, [h, c], **of_sequences)
        return sum(np.sum(a * b) for a, b in zip(new, grads, strict=True))

    named = {name: a for name, a in exact.items() if a is not None}
    results = [*gradients[:-1], *(getattr(gradients.parameters, name) for name in named)]
    for gradient, array in zip(results, [x, h, c, *named.values()], strict=True):
        numerical = numerical_gradient(loss, array)
        # Of up to 100 terms of size 1, through 3 steps.
        assert np.abs(gradient - numerical).max() < 20 * TOLERANCE * max(1, np.abs(numerical).max())


@pytest.mark.parametrize(("batch", "hidden", "size"), [(13, 33, 20), (8, 16, 16), (1, 40, 1)])
def test_single_steps_give_the_same_bytes(batch, hidden, size):
    parameters, x, h, c = problem("layer", "paper", batch=batch, hidden=hidden, size=size)
    packed = rnn.lstm_pack(parameters, dtype=np.float64)
    y, *last, saved = rnn.lstm_forward(x, packed, h, c)
    back = rnn.lstm_backward(y, saved)
    now, steps = (h, c), []
    for t in range(len(x)):
        *now, kept = rnn.lstm_cell_forward(x[t], parameters, *now)
        np.testing.assert_array_equal(now[0], y[t])
        np.testing.assert_array_equal(rnn.lstm(x[: t + 1], packed, h, c).c, now[1])
        steps.append(kept)
    assert all(np.array_equal(a, b) for a, b in zip(now, last, strict=True))
    dh, dc = np.zeros_like(h), None
    for t in reversed(range(len(x))):
        dx, dh, dc, _ = rnn.lstm_cell_backward(y[t] + dh, steps[t], dc)
        np.testing.assert_array_equal(dx, back.dx[t])
    np.testing.assert_array_equal(dh, back.dh)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrower_dtypes(dtype):
    parameters, *arrays = problem("layer", "paper", batch=9, hidden=20, size=11)
    arrays = [a.astype(dtype) for a in arrays]
    results = []
    for kind in (dtype, np.float64):
        x, h, c = (a.astype(kind) for a in arrays)
        y, *last, saved = rnn.lstm_forward(x, parameters, h, c)
        results.append([y, *last, *rnn.lstm_backward(None, saved, *last)[:-1]])
    # float16 rounds the results, float32 a few dozen products and their sums.
    tolerance = 2e-3 if dtype == np.float16 else 1e-5
    for found, expected in zip(*results, strict=True):
        assert found.dtype == dtype
        assert np.abs(found - expected).max() < tolerance * max(1, np.abs(expected).max())


def test_an_identity_projects_nothing():
    parameters, x, _, c = problem("layer", "paper", size=HIDDEN)
    parameters = parameters._replace(projection=np.eye(HIDDEN))
    values = parameters._asdict()
    del values["projection"]
    found, expected = (rnn.lstm(x, p, c, c) for p in (parameters, rnn.LSTMParameters(**values)))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("sizes", [{"time": 0}, {"batch": 0}], ids="-".join)
def test_nothing_has_gradients_of_0(sizes):
    parameters, x, h, c = problem("layer", "paper", **sizes)
    *_, saved = rnn.lstm_forward(x, parameters, h, c)
    gradients = rnn.lstm_backward(None, saved).parameters
    assert gradients.projection.shape == (SIZE, HIDDEN) and not gradients.projection.any()


def test_layers():
    parameters, x, h, c = problem("layer", "paper")
    above = rnn.gru_init(SIZE, 2, rng=np.random.default_rng(2))
    y, states, saved = rnn.stacked_forward(x, [parameters, above], [(h, c), None])
    below = rnn.lstm(x, parameters, h, c)
    np.testing.assert_array_equal(y, rnn.gru(below.y, above).y)
    gradients = rnn.stacked_backward(y, saved, states)
    assert isinstance(gradients.layers[0], rnn.ProjectedLSTMParameters)
    assert gradients.layers[0].projection.shape == (SIZE, HIDDEN)


def test_conversions_there_and_back():
    parameters, *_ = problem(None, "paper")
    arrays = rnn.lstm_to_torch(parameters)
    assert [a.shape for a in arrays] == [(20, 2), (20, 2), (20,), (20,), (2, 5)]
    again = rnn.lstm_from_torch(*arrays)
    for a, b in zip(again, parameters, strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match=r"^parameters must have no projection for ONNX"):
        rnn.lstm_to_onnx(parameters)
    with pytest.raises(ValueError, match=r"^weight_hr must have shape \(2, 5\), that of weight_hh"):
        rnn.lstm_from_torch(*arrays[:4], arrays[4][:, :4])


def test_errors():
    parameters, x, h, c = problem("layer", "paper")
    rng = np.random.default_rng(0)
    calls = {
        "zoneout must be 0 with projections": {"zoneout": 0.5},
        "recurrent_dropout must be 0 with projections": {"recurrent_dropout": 0.5, "rng": rng},
        "norm must be that of a row with projections": {"norm": "batch"},
        "h must have shape (3, 2)": {"h": c},
        "c must have shape (3, 5)": {"c": h},
        "projection must have shape (P, H)": {"parameters": parameters._replace(projection=h[0])},
        "weight_h must have shape (20, 3)": {
            "parameters": parameters._replace(projection=np.ones((3, 5)))
        },
    }
    for message, changed in calls.items():
        arguments = {"x": x, "parameters": parameters, "h": h, "c": c} | changed
        with pytest.raises(ValueError) as caught:
            rnn.lstm(**arguments)
        assert str(caught.value).startswith(message)
    with pytest.raises(ValueError, match=r"^proj_size must be at most 2, the number of units"):
        rnn.lstm_init(3, 2, rng=rng, proj_size=3)
