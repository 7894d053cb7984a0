"""Moments: streamed, merged in any order, and used as stored statistics."""

import itertools

import numpy as np
import pytest
import reference
from accuracy_cases import needs_wide_longdouble

import numnorm

EPS64 = np.finfo(np.float64).eps
ROWS, CHANNELS = 60, 5


def draw(dtype, offset=0.0, rows=ROWS):
    """Rows of spread one around an offset, and channels that differ."""
    rng = np.random.default_rng(11)
    return (offset + np.arange(CHANNELS) + rng.normal(size=(rows, CHANNELS))).astype(dtype)


def streamed(chunks):
    moments = None
    for chunk in chunks:
        moments = numnorm.batch_moments(chunk, after=moments)
    return moments


def merged_left(chunks):
    parts = [numnorm.batch_moments(chunk) for chunk in chunks]
    total = parts[0]
    for part in parts[1:]:
        total = total.merge(part)
    return total


def merged_right(chunks):
    parts = [numnorm.batch_moments(chunk) for chunk in chunks]
    total = parts[-1]
    for part in reversed(parts[:-1]):
        total = part.merge(total)
    return total


def assert_moments(actual, x, channel_axis=1):
    """`actual` against the moments of all of `x`, within the roundings of the elements.

    With u for a unit of the working precision (float32 for a half, else the type of `x`), the
    distance of an element to a centre near the mean is rounded once. So the mean errs by a few u
    times the deviation, and the sum of squares by 2 u of itself and some u of the summation.

    The mean itself is rounded once to float64. What that loses is kept, so that it moves neither
    the distance between two chunks nor the sum of squares.
    """
    unit = EPS64 if np.asarray(x).dtype == np.float64 else np.finfo(np.float32).eps
    count, mean, m2 = reference.moments(x, channel_axis)
    assert actual.count == count
    deviation, kept = np.sqrt(m2 / count), EPS64 / 2 * np.abs(mean)
    assert np.all(np.abs(actual.mean - mean) <= 4 * unit * deviation + kept)
    whole = np.longdouble(actual.mean) + actual.mean_lo
    assert np.all(np.abs(whole - mean) <= 4 * unit * deviation)
    assert np.all(np.abs(actual.m2 - m2) <= 32 * unit * m2)


SPLITS = [
    pytest.param([], id="one-chunk"),
    pytest.param([1], id="a-single-row-first"),
    pytest.param([59], id="a-single-row-last"),
    pytest.param([7, 30, 31], id="unequal-counts"),
    pytest.param([0], id="an-empty-chunk-first"),
    pytest.param([20, 20, 40], id="an-empty-chunk-inside"),
    pytest.param([60], id="an-empty-chunk-last"),
    pytest.param(range(1, 60), id="rows-one-by-one"),
]
WAYS = [streamed, merged_left, merged_right]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("offset", [0.0, 1e7, 1e13])
def test_any_split_has_the_moments_of_the_whole(way, split, dtype, offset):
    x = draw(dtype, offset)
    assert_moments(way(np.split(x, list(split))), x)


