"""Masks, weights and labels of arrays of Dask in any chunks, forward and backward.

Results are compared with NumPy's, which are compared with the definitions elsewhere.
"""

import inspect

import numpy as np
import pytest
from lazy_norms import divided

import numnorm

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

SHAPE = (6, 4, 3)
SMALLER = [SHAPE, (4, 1), (3,), (6, 1, 1)]
CASES = {
    "layer_norm": [{"axis": -1}, {"axis": (0, 2)}, {"axis": 1}],
    "rms_norm": [{"axis": -1}, {"axis": (1, 2)}],
    "ada_norm": [{"axis": 1}, {"axis": 0, "ddof": 1, "eps_in": "std", "eps": 1e-3}],
    "standard_normal_variate": [{"axis": -1, "ddof": 0}, {"axis": (0, 1), "ddof": 1}],
    "weight_norm": [{"axis": -1}, {"axis": (1, 2)}],
    "group_norm": [{"groups": 2}, {"groups": 3, "channel_axis": -1}],
    "instance_norm": [{}, {"channel_axis": -1}],
    "batch_norm": [{}, {"channel_axis": (1, 2)}, {"channel_axis": 0}, {"channel_axis": -1}],
}
MASKS = ["none", "random", "false", "one"]
MANY = 1000  # the number of the first case of tests that are slow


def near(found, expected):
    """Compare results of float64 that differ by the order of sums."""
    found, expected = (r if isinstance(r, tuple) else (r,) for r in (found, expected))
    results = dask.compute(*found, scheduler="synchronous")  # the blocks of all of them once
    for lazy, result, other in zip(found, map(np.asarray, results), expected, strict=True):
        other = np.asarray(other)
        assert (result.dtype, result.shape) == (other.dtype, other.shape)
        if hasattr(lazy, "chunks"):
            assert (lazy.dtype, tuple(map(sum, lazy.chunks))) == (result.dtype, result.shape)
        largest = np.abs(np.nan_to_num(other, posinf=0, neginf=0)).max(initial=1)
        np.testing.assert_allclose(result, other, rtol=1e-9, atol=1e-9 * largest)


class Case:
    """Arrays and options of a random call, in memory and in random chunks."""

    def __init__(self, name, number):
        self.name = name
        self.rng = rng = np.random.default_rng([number, *name.encode()])
        self.options = dict(CASES[name][number % len(CASES[name])])
        self.x = rng.standard_normal(SHAPE) + rng.choice([0.0, 1e3])
        self.dy = rng.standard_normal(SHAPE)
        self.policy = {}
        if rng.random() < 0.4:
            self.x[rng.random(SHAPE) < 0.2] = np.nan
            self.policy = {"nan_policy": "omit"}
        self.fill = {"fill": 7.0} if rng.random() < 0.5 else {}
        kind = MASKS[(2 * number + list(CASES).index(name)) % len(MASKS)]
        self.arrays = self.masks_and_weights(kind)
        self.parameters = self.gains() if rng.random() < 0.5 else {}
        of_one = 1 if number >= MANY else (1, 4, 3)
        self.chunks = [divided(SHAPE, rng), 2, of_one, -1][(number + rng.integers(2)) % 4]

    def masks_and_weights(self, kind):
        rng, arrays = self.rng, {}
        if kind == "random":
            arrays["where"] = rng.random(SMALLER[rng.integers(4)]) < 0.7
        elif kind != "none":
            arrays["where"] = np.zeros(SHAPE, bool)
            arrays["where"][tuple(rng.integers(0, SHAPE))] = kind == "one"
        if rng.random() < 0.5 or kind == "none":
            small = SMALLER[rng.integers(4)]
            # Their scale matters with ddof, and in a length.
            any_scale = self.name != "weight_norm" and not self.options.get("ddof")
            scale = rng.choice([1, 1e-200, 1e200]) if any_scale else 1
            arrays["weights"] = rng.integers(0, 3, small) * rng.random(small) * scale
        return arrays

    def gains(self):
        rng, names = self.rng, ("gamma", "beta")
        axes = np.atleast_1d(self.options.get("axis", self.options.get("channel_axis", 1))) % 3
        shape = tuple(SHAPE[axis] for axis in sorted(axes))
        if self.name == "weight_norm":
            shape, names = tuple(n for a, n in enumerate(SHAPE) if a not in axes), ("g",)
        elif rng.random() < 0.3 and self.name != "batch_norm":
            shape = [(6, 4, 1), (1, 4, 3), (6, 1, 1)][rng.integers(3)]
        return self.taken({name: rng.random(shape) for name in names}, getattr(numnorm, self.name))

    def taken(self, arguments, function):
        names = inspect.signature(function).parameters
        return {name: value for name, value in arguments.items() if name in names}

    def lazy(self, array):
        return da.from_array(array, chunks=divided(array.shape, self.rng))

    def some_lazy(self, arrays):
        return {n: self.lazy(a) if self.rng.random() < 0.5 else a for n, a in arrays.items()}

    def both(self, function, *arrays, **more):
        """Return the lazy result and NumPy's."""
        options = self.taken({**self.options, **self.policy, **self.fill, **more}, function)
        given = self.taken({**self.parameters, **self.arrays}, function)
        lazy = [
            da.from_array(a, chunks=self.chunks) if a is self.x else self.lazy(a) for a in arrays
        ]
        result = function(*lazy, **options, **self.some_lazy(given))
        return result, function(*arrays, **options, **given)

    def check(self, **more):
        forward, backward = (getattr(numnorm, f"{self.name}_{p}ward") for p in ("for", "back"))
        near(*self.both(getattr(numnorm, self.name), self.x, **more))
        found, expected = self.both(forward, self.x, **more)
        near(found, expected)
        near(*self.both(backward, self.dy, self.x, *expected[1:], **more))


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("name", CASES)
def test_any_chunks_agree_with_numpy(name, number):
    Case(name, number).check()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_250_cases_agree_with_numpy(name):
    for number in range(MANY, MANY + 250):
        Case(name, number).check()


