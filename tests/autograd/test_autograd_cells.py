"""numnorm.autograd: the recurrent cells."""

import inspect
import pickle

import autograd
import autograd.numpy as anp
import numpy as np
import pytest
from autograd.test_util import check_grads
from kernels import full

import numnorm.autograd as differentiable
from numnorm import rnn
from numnorm.rnn.cells import CELLS

RNG = np.random.default_rng(8)
X = RNG.normal(size=(3, 2, 3))


def arrays_of(name, **options):
    """Parameters far from their first values, as a dictionary, and states."""
    cell = CELLS[name]
    parameters = cell.init(3, 2, rng=RNG, dtype=np.float64, **options)._asdict()
    present = {key: value for key, value in parameters.items() if value is not None}
    moved = {key: value + RNG.normal(0, 0.3, value.shape) for key, value in present.items()}
    return moved, tuple(RNG.normal(size=(2, 2)) for _ in cell.kind.states)


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_takes_what_the_public_function_takes(name):
    function = getattr(differentiable, name)
    taken = inspect.signature(function)
    public = inspect.signature(CELLS[name].call)
    assert [(p.name, p.kind, p.default) for p in taken.parameters.values()] == [
        (p.name, p.kind, p.default) for p in public.parameters.values()
    ]
    types = inspect.get_annotations(function, eval_str=True)
    assert types["return"] is public.return_annotation
    for option in CELLS[name].kind.options:
        assert types[option] == public.parameters[option].annotation
    assert pickle.loads(pickle.dumps(function)) is function


# Not AdaNorm, whose gradient is not the derivative.
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reverse": True, "lengths": [3, 1]},
        pytest.param({"norm": None}, marks=full),
        pytest.param({"norm": "rms"}, marks=full),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", CELLS)
def test_check_grads(name, options):
    norm = options.get("norm", "layer")
    weights, states = arrays_of(name, norm=norm)

    def function(x, weights, states):
        parameters = CELLS[name].kind.parameters(**weights)
        result = getattr(differentiable, name)(x, parameters, *states, **options)
        assert type(result) is inspect.signature(CELLS[name].call).return_annotation
        return anp.concatenate([anp.ravel(part) for part in result])

    for argnum in range(3):
        check_grads(function, argnum, order=1, modes=["rev"])(X, weights, states)


@pytest.mark.parametrize("name", CELLS)
def test_gradients_are_those_of_numnorm(name):
    weights, states = arrays_of(name)
    parameters = CELLS[name].kind.parameters(**weights)
    *results, saved = CELLS[name].forward(X, parameters, *states)
    ones = [np.ones_like(result) for result in results]
    expected = CELLS[name].backward(ones[0], saved, *ones[1:])

    def loss(x, weights):
        result = getattr(differentiable, name)(x, weights, *states)
        return sum(anp.sum(part) for part in result)

    np.testing.assert_array_equal(autograd.grad(loss, 0)(X, parameters), expected.dx)
    # A plain tuple, which autograd traces as a whole.
    found = autograd.grad(loss, 1)(X, tuple(parameters))
    for one, other in zip(found, expected.parameters, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


def test_values_are_those_of_numnorm():
    weights, states = arrays_of("lstm")
    parameters = rnn.LSTMParameters(**weights)
    for x in (X, X.astype(np.float32)):
        found = differentiable.lstm(x, parameters, *states, reverse=True)
        expected = rnn.lstm(x, parameters, *states, reverse=True)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)


@full
def test_projections_and_a_loss_of_the_last_state_alone():
    weights = rnn.lstm_init(3, 4, proj_size=2, rng=RNG, dtype=np.float64)._asdict()

    def last(x, weights):
        return differentiable.lstm(x, rnn.ProjectedLSTMParameters(**weights)).h

    for argnum in range(2):
        check_grads(last, argnum, order=1, modes=["rev"])(X, weights)


def test_weights_without_a_norm():
    parameters = rnn.rnn_from_torch(*(RNG.normal(size=s) for s in ((2, 3), (2, 2), 2, 2)))

    def loss(weights, norm=None):
        return anp.sum(differentiable.rnn(X, rnn.RNNParameters(**weights), norm=norm).y)

    weights = {key: value for key, value in parameters._asdict().items() if value is not None}
    gradients = autograd.grad(loss)(weights)
    assert gradients["weight_x"].shape == (2, 3)
    assert gradients["gamma"].shape == (0,)
    with pytest.raises(ValueError, match=r"^norm must be None for parameters"):
        autograd.grad(loss)(weights, "layer")


def test_masks_are_drawn_once():
    weights, _ = arrays_of("gru")
    parameters = rnn.GRUParameters(**weights)
    expected = np.random.default_rng(3)
    *_, saved = rnn.gru_forward(X, parameters, zoneout=0.3, rng=expected)
    dx = rnn.gru_backward(np.ones((3, 2, 2)), saved).dx
    rng = np.random.default_rng(3)

    def loss(x):
        return anp.sum(differentiable.gru(x, parameters, zoneout=0.3, rng=rng).y)

    np.testing.assert_array_equal(autograd.grad(loss)(X), dx)
    assert rng.bit_generator.state == expected.bit_generator.state


def test_refused():
    packed = rnn.rnn_pack(rnn.rnn_init(3, 2, rng=RNG))
    with pytest.raises(TypeError, match=r"^parameters must be an RNNParameters, got an object of"):
        differentiable.rnn(X, packed)
    weights, _ = arrays_of("rnn")
    with pytest.raises(TypeError, match=r"^parameters must be an RNNParameters, got an object of"):
        autograd.grad(lambda values: anp.sum(differentiable.rnn(X, values).y))(weights)

    def loss(x):
        return anp.sum(differentiable.rnn(x, rnn.RNNParameters(**weights)).y ** 2)

    with pytest.raises(NotImplementedError, match=r"^numnorm\.autograd: first derivatives in"):
        autograd.hessian(loss)(X)
