"""Quantiles in chunks: exact in any order, sketches within their stated error, merged and saved."""

import io
import itertools
import pickle
import sys

import ml_dtypes  # noqa: F401  # for the name "bfloat16"
import numpy as np
import pytest
from quantile_methods import METHODS

import numnorm

EPS64 = np.finfo(np.float64).eps
DTYPES = ["float16", "bfloat16", "float32", "float64", "int32"]
Q = np.array([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])
CHANNELS = 5


def draw(rows=60, dtype="float64", offset=0.0):
    rng = np.random.default_rng(7)
    values = offset + np.arange(CHANNELS) + 3 * rng.normal(size=(rows, CHANNELS))
    return values.astype(dtype)


def streamed(chunks, **options):
    total = None
    for chunk in chunks:
        total = numnorm.quantiles(chunk, after=total, **options)
    return total


def merged_left(chunks, **options):
    total, *parts = [numnorm.quantiles(chunk, **options) for chunk in chunks]
    for part in parts:
        total = total.merge(part)
    return total


def merged_right(chunks, **options):
    *parts, total = [numnorm.quantiles(chunk, **options) for chunk in chunks]
    for part in reversed(parts):
        total = part.merge(total)
    return total


def merged_as_a_tree(chunks, **options):
    parts = [numnorm.quantiles(chunk, **options) for chunk in chunks]
    while len(parts) > 1:
        pairs = itertools.zip_longest(parts[::2], parts[1::2])
        parts = [one if other is None else other.merge(one) for one, other in pairs]
    return parts[0]


WAYS = [streamed, merged_left, merged_right, merged_as_a_tree]


def assert_quantile(found, sorted_values, q, method):
    """`found` against NumPy's quantile of the values of one channel.

    NumPy interpolates by the same formula; a rounding of each of its three steps may differ. Where
    infinities meet in it NumPy has NaN: then the two elements around the place decide.
    """
    with np.errstate(all="ignore"):
        expected = np.quantile(sorted_values, q, method=method)
    for one, wanted, each in zip(found, expected, q, strict=True):
        if np.isfinite(wanted):
            largest = np.abs(sorted_values[np.isfinite(sorted_values)]).max()
            assert abs(one - wanted) <= 4 * EPS64 * largest
            continue
        place = np.quantile(np.arange(float(len(sorted_values))), each, method=method)
        low, high = sorted_values[int(np.floor(place))], sorted_values[int(np.ceil(place))]
        if low == high or place % 1 == 0:
            assert one == low
        elif np.isinf(low) and np.isinf(high):  # from -inf to inf there is no way
            assert np.isnan(one)
        else:
            assert one == (low if np.isinf(low) else high)


class Case:
    """A random call: values, a mask, and its division into chunks."""

    def __init__(self, number, dtype):
        rng = np.random.default_rng([number, *dtype.encode()])
        shape = tuple(int(n) for n in rng.integers(1, 7, rng.integers(2, 5)))
        self.shape = int(rng.integers(1, 30)), *shape[1:]
        axes = rng.permutation(np.arange(1, len(shape)))[: rng.integers(1, len(shape))]
        self.axes = tuple(int(axis) for axis in axes)
        kind = rng.choice(["plain", "ties", "constant", "infinite", "missing"])
        if dtype == "int32":
            x = rng.integers(-5, 5, self.shape)
        elif kind in ("ties", "infinite"):
            x = rng.integers(-2, 3, self.shape) / 4
        else:
            x = np.full(self.shape, 0.1) if kind == "constant" else rng.normal(size=self.shape)
        if kind == "infinite" and dtype != "int32":
            x = np.where(rng.random(self.shape) < 0.4, rng.choice([-np.inf, np.inf]), x)
            x = np.where(rng.random(self.shape) < 0.1, np.inf, x)
        self.x = x.astype(dtype)
        self.keywords = {}
        self.keep = np.ones(self.shape, bool)
        if kind == "missing" and dtype != "int32":
            lost = rng.random(self.shape) < 0.2
            self.x[lost] = np.nan
            if rng.random() < 0.7:
                self.keywords["nan_policy"], self.keep = "omit", ~lost
        if rng.random() < 0.4:
            where = rng.random(self.shape) < rng.choice([0.1, 0.7])
            self.keywords["where"], self.keep = where, self.keep & where
        ends = np.sort(rng.integers(0, self.shape[0] + 1, rng.integers(0, 4)))
        self.cuts = [int(end) for end in ends]
        self.q = rng.choice([0.0, 0.2, 0.25, 1 / 3, 0.5, 0.625, 0.99, 1.0], 3)
        self.method = str(rng.choice(list(METHODS)))
        self.way = WAYS[rng.integers(len(WAYS))]

    def found(self):
        own = {key: np.split(value, self.cuts) for key, value in self.keywords.items()
               if key == "where"}  # fmt: skip
        total = None
        for index, chunk in enumerate(np.split(self.x, self.cuts)):
            keywords = {key: value[index] for key, value in own.items()}
            options = {**self.keywords, **keywords, "channel_axis": self.axes}
            if self.way is streamed:
                total = numnorm.quantiles(chunk, after=total, **options)
            else:
                part = numnorm.quantiles(chunk, **options)
                total = part if total is None else part.merge(total)
        return total


