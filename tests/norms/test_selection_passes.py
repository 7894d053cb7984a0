"""Order statistics in passes over chunks: exact, and in as few passes as promised."""

import itertools

import numpy as np
import pytest

from numnorm.norms.selection_passes import SelectionPasses, keys_of, look, of_keys

DTYPES = ["float32", "float64"]


def drawn(kind, rows, width, dtype, rng):
    if kind == "normal":
        x = rng.normal(size=(rows, width))
    elif kind == "offset":
        x = 1e7 + rng.normal(size=(rows, width))
    elif kind == "ties":
        x = rng.integers(-2, 3, (rows, width)) / 4
    elif kind == "constant":
        x = np.full((rows, width), 0.1)
    elif kind == "infinite":
        x = rng.choice([-np.inf, np.inf, 0.0, -0.0, 1.0], (rows, width))
    elif kind == "any bits":
        bits = rng.integers(0, 256, (rows, width * np.dtype(dtype).itemsize), np.uint8)
        x = bits.view(dtype)
    else:  # sorted: the first chunk is unlike the others
        x = np.sort(rng.normal(size=(rows, width)) ** 3, axis=1)
    with np.errstate(all="ignore"):
        return x.astype(dtype)


KINDS = ["normal", "offset", "ties", "constant", "infinite", "any bits", "sorted"]


def found_in(selection, chunks, begin=False):
    if begin:
        selection.begin(chunks[0][1], chunks[0][0])
    while not selection.is_done:
        search = selection.search
        selection.end_pass(look(x, search, rows) for rows, x in chunks)
    return selection


def check(number, dtype):
    rng = np.random.default_rng([number, *dtype.encode()])
    rows, width = (int(n) for n in rng.integers(1, [4, 400]))
    x = drawn(KINDS[rng.integers(len(KINDS))], rows, width, dtype, rng)
    if rng.random() < 0.5:
        x[rng.random(x.shape) < rng.choice([0.2, 0.6, 1.0])] = np.nan
    shares = rng.random((int(rng.integers(1, 6)), 1))
    budget = int(rng.choice([1, 100, 3000, 1 << 14]))
    selection = SelectionPasses(rows, dtype, lambda count: (shares * count).astype(int), budget)
    ends = [0, *np.sort(rng.integers(0, width + 1, rng.integers(0, 4))), width]
    cut = int(rng.integers(0, rows + 1))
    chunks = [
        (own, x[own, start:end])
        for start, end in itertools.pairwise(ends)
        for own in (slice(0, cut), slice(cut, rows))
    ]
    found_in(selection, chunks, begin=rng.random() < 0.5)
    for row in range(rows):
        numbers = np.sort(x[row][~np.isnan(x[row])])
        assert selection.count[row] == len(numbers)
        assert selection.missing[row] == width - len(numbers)
        if len(numbers):
            ranks = np.minimum((shares[:, 0] * len(numbers)).astype(int), len(numbers) - 1)
            np.testing.assert_array_equal(selection.values[:, row], numbers[ranks])
        else:
            assert np.isnan(selection.values[:, row]).all()
    assert selection.values.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_ranks_of_any_chunks(dtype):
    for number in range(60):
        check(number, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_2000_calls(dtype):
    for number in range(1000, 3000):
        check(number, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_are_in_the_order_of_the_numbers(dtype):
    tiny, large = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    x = np.array([-np.inf, -large, -1, -tiny, -0.0, 0.0, tiny, 1, large, np.inf], dtype)
    keys = keys_of(x)
    assert keys[0] == 0 and np.all(keys[1:] > keys[:-1])
    assert of_keys(keys, x.dtype).tobytes() == x.tobytes()
    nans = keys_of(np.array([np.nan, -np.nan], dtype))
    assert np.all(nans > keys[-1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype, most", [("float32", 2), ("float64", 4)])
def test_passes_that_only_count(kind, dtype, most):
    rng = np.random.default_rng(3)
    x = drawn(kind, 1, 5000, dtype, rng)
    # There is memory for the bins of two statistics, and for few elements.
    budget = 2 * 8 << 16
    x = np.tile(x, budget // x.nbytes + 1)
    ranks = np.array([[len(x[0]) // 3], [len(x[0]) // 2]])
    chunks = [(slice(None), part) for part in np.array_split(x, 3, axis=1)]
    whole = found_in(SelectionPasses(1, dtype, lambda count: ranks, budget), chunks)
    assert whole.passes <= most
    # One that looks in the wrong place at first needs one more, and one in the right place fewer.
    assert found_in(
        SelectionPasses(1, dtype, lambda count: ranks, budget), chunks, True
    ).passes <= (most + 1 if kind == "sorted" else 2)


def test_elements_that_change_between_passes_are_found():
    x = np.random.default_rng(0).normal(size=(1, 100))
    selection = SelectionPasses(1, "float64", lambda count: count[None] // 2)
    selection.end_pass([look(x, selection.search)])
    search = selection.search
    for other in (x[:, :-1], x + 9, np.where(x > 0, x, np.nan)):
        with pytest.raises(RuntimeError, match="changed between two passes"):
            selection.end_pass([look(other, search)])


def test_elements_that_change_while_they_are_counted_are_found():
    x = np.random.default_rng(0).normal(size=(1, 5000))
    selection = SelectionPasses(1, "float64", lambda count: count[None] // 2, 50)
    selection.end_pass([look(x, selection.search)])
    assert selection.search.bins
    with pytest.raises(RuntimeError, match="changed between two passes"):
        selection.end_pass([look(x + 9, selection.search)])
