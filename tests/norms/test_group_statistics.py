"""Statistics of labels gathered one by one, those of all labels, and priors of streams."""

import numpy as np
import pytest
from accuracy_cases import needs_wide_longdouble

import numnorm

RNG = np.random.default_rng(51)
NAMES = ["ben", "anna", "ben", "carl", "anna", "ben"]
LENGTHS = [7, 1, 12, 3, 5, 2]


def utterances(offset=0.0, dtype=np.float64):
    return [(offset + RNG.normal(size=(n, 4))).astype(dtype) for n in LENGTHS]


def gathered(sequences):
    """Moments of each speaker, one sequence after the other."""
    speakers = {}
    for name, frames in zip(NAMES, sequences, strict=True):
        speakers[name] = numnorm.batch_moments(frames, after=speakers.get(name))
    return numnorm.GroupMoments.from_moments(speakers)


# Sequences of different lengths


@pytest.mark.parametrize(("offset", "dtype"), [(0.0, "f8"), (1e7, "f8"), (1e3, "f4")])
def test_statistics_of_sequences_of_different_lengths(offset, dtype):
    """One by one and in one array they are those of the definition."""
    sequences = utterances(offset, dtype)
    frames, labels = np.concatenate(sequences), np.repeat(NAMES, LENGTHS)
    one_by_one, packed = gathered(sequences), numnorm.batch_moments(frames, labels=labels)
    # A few units in the last place of the type in which squares are taken.
    tolerance = {"rtol": 1e-14 if dtype == "f8" else 1e-6}
    for found in (one_by_one, packed):
        assert found.labels.tolist() == ["anna", "ben", "carl"]
        for name in found.labels:
            own = frames[labels == name].astype(np.longdouble)
            moments = found[name]
            assert moments.count.tolist() == [len(own)] * 4
            np.testing.assert_allclose(moments.mean, own.mean(axis=0), rtol=1e-15)
            np.testing.assert_allclose(moments.std(), own.std(axis=0), **tolerance)


def check_random_sequences(number):
    """Statistics of sequences of any lengths, merged in any order, against the definition."""
    rng = np.random.default_rng([number, 7])
    dtype = np.dtype(rng.choice(["f4", "f8"]))
    channels, offset = int(rng.integers(1, 5)), rng.choice([0.0, 1e3, 1e7])
    lengths = rng.integers(0, 9, rng.integers(1, 12))
    names = rng.integers(-2, 3, len(lengths))
    scale = rng.choice([0.0, 1e-3, 1.0])  # 0: constants
    x = (offset + scale * rng.normal(size=(lengths.sum(), channels))).astype(dtype)
    sequences = np.split(x, np.cumsum(lengths)[:-1])
    one_by_one = {}
    for name, frames in zip(names.tolist(), sequences, strict=True):
        one_by_one[name] = numnorm.batch_moments(frames, after=one_by_one.get(name))
    found = numnorm.GroupMoments.from_moments(one_by_one)
    labels = np.repeat(names, lengths)
    # A few units in the last place of the type of the squares.
    rounding = 16 * np.finfo(dtype).eps
    exact = x.astype(np.longdouble)
    for name in found.labels:
        own, moments = exact[labels == name], found[name]
        assert (moments.count == len(own)).all()
        if len(own):
            # Deviations are rounded in their type, and the mean to float64.
            close = {"rtol": 1e-15, "atol": rounding * float(own.std(axis=0).max())}
            np.testing.assert_allclose(moments.mean, np.float64(own.mean(axis=0)), **close)
            m2 = ((own - own.mean(axis=0)) ** 2).sum(axis=0)
            np.testing.assert_allclose(moments.m2, np.float64(m2), rtol=rounding)
    if len(x):
        total = found.total()
        close = {"rtol": 1e-15, "atol": rounding * float(exact.std(axis=0).max())}
        np.testing.assert_allclose(total.mean, np.float64(exact.mean(axis=0)), **close)
        m2 = ((exact - exact.mean(axis=0)) ** 2).sum(axis=0)
        np.testing.assert_allclose(total.m2, np.float64(m2), rtol=rounding)
        y = numnorm.batch_norm(x, labels=labels, statistics=found, eps=1.0)
        for name in np.unique(labels):
            own = exact[labels == name]
            expected = (own - own.mean(axis=0)) / np.sqrt(own.var(axis=0) + 1)
            # The stored mean is rounded to float64.
            near = {"rtol": rounding, "atol": rounding + 2.0**-52 * offset}
            np.testing.assert_allclose(y[labels == name], np.float64(expected), **near)