def check_case(number, dtype):
    case = Case(number, dtype)
    found = case.found()
    axes = tuple(sorted(case.axes))
    shape = tuple(case.shape[axis] for axis in axes)
    x, keep = (np.moveaxis(a, axes, range(len(axes))).reshape(*shape, -1)
               for a in (case.x.astype(np.float64), case.keep))  # fmt: skip
    result = found.quantile(case.q, case.method)
    assert result.dtype == np.float64 and result.shape == (len(case.q), *shape)
    assert found.rank_error == 0
    np.testing.assert_array_equal(found.count, keep.sum(-1))
    for index in np.ndindex(shape):
        values = np.sort(x[index][keep[index]])
        if not values.size or np.isnan(values[-1]):
            assert np.isnan(result[:, *index]).all()
        else:
            assert_quantile(result[:, *index], values, case.q, case.method)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_call_agrees_with_numpy(dtype):
    for number in range(60):
        check_case(number, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_2000_calls_agree_with_numpy(dtype):
    for number in range(1000, 3000):
        check_case(number, dtype)


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method):
    for rows in (1, 2, 3, 4, 9, 60):
        x = draw(rows)
        found = numnorm.quantiles(x).quantile(np.linspace(0, 1, 41), method)
        # As in `assert_quantile`.
        expected = np.quantile(x, np.linspace(0, 1, 41), axis=0, method=method)
        np.testing.assert_allclose(found, expected, rtol=0, atol=4 * EPS64 * np.abs(x).max())


def test_the_shapes_are_those_of_numpy():
    x = draw()
    total = numnorm.quantiles(x)
    for q in (0.5, [0.5], np.full((2, 3), 0.25), []):
        assert total.quantile(q).shape == np.quantile(x, q, axis=0).shape
    assert total.count.shape == (CHANNELS,) and total.count.dtype == np.int64


def test_no_offset_costs_the_interquartile_range_digits():
    # Multiples of 2**-20 are exact at all offsets.
    x = np.round(np.random.default_rng(3).normal(size=(1000, 3)) * 2**20) / 2**20
    expected = numnorm.quantiles(x).iqr()
    low, high = numnorm.quantiles(x).quantile([0.25, 0.75])
    np.testing.assert_allclose(expected, high - low, rtol=4 * EPS64)
    for offset in (1e7, 2.0**31):
        np.testing.assert_allclose(numnorm.quantiles(x + offset).iqr(), expected, rtol=4 * EPS64)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "split", [[], [1], [59], [7, 30, 31], [0], [20, 20, 40], [60], range(1, 60)]
)
def test_any_split_has_the_bytes_of_the_whole(way, split):
    x = draw(dtype="float32", offset=1e6)
    expected = numnorm.quantiles(x).quantile(Q).tobytes()
    chunks = np.split(x, list(split))
    assert way(chunks).quantile(Q).tobytes() == expected
    assert way(chunks[::-1]).quantile(Q).tobytes() == expected


def test_many_chunks_become_few_arrays():
    x = np.random.default_rng(0).normal(size=(500, 2))
    total = streamed(x[:, None])
    assert len(total._parts) <= 16
    np.testing.assert_array_equal(total.quantile(Q), numnorm.quantiles(x).quantile(Q))
    assert total.count.tolist() == [500, 500]


def test_quantiles_of_chunks_cannot_be_averaged():
    # Episodes of a robot: each is narrow, and they lie apart.
    rng = np.random.default_rng(1)
    episodes = [start + rng.normal(size=(100, 1)) for start in (0, 0, 0, 50, 100)]
    whole = np.quantile(np.concatenate(episodes), [0.01, 0.5, 0.99], axis=0)
    averaged = np.mean([np.quantile(x, [0.01, 0.5, 0.99], axis=0) for x in episodes], axis=0)
    assert np.all(np.abs(averaged - whole) > 20)
    for way in WAYS:
        found = way(episodes).quantile([0.01, 0.5, 0.99])
        np.testing.assert_allclose(found, whole, rtol=4 * EPS64)


