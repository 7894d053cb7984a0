"""``numnorm apply`` along time and with missing values: the same bits as in memory."""

from pathlib import Path

import numpy as np
import pytest
from array_files import apply, bits, draw, load, save

import numnorm

TINY = "0.0004"  # blocks of 419 bytes


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def words_of(keywords):
    """The options of the command for the keywords of a function."""
    words = []
    for name, value in keywords.items():
        flag = name.replace("_", "-")
        words += [f"--no-{flag}"] if value is False else [f"--{flag}"]
        words += [] if isinstance(value, bool) else [value]
    return words


def check(capsys, x, method, block_size=TINY, output="y.npy", **keywords):
    np.save("x.npy", x)
    options = (*words_of(keywords), "--block-size", block_size, "--force")
    assert apply(capsys, method, "x.npy", output, *options) == (0, "")
    assert bits(load(output)) == bits(getattr(numnorm, method)(x, **keywords))


CALLS = [
    ("moving_norm", {"window": 7}),
    ("moving_norm", {"window": 7, "center": True}),
    ("moving_norm", {"window": 9, "min_window": 5, "subtract_mean": False, "eps": 0.1}),
    ("moving_norm", {"window": 500, "center": True, "with_std": False}),
    ("exponential_norm", {"alpha": 0.1}),
    ("exponential_norm", {"alpha": 0.02, "adjust": False, "eps": 0.1}),
    ("exponential_norm", {"alpha": 0.2, "initial": 37}),
    ("exponential_norm", {"alpha": 0.2, "initial": 1000}),
]


@pytest.mark.parametrize("block_size", ["1e-5", "0.0003", TINY, "64"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("method", "keywords"), CALLS, ids=str)
def test_same_bits_as_in_memory(capsys, method, keywords, axis, block_size):
    shape = (130, 4) if axis == 0 else (4, 130)
    # Blocks of one number, of some steps of some channels, and the whole.
    shape = tuple(min(n, 40) for n in shape) if block_size == "1e-5" else shape
    check(capsys, draw(shape), method, block_size, axis=axis, **keywords)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_more_axes_and_orders(capsys, axis, order):
    x = draw((12, 11, 10), order=order)
    check(capsys, x, "moving_norm", axis=axis, window=4)
    check(capsys, x, "exponential_norm", axis=axis, alpha=0.3)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8])
def test_dtypes_and_one_axis(capsys, dtype):
    x = draw((300,), dtype)
    check(capsys, x, "moving_norm", window=20)
    check(capsys, x, "exponential_norm", alpha=0.1)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_arrays(capsys, shape):
    check(capsys, draw(shape), "moving_norm", window=3)
    check(capsys, draw(shape), "exponential_norm", alpha=0.1)


@pytest.mark.parametrize("output", ["y.zarr", "y.h5::/y"])
def test_chunks_of_other_lengths_than_the_window(capsys, output):
    x = draw((200, 6))
    save("x.zarr", x, chunks=(30, 4))
    for method, keywords in (("moving_norm", {"window": 17}), ("exponential_norm", {"alpha": 0.1})):
        options = (*words_of({"axis": 0, **keywords}), "--block-size", "0.002", "--force")
        assert apply(capsys, method, "x.zarr", output, *options) == (0, "")
        assert bits(load(output)) == bits(getattr(numnorm, method)(x, axis=0, **keywords))


@pytest.mark.parametrize(
    ("method", "keywords"),
    [
        ("layer_norm", {}),
        ("rms_norm", {"axis": 1}),
        ("ada_norm", {}),
        ("group_norm", {"groups": 3}),
        ("instance_norm", {}),
        ("standard_normal_variate", {"axis": 1, "ddof": 1}),
        ("batch_norm", {"channel_axis": 0}),
        ("moving_norm", {"axis": 0, "window": 5}),
        ("moving_norm", {"axis": 0, "window": 6, "center": True}),
        ("exponential_norm", {"axis": 0, "alpha": 0.1}),
    ],
    ids=str,
)
def test_missing_values(capsys, method, keywords):
    x = draw((40, 6, 5))
    x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    x[7:20, 2] = np.nan
    check(capsys, x, method, nan_policy="omit", **keywords)
    check(capsys, np.nan_to_num(x), method, nan_policy="raise", **keywords)
    np.save("x.npy", x)
    Path("y.npy").unlink()
    words = ("x.npy", "y.npy", *words_of(keywords), "--nan-policy", "raise", "--block-size", TINY)
    said = "numnorm apply: error: x must not contain NaN, as nan_policy is 'raise'\n"
    assert apply(capsys, method, *words) == (2, said)
    assert not Path("y.npy").exists()