def labels_of(case, number):
    """Labels of the samples, in each third case one for each sample."""
    axes = np.atleast_1d(case.options.get("channel_axis", 1)) % 3
    samples = SHAPE[next(axis for axis in range(3) if axis not in axes)]
    labels = np.array(list("bac"))[case.rng.integers(0, 3, samples)]
    return np.arange(samples)[::-1] if number % 3 == 2 else labels


def check_labels(number):
    case = Case("batch_norm", number)
    labels = labels_of(case, number)
    case.check(labels=labels)
    found, expected = case.both(numnorm.batch_moments, case.x, labels=labels)
    np.testing.assert_array_equal(found.labels, expected.labels)
    tiny = 1e-100 < np.max(case.arrays.get("weights", 1)) < 1e100
    if tiny:  # otherwise the squares of deviations leave the range of the comparison
        near(tuple(found.moments), tuple(expected.moments))
    for stored in (expected, found):
        lazy, known = case.both(
            numnorm.batch_norm_forward, case.x, labels=labels, statistics=expected
        )
        lazy = numnorm.batch_norm_forward(
            da.from_array(case.x, chunks=case.chunks), labels=case.lazy(labels), statistics=stored,
            **case.options, **case.policy, **case.fill, **case.parameters, **case.arrays,
        )  # fmt: skip
        near(lazy, known)
    frozen = {"labels": labels, "training": False}
    near(*case.both(numnorm.batch_norm_backward, case.dy, case.x, *known[1:], **frozen))


@pytest.mark.parametrize("number", range(3))
def test_labels(number):
    check_labels(number)


@pytest.mark.slow
def test_250_cases_of_labels():
    for number in range(MANY, MANY + 250):
        check_labels(number)


@pytest.mark.parametrize("number", range(4))
def test_running_statistics(number):
    case = Case("batch_norm", number)
    axes = np.atleast_1d(case.options.get("channel_axis", 1)) % 3
    names = ("running_mean", "running_var")
    running = {name: np.full([SHAPE[a] for a in axes], 2.0) for name in names}
    lazy = {name: case.lazy(array.copy()) for name, array in running.items()}
    options = {**case.options, **case.policy, **case.arrays}
    options["convention"] = ["torch", "keras"][number // 2]
    expected = numnorm.batch_norm(case.x, **running, **options)
    found = numnorm.batch_norm(da.from_array(case.x, chunks=case.chunks), **lazy, **options)
    near(found, expected)
    near(tuple(lazy.values()), tuple(running.values()))
    near(*case.both(numnorm.batch_norm_forward, case.x, training=False, **running))


def test_moments_after_others_merge():
    case = Case("batch_norm", 1)
    rest, where = case.x[:2], case.rng.random(SHAPE) < 0.7
    x = da.from_array(case.x, chunks=(2, 3, 2))
    first = numnorm.batch_moments(rest, nan_policy="omit")
    expected = numnorm.batch_moments(case.x, where=where, after=first, **case.policy)
    for after in (first, numnorm.batch_moments(da.from_array(rest), nan_policy="omit")):
        found = numnorm.batch_moments(x, where=where, after=after, **case.policy)
        near(tuple(found), tuple(expected))
        near(found.var(), expected.var())
        plain = numnorm.batch_moments(x, after=after)
        near(tuple(plain), tuple(numnorm.batch_moments(case.x, after=first)))


def test_moments_of_labels_merge():
    case = Case("batch_norm", 0)
    some, others = ["a", "c"], list("abbaba")
    first = numnorm.batch_moments(case.x[:2], labels=some)
    expected = numnorm.batch_moments(case.x, labels=others, after=first)
    x = da.from_array(case.x, chunks=(2, 3, 2))
    for after in (first, numnorm.batch_moments(da.from_array(case.x[:2]), labels=some)):
        found = numnorm.batch_moments(x, labels=others, after=after)
        assert list(found.labels) == ["a", "b", "c"]
        near(tuple(found.moments), tuple(expected.moments))
        near(found["b"].std(), expected["b"].std())


class Counted:
    """An array that counts how often each of its blocks is read."""

    def __init__(self, array):
        self.array, self.reads = array, 0
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, part):
        self.reads += 1
        return self.array[part]