def test_streaming_merging_and_asking_leave_their_inputs_alone():
    x, y = np.split(draw(), 2)
    given = x.copy()
    first = numnorm.quantiles(x)
    before = first.quantile(Q)
    both = numnorm.quantiles(y, after=first)
    first.merge(numnorm.quantiles(y)).median()
    both.median()
    np.testing.assert_array_equal(first.quantile(Q), before)
    np.testing.assert_array_equal(x, given)
    assert first.count[0] == 30


def test_float64_after_float32_keeps_its_digits():
    x = np.array([[1.0], [1.0 + 1e-12]])
    total = numnorm.quantiles(np.float32([[2.0]]), after=numnorm.quantiles(x))
    assert total.median() == x[1]


def test_nan_stays_in_its_channel_whatever_comes_later():
    x = draw()
    x[3, 2] = np.nan
    total = streamed([x[:10], x[10:]])
    found = total.quantile(Q)
    assert np.isnan(found[:, 2]).all() and not np.isnan(np.delete(found, 2, axis=1)).any()
    assert total.count.tolist() == [60] * 5
    with pytest.raises(ValueError, match=r"^x must not contain NaN, as nan_policy is 'raise'"):
        numnorm.quantiles(x, nan_policy="raise")


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 2), (4, 0), (4, 3, 0)])
def test_no_elements(shape):
    total = numnorm.quantiles(np.empty(shape))
    assert np.isnan(total.quantile([0.5, 1.0])).all()
    assert total.median().shape == shape[1:2]
    assert pickle.loads(pickle.dumps(total)).merge(total).count.sum() == 0


def test_finite_values_whose_distance_is_not():
    x = np.array([[-1e308], [1.7e308]])
    np.testing.assert_allclose(numnorm.quantiles(x).median(), 0.35e308, rtol=4 * EPS64)


def test_copies_and_files_are_the_same():
    x = draw(dtype="float32")
    x[5, 1] = np.nan
    total = numnorm.quantiles(x, where=draw() > 0)
    file = io.BytesIO()
    np.savez(file, **total.to_arrays())
    file.seek(0)
    with np.load(file, allow_pickle=False) as arrays:
        read = numnorm.Quantiles.from_arrays(arrays)
    for same in (pickle.loads(pickle.dumps(total)), read):
        assert same.quantile(Q).tobytes() == total.quantile(Q).tobytes()
        np.testing.assert_array_equal(same.count, total.count)
        again = numnorm.quantiles(x[:7], after=same).quantile(Q)
        np.testing.assert_array_equal(again, numnorm.quantiles(x[:7], after=total).quantile(Q))


def test_data_are_scaled_by_stored_quantiles():
    # In every layout: the map of batch norm in inference, by the median and the range.
    x = np.random.default_rng(2).normal(5, 2, size=(8, 3, 50)).astype("float32")
    total = numnorm.quantiles(x)
    stored = {"running_mean": total.median(), "running_var": total.iqr() ** 2}
    y = numnorm.batch_norm(x, training=False, eps=0, **stored)
    centred = np.float64(x) - total.median()[:, None]
    # Roundings of the root of the square and of the result, near 3.
    np.testing.assert_allclose(y, centred / total.iqr()[:, None], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "error, message, call",
    [
        (TypeError, "after must be Quantiles, got", lambda x: numnorm.quantiles(x, after=3)),
        (ValueError, r"after.count must have shape \(2,\), the channels, got",
         lambda x: numnorm.quantiles(x[:, :2], after=numnorm.quantiles(x))),
        (TypeError, "other must be Quantiles, got", lambda x: numnorm.quantiles(x).merge(None)),
        (ValueError, "q must be between 0 and 1, got 50",
         lambda x: numnorm.quantiles(x).quantile([0.5, 50])),
        (ValueError, "q must be between 0 and 1, got nan",
         lambda x: numnorm.quantiles(x).quantile(np.nan)),
        (ValueError, "method must be 'linear'", lambda x: numnorm.quantiles(x).quantile(0, "no")),
        (ValueError, "keep must be at least 1, got 0", lambda x: numnorm.quantiles(x, keep=0)),
        (ValueError, "channel_axis must be between", lambda x: numnorm.quantiles(x[0])),
        (TypeError, "x must have dtype", lambda x: numnorm.quantiles(x.astype(complex))),
        (TypeError, "where must have dtype", lambda x: numnorm.quantiles(x, where=x)),
        (TypeError, "quantiles", lambda x: numnorm.quantiles(x, axis=0)),
    ],
)  # fmt: skip
def test_errors_name_the_argument(error, message, call):
    with pytest.raises(error, match=message):
        call(draw())


# Sketches


def ranks_of(values, found):
    """The ranks of values below and at most as large as each of `found`, as shares."""
    ordered = np.sort(values)
    below, upto = (np.searchsorted(ordered, found, side) for side in ("left", "right"))
    return below / len(ordered), upto / len(ordered)