@pytest.mark.parametrize("shape", [(10_000, 1), (2_500, 1, 4), (10, 1, 1000)])
@pytest.mark.parametrize("offset", [1e8, 1e10, 1e12])
def test_no_offset_costs_the_variance_digits(offset, shape):
    # The values are offset + 1 and offset - 1, exactly: the mean is the offset, m2 the count.
    x = np.repeat([offset + 1, offset - 1], 5000).reshape(shape)
    for way in WAYS:
        for split in ([], [3], [len(x) // 7, len(x) // 2, len(x) - 1]):
            moments = way(np.split(x, split))
            np.testing.assert_allclose(moments.var(), 1.0, rtol=4 * EPS64)
    # The normalized values of 1 and -1 take two roundings more than the variance.
    np.testing.assert_allclose(numnorm.batch_norm(x, eps=0), x - offset, rtol=8 * EPS64)


@needs_wide_longdouble
@pytest.mark.parametrize("way", WAYS)
def test_chunks_around_different_offsets(way):
    chunks = [draw(np.float64, offset, rows) for offset, rows in [(1e7, 3), (0, 50), (-1e4, 8)]]
    assert_moments(way(chunks), np.concatenate(chunks))


def test_merging_does_not_depend_on_the_order_beyond_rounding():
    chunks = np.split(draw(np.float64, 1e7), [7, 30, 31])
    for order in itertools.permutations(chunks):
        assert_moments(merged_left(order), np.concatenate(chunks))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape, channel_axis", [((4, 3, 6), 1), ((4, 6, 3), -1), ((3, 20), 0)])
def test_every_channel_axis(dtype, shape, channel_axis):
    x = np.random.default_rng(2).normal(2, 1, size=shape).astype(dtype)
    assert_moments(numnorm.batch_moments(x, channel_axis=channel_axis), x, channel_axis)


def test_the_fields_are_float64_arrays_of_the_channels():
    moments = numnorm.batch_moments(draw(np.float32))
    assert moments._fields == ("count", "mean", "m2", "mean_lo")
    assert moments.count == ROWS
    for field in moments[1:]:
        assert field.dtype == np.float64
        assert field.shape == (CHANNELS,)


@pytest.mark.parametrize("ddof", [0, 1])
def test_variance(ddof):
    x = draw(np.float64)
    variance = numnorm.batch_moments(x).var(ddof)
    assert variance.dtype == np.float64
    # The tolerance of `assert_moments` for float64.
    np.testing.assert_allclose(variance, np.var(x, axis=0, ddof=ddof), rtol=32 * EPS64)
    if ddof == 0:
        np.testing.assert_array_equal(numnorm.batch_moments(x).var(), variance)


@pytest.mark.parametrize("ddof", [0, 1])
def test_the_standard_deviation_is_the_root_of_the_variance(ddof):
    moments = numnorm.batch_moments(draw(np.float64, 1e7))
    deviation = moments.std(ddof)
    assert deviation.dtype == np.float64
    expected = np.std(draw(np.float64, 1e7).astype(np.longdouble), axis=0, ddof=ddof)
    np.testing.assert_allclose(np.float64(deviation / expected), 1, rtol=16 * EPS64)
    np.testing.assert_array_equal(deviation, np.sqrt(moments.var(ddof)))


def test_an_empty_chunk_is_neutral_exactly():
    moments = numnorm.batch_moments(draw(np.float32))
    empty = numnorm.batch_moments(np.empty((0, CHANNELS), np.float32))
    assert empty.count == 0
    continued = numnorm.batch_moments(np.empty((0, CHANNELS), np.float32), after=moments)
    for same in (moments.merge(empty), empty.merge(moments), continued):
        assert same.count == moments.count
        np.testing.assert_array_equal(same.mean, moments.mean)
        np.testing.assert_array_equal(same.m2, moments.m2)


def test_moments_without_mean_lo_have_a_mean_that_lost_nothing():
    first, second = np.split(draw(np.float64), 2)
    bare = numnorm.Moments(*numnorm.batch_moments(first)[:3])
    assert bare.mean_lo is None
    zeros = bare._replace(mean_lo=np.zeros(CHANNELS))
    rest = numnorm.batch_moments(second)
    for one, other in (
        (bare.merge(rest), zeros.merge(rest)),
        (rest.merge(bare), rest.merge(zeros)),
        (numnorm.batch_moments(second, after=bare), numnorm.batch_moments(second, after=zeros)),
    ):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16])
def test_counts_of_narrow_integers_do_not_wrap(kind):
    most = int(np.iinfo(kind).max)
    narrow = numnorm.Moments(kind(most), np.zeros(1), np.full(1, float(most)))
    ones = np.ones((most, 1))
    for found in (narrow.merge(narrow), numnorm.batch_moments(ones, after=narrow)):
        assert type(found.count) is int
        assert found.count == 2 * most
    # Twice the same values have the same variance.
    np.testing.assert_allclose(narrow.merge(narrow).var(), 1, rtol=4 * EPS64)
    np.testing.assert_array_equal(narrow.var(ddof=kind(most - 1)), float(most))


