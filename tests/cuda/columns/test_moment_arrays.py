"""Moments of device arrays of every library: streamed, merged, used; layouts, places, errors."""

import numpy as np
import pytest
import reference
from fake_libraries import STREAMS
from row_arrays import DTYPES, draw, supports
from simulated_target import Kernel

import numnorm
from numnorm import Moments, batch_moments
from numnorm.norms.batch import chunk_multiple

# A shape with its channel axis: plain, channels first, last and foremost, whole and ragged.
PLACES = {
    "plain": ((9, 5), 1),
    "plain, whole": ((40, 16), 1),
    "channels first": ((3, 4, 3, 3), 1),
    "channels first, whole": ((3, 2, 4, 4), 1),
    "channels last": ((2, 3, 3, 8), -1),
    "channels foremost": ((3, 7), 0),
    "one axis": ((6,), 0),
}


def check(found, expected, dtype):
    """The sums are of a dozen roundings each, and errors of the mean are relative to a deviation.

    What is kept in float64 of a mean that is some deviations away from 0 has roundings of its own.
    """
    epsilon = float(np.finfo(np.float64 if dtype == "float64" else np.float32).eps)
    count, mean, m2 = expected
    assert type(found) is Moments and found.count == count
    assert found.mean.host.dtype == found.m2.host.dtype == np.float64
    deviation = np.sqrt(np.float64(m2) / max(count, 1))
    bound = 4 * epsilon * deviation + 1e-15 * np.abs(mean)
    assert np.all(np.abs(found.mean.host - mean) <= bound)
    np.testing.assert_allclose(found.m2.host, np.float64(m2), rtol=32 * epsilon)


def as_bytes(moments):
    return moments.count, *(array.host.tobytes() for array in moments[1:])


def streamed(library, chunks, axis=1):
    total = None
    for chunk in chunks:
        total = batch_moments(library.take(chunk.copy()), channel_axis=axis, after=total)
    return total


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", PLACES)
def test_one_array(library, dtype, place):
    if not supports(library, dtype):
        pytest.skip("a dtype that Numba does not have")
    shape, axis = PLACES[place]
    x = draw(shape, dtype)
    of_x = library.take(x)
    found = batch_moments(of_x, channel_axis=axis)
    assert type(found.mean) is type(found.m2) is type(of_x)
    assert found.mean.host.shape == found.m2.host.shape == (shape[axis],)
    check(found, reference.moments(x, axis), dtype)


@pytest.mark.parametrize("place", PLACES)
def test_any_order_of_threads(library, place, order):
    shape, axis = PLACES[place]
    x = draw(shape)
    found = streamed(library, [x, x + 1], axis)
    expected = reference.merge_moments(reference.moments(x, axis), reference.moments(x + 1, axis))
    check(found, expected, "float32")


@pytest.mark.parametrize("place", [(10_000, 1), (2_500, 1, 4)])
@pytest.mark.parametrize("offset", [1e8, 1e10])
def test_no_offset_costs_the_variance_digits(imported, offset, place):
    # The values are offset + 1 and offset - 1, exactly: the mean is the offset, m2 the count.
    library = imported("torch")
    x = np.repeat([offset + 1, offset - 1], 5000).reshape(place)
    chunks = np.split(x, [1500])
    parts = [batch_moments(library.take(chunk)) for chunk in chunks]
    for found in (
        batch_moments(library.take(x)),
        streamed(library, chunks),
        parts[0].merge(parts[1]),
    ):
        np.testing.assert_allclose(found.var().host, 1.0, rtol=4 * np.finfo(np.float64).eps)
    # The normalized values of 1 and -1 take two roundings more than the variance.
    y = numnorm.batch_norm(library.take(x), eps=0).host
    np.testing.assert_allclose(y, x - offset, rtol=8 * np.finfo(np.float64).eps)


# Streams

