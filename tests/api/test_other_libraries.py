"""Arrays of other libraries on the host: results are arrays of the same library, without copies."""

import copy
import pickle
import sys
import types
from inspect import signature

import array_api_strict as strict
import numpy as np
import pytest
from library_calls import CALLS, check_call, draw

import numnorm
from numnorm import rnn
from numnorm.backends import cpu, host
from numnorm.backends.contract.backend import Backend

DEVICE = strict.Device("device1")


def on_another_device(array):
    return strict.asarray(array, device=DEVICE)


def address(array):
    return np.from_dlpack(array).__array_interface__["data"][0]


class Producer:
    """An array that has nothing but DLPack."""

    def __init__(self, array):
        self.array = np.array(array)
        self.shape = self.array.shape

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Packaged(Producer):
    """The same, of a package that takes arrays, too."""


@pytest.fixture
def package(monkeypatch):
    package = types.ModuleType("packaged")
    package.from_dlpack = lambda array: Packaged(np.from_dlpack(array))
    monkeypatch.setitem(sys.modules, "packaged", package)
    monkeypatch.setattr(Packaged, "__module__", "packaged.arrays")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_results_are_of_the_same_library(call):
    check_call(call, strict.asarray, type(strict.asarray(0.0)), np.from_dlpack)


@pytest.mark.parametrize("name", ["layer", "batch", "moments", "lstm"])
def test_the_results_are_on_the_same_device(name):
    kind = type(strict.asarray(0.0))

    def checked(array):
        assert array.device == DEVICE
        return np.from_dlpack(array)

    check_call(CALLS[name], on_another_device, kind, checked)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("lstm", "stacked")])
def test_a_producer_without_a_library_gives_arrays_of_numpy(name):
    check_call(CALLS[name], Producer, np.ndarray, np.asarray)


@pytest.mark.parametrize("name", ["layer", "batch-images", "moments-two-axes", "batch-lstm"])
def test_a_package_may_take_the_results(name, package):
    check_call(CALLS[name], Packaged, Packaged, np.from_dlpack)


def test_it_has_the_functions_of_the_contract():
    names = {name for name, value in vars_of(Backend) if callable(value)}
    assert names >= host._OF_CALLER
    for name in names:
        mine, contract = getattr(host.HostBackend, name, None), getattr(Backend, name)
        if mine is None:
            assert callable(getattr(host.HostBackend(None), name))
        else:
            assert list(signature(mine).parameters) == list(signature(contract).parameters)


def vars_of(protocol):
    return [(n, v) for kind in protocol.__mro__ for n, v in vars(kind).items() if n[0] != "_"]


# Mixed libraries


@pytest.mark.parametrize("make", [np.asarray, strict.asarray, Producer, list])
def test_the_result_follows_x(make):
    x, gamma = draw(4, 9), draw(9, seed=1)
    expected = numnorm.layer_norm_forward(x, gamma)
    kind = np.ndarray if make is list else type(numnorm.layer_norm(make(x)))
    result = numnorm.layer_norm_forward(make(x), strict.asarray(gamma), Producer(0 * gamma))
    assert {type(array) for array in result} == {kind}
    np.testing.assert_allclose(np.from_dlpack(result[0]), expected.y, rtol=1e-6)
    other = [strict.asarray(array) for array in expected[1:]]
    dx, *_ = numnorm.layer_norm_backward(Producer(x), make(x), *other, gamma)
    assert type(dx) is kind


def test_parameters_packed_from_arrays_of_numpy():
    parameters = rnn.lstm_init(3, 4, rng=np.random.default_rng(0))
    x = draw(2, 3)
    expected = rnn.lstm_cell(x, rnn.lstm_pack(parameters)).h
    for given in (parameters, type(parameters)(*map(strict.asarray, parameters))):
        packed = rnn.lstm_pack(given)
        h = rnn.lstm_cell(strict.asarray(x), packed).h
        np.testing.assert_array_equal(np.from_dlpack(h), expected)
        np.testing.assert_array_equal(rnn.lstm_cell(x, packed).h, expected)


def test_moments_of_two_libraries_merge():
    one, other = draw(6, 5), draw(4, 5, seed=1)
    expected = numnorm.batch_moments(one).merge(numnorm.batch_moments(other))
    mixed = numnorm.batch_moments(strict.asarray(one)).merge(numnorm.batch_moments(other))
    np.testing.assert_array_equal(np.from_dlpack(mixed.m2), expected.m2)
    empty = numnorm.batch_moments(np.empty((0, 5)))
    assert empty.merge(mixed) is mixed


# Memory


def test_a_result_is_not_copied(monkeypatch):
    x, made, taken = strict.asarray(draw(4, 9)), [], []
    from_dlpack, row_forward = strict.from_dlpack, cpu.row_forward
    monkeypatch.setattr(strict, "from_dlpack", lambda a: made.append(a) or from_dlpack(a))
    monkeypatch.setattr(
        cpu, "row_forward", lambda n, x, *others: taken.append(x) or row_forward(n, x, *others)
    )
    results = numnorm.layer_norm_forward(x)
    assert sorted(map(address, made)) == sorted(map(address, results))
    assert [address(array) for array in taken] == [address(x)]


NORMS = {
    "layer": lambda x, out: numnorm.layer_norm(x, out=out),
    "layer-first-axis": lambda x, out: numnorm.layer_norm(x, axis=0, out=out),
    "batch": lambda x, out: numnorm.batch_norm(x, out=out),
    "batch-two-axes": lambda x, out: numnorm.batch_norm(x, channel_axis=(0, 1), out=out),
    "batch-axes-apart": lambda x, out: numnorm.batch_norm(x, channel_axis=(0, 2), out=out),
    "layer-backward": lambda x, out: (
        numnorm.layer_norm_backward(x, x, draw(6, 4), draw(6, 4), out=out).dx
    ),
    "batch-backward": lambda x, out: (
        numnorm.batch_norm_backward(x, x, draw(4), draw(4), out=out).dx
    ),
}


