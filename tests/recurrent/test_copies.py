"""Packed parameters and what forward passes save: short reprs, copies, pickles, files."""

import copy
import io
import pickle
import subprocess
import sys

import numpy as np
import pytest

from numnorm import rnn

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 3, 4))
STATISTICS = rnn.lstm_statistics_init(5, 2, dtype=np.float64)
CASES = {
    "lstm": ("lstm", {}),
    "lstm-ada-zoneout": ("lstm", {"norm": "ada", "zoneout": 0.25, "variant": "normalized_cell"}),
    "lstm-none": ("lstm", {"norm": None}),
    "lstm-batch": ("lstm", {"norm": "batch"}),
    "lstm-running": ("lstm", {"norm": rnn.RecurrentBatchNorm(STATISTICS, training=False)}),
    "gru": ("gru", {"norm": "rms"}),
    "rnn": ("rnn", {"nonlinearity": "relu"}),
}
COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "old pickle": lambda value: pickle.loads(pickle.dumps(value, protocol=2)),
    "cloudpickle": lambda value: pickle.loads(pytest.importorskip("cloudpickle").dumps(value)),
}


def made(name):
    """Return the kind of a cell, float64 parameters and options."""
    kind, options = CASES[name]
    choices = {key: value for key, value in options.items() if key in ("norm", "variant")}
    if isinstance(choices.get("norm"), rnn.RecurrentBatchNorm):
        choices["norm"] = "batch"
    init = getattr(rnn, f"{kind}_init")
    return kind, init(4, 2, rng=np.random.default_rng(1), dtype=np.float64, **choices), options


def flat(results):
    """Return all arrays of nested tuples."""
    if isinstance(results, tuple):
        return [array for result in results for array in flat(result)]
    return [] if results is None else [results]


