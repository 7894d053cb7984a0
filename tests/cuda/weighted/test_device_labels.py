"""Batch norm and moments of each label, and moments with counts, on a device."""

import numpy as np
import pytest
from row_arrays import draw

import numnorm
from numnorm import GroupMoments, Moments

LABELS = ["b", "a", "b", "c", "a", "b"]
CASES = [
    pytest.param((6, 5), 1, (5,), id="rows"),
    pytest.param((6, 2, 3), 1, (2,), id="images"),
    pytest.param((3, 6), 0, (3,), id="channels first"),
]


def host(values):
    return [value.host if hasattr(value, "host") else value for value in values]


def assert_close(found, expected, tolerance=1e-6):
    for mine, theirs in zip(found, expected, strict=True):
        assert (np.shape(mine), mine.dtype) == (np.shape(theirs), theirs.dtype)
        largest = np.nanmax(np.abs(theirs), initial=1.0)
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * largest)


def quiet(function, *arguments, **options):
    with np.errstate(all="ignore"):
        return function(*arguments, **options)


# The CPU is held to the definition in `tests/norms/test_labels.py`.
@pytest.mark.parametrize("counting", [False, True])
@pytest.mark.parametrize("shape, channel_axis, channels", CASES)
def test_batch_norm_of_labels(shape, channel_axis, channels, counting, products):
    take, x, dy = products.take, draw(shape), draw(shape, seed=1)
    gamma, beta = draw(channels, seed=2), draw(channels, seed=3)
    options = {"channel_axis": channel_axis, "labels": LABELS}
    keep = np.random.default_rng(4).random(shape) < 0.8
    there = options | ({"where": take(keep), "nan_policy": "omit"} if counting else {})
    options |= {"where": keep, "nan_policy": "omit"} if counting else {}
    expected = quiet(numnorm.batch_norm_forward, x, gamma, beta, **options)
    found = numnorm.batch_norm_forward(*map(take, (x, gamma, beta)), **there)
    assert type(found.y) is type(take(x))
    assert_close(host(found), expected)
    wanted = quiet(numnorm.batch_norm_backward, dy, x, *expected[1:], gamma, **options)
    arrays = map(take, (dy, x, expected.mean, expected.rstd, gamma))
    dx, *sums = host(numnorm.batch_norm_backward(*arrays, **there))
    # The terms of dx cancel where one element is left, and are rounded in float32 before.
    terms = np.nanmax(expected.rstd) * np.abs(dy).max() * np.abs(gamma).max()
    np.testing.assert_allclose(dx, wanted.dx, rtol=0, atol=1e-6 * terms)
    assert_close(sums, wanted[1:], 1e-5)


def test_a_gain_that_broadcasts(imported):
    take, x, dy = imported("cupy").take, draw((6, 2, 3)), draw((6, 2, 3), seed=1)
    gamma, options = draw((1, 2, 3), seed=2), {"labels": LABELS}
    expected = numnorm.batch_norm_forward(x, gamma, **options)
    found = numnorm.batch_norm_forward(take(x), take(gamma), **options)
    assert_close(host(found), expected)
    wanted = numnorm.batch_norm_backward(dy, x, *expected[1:], gamma, **options)
    arrays = map(take, (dy, x, expected.mean, expected.rstd, gamma))
    assert_close(host(numnorm.batch_norm_backward(*arrays, **options)), wanted, 1e-5)


def test_outputs(products):
    if products.called == "jax":
        pytest.skip("JAX has no arrays to write")
    x = draw((6, 5))
    expected = numnorm.batch_norm(x, labels=LABELS)
    given, out = products.take(x.copy()), products.take(np.zeros_like(x))
    assert numnorm.batch_norm(given, labels=LABELS, out=out) is out
    assert numnorm.batch_norm(given, labels=LABELS, out=given) is given
    assert_close(host([out, given]), [expected, expected])


def test_numba_without_cupy(imported):
    x = imported("numba").take(draw((6, 5)))
    with pytest.raises(ImportError, match="parts of Numba's device arrays need CuPy"):
        numnorm.batch_norm(x, labels=LABELS)


def test_moments_of_labels_normalize_what_follows(products):
    take, x, later = products.take, draw((6, 5)), draw((4, 5), seed=1)
    labels = np.array(["c", "a", "a", "b"])
    for options in ({}, {"weights": np.arange(1.0, 7.0)}):
        expected = numnorm.batch_moments(x, labels=LABELS, **options)
        found = numnorm.batch_moments(take(x), labels=LABELS, **options)
        np.testing.assert_array_equal(found.labels, expected.labels)
        assert_close(host(found.moments), expected.moments)
        y = numnorm.batch_norm(later, labels=labels, statistics=expected)
        on_host = GroupMoments(expected.labels, expected.moments)
        for statistics in (found, on_host):
            there = numnorm.batch_norm(take(later), labels=labels, statistics=statistics)
            assert_close(host([there]), [y])