def assert_within(total, x, error):
    """The exact ranks of the quantiles of sketches are within the stated error.

    It holds in 99 of 100 sketches; twice the error leaves room for that one.
    """
    assert 0 < total.rank_error <= error
    q = np.linspace(0, 1, 21)
    found = total.quantile(q)
    for channel in range(x.shape[1]):
        below, upto = ranks_of(x[~np.isnan(x[:, channel]), channel], found[:, channel])
        assert np.all(below - 2 * error <= q) and np.all(q <= upto + 2 * error)
    np.testing.assert_array_equal(found[[0, -1]], [np.nanmin(x, 0), np.nanmax(x, 0)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [0.05, 0.01])
def test_sketches_are_within_their_error(way, error):
    pytest.importorskip("datasketches")
    # Ties, a long tail, and an offset at which float32 has no digits.
    rng = np.random.default_rng(4)
    x = np.stack([rng.integers(0, 9, 40000), np.exp(3 * rng.normal(size=40000)),
                  1e9 + rng.random(40000)], axis=1)  # fmt: skip
    total = way(np.split(x, [100, 9000, 9000, 25000]), error=error, keep=1000)
    assert_within(total, x, error)
    assert total.count.tolist() == [40000] * 3
    assert sum(len(s.serialize()) for s in total._sketches) < x.nbytes / 20


def test_few_values_are_exact_although_an_error_is_allowed():
    pytest.importorskip("datasketches")
    x = draw()
    total = streamed(np.split(x, 6), error=0.01, keep=60)
    assert total.rank_error == 0
    np.testing.assert_array_equal(total.quantile(Q), numnorm.quantiles(x).quantile(Q))
    assert streamed(np.split(x, 6), error=0.01, keep=59).rank_error > 0


def test_sketches_leave_out_what_does_not_count():
    pytest.importorskip("datasketches")
    x = np.random.default_rng(5).normal(size=(20000, 2))
    where = np.random.default_rng(6).random(x.shape) < [0.9, 0.02]
    x[~where] = np.nan
    for keywords in ({"where": where}, {"nan_policy": "omit"}):
        total = numnorm.quantiles(x, error=0.02, keep=500, **keywords)
        np.testing.assert_array_equal(total.count, where.sum(0))
        assert_within(total, x, 0.02)
    total = numnorm.quantiles(x, error=0.02, keep=500)
    assert np.isnan(total.median()).all()


def test_copies_of_sketches_are_the_same():
    pytest.importorskip("datasketches")
    x = np.random.default_rng(5).normal(size=(20000, 2))
    total = numnorm.quantiles(x, error=0.02, keep=500)
    again = pickle.loads(pickle.dumps(total))
    assert again.quantile(Q).tobytes() == total.quantile(Q).tobytes()
    assert again.rank_error == total.rank_error
    before = total.quantile(Q)
    assert_within(again.merge(total), np.concatenate([x, x]), 0.02)
    np.testing.assert_array_equal(total.quantile(Q), before)


def test_the_larger_error_holds_for_both():
    pytest.importorskip("datasketches")
    x = np.random.default_rng(5).normal(size=(20000, 2))
    fine, coarse = (numnorm.quantiles(x, error=error, keep=500) for error in (0.01, 0.05))
    both = np.concatenate([x, x])
    for total in (fine.merge(coarse), coarse.merge(fine)):
        assert total.rank_error == coarse.rank_error
        assert_within(total, both, 0.05)
    exact = numnorm.quantiles(x)
    assert exact.merge(fine).rank_error == fine.rank_error
    assert exact.merge(exact).rank_error == 0


def test_an_error_needs_the_library_of_sketches(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(ImportError, match=r"numnorm\[sketches\]"):
        numnorm.quantiles(draw(), error=0.0123)
    numnorm.quantiles(draw())


@pytest.mark.parametrize("error", [0.0, 1e-6])
def test_an_error_that_no_sketch_has(error):
    pytest.importorskip("datasketches")
    with pytest.raises(ValueError, match=r"^error must be at least .*None is exact"):
        numnorm.quantiles(draw(), error=error)


def test_arrays_that_are_not_those_of_quantiles():
    arrays = numnorm.quantiles([[1.0], [4.0]]).to_arrays()
    with pytest.raises(TypeError, match=r"^arrays must be a mapping, got int$"):
        numnorm.Quantiles.from_arrays(3)
    for name in ("count", "missing"):
        text = f"^arrays must be all that to_arrays returned, got no {name}$"
        with pytest.raises(ValueError, match=text):
            numnorm.Quantiles.from_arrays({k: v for k, v in arrays.items() if k != name})