# Shapes of some blocks each, with the length of a chunk: along channels, whole and ragged, in
# several segments, and across them.
STREAMS_OF_BLOCKS = {
    "whole": ((12, 3, 1000), 5),
    "ragged": ((12, 3, 1001), 5),
    "narrow": ((2, 257, 64), 1),
    "several segments": ((3, 1, 20_001), 1),
    "across": ((2100, 3), 1024),
    "across, whole": ((2100, 8), 1024),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", STREAMS_OF_BLOCKS)
def test_whole_steps_give_the_bytes_of_one_call(imported, name, dtype):
    library, (shape, step) = imported("torch"), STREAMS_OF_BLOCKS[name]
    x = draw(shape, dtype)
    assert chunk_multiple(shape) == step
    whole = batch_moments(library.take(x))
    check(whole, reference.moments(x), dtype)
    for length in (step, 2 * step):
        chunks = np.split(x, range(length, len(x), length))
        assert as_bytes(streamed(library, chunks)) == as_bytes(whole)


@pytest.mark.parametrize("shape", [(9, 5), (9, 8), (3, 4, 7), (3, 4, 8)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_the_same_bytes_from_any_address(imported, shape, dtype):
    library, x = imported("torch"), draw(shape, dtype)
    found = set()
    for behind in range(4):
        memory = np.zeros(x.size + 4, x.dtype)
        view = memory[behind : behind + x.size].reshape(shape)
        view[...] = x
        library.take(memory)
        found.add(as_bytes(batch_moments(type(library.take(memory))(view))))
    assert len(found) == 1


@pytest.mark.parametrize("split", [[1], [8], [2, 4, 8], [0], [9]])
def test_chunks_of_any_size(library, split):
    x = draw((9, 5))
    found = streamed(library, np.split(x, split))
    check(found, reference.moments(x), "float32")


def test_an_empty_chunk_is_neutral_exactly(library):
    x, empty = library.take(draw((9, 5))), library.take(np.empty((0, 5), np.float32))
    moments, nothing = batch_moments(x), batch_moments(empty)
    assert nothing.count == 0 and not nothing.mean.host.any() and not nothing.m2.host.any()
    assert nothing.mean.host.dtype == nothing.m2.host.dtype == np.float64
    before = as_bytes(moments)
    assert as_bytes(batch_moments(x, after=nothing)) == before
    found = batch_moments(empty, after=moments)
    assert as_bytes(found) == before
    assert found.mean is not moments.mean and found.m2 is not moments.m2
    assert moments.merge(nothing) is moments and nothing.merge(moments) is moments
    assert as_bytes(nothing.merge(nothing)) == as_bytes(nothing)


def test_no_channels(library):
    found = batch_moments(library.take(np.empty((3, 0), np.float32)))
    assert found.count == 0 and found.mean.host.shape == (0,)
    found = batch_moments(library.take(np.empty((3, 0), np.float32)), after=found)
    assert found.m2.host.shape == (0,)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_earlier_moments_of_another_float_dtype(library, dtype):
    x = draw((9, 5))
    first = batch_moments(library.take(x))
    narrow = (array.host.astype(dtype) for array in first[1:])
    found = batch_moments(library.take(x), after=Moments(9, *map(library.take, narrow)))
    assert found.count == 18 and found.mean.host.dtype == np.float64
    np.testing.assert_allclose(found.mean.host, first.mean.host, rtol=1e-3)
    np.testing.assert_allclose(found.m2.host, 2 * first.m2.host, rtol=1e-3)


def test_the_earlier_moments_are_left_alone(library):
    x = library.take(draw((9, 5)))
    moments = batch_moments(x)
    before = as_bytes(moments)
    batch_moments(x, after=moments)
    moments.merge(batch_moments(x))
    assert as_bytes(moments) == before


# Merged, and used


def test_merged(library, order):
    left, right = draw((9, 300)), draw((4, 300), seed=1) + 100
    found = batch_moments(library.take(left)).merge(batch_moments(library.take(right)))
    check(found, reference.moments(np.concatenate([left, right])), "float32")


@pytest.mark.parametrize("ddof", [0, 1])
def test_variance(library, ddof):
    x = draw((9, 5), "float64")
    variance = batch_moments(library.take(x)).var(ddof)
    assert variance.host.dtype == np.float64
    np.testing.assert_allclose(variance.host, np.var(x, axis=0, ddof=ddof), rtol=1e-14)
    deviation = batch_moments(library.take(x)).std(ddof)
    assert type(deviation) is type(variance) and deviation.host.dtype == np.float64
    np.testing.assert_allclose(deviation.host, np.std(x, axis=0, ddof=ddof), rtol=1e-14)
    with pytest.raises(ValueError, match=r"^ddof must be less than the count, 9, got 9$"):
        batch_moments(library.take(x)).var(9)


def test_streamed_statistics_give_the_output_of_the_whole_batch(library):
    x = draw((12, 5))
    moments = streamed(library, np.split(x, [5]))
    y = numnorm.batch_norm(
        library.take(x), running_mean=moments.mean, running_var=moments.var(), training=False
    )
    np.testing.assert_allclose(y.host, np.float64(reference.batch_norm(x)[0]), atol=2e-6)


def test_jax_without_float64(imported):
    jax = imported("jax")
    jax.config.jax_enable_x64 = False
    x = draw((9, 5))
    found = streamed(jax, np.split(x, [4, 4]))
    found = found.merge(found)
    assert found.mean.dtype == found.m2.dtype == found.var().dtype == np.float32
    _, mean, m2 = reference.moments(np.concatenate([x, x]))
    np.testing.assert_allclose(found.mean.host, np.float64(mean), rtol=1e-6)
    np.testing.assert_allclose(found.m2.host, np.float64(m2), rtol=1e-5)


# Places, and what does not fit


def test_kernels_are_queued_on_one_stream_and_nothing_is_copied(library, monkeypatch):
    streams, launch = [], Kernel.launch

    def recorded(self, blocks, stream, *arguments):
        streams.append(stream)
        launch(self, blocks, stream, *arguments)

    monkeypatch.setattr(Kernel, "launch", recorded)
    x = library.take(draw((9, 5)))
    moments = batch_moments(x)
    assert streams == [STREAMS[library.called]] * 2  # of the parts, together
    moments.merge(batch_moments(x, after=moments)).var()
    assert streams == [STREAMS[library.called]] * 6
    assert library.asked == []


def refused(error, message, function, *arguments, **options):
    with pytest.raises(error, match=message) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


def test_moments_of_the_host_and_of_a_device(library):
    x = draw((9, 5))
    of_x, here = library.take(x), batch_moments(x)
    there = batch_moments(of_x)
    message = "^after.mean must be a .* on device 0, as x is, got numpy.ndarray$"
    refused(TypeError, message, batch_moments, of_x, after=here)
    message = "^after.mean must lie on the host, as other arrays do, got a "
    refused(TypeError, message, batch_moments, x, after=there)
    message = "^other.mean must be a .* on device 0, as mean is, got numpy.ndarray$"
    refused(TypeError, message, there.merge, here)
    refused(TypeError, "^other.mean must lie on the host", here.merge, there)
    nothing = batch_moments(draw((0, 5)))
    refused(TypeError, "^other.mean must be where mean is", there.merge, nothing)
    refused(TypeError, "^other.mean must be where mean is", nothing.merge, there)


def test_refused(library):
    x = library.take(draw((9, 5)))
    moments = batch_moments(x)
    for_another, count = batch_moments(library.take(draw((9, 4)))), Moments(-1, *moments[1:])
    message = r"^after.mean must have shape \(5,\), the channels of x, got \(4,\)$"
    refused(ValueError, message, batch_moments, x, after=for_another)
    message = r"^other.mean must have shape \(5,\), the channels, got \(4,\)$"
    refused(ValueError, message, moments.merge, for_another)
    refused(ValueError, "^moments.count must be at least 0", count.merge, moments)
    refused(ValueError, "^after.count must be at least 0", batch_moments, x, after=count)
    far = Moments(9, *(library.take(np.ones(5), 1) for _ in range(2)))
    refused(ValueError, "^after.mean must be on device 0, as x is", batch_moments, x, after=far)
    integers = Moments(9, moments.mean, library.take(np.ones(5, np.int64)))
    message = "^after.m2 must be converted to .* on the device, got int64$"
    refused(TypeError, message, batch_moments, x, after=integers)