@needs_wide_longdouble
def test_any_sequences_have_the_statistics_of_the_definition():
    for number in range(50):
        check_random_sequences(number)


@pytest.mark.slow
def test_2000_lists_of_sequences_have_the_statistics_of_the_definition():
    for number in range(1000, 3000):
        check_random_sequences(number)


def test_sequences_are_normalized_as_by_labels():
    sequences = utterances(1e3)
    labels = np.repeat(NAMES, LENGTHS)
    expected = numnorm.batch_norm(np.concatenate(sequences), labels=labels, eps=0)
    speakers = gathered(sequences)
    for name, frames in zip(NAMES, sequences, strict=True):
        own = speakers[name]
        stored = {"running_mean": own.mean, "running_var": own.var(), "training": False}
        numnorm.batch_norm(frames, eps=0, out=frames, **stored)
    # The means of chunks are merged, so that they may be rounded in another way: of 1000 that is
    # 1e-13, 5e-13 of the smallest deviation here.
    np.testing.assert_allclose(np.concatenate(sequences), expected, atol=1e-12)


def test_moments_of_weights_and_missing_values_by_label():
    x, weights = RNG.normal(size=(6, 3)), RNG.random(6)
    x[0, 1] = np.nan
    parts = {
        name: numnorm.batch_moments(x[rows], weights=weights[rows], nan_policy="omit")
        for name, rows in (("a", slice(0, 1)), ("b", slice(1, 6)))
    }
    found = numnorm.GroupMoments.from_moments(parts)
    expected = numnorm.batch_moments(
        x, weights=weights, nan_policy="omit", labels=["a"] + ["b"] * 5
    )
    for one, other in zip(found.moments, expected.moments, strict=True):
        np.testing.assert_array_equal(one, other)


def test_moments_without_what_the_mean_lost():
    moments = numnorm.Moments(3, np.array([1.0]), np.array([2.0]))
    found = numnorm.GroupMoments.from_moments({4: moments})
    assert found.labels.tolist() == [4] and found.moments.mean_lo.tolist() == [[0.0]]


def test_wrong_moments_of_labels():
    def of(width):
        return numnorm.batch_moments(np.ones((2, width)))

    make = numnorm.GroupMoments.from_moments
    with pytest.raises(ValueError, match=r"^moments must have at least 1 label, got 0$"):
        make({})
    with pytest.raises(TypeError, match=r"^moments must have labels of one type, got int and str$"):
        make({"1": of(1), 1: of(1)})
    with pytest.raises(
        ValueError, match=r"^moments.mean must have shape \(1,\), the channels, got"
    ):
        make({1: of(1), 2: of(2)})
    with pytest.raises(TypeError, match=r"^moments must be Moments, got an object of type tuple$"):
        make({"a": of(1), "b": tuple(of(1))})


# All labels together


@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_moments_of_all_labels(offset):
    frames, labels = np.concatenate(utterances(offset)), np.repeat(NAMES, LENGTHS)
    total = numnorm.batch_moments(frames, labels=labels).total()
    exact = frames.astype(np.longdouble)
    assert total.count.tolist() == [len(frames)] * 4
    np.testing.assert_allclose(total.mean, exact.mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(total.var(), exact.var(axis=0), rtol=1e-14)
    with pytest.raises(ValueError, match=r"^there must be at least 1 label"):
        numnorm.batch_moments(frames[:0], labels=[]).total()


def test_a_label_that_is_not_there_takes_the_statistics_of_all():
    """The pattern of the page of groups."""
    frames, labels = np.concatenate(utterances()), np.repeat(NAMES, LENGTHS)
    speakers = numnorm.batch_moments(frames, labels=labels)
    new = RNG.normal(size=(3, 4))
    known = speakers.merge(numnorm.GroupMoments.from_moments({"dora": speakers.total()}))
    found = numnorm.batch_norm(new, labels=["dora", "ben", "dora"], statistics=known, eps=0)
    np.testing.assert_allclose(
        found[[0, 2]], (new[[0, 2]] - frames.mean(axis=0)) / frames.std(axis=0), rtol=1e-12
    )
    own = frames[labels == "ben"]
    np.testing.assert_allclose(found[1], (new[1] - own.mean(axis=0)) / own.std(axis=0), rtol=1e-12)


# A prior of a stream


def by_definition(x, alpha, mean, variance, steps, eps, lost=0.0):
    """Exponential norm after `steps` steps with a mean and a variance, in extended precision.

    `lost` is what the mean lost when it was rounded.
    """
    weight, alpha = np.longdouble(steps), np.longdouble(alpha)
    # Without the offset, of which extended precision has 1e-12 at 1e7.
    mean, variance, rows = np.longdouble(mean) - x[0] + lost, np.longdouble(variance), []
    for values in x.astype(np.longdouble) - x[0]:
        weight = 1 + (1 - alpha) * weight
        mean = mean + (values - mean) / weight
        variance = variance + ((values - mean) ** 2 - variance) / weight
        rows.append((values - mean) / np.maximum(eps, np.sqrt(variance)))
    return np.array(rows)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(("offset", "steps"), [(0.0, 1), (1e7, 200.0), (-1e4, 0.25)])
def test_a_stream_with_a_prior(offset, steps, missing):
    x = offset + RNG.normal(size=(40, 3))
    known = numnorm.batch_moments(offset + RNG.normal(0.5, 2.0, (500, 3)))
    state, parts = known.prior(steps), []
    more = {"where": True} if missing else {}
    for chunk in np.split(x, [1, 5, 6, 30]):
        y, state = numnorm.exponential_norm_step(chunk, 0.02, state, axis=0, eps=1e-9, **more)
        parts.append(y)
    expected = by_definition(x, 0.02, known.mean, known.var(), steps, 1e-9)
    # The mean of the definition lacks what the rounding of the known mean lost: 1e-9 at 1e7.
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-12 + 1e-15 * abs(offset))