@pytest.mark.parametrize("shape, options", [
    ((6, 5), {}),
    ((6, 5), {"weights": np.arange(1.0, 7.0)}),
    ((6, 2, 3), {"channel_axis": (1, 2)}),
])  # fmt: skip
def test_moments_of_labels_are_merged_where_they_lie(shape, options, products):
    take, x, other = products.take, draw(shape), draw((4, *shape[1:]), seed=1)
    others = np.array(["d", "a", "a", "b"])
    of_other = {k: v[:4] if k == "weights" else v for k, v in options.items()}
    one = numnorm.batch_moments(x, labels=LABELS, **options)
    two = numnorm.batch_moments(other, labels=others, **of_other)
    one_there = numnorm.batch_moments(take(x), labels=LABELS, **options)
    two_there = numnorm.batch_moments(take(other), labels=others, **of_other)
    after = {"labels": others, "after": one_there, **of_other}
    for found, expected in [
        (one_there.merge(two_there), one.merge(two)),
        (two_there.merge(one_there), two.merge(one)),
        (numnorm.batch_moments(take(other), **after), one.merge(two)),
    ]:
        np.testing.assert_array_equal(found.labels, expected.labels)
        assert all(type(field) is type(take(x)) for field in found.moments)
        assert_close(host(found.moments), expected.moments)
    with pytest.raises(TypeError, match="mean must be"):
        one_there.merge(two)


def test_moments_with_counts(library):
    take, x = library.take, draw((6, 5))
    keep, other = np.random.default_rng(5).random((2, 6, 5)) < 0.6
    keep[:, 2], other[:, 2], other[:, 3] = False, False, False
    for first, second in [({"where": keep}, {"where": other}), ({}, {"where": other}),
                          ({"weights": keep * 1.0}, {})]:  # fmt: skip
        expected = numnorm.batch_moments(x + 2, after=numnorm.batch_moments(x, **first), **second)
        before = numnorm.batch_moments(take(x), **first)
        after = numnorm.batch_moments(take(x + 2), after=before, **second)
        alone = numnorm.batch_moments(take(x + 2), **second)
        for found in (after, before.merge(alone)):
            assert_close(host(found), expected)
            for ddof in (0, 1):
                assert_close(host([found.var(ddof), found.std(ddof)]),
                             [expected.var(ddof), expected.std(ddof)])  # fmt: skip
    counts = Moments(3, *numnorm.batch_moments(x)[1:])
    assert_close(host([Moments(3, *map(take, counts[1:])).var()]), [counts.var()])


# The CPU is held to the calls of each label in `tests/norms/test_labels.py`.
def test_gain_of_each_sample(products):
    take, x, dy = products.take, draw((6, 4, 3)), draw((6, 4, 3), seed=1)
    gamma, beta = draw((6, 4, 1), seed=2), draw((6, 4, 1), seed=3)
    expected = numnorm.batch_norm_forward(x, gamma, beta, labels=LABELS)
    mine = numnorm.batch_norm_forward(*map(take, (x, gamma, beta)), labels=LABELS)
    assert_close(host(mine), expected)
    _, *saved = expected
    gradients = numnorm.batch_norm_backward(dy, x, *saved, gamma, labels=LABELS)
    mine = numnorm.batch_norm_backward(take(dy), take(x), *mine[1:], take(gamma), labels=LABELS)
    assert_close(host(mine), gradients, 1e-5)


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_moments_of_all_labels_and_a_prior(imported, library):
    library = imported(library)
    x = draw((6, 3)).astype(np.float64) + 1e6
    given = library.take(x)
    speakers = numnorm.batch_moments(given, labels=LABELS[:6])
    total = speakers.total()
    np.testing.assert_allclose(total.mean.host, x.mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(total.std().host, x.std(axis=0), rtol=1e-12)
    with pytest.raises(TypeError, match=r"^moments must be in the memory of the host for a prior"):
        total.prior(3)
    state = numnorm.batch_moments(x).prior(3)
    expected, _ = numnorm.exponential_norm_step(x, 0.1, state, axis=0)
    moved = type(state)(*(library.take(np.full(3, field)) for field in state[:-1]))  # no time
    y, _ = numnorm.exponential_norm_step(given, 0.1, moved, axis=0)
    np.testing.assert_allclose(y.host, expected, rtol=1e-12)