def test_two_empty_chunks_are_empty():
    empty = numnorm.batch_moments(np.empty((0, CHANNELS)))
    both = empty.merge(empty)
    assert both.count == 0
    assert np.all(np.isfinite(both.mean))
    np.testing.assert_array_equal(both.m2, 0)


def test_streaming_and_merging_leave_their_inputs_alone():
    first, second = np.split(draw(np.float64), 2)
    moments = numnorm.batch_moments(first)
    before = moments.mean.copy(), moments.m2.copy()
    numnorm.batch_moments(second, after=moments)
    moments.merge(numnorm.batch_moments(second))
    np.testing.assert_array_equal(moments.mean, before[0])
    np.testing.assert_array_equal(moments.m2, before[1])


def test_constant_channels_have_no_variance_after_any_merge():
    x = np.full((ROWS, 3), [0.1, -0.087, 1e30])
    for way in WAYS:
        moments = way(np.split(x, [7, 30, 31]))
        np.testing.assert_array_equal(moments.mean, x[0])
        np.testing.assert_array_equal(moments.m2, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_streamed_statistics_give_the_output_of_the_whole_batch(dtype):
    x = draw(dtype, 1e3)
    moments = streamed(np.split(x, [7, 30, 31]))
    stored = {"running_mean": moments.mean, "running_var": moments.var()}
    y = numnorm.batch_norm(x, training=False, **stored)
    # |y| is below four, and the streamed moments err as `assert_moments` says: 4 u in the mean,
    # 16 u in the deviation times |y|. The offset costs float64 a further 1e3 u.
    unit = np.finfo(dtype).eps
    tolerance = 100 * unit + 4e3 * EPS64
    np.testing.assert_allclose(y, reference.batch_norm(x)[0], rtol=0, atol=tolerance)


def test_moments_of_two_machines_normalize_as_one():
    x = draw(np.float32, 1e7)
    left, right = (numnorm.batch_moments(half) for half in np.split(x, [13]))
    moments = left.merge(right)
    stored = {"running_mean": moments.mean, "running_var": moments.var()}
    y = numnorm.batch_norm(x, training=False, **stored)
    # As above; the mean in float64 leaves no error of the offset to a float32 batch.
    tolerance = 100 * np.finfo(np.float32).eps
    np.testing.assert_allclose(y, reference.batch_norm(x)[0], rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "shape, channel_axis",
    [((1000, 64), 1), ((50, 3, 40), 1), ((50, 40, 3), -1), ((50, 3, 4, 5), (1, 3)),
     ((50, 3, 4, 5), (1, 2)), ((50, 3, 4, 5), (3, 2)), ((70, 2000), 1)],
)  # fmt: skip
def test_chunks_of_whole_steps_give_the_bytes_of_one_call(shape, channel_axis):
    step = numnorm.chunk_multiple(shape, channel_axis=channel_axis)
    x = np.random.default_rng(3).normal(size=(2 * step + 7, *shape[1:]))
    assert numnorm.chunk_multiple(x.shape, channel_axis=channel_axis) == step
    whole = numnorm.batch_moments(x, channel_axis=channel_axis)
    total = None
    for start in range(0, len(x), step):
        chunk = x[start : start + step]
        total = numnorm.batch_moments(chunk, channel_axis=channel_axis, after=total)
    np.testing.assert_array_equal(total.mean, whole.mean)
    np.testing.assert_array_equal(total.m2, whole.m2)


def test_step_of_a_stream_of_channels_is_their_number():
    assert numnorm.chunk_multiple((7, 5), channel_axis=0) == 7
    assert numnorm.chunk_multiple([7, 5, 3], channel_axis=(0, 2)) == 7
    with pytest.raises(TypeError, match=r"^shape must be an int, got 7.0$"):
        numnorm.chunk_multiple((7.0, 5))
    with pytest.raises(TypeError, match="shape must be a sequence of integers, got 5"):
        numnorm.chunk_multiple(5)
    with pytest.raises(ValueError, match=r"^channel_axis must be between -2 and 1"):
        numnorm.chunk_multiple((7, 5), channel_axis=2)