@pytest.mark.parametrize("call", NORMS.values(), ids=NORMS)
def test_out_is_written_and_returned(call):
    x = draw(6, 4, 5)
    expected = call(x, None)
    for out in (strict.asarray(np.zeros_like(x)), np.zeros_like(x), Producer(np.zeros_like(x))):
        before = address(out)
        assert call(strict.asarray(x), out) is out
        assert address(out) == before
        np.testing.assert_array_equal(np.from_dlpack(out), expected)
    same = strict.asarray(x.copy())
    assert call(same, same) is same
    np.testing.assert_array_equal(np.from_dlpack(same), expected)


def test_out_must_be_writable_and_like_x():
    x = strict.asarray(draw(6, 4))
    read_only = draw(6, 4)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out must be writable, got a read-only array$"):
        numnorm.layer_norm(x, out=strict.asarray(read_only, copy=False))
    with pytest.raises(ValueError, match=r"^out must have shape \(6, 4\)"):
        numnorm.layer_norm(x, out=strict.zeros((6, 5)))
    with pytest.raises(TypeError, match=r"^out must have dtype float32"):
        numnorm.layer_norm(x, out=strict.zeros((6, 4)))
    with pytest.raises(
        TypeError, match=r"^out must be a numpy.ndarray, got an object of type list"
    ):
        numnorm.layer_norm(x, out=[[0.0] * 4] * 6)


class Stubborn(Producer):
    """It does not hand out its memory."""

    def __dlpack__(self, **options):
        raise BufferError("no memory for others")


def test_out_must_share_its_memory():
    x = draw(6, 4)
    with pytest.raises(TypeError, match=r"^out must be .*Stubborn: no memory for others$"):
        numnorm.layer_norm(strict.asarray(x), out=Stubborn(x))


@pytest.mark.parametrize("make_x", [np.asarray, strict.asarray])
@pytest.mark.parametrize("axis, shape", [(1, (4,)), ((0, 1), (6, 4))])
def test_running_statistics_are_updated_in_place(make_x, axis, shape):
    x = draw(6, 4, 5)
    expected = np.zeros(shape), np.ones(shape)
    numnorm.batch_norm(x, channel_axis=axis, running_mean=expected[0], running_var=expected[1])
    running = strict.zeros(shape), strict.ones(shape)
    numnorm.batch_norm(
        make_x(x), channel_axis=axis, running_mean=running[0], running_var=running[1]
    )
    for mine, theirs in zip(running, expected, strict=True):
        np.testing.assert_array_equal(np.from_dlpack(mine), theirs)


def test_running_statistics_of_other_norms_are_updated_in_place():
    x, running = draw(6, 4, 5), (strict.zeros(4), strict.ones(4))
    numnorm.instance_norm(strict.asarray(x), running_mean=running[0], running_var=running[1])
    expected = np.zeros(4), np.ones(4)
    numnorm.instance_norm(x, running_mean=expected[0], running_var=expected[1])
    np.testing.assert_array_equal(np.from_dlpack(running[1]), expected[1])
    statistics = [rnn.lstm_statistics_init(5, 4) for _ in range(2)]
    mine = rnn.LSTMStatistics(*(strict.asarray(array, copy=False) for array in statistics[0]))
    parameters = rnn.lstm_init(3, 4, rng=np.random.default_rng(0), norm="batch")
    x = draw(5, 2, 3)
    rnn.lstm(strict.asarray(x), parameters, norm=rnn.RecurrentBatchNorm(mine))
    rnn.lstm(x, parameters, norm=rnn.RecurrentBatchNorm(statistics[1]))
    for array, theirs in zip(mine, statistics[1], strict=True):
        np.testing.assert_array_equal(np.from_dlpack(array), theirs)


def test_running_statistics_must_not_share_memory():
    both = strict.ones(5)
    with pytest.raises(ValueError, match=r"^running_var must not share memory"):
        numnorm.batch_norm(strict.asarray(draw(6, 5)), running_mean=both, running_var=both)


# Copies of what is saved


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda saved: pickle.loads(pickle.dumps(saved))])
def test_copies_of_what_is_saved_keep_the_library(copied):
    parameters = rnn.lstm_init(3, 4, rng=np.random.default_rng(0))
    y, *_, saved = rnn.lstm_forward(strict.asarray(draw(5, 2, 3)), parameters)
    expected = rnn.lstm_backward(y, saved).dx
    dx = rnn.lstm_backward(y, copied(saved)).dx
    assert type(dx) is type(expected)
    np.testing.assert_array_equal(np.from_dlpack(dx), np.from_dlpack(expected))


# What stays NumPy's


def test_frames_and_named_arrays_give_arrays_of_numpy():
    pandas, xarray = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    x = draw(4, 9)
    for like in (pandas.DataFrame(x), xarray.DataArray(x), pandas.Series(x[0])):
        y = numnorm.layer_norm(like)
        assert type(y) is np.ndarray
        np.testing.assert_array_equal(y, numnorm.layer_norm(np.asarray(like)))


def test_frames_of_polars_give_arrays_of_numpy():
    polars = pytest.importorskip("polars")
    x = draw(4, 9)
    y = numnorm.layer_norm(polars.DataFrame(x))
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, numnorm.layer_norm(x))