def check_random_prior(number):
    rng = np.random.default_rng([number, 11])
    dtype = np.dtype(rng.choice(["f4", "f8"]))
    channels, steps = (int(n) for n in rng.integers(1, 5, 2))
    offset, scale = rng.choice([0.0, -1e3, 1e7]), rng.choice([0.0, 1e-2, 1.0])
    alpha, eps = rng.choice([1e-3, 0.1, 1.0]), 1e-3
    seen = int(rng.integers(1, 30))
    frames = (offset + scale * rng.normal(size=(seen + 10 * steps, channels))).astype(dtype)
    known, x = numnorm.batch_moments(frames[:seen]), frames[seen:]
    lasting = rng.choice([0.5, 1.0, 300.0])
    state, parts = known.prior(lasting), []
    for chunk in np.split(x, np.sort(rng.integers(0, len(x) + 1, 3))):
        y, state = numnorm.exponential_norm_step(chunk, alpha, state, axis=0, eps=eps)
        parts.append(y)
    # What the rounding of the known mean lost is a part of it.
    expected = by_definition(x, alpha, known.mean, known.var(), lasting, eps, known.mean_lo)
    # Deviations from the mean are at most some tens, and are rounded in the type of the result.
    rounding = 64 * np.finfo(dtype).eps
    np.testing.assert_allclose(np.concatenate(parts), np.float64(expected), rounding, rounding)


@needs_wide_longdouble
def test_any_stream_with_a_prior_agrees_with_the_definition():
    for number in range(50):
        check_random_prior(number)


@pytest.mark.slow
def test_2000_streams_with_a_prior_agree_with_the_definition():
    for number in range(1000, 3000):
        check_random_prior(number)


def test_a_prior_is_the_state_after_steps_of_weight_1():
    """With alpha near 0 the mean is that of virtual frames and frames together."""
    known = numnorm.batch_moments(RNG.normal(3.0, 2.0, (50, 2)))
    x = RNG.normal(size=(10, 2))
    _, state = numnorm.exponential_norm_step(x, 1e-12, known.prior(30), axis=0)
    expected = (30 * known.mean + x.sum(axis=0)) / 40
    np.testing.assert_allclose(state.mean, expected, rtol=1e-9)  # weights fade by 1e-11
    assert state.weight == pytest.approx(40)


def test_a_prior_without_adjust_has_lasted_forever():
    known = numnorm.batch_moments(RNG.normal(3.0, 2.0, (50, 2)))
    x = RNG.normal(size=(10, 2))
    mean = known.mean
    for steps in (1, 1000):
        state = known.prior(steps)
        _, after = numnorm.exponential_norm_step(x[:1], 0.1, state, axis=0, adjust=False)
        np.testing.assert_allclose(after.mean, 0.9 * mean + 0.1 * x[0], rtol=1e-14)


def test_a_channel_without_values_has_no_prior():
    x = RNG.normal(size=(20, 2))
    x[:, 1] = np.nan
    known = numnorm.batch_moments(x, nan_policy="omit")
    frames = RNG.normal(size=(6, 2))
    found, _ = numnorm.exponential_norm_step(frames, 0.1, known.prior(5), axis=0)
    with_prior = numnorm.batch_moments(x[:, :1]).prior(5)
    first, _ = numnorm.exponential_norm_step(frames[:, :1], 0.1, with_prior, axis=0, where=True)
    second, _ = numnorm.exponential_norm_step(frames[:, 1:], 0.1, axis=0, where=True)
    # Merged moments and moments with a mask may differ in the last bits.
    np.testing.assert_allclose(found, np.hstack([first, second]), rtol=1e-12)


