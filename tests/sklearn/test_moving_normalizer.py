"""The moving normalizer, against Kaldi's windows in extended precision, NumPy and the function."""

import moving_reference as reference
import numpy as np
import pytest

import numnorm
from numnorm.sklearn import LocalStandardNormalVariate, MovingNormalizer

RNG = np.random.default_rng(40)


@pytest.mark.parametrize("offset", [0.0, 1e7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "options",
    [
        *({"window": 7}, {"window": 7, "center": True}, {"window": 6, "min_window": 4}),
        {"window": 5, "subtract_mean": False, "eps": 0.5},
        *({"window": 8, "with_std": False, "center": True}, {"window": 99}),
    ],
    ids=str,
)
def test_definition(options, dtype, offset):
    x = (offset + 20 * RNG.standard_normal((9, 40)).cumsum(axis=1)).astype(dtype)
    result = MovingNormalizer(**options).fit_transform(x)
    assert result.dtype == dtype
    own = dict(options)
    words = {"mean": own.pop("subtract_mean", True), "scale": own.pop("with_std", True)}
    expected = np.float64(reference.moving_norm(x.T, **own, **words)[0].T)
    # Some roundings of float64 beside the deviation of a window, which may hold two values; and
    # one of the result.
    unit = 4 * float(np.finfo(dtype).eps) * max(1.0, abs(expected).max())
    np.testing.assert_allclose(result, expected, rtol=0, atol=max(unit, 1e-11))
    np.testing.assert_array_equal(result, numnorm.moving_norm(x, **options))


def test_centred_windows_are_those_of_numpy():
    x = RNG.standard_normal((5, 30)).cumsum(axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(x, 7, axis=1)
    expected = (x[:, 3:-3] - windows.mean(axis=2)) / windows.std(axis=2)
    moving = MovingNormalizer(7, center=True).fit_transform(x)
    np.testing.assert_allclose(moving[:, 3:-3], expected, rtol=1e-12, atol=1e-12)
    local = LocalStandardNormalVariate(7).fit_transform(x)
    # They differ where the row ends only: one moves inwards, the other goes on beyond.
    np.testing.assert_allclose(moving[:, 3:-3], local[:, 3:-3], rtol=1e-12, atol=1e-12)
    assert (moving[:, :3] != local[:, :3]).any()


def test_parameters_are_checked_and_named():
    x = RNG.standard_normal((3, 8))
    for name in ("window", "min_window"):
        with pytest.raises(ValueError, match=rf"^The '{name}' parameter of MovingNormalizer"):
            MovingNormalizer(**{name: 0}).fit(x)
    with pytest.raises(ValueError, match=r"^min_window must be at most the window, 3, got 4$"):
        MovingNormalizer(3, min_window=4).fit_transform(x)
    with pytest.raises(ValueError, match=r"^subtract_mean and with_std must not both be False$"):
        MovingNormalizer(subtract_mean=False, with_std=False).fit_transform(x)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"subtract_mean": False, "with_std": False}, "must not both be False"),
        ({"window": 5, "min_window": 9}, "min_window must be at most the window, 5, got 9"),
    ],
)
def test_parameters_that_do_not_fit_are_found_by_fit(options, text):
    with pytest.raises(ValueError, match=text):
        MovingNormalizer(**options).fit(np.ones((3, 12)))