def same(one, other):
    for mine, theirs in zip(flat(one), flat(other), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("name", CASES)
def test_what_is_saved_can_be_copied(name, copied):
    kind, parameters, options = made(name)
    y, *_, saved = getattr(rnn, f"{kind}_forward")(X, parameters, **options)
    backward = getattr(rnn, f"{kind}_backward")
    again = COPIES[copied](saved)
    same(backward(np.ones_like(y), again), backward(np.ones_like(y), saved))
    assert len(repr(saved)) < 100 and f"{kind}_forward" in repr(saved)


@pytest.mark.parametrize("copied", COPIES)
def test_what_a_step_or_a_stack_saves_can_be_copied(copied):
    _, parameters, options = made("gru")
    h, saved = rnn.gru_cell_forward(X[0], parameters, **options)
    same(rnn.gru_cell_backward(h, COPIES[copied](saved)), rnn.gru_cell_backward(h, saved))
    assert "gru_cell_forward" in repr(saved)
    packed = rnn.gru_pack(parameters, norm="rms", dtype=np.float64)
    rng = np.random.default_rng(0)
    y, _, saved = rnn.stacked_forward(X, [packed], dropout=0.5, rng=rng, **options)
    same(rnn.stacked_backward(y, COPIES[copied](saved)), rnn.stacked_backward(y, saved))
    assert len(repr(saved)) < 100 and "stacked_forward" in repr(saved)


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("name", ["lstm", "lstm-ada-zoneout", "lstm-none", "gru", "rnn"])
def test_packed_parameters_can_be_copied(name, copied):
    kind, parameters, options = made(name)
    choices = {key: value for key, value in options.items() if key != "zoneout"}
    packed = getattr(rnn, f"{kind}_pack")(parameters, dtype=np.float64, **choices)
    expected = getattr(rnn, kind)(X, packed, **options)
    for _ in range(2):
        getattr(rnn, f"{kind}_cell")(X[0], packed, **options)  # it remembers its steps
    again = COPIES[copied](packed)
    same(getattr(rnn, kind)(X, again, **options), expected)
    step = getattr(rnn, f"{kind}_cell")
    same(step(X[0], again, **options), step(X[0], packed, **options))
    assert repr(packed) == f"Packed({kind}, 4 inputs, 2 units, float64)"
    another = "rms" if "norm" not in options else "layer"
    with pytest.raises(ValueError, match="packed for the same norm"):
        getattr(rnn, kind)(X, again, norm=another)


def test_another_process_goes_on(tmp_path):
    _, parameters, _ = made("lstm")
    packed = rnn.lstm_pack(parameters, dtype=np.float64)
    y, _, _, saved = rnn.lstm_forward(X, packed)
    file = tmp_path / "saved.pickle"
    file.write_bytes(pickle.dumps((X, packed, saved)))
    program = (
        "import pickle, sys; import numpy as np\n"
        "x, packed, saved = pickle.load(open(sys.argv[1], 'rb'))\n"
        "from numnorm import rnn\n"
        "y = rnn.lstm(x, packed).y\n"
        "dx = rnn.lstm_backward(np.ones_like(y), saved).dx\n"
        "np.savez(sys.argv[1] + '.npz', y=y, dx=dx)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(file)], check=True)
    with np.load(f"{file}.npz") as results:
        np.testing.assert_array_equal(results["y"], y)
        dx = rnn.lstm_backward(np.ones_like(y), saved).dx
        np.testing.assert_array_equal(results["dx"], dx)


def stored(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    file.seek(0)
    return file


@pytest.mark.parametrize("allow_pickle", [False, True])
@pytest.mark.parametrize("name", ["lstm", "lstm-none", "gru", "rnn"])
def test_parameters_go_through_a_file(name, allow_pickle):
    _, parameters, _ = made(name)
    parameters = parameters._replace(bias=None)
    file = stored(**parameters._asdict())
    loaded = rnn.parameters_from_arrays(type(parameters), np.load(file, allow_pickle=allow_pickle))
    assert type(loaded) is type(parameters)
    for mine, before in zip(loaded, parameters, strict=True):
        assert (mine is None) == (before is None)
        assert mine is None or (mine.dtype == before.dtype and (mine == before).all())


WEIGHTS = {"weight_x": np.ones((2, 3)), "weight_h": np.eye(2)}


def test_errors_of_files():
    load = rnn.parameters_from_arrays
    with pytest.raises(
        TypeError,
        match="kind must be one of LSTMParameters, ProjectedLSTMParameters, GRUParameters",
    ):
        load(rnn.LSTMStates, WEIGHTS)
    with pytest.raises(TypeError, match="arrays must be a mapping"):
        load(rnn.RNNParameters, [1])
    with pytest.raises(ValueError, match="arrays must have names of RNNParameters, got 'gamma_c'"):
        load(rnn.RNNParameters, WEIGHTS | {"gamma_c": np.ones(2)})
    with pytest.raises(ValueError, match="arrays must have 'weight_h', which is missing"):
        load(rnn.RNNParameters, np.load(stored(weight_x=np.ones((2, 3)), weight_h=None)))


@pytest.mark.parametrize("copied", COPIES)
def test_projected_parameters_can_be_copied(copied):
    rng = np.random.default_rng(0)
    parameters = rnn.lstm_init(3, 7, rng=rng, proj_size=5)
    packed, x = rnn.lstm_pack(parameters), rng.normal(size=(4, 2, 3)).astype(np.float32)
    y, *_, saved = rnn.lstm_forward(x, parameters)
    assert (rnn.lstm(x, COPIES[copied](packed)).y == rnn.lstm(x, packed).y).all()
    assert (rnn.lstm_backward(y, COPIES[copied](saved)).dx == rnn.lstm_backward(y, saved).dx).all()


def test_a_projection_is_not_left_out_of_a_file():
    arrays = rnn.lstm_init(3, 7, rng=np.random.default_rng(0), proj_size=5)._asdict()
    del arrays["projection"]
    with pytest.raises(ValueError, match="arrays must have 'projection'"):
        rnn.parameters_from_arrays(rnn.ProjectedLSTMParameters, arrays)
