"""Batch norm of arrays of Dask, against NumPy and against the definition."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lazy_norms import LazyNorm
from norm_checks import DTYPES, PARAMETERS, check, draw_parameters
from norm_strategies import FAR, arrays, norms

import numnorm

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

LIBRARIES = ["dask.array", "dask_array"]


@pytest.fixture(params=LIBRARIES)
def library(request):
    return pytest.importorskip(request.param)


def numbers(shape, dtype=np.float32, seed=0):
    return (3 + np.random.default_rng(seed).normal(size=shape)).astype(dtype)


def computed(results, **options):
    return dask.compute(*results, **{"scheduler": "synchronous", **options})


def assert_same(actual, expected):
    """Compare bytes, shapes and dtypes."""
    for mine, theirs in zip(actual, expected, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        assert mine.tobytes() == theirs.tobytes()


def check_any_chunks(library, data):
    norm = data.draw(norms("batch_norm"))
    dtype = data.draw(st.sampled_from([*DTYPES, np.int16]))
    which = data.draw(st.sampled_from(PARAMETERS[norm.parameters]))
    real = np.float64 if dtype is np.int16 else dtype
    x, dy = data.draw(arrays(norm.shape, dtype, FAR)), data.draw(arrays(norm.shape, real))
    lazy = LazyNorm.of(norm, library, data.draw(st.integers(0, 999)))
    check(lazy, x, dy, *draw_parameters(norm, real, which))


@pytest.mark.parametrize("name", LIBRARIES)
@settings(max_examples=25, deadline=None, print_blob=True)
@given(data=st.data())
def test_any_chunks_agree_with_the_definition(name, data):
    check_any_chunks(pytest.importorskip(name), data)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, print_blob=True)
@given(data=st.data())
def test_many_chunks_agree_with_the_definition(data):
    check_any_chunks(da, data)


# Shapes, the axes of their channels, and chunks that are whole but along the first axis, where
# they are multiples of the moments blocks, and along the axes of the channels.
DIVIDED = [
    ((2500, 5), 1, (1024, 3)),
    ((2500, 5), (1,), (2048, 5)),
    ((300, 3, 4), 1, (256, 2, 4)),
    ((20, 2, 30, 30), 1, (9, 2, 30, 30)),
    ((40, 2, 30, 30), 1, (18, 1, 30, 30)),  # two moments blocks in each chunk
    ((6, 512, 6), -1, (4, 512, 4)),
    ((600, 3, 2, 5), (1, 3), (512, 2, 2, 3)),
    ((600, 2, 3, 5), (2, 3), (512, 2, 3, 2)),
    ((5, 40), 0, (2, 40)),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(("shape", "axis", "chunks"), DIVIDED)
def test_whole_moments_blocks_give_the_bytes_of_numpy(library, shape, axis, chunks, dtype):
    x = numbers(shape, dtype)
    assert chunks[0] % numnorm.chunk_multiple(shape, channel_axis=axis) == 0 or axis == 0
    lazy = library.from_array(x, chunks=chunks)
    channels = tuple(shape[a] for a in (axis if isinstance(axis, tuple) else (axis,)))
    gamma, beta = numbers(channels, seed=1), numbers(channels, np.float64, seed=2)
    running = [np.zeros(channels, np.float32), np.ones(channels)]
    moving = [library.from_array(a.copy(), chunks=2) for a in running]
    options = {"channel_axis": axis}
    whole = numnorm.batch_norm_forward(
        x, gamma, beta, running_mean=running[0], running_var=running[1], **options
    )
    parts = numnorm.batch_norm_forward(
        lazy, gamma, beta, running_mean=moving[0], running_var=moving[1], **options
    )
    assert type(parts) is numnorm.Normalized
    assert_same(computed([*parts, *moving]), [*whole, *running])
    assert_same(computed(numnorm.batch_moments(lazy, **options)[1:]), [
        *numnorm.batch_moments(x, **options)[1:]
    ])  # fmt: skip
    frozen = {"running_mean": running[0], "running_var": moving[1], "training": False, **options}
    kept = {**frozen, "running_var": running[1]}
    assert_same(
        computed(numnorm.batch_norm_forward(lazy, beta=beta, **frozen)),
        numnorm.batch_norm_forward(x, beta=beta, **kept),
    )
    dy, saved = numbers(shape, dtype, seed=3), whole[1:]
    inference = {"training": False, **options}
    result = numnorm.batch_norm_backward(lazy * 0 + dy, lazy, *saved, gamma, **inference)
    expected = numnorm.batch_norm_backward(x * 0 + dy, x, *saved, gamma, **inference)
    assert_same(computed(result[:1]), expected[:1])


def backward_of(function, x, dy, gain, training, **options):
    _, mean, rstd = numnorm.batch_norm_forward(np.asarray(x), **options)
    return numnorm.batch_norm_backward(
        function(dy), function(x), mean, rstd, gain, training=training, **options
    )


GAINS = {"samples": (0,), "channels": (1, 3), "all": (0, 1, 2, 3), "one": ()}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("axis", [1, (1, 3)])
@pytest.mark.parametrize("along", GAINS)
def test_parameters_that_broadcast(library, along, axis, training):
    x, dy = numbers((7, 4, 3, 2)), numbers((7, 4, 3, 2), np.float64, seed=1)
    shape = [n if a in GAINS[along] else 1 for a, n in enumerate(x.shape)]
    gain, bias = numbers(shape, seed=2), numbers(shape, np.float64, seed=3)

    def lazy(array):
        return library.from_array(array, chunks=(3, 2, 2, 1))

    expected = numnorm.batch_norm(x, gain, bias, channel_axis=axis)
    result = numnorm.batch_norm(lazy(x), gain, bias, channel_axis=axis)
    np.testing.assert_allclose(result.compute(), expected, rtol=1e-5, atol=1e-5)
    gradients = backward_of(lazy, x, dy, gain, training, channel_axis=axis)
    wanted = backward_of(np.asarray, x, dy, gain, training, channel_axis=axis)
    for mine, theirs in zip(computed(gradients), wanted, strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        # Roundings of float32, of sums that may cancel.
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-5)


def test_bytes_do_not_depend_on_workers():
    x, dy = numbers((700, 6, 3)), numbers((700, 6, 3), seed=1)

    def run(**options):
        lazy, gradient = da.from_array(x, chunks=(13, 4, 2)), da.from_array(dy, chunks=(50, 6, 1))
        mean, var = da.zeros(6, chunks=4), da.ones(6, chunks=4)
        saved = numnorm.batch_norm_forward(lazy, running_mean=mean, running_var=var)
        gradients = numnorm.batch_norm_backward(gradient, lazy, *saved[1:])
        moments = numnorm.batch_moments(lazy)[1:]
        return computed([*saved, mean, var, *gradients, *moments], **options)

    expected = run()
    for workers in (1, 2, 4, 7):
        assert_same(run(scheduler="threads", num_workers=workers), expected)


MOVING = [
    {"momentum": 0.3},
    {"momentum": "cumulative", "batches": 3},
    {"convention": "keras"},
    {"momentum": 1.0, "unbiased": False},
    {"momentum": 0.0},
]


@pytest.mark.parametrize("options", MOVING, ids=str)
def test_running_statistics_are_assigned(library, options):
    x = numbers((1030, 3))
    running = [np.full(3, 5.0, np.float32), np.full(3, 2.0)]
    moving = [library.from_array(a.copy(), chunks=c) for a, c in zip(running, (2, 3), strict=True)]
    lazy = library.from_array(x, chunks=(1024, 2))
    for _ in range(2):
        numnorm.batch_norm(x, running_mean=running[0], running_var=running[1], **options)
        numnorm.batch_norm(lazy, running_mean=moving[0], running_var=moving[1], **options)
    assert_same(computed(moving), running)
    numnorm.batch_norm(lazy[:0], running_mean=moving[0], running_var=moving[1], **options)
    assert_same(computed(moving), running)  # an empty batch leaves them


LAZY = da.from_array(numbers((6, 4)), chunks=(3, 2))
ZEROS, ONES = da.zeros(4), da.ones(4)
WRONG = {
    "array": (ValueError, "running_mean must be lazy to be updated .* ndarray: use", {
        "running_mean": np.zeros(4), "running_var": ONES}),
    "none": (ValueError, "running_var must be given with running_mean", {"running_mean": ZEROS}),
    "needed": (ValueError, "running_mean must be given when training is", {"training": False}),
    "shape": (ValueError, r"running_var must have shape \(4,\), the channels of x, got \(3,\)", {
        "running_mean": ZEROS, "running_var": da.ones(3)}),
    "ints": (TypeError, "running_mean must ", {
        "running_mean": ZEROS.astype(int), "running_var": ONES}),
    "one": (ValueError, "x must have at least 2 values in each channel", {
        "x": LAZY[:1], "running_mean": ZEROS, "running_var": ONES}),
    "momentum": (ValueError, "momentum must be between 0 and 1", {"momentum": 2.0}),
    "batches": (ValueError, "batches must be given", {"momentum": "cumulative"}),
    "training": (TypeError, "training must be True or False", {"training": 1}),
    "gamma": (ValueError, r"gamma must have shape \(4,\), the channels of x", {
        "gamma": np.ones((5, 4))}),
    "axis": (ValueError, "channel_axis must be between -2 and 1", {"channel_axis": 2}),
    "twice": (ValueError, "channel_axis must not name an axis twice", {"channel_axis": (1, -1)}),
    "object": (TypeError, "x must have dtype .* got object", {"x": LAZY.astype(object)}),
    "eps": (ValueError, "eps must be at least 0", {"eps": -1.0}),
    "out": (ValueError, "out must be None for lazy arrays", {"out": np.ones((6, 4))}),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_errors_of_the_call(name):
    kind, message, changed = WRONG[name]
    before = ZEROS.name, ONES.name
    for function in (numnorm.batch_norm, numnorm.batch_norm_forward):
        with pytest.raises(kind, match=f"^{message}") as caught:
            function(**{"x": LAZY, **changed})
        assert "\n" not in str(caught.value)
    assert (ZEROS.name, ONES.name) == before


def test_wrong_arguments_of_the_backward_pass():
    saved = numnorm.batch_norm_forward(LAZY)[1:]
    for message, changed in {
        r"dy must have shape \(6, 4\), the shape of x, got \(6, 3\)": {"dy": LAZY[:, :3]},
        r"rstd must have shape \(4,\), the channels of x, got \(3,\)": {"rstd": saved[1][:3]},
        "out must be None for lazy arrays": {"out": np.ones((6, 4))},
    }.items():
        arguments = {"dy": LAZY, "x": LAZY, "mean": saved[0], "rstd": saved[1], **changed}
        with pytest.raises(ValueError, match=f"^{message}"):
            numnorm.batch_norm_backward(**arguments)


def test_a_negative_variance_is_an_error_when_it_is_computed():
    y = numnorm.batch_norm(LAZY, running_mean=ZEROS, running_var=-ONES, training=False)
    with pytest.raises(ValueError, match="running_var must not be negative, got -1"):
        y.compute(scheduler="synchronous")


def test_empty_arrays():
    empty = LAZY[:0]
    y, mean, rstd = computed(numnorm.batch_norm_forward(empty))
    assert_same([y, mean, rstd], numnorm.batch_norm_forward(np.empty((0, 4), np.float32)))
    gradients = computed(numnorm.batch_norm_backward(empty, empty, mean, rstd))
    assert [array.shape for array in gradients] == [(0, 4), (4,), (4,)]
    assert not np.any(gradients[1:])


def graph_of(count):
    x = da.zeros((32 * count, 4), chunks=(32, 2))
    y, mean, rstd = numnorm.batch_norm_forward(x)
    return dict(da.concatenate([*numnorm.batch_norm_backward(x, x, mean, rstd)[:1], y]).dask)


def test_graphs_are_linear_in_blocks():
    small, large = len(graph_of(200)), len(graph_of(400))
    assert large <= 2.1 * small


NAMES = """
import dask, dask.array as da, numpy as np, numnorm
dask.config.set({"tokenize.ensure-deterministic": True})
x = da.from_array(np.arange(96.0).reshape(12, 4, 2), chunks=(5, 2, 1))
mean, var = da.zeros(4), da.ones(4)
saved = numnorm.batch_norm_forward(x, np.ones(4), running_mean=mean, running_var=var)
gradients = numnorm.batch_norm_backward(x, x, *saved[1:], np.ones((12, 1, 1)))
moments = numnorm.batch_moments(x, channel_axis=(1, 2))
lazy = [*saved, mean, var, *gradients, *moments[1:], moments.std(), *moments.merge(moments)[1:]]
print([array.name for array in lazy])
"""


def test_names_are_the_same_in_two_processes():
    runs = [subprocess.run([sys.executable, "-c", NAMES], capture_output=True) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout != b"", runs[0].stderr.decode()
