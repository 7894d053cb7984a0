"""The definitions in `moving_reference` against pandas and SciPy, and against values by hand.

They are what the tests of moving norms compare with.
"""

import itertools

import moving_reference as reference
import numpy as np
import pytest

import numnorm

RNG = np.random.default_rng(41)

# Of sums in float64 by other libraries, of values of up to 4.
ROUNDINGS = 1e-12


def close(mine, theirs, tolerance=ROUNDINGS):
    np.testing.assert_allclose(np.asarray(mine, np.float64), theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("adjust", [False, True])
@pytest.mark.parametrize("alpha", [1e-3, 0.2, 0.9, 1.0])
def test_fading_means_are_those_of_pandas(alpha, adjust):
    pandas = pytest.importorskip("pandas")
    x = RNG.normal(size=(300, 3))
    theirs = pandas.DataFrame(x).ewm(alpha=alpha, adjust=adjust).mean()
    for means in (reference.ewm_means, reference.ewm_means_by_recursion):
        close(means(x, alpha, adjust), theirs)


@pytest.mark.parametrize("initial", [None, 20])
def test_braindecode_by_the_filters_of_scipy(initial):
    signal = pytest.importorskip("scipy.signal")
    x, alpha, eps = RNG.normal(size=(3, 300)), 0.02, 1e-4
    # The formula of braindecode 1.8: a fading sum over the sum of its weights.
    weight = signal.lfilter([1.0], [1.0, alpha - 1.0], np.ones(300))
    means = signal.lfilter([1.0], [1.0, alpha - 1.0], x) / weight
    squares = signal.lfilter([1.0], [1.0, alpha - 1.0], (x - means) ** 2) / weight
    theirs = (x - means) / np.maximum(eps, np.sqrt(squares))
    if initial:
        block = x[:, :initial]
        deviation = np.maximum(eps, block.std(1, keepdims=True))
        theirs[:, :initial] = (block - block.mean(1, keepdims=True)) / deviation
    close(reference.exponential_norm(x.T, alpha, initial=initial or 0, eps=eps)[0].T, theirs)


@pytest.mark.parametrize("steps, window", [(200, 1), (200, 2), (200, 7), (200, 50), (30, 40)])
def test_windows_are_those_of_pandas(steps, window):
    pandas = pytest.importorskip("pandas")
    x = RNG.normal(size=(steps, 3))
    rolling = pandas.DataFrame(x).rolling(window, min_periods=1)
    _, means, rstds = reference.moving_norm(x, window)
    close(means, rolling.mean())
    several = slice(min(window, 2) - 1, None)  # a window of one step has an rstd of 0 here
    deviations = rolling.std(ddof=0).to_numpy()[several]
    if window > 1:
        close(1 / rstds[several], deviations, 1e-8)  # the root of what two near values leave


@pytest.mark.parametrize("window", [1, 2, 3, 6, 7, 50])
def test_centred_windows_are_those_of_pandas_but_for_the_ends(window):
    pandas = pytest.importorskip("pandas")
    x = RNG.normal(size=(200, 3))
    theirs = pandas.DataFrame(x).rolling(window, center=True).mean().to_numpy()
    full = ~np.isnan(theirs)
    assert full[:, 0].sum() == 200 - window + 1
    close(reference.moving_norm(x, window, center=True)[1][full], theirs[full])


def steps_of_kaldi(t, steps, cmn_window, min_cmn_window, center):
    """Return the first and the last step of a window, as the help of apply-cmvn-sliding has it.

    "If true, use a window centered on the current frame (to the extent possible, modulo end
    effects). If false, window is to the left." The minimum is the "window used at start of decoding
    (adds latency only at start). Only applicable if center == false".
    """
    if center:
        first = int(np.clip(t - cmn_window // 2, 0, max(steps - cmn_window, 0)))
        return first, min(first + cmn_window, steps) - 1
    return max(t - cmn_window, 0), min(max(t, min_cmn_window - 1), steps - 1)


@pytest.mark.parametrize("center", [False, True])
def test_windows_of_kaldi_in_words(center):
    for steps, cmn_window in itertools.product([1, 2, 5, 9, 30], [1, 2, 3, 4, 8, 29, 30, 31, 60]):
        # One step more, to the left.
        window = cmn_window if center else cmn_window + 1
        for least in {1, 2, cmn_window}:
            if least > cmn_window:
                continue
            for t in range(steps):
                start, end = reference.kaldi_window(t, steps, window, center, least)
                mine = (start, end - 1)
                assert mine == steps_of_kaldi(t, steps, cmn_window, least, center)


# Of 1, 2, 4, 8, 16: windows of three steps are alike but for a factor.
# 1, 2, 4 has the mean 7/3 and the variance 7 - 49/9 = 14/9, so it becomes -4, -1, 5 over root 14.
LOW, MIDDLE, HIGH = np.array([-4, -1, 5]) / np.sqrt(14)
BY_HAND = [
    # cmn_window, min_cmn_window, center, the result with norm_vars
    (2, 1, False, [0, 1, HIGH, HIGH, HIGH]),
    (2, 3, False, [LOW, MIDDLE, HIGH, HIGH, HIGH]),
    (3, 1, True, [LOW, MIDDLE, MIDDLE, MIDDLE, HIGH]),
]


@pytest.mark.parametrize("cmn_window, least, center, expected", BY_HAND)
def test_results_by_hand(cmn_window, least, center, expected):
    x = np.array([[1.0], [2.0], [4.0], [8.0], [16.0]])
    window = cmn_window if center else cmn_window + 1
    loop = reference.torchaudio_sliding_window_cmn(x, cmn_window, least, center, norm_vars=True)
    for y in (
        reference.moving_norm(x, window, center, least)[0],
        loop,
        numnorm.moving_norm(x, window, axis=0, center=center, min_window=least),
    ):
        close(y[:, 0], expected, 1e-14)


def test_least_window_of_torchaudio_is_for_trailing_windows():
    x = RNG.normal(size=(40, 3))
    centred = [
        reference.torchaudio_sliding_window_cmn(x, 11, least, True, True) for least in (1, 5, 100)
    ]
    for other in centred[1:]:
        np.testing.assert_array_equal(centred[0], other)
    whole = reference.torchaudio_sliding_window_cmn(x, 600, 100, False, False)
    # Its defaults: an utterance of fewer steps is normalized by all of them.
    close(whole, x - x.mean(axis=0))
    close(numnorm.moving_norm(x, 601, axis=-2, min_window=100, with_std=False), x - x.mean(axis=0))


def test_centred_means_of_kaldi():
    # The row of docs/norms/moving.md for --norm-vars=false --center=true --cmn-window=300.
    for steps in (40, 300, 301, 700):
        x = RNG.normal(size=(steps, 3))
        theirs = reference.torchaudio_sliding_window_cmn(x, 300, 100, True, False)
        close(numnorm.moving_norm(x, 300, axis=-2, center=True, with_std=False), theirs)


@pytest.mark.parametrize("norm_vars", [False, True])
def test_windows_of_kaldi_below_their_minimum(norm_vars):
    # The recipe of docs/norms/moving.md, for a minimum that the sequence reaches or not.
    for steps, cmn_window, least in itertools.product([5, 29, 30, 31, 80], [4, 10, 28], [30, 60]):
        x = RNG.normal(size=(steps, 3))
        theirs = reference.torchaudio_sliding_window_cmn(x, cmn_window, least, False, norm_vars)
        y = numnorm.moving_norm(x, cmn_window + 1, axis=0, with_std=norm_vars)
        head = x[:least]
        for t in range(len(head)):
            window = head[t - least - cmn_window :]
            y[t] = (x[t] - window.mean(axis=0)) / (window.std(axis=0) if norm_vars else 1)
        close(y, theirs)
