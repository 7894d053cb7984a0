"""Calls that were made before with arrays of the same kind: fewer checks, and the same results."""

import numpy as np
import pytest
from row_arrays import DTYPES, draw, supports
from simulated_target import Kernel

import numnorm
from numnorm.backends.cuda.arrays import known_calls
from numnorm.backends.cuda.arrays.known_calls import KnownCall

SHAPE, WIDTH = (3, 40), (40,)


@pytest.fixture
def known(monkeypatch):
    """How often a known call was found."""
    found = []

    def run(self, *given, own=KnownCall.run):
        found.append(True)
        return own(self, *given)

    monkeypatch.setattr(KnownCall, "run", run)
    return found


def arrays(library, dtype="float32", shapes=(SHAPE, WIDTH, WIDTH)):
    return [library.take(draw(shape, dtype, seed)) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_a_second_call_gives_the_same_bytes(library, known, norm, dtype):
    if not supports(library, dtype):
        pytest.skip("a dtype that Numba does not have")
    x, *weights = arrays(library, dtype)
    weights = weights[: 2 if norm == "layer_norm" else 1]
    call = getattr(numnorm, f"{norm}_forward")
    first, second = call(x, *weights), call(x, *weights)
    assert known == [True]
    for one, other in zip(first, second, strict=True):
        assert type(one) is type(other)
        np.testing.assert_array_equal(one.host, other.host)
    gradients = getattr(numnorm, f"{norm}_backward")
    given = x, x, *first[1:], weights[0]
    first, second = gradients(*given), gradients(*given)
    assert known == [True, True]
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.host, other.host)


def test_rows_that_are_read_in_a_loop(library, known, few_registers):
    x, gamma, beta = arrays(library, shapes=((2, 264), (264,), (264,)))
    y, *saved = numnorm.layer_norm_forward(x, gamma, beta)
    again = numnorm.layer_norm(x, gamma, beta)
    np.testing.assert_array_equal(again.host, y.host)
    gradients = [numnorm.layer_norm_backward(y, x, *saved, gamma) for _ in range(2)]
    for one, other in zip(*gradients, strict=True):
        np.testing.assert_array_equal(one.host, other.host)
    assert known == [True]  # of the backward pass; the forward calls differ in what they save


def test_other_values_and_other_options(library, known):
    """Only what the key holds is taken from the call before."""
    for seed in range(3):
        x = library.take(draw(SHAPE, seed=seed))
        for eps in (1e-5, 0.5):
            for axis in (-1, 0):
                y = numnorm.layer_norm(x, eps=eps, axis=axis)
                own = x.host.astype(np.float64)
                mean, variance = (f(own, axis, keepdims=True) for f in (np.mean, np.var))
                expected = (own - mean) / np.sqrt(variance + eps)
                np.testing.assert_allclose(y.host, expected, atol=1e-5)
    assert known == [True] * 4  # of rows along the last axis, without a copy


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_memory_that_is_not_aligned(library, known, offset):
    memory = np.zeros(SHAPE[0] * SHAPE[1] + 8, np.float32)
    numnorm.layer_norm(*arrays(library))
    view = memory[offset : offset + SHAPE[0] * SHAPE[1]].reshape(SHAPE)
    view[...] = draw(SHAPE)
    x, *weights = arrays(library)
    expected = numnorm.layer_norm(x, *weights).host
    assert known == [True]
    for _ in range(2):
        moved = numnorm.layer_norm(library.take(view), *weights)
        np.testing.assert_array_equal(moved.host, expected)
    assert known == [True] * (2 if offset else 3)


def test_an_output_that_overlaps(library, known):
    if library.called == "jax":
        pytest.skip("its arrays cannot be written")
    memory = np.zeros(2 * SHAPE[0] * SHAPE[1], np.float32)
    size = SHAPE[0] * SHAPE[1]
    expected = numnorm.layer_norm(library.take(draw(SHAPE))).host.copy()
    for start in (0, 8, 40, size):
        memory[:size] = draw(SHAPE).reshape(-1)
        x = library.take(memory[:size].reshape(SHAPE))
        out = library.take(memory[start : start + size].reshape(SHAPE))
        for _ in range(2):
            memory[:size] = draw(SHAPE).reshape(-1)
            assert numnorm.layer_norm(x, out=out) is out
            np.testing.assert_array_equal(out.host, expected)
    assert known == [True] * 2  # of x itself, and of the last place, which overlaps nothing


def test_what_checks_refuse_is_refused_again(library, known):
    x, gamma, beta = arrays(library)
    numnorm.layer_norm(x, gamma, beta)
    wrong = library.take(draw((41,)))
    whole = library.take(np.arange(40))
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^gamma must have shape"):
            numnorm.layer_norm(x, wrong, beta)
        with pytest.raises(TypeError, match=r"^gamma must be converted"):
            numnorm.layer_norm(x, whole, beta)
        with pytest.raises(TypeError, match=r"^gamma must be a"):
            numnorm.layer_norm(x, draw(WIDTH), beta)
    assert known == []


def test_a_gradient_that_would_not_flow(imported):
    torch = imported("torch")
    x = torch.take(draw(SHAPE))
    numnorm.layer_norm(x)
    x.requires_grad = True
    with pytest.raises(TypeError, match=r"^x must not require a gradient"):
        numnorm.layer_norm(x)
    torch.gradients = False
    numnorm.layer_norm(x)


def test_the_stream_is_that_of_the_call(imported, monkeypatch):
    cupy, streams = imported("cupy"), []
    launch = Kernel.launch

    def recorded(self, blocks, stream, *arguments):
        streams.append(stream)
        launch(self, blocks, stream, *arguments)

    monkeypatch.setattr(Kernel, "launch", recorded)
    x = cupy.take(draw(SHAPE))
    current = cupy.cuda.get_current_stream()
    for number in (11, 25):
        current.ptr = number
        numnorm.layer_norm(x)
    assert streams == [11, 25]


def test_only_so_many_calls_are_kept(imported, monkeypatch):
    cupy = imported("cupy")
    monkeypatch.setattr(known_calls, "_MOST_CALLS", 4)
    for width in range(2, 20):
        numnorm.layer_norm(cupy.take(draw((2, width))))
        assert len(known_calls._calls) <= 4


def test_the_oldest_calls_are_forgotten_first(imported, known, monkeypatch):
    cupy = imported("cupy")
    known_calls.forget()
    monkeypatch.setattr(known_calls, "_MOST_CALLS", 4)
    for width in range(2, 8):
        numnorm.layer_norm(cupy.take(draw((2, width))))
    for width in (7, 6, 5, 4):
        numnorm.layer_norm(cupy.take(draw((2, width))))
    assert known == [True] * 4


def test_cumulative_averages_are_not_kept(imported):
    """The weight of a batch is another one in each call, so no call would be found again."""
    cupy, x = imported("cupy"), draw((2, 5, 4))
    there, here = ([np.zeros(5), np.ones(5)] for _ in range(2))
    kept = []
    for norm in ("batch_norm", "instance_norm"):
        for step in range(3):
            options = {"momentum": "cumulative", "batches": step}
            for values, (mean, variance) in ((cupy.take(x), map(cupy.take, there)), (x, here)):
                getattr(numnorm, norm)(values, running_mean=mean, running_var=variance, **options)
            kept.append(len(known_calls._calls))
    np.testing.assert_allclose(there, here, rtol=1e-6)
    assert kept[0] == kept[2] and kept[3] == kept[5]