@pytest.mark.parametrize(
    "keywords",
    [{"where": np.arange(4)[:, None] > 0}, {"labels": list("abbaba")}, {"nan_policy": "omit"}],
    ids=["where", "labels", "nan_policy"],
)
@pytest.mark.parametrize("name", ["batch_norm", "layer_norm"])
def test_no_block_is_read_more_often_than_by_the_plain_norm(name, keywords):
    if name == "layer_norm" and "labels" in keywords:
        pytest.skip("layer norm has no labels")
    norm, reads = getattr(numnorm, name), []
    for given in ({}, keywords):
        stored = Counted(np.arange(72.0).reshape(SHAPE))
        x = da.from_array(stored, chunks=(2, 2, 2), meta=np.empty((0, 0, 0)), lock=True)
        norm(x, **given).compute(scheduler="synchronous")
        reads.append(stored.reads)
    assert reads[1] <= reads[0]


@pytest.mark.parametrize("shape", [(0, 4, 3), (6, 4, 0)], ids=str)
@pytest.mark.parametrize("name", ["batch_norm", "layer_norm", "instance_norm", "weight_norm"])
def test_arrays_without_elements(name, shape):
    x, where = np.ones(shape), np.ones(shape, bool)
    lazy = da.from_array(x, chunks=2)
    forward, backward = (getattr(numnorm, f"{name}_{p}ward") for p in ("for", "back"))
    expected = forward(x, where=where)
    near(forward(lazy, where=where), expected)
    saved = expected[1:]
    near(backward(lazy, lazy, *saved, where=where), backward(x, x, *saved, where=where))
    if name == "batch_norm":
        moments = numnorm.batch_moments(x, where=where)
        near(tuple(numnorm.batch_moments(lazy, where=where)), tuple(moments))


@pytest.mark.parametrize("name", CASES)
def test_a_mask_alone_may_be_lazy(name):
    case = Case(name, 4)
    norm, where = getattr(numnorm, name), case.rng.random((4, 1)) < 0.7
    found = norm(case.x, where=case.lazy(where), **case.options)
    assert isinstance(found, da.Array)
    near(found, norm(case.x, where=where, **case.options))


def test_labels_alone_may_be_lazy():
    x, labels = np.arange(72.0).reshape(SHAPE), np.array(list("abbaba"))
    found = numnorm.batch_norm(x, labels=da.from_array(labels, chunks=4))
    assert isinstance(found, da.Array)
    near(found, numnorm.batch_norm(x, labels=labels))


def test_errors():
    x = da.ones(SHAPE, chunks=2)
    text = r"^labels must have shape \(6,\), one label for each sample, got \(4,\)$"
    with pytest.raises(ValueError, match=text):
        numnorm.batch_norm(x, labels=[0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"^running_mean must be None with labels, which have"):
        numnorm.batch_norm(x, labels=[0] * 6, running_mean=da.ones(4), running_var=da.ones(4))
    with pytest.raises(ValueError, match=r"^labels must be given with statistics, got None$"):
        numnorm.batch_norm(x, statistics=numnorm.batch_moments(x, labels=[0] * 6))
    with pytest.raises(ValueError, match=r"^labels must have labels that statistics has, got '1'"):
        numnorm.batch_norm(x, labels=[1] * 6, statistics=numnorm.batch_moments(x, labels=[0] * 6))
    with pytest.raises(ValueError, match=r"^mean must have shape \(2, 4\), one for each label and"):
        numnorm.batch_norm_backward(x, x, np.ones(4), np.ones(4), labels=[0, 1, 0, 1, 0, 1])


def test_lazy_statistics_of_an_array_in_memory():
    x, labels = np.arange(24.0).reshape(4, 6) ** 2, [1, 1, 2, 2]
    stored = numnorm.batch_moments(da.from_array(x, chunks=(1, 2)), labels=labels)
    lazy = numnorm.batch_norm(x, labels=labels, statistics=stored)
    assert isinstance(lazy, da.Array)
    expected = numnorm.batch_norm(x, labels=labels)
    # Merged moments differ by a few roundings of float64.
    np.testing.assert_allclose(lazy, expected, rtol=1e-12, atol=1e-12)