@pytest.fixture
def missing():
    """An array with missing values, also whole blocks of them, and a channel without values."""
    x = draw((60, 4, 5))
    x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    x[7:30, 2] = np.nan
    x[:, 3] = np.nan
    np.save("x.npy", x)
    return x


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of a channel without values
def test_batch_norm_of_one_block_with_missing_values(capsys, missing):
    words = ("batch_norm", "x.npy", "y.npy", "--nan-policy", "omit")
    assert apply(capsys, *words) == (0, "")
    assert bits(load("y.npy")) == bits(numnorm.batch_norm(missing, nan_policy="omit"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("output", ["y.npy", "y.zarr", "y.h5::/y"])
def test_batch_norm_of_many_blocks_with_missing_values(capsys, missing, output):
    words = ("--nan-policy", "omit", "--block-size", TINY, "--save-statistics", "s.npz")
    assert apply(capsys, "batch_norm", "x.npy", output, *words) == (0, "")
    exact = missing.astype(np.longdouble)
    mean, var = (f(exact, axis=(0, 2), keepdims=True) for f in (np.nanmean, np.nanvar))
    # The roundoff of the results is that of float32, a few units of those of size 1.
    expected = (exact - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(load(output), expected, rtol=2.0**-22, atol=2.0**-22)
    with np.load("s.npz") as saved:
        # Sums of float64 over 300 values: their roundoff is far below that.
        np.testing.assert_allclose(saved["mean"][:3], mean.ravel()[:3], rtol=2.0**-40)
        np.testing.assert_allclose(saved["var"], var.ravel(), rtol=2.0**-40)


@pytest.mark.parametrize("policy", ["omit", "raise"])
def test_a_test_set_with_missing_values(capsys, policy):
    x = draw((60, 4, 5))
    x[3, 1, 2] = np.nan
    np.save("x.npy", x)
    np.savez("s.npz", mean=np.arange(4.0), var=np.arange(1.0, 5.0))
    words = ("batch_norm", "x.npy", "y.npy", "--statistics", "s.npz", "--block-size", TINY)
    outcome = apply(capsys, *words, "--nan-policy", policy)
    if policy == "raise":
        said = "numnorm apply: error: x must not contain NaN, as nan_policy is 'raise'\n"
        assert outcome == (2, said)
        return
    assert outcome == (0, "")
    stored = {"running_mean": np.arange(4.0), "running_var": np.arange(1.0, 5.0)}
    expected = numnorm.batch_norm(x, training=False, nan_policy="omit", **stored)
    assert bits(load("y.npy")) == bits(expected)


ERRORS = [
    (("moving_norm",), "moving_norm needs --window"),
    (
        ("exponential_norm",),
        "exactly one of alpha, span, com, halflife must be given, got none of them",
    ),
    (
        ("moving_norm", "--window", 3, "--axis", 0, 1),
        "--axis must be one axis for moving_norm, got (0, 1)",
    ),
    (("moving_norm", "--window", 0), "window must be at least 1, got 0"),
    (
        ("moving_norm", "--window", 3, "--min-window", 4),
        "min_window must be at most the window, 3, got 4",
    ),
    (
        ("layer_norm", "--no-with-std"),
        "--no-with-std is not for layer_norm, which takes "
        "--gamma, --beta, --axis, --eps, --nan-policy",
    ),
    (
        ("moving_norm", "--window", 3, "--alpha", 0.1),
        "--alpha is not for moving_norm, which takes --window, --axis, --center, --min-window, "
        "--no-subtract-mean, --no-with-std, --eps, --nan-policy",
    ),
    (
        ("batch_norm", "--ddof", 1),
        "--ddof is not for batch_norm, which takes --gamma, --beta, --channel-axis, --eps, "
        "--no-with-mean, --clip, --nan-policy, --statistics, --save-statistics",
    ),
    (
        ("standard_normal_variate", "--eps", 0.1),
        "--eps is not for standard_normal_variate, which takes --axis, --ddof, --nan-policy",
    ),
    (
        ("standard_normal_variate", "--ddof", 6),
        "ddof must be less than the 4 normalized elements, got 6",
    ),
]


@pytest.mark.parametrize(("words", "said"), ERRORS)
def test_errors(capsys, words, said):
    np.save("x.npy", draw((9, 4)))
    status, text = apply(capsys, words[0], "x.npy", "y.npy", *words[1:])
    assert (status, text) == (2, f"numnorm apply: error: {said}\n")