def test_a_prior_of_each_speaker():
    """Moments of labels give a state with one stream for each label."""
    frames, labels = np.concatenate(utterances()), np.repeat(NAMES, LENGTHS)
    speakers = numnorm.batch_moments(frames, labels=labels)
    x = RNG.normal(size=(3, 8, 4))  # speaker, time, feature
    together, _ = numnorm.exponential_norm_step(x, 0.1, speakers.moments.prior(20), axis=1)
    for row, name in enumerate(speakers.labels):
        alone, _ = numnorm.exponential_norm_step(x[row], 0.1, speakers[name].prior(20), axis=0)
        np.testing.assert_allclose(together[row], alone, rtol=1e-12)


def test_wrong_priors():
    known = numnorm.batch_moments(np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"^steps must be above 0, got 0$"):
        known.prior(0)
    with pytest.raises(ValueError, match=r"^steps must be"):
        known.prior(-1)
    with pytest.raises(ValueError, match=r"^moments must be those of at least 1 value"):
        numnorm.batch_moments(np.ones((0, 2))).prior(3)
    with pytest.raises(ValueError, match=r"^state.mean must have shape \(3,\)"):
        numnorm.exponential_norm_step(np.ones((4, 3)), 0.1, known.prior(3), axis=0)


# Windows, whose prior is steps before the stream: Kaldi's global frames


def with_global_frames(x, mean, std, window, frames):
    """Kaldi's online CMVN in extended precision: frames that are missing are global ones."""
    rows = []
    for t in range(len(x)):
        own = x[max(0, t + 1 - window) : t + 1].astype(np.longdouble)
        virtual = min(frames, window - len(own))
        count = len(own) + virtual
        center = (own.sum(axis=0) + virtual * np.longdouble(mean)) / count
        squares = ((own - center) ** 2).sum(axis=0)
        squares = squares + virtual * (np.longdouble(std) ** 2 + (mean - center) ** 2)
        rows.append(((own[-1] - center), np.sqrt(squares / count)))
    return [np.array(part) for part in zip(*rows, strict=True)]


@pytest.mark.parametrize("frames", [20, 49])
def test_global_frames_of_a_window(frames):
    window, x = 50, RNG.normal(size=(120, 3))
    known = numnorm.batch_moments(RNG.normal(0.5, 2.0, (500, 3)))
    centered, deviation = with_global_frames(x, known.mean, known.std(), window, frames)
    virtual = np.repeat(known.mean[None], frames, axis=0)
    _, state = numnorm.moving_norm_step(virtual, window, axis=0, with_std=False)
    y, _ = numnorm.moving_norm_step(x, window, state, axis=0, with_std=False)
    np.testing.assert_allclose(y, centered, atol=1e-13)
    # Frames at one deviation above and below the mean, in turn: where an odd number of them is
    # left, the mean is off by a deviation / window.
    virtual = virtual + known.std() * (-1.0) ** np.arange(frames)[:, None]
    _, state = numnorm.moving_norm_step(virtual, window, axis=0)
    y, _ = numnorm.moving_norm_step(x, window, state, axis=0)
    left = np.maximum(0, np.minimum(frames, window - np.arange(1, len(x) + 1)))
    even = left % 2 == 0
    np.testing.assert_allclose(y[even], (centered / deviation)[even], atol=1e-12)
    assert abs(y - centered / deviation).max() < 3 / (frames + 1)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ([1], TypeError, "moments must be a mapping of labels, got list"),
        ({"a": 3}, TypeError, "moments must be Moments, got an object of type int"),
        ({None: 3}, ValueError, "moments must have no missing label, got None"),
        ({np.nan: 3}, ValueError, "moments must have no missing label, got nan"),
        ({("a", 1): 3}, TypeError, r"moments must have labels that are no tuples, got \('a', 1\)"),
    ],
)
def test_what_is_no_mapping_of_labels_to_moments(given, error, text):
    with pytest.raises(error, match=f"^{text}$"):
        numnorm.GroupMoments.from_moments(given)


def test_labels_without_training_need_statistics():
    with pytest.raises(ValueError, match=r"^statistics must be given with labels if training is"):
        numnorm.batch_norm(np.ones((2, 1)), labels=["a", "b"], training=False)
