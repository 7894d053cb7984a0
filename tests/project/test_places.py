"""Each norm gives the same results in all places, with each keyword, or raises for a known reason.

The device has its own test in tests/cuda.
"""

import numpy as np
import places
import pytest

# Places that run only where their library is installed, or with --full.
MARKS = {"JAX": [pytest.mark.jax], "PyTorch": [pytest.mark.torch], "njit": [pytest.mark.full]}
CELLS = [
    pytest.param(place, case, id=f"{place}-{case}".replace(" ", "-"), marks=MARKS.get(place, []))
    for case in places.cases()
    for place in places.PLACES
]


def assert_same(results, expected):
    # Merged moments of chunks and compiled loops differ from one pass by some roundings of float64.
    for result, other in zip(results, expected, strict=False):
        np.testing.assert_allclose(result, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("place", "case"), CELLS)
def test_results_are_those_of_numpy(place, case):
    reason = places.reason(place, case)
    if reason is not None:
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
            places.PLACES[place](case)
        assert reason in str(caught.value)
        return
    assert_same(places.PLACES[place](case), places.passes(case))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(name, place, marks=MARKS.get(place, []))
        for name, offered in places.OTHERS.items()
        for place in offered
    ],
)
def test_functions_beside_the_norms(name, place):
    assert_same(places.OTHERS[name][place](name), places.others(name))


def check_random_calls(place, rounds):
    calls = [case for case in places.cases() if places.reason(place, case) is None]
    for seed, case in enumerate(rounds * calls, 1):
        case = case._replace(seed=seed)
        try:
            expected = places.passes(case)
        except ValueError:  # such as too few elements for a norm
            with pytest.raises(ValueError):
                places.PLACES[place](case)
            continue
        assert_same(places.PLACES[place](case), expected)


# Each call in compiled code is compiled by itself: the cells above are enough of them.
ANY = [pytest.param(p, marks=MARKS.get(p, [])) for p in places.PLACES if p != "njit"]


@pytest.mark.parametrize("place", ANY)
def test_random_calls(place):
    check_random_calls(place, 1)


@pytest.mark.slow
@pytest.mark.parametrize("place", ANY)
def test_many_random_calls(place):
    check_random_calls(place, 34)  # two thousand


def test_page_is_up_to_date():
    text = places.PAGE.read_text("utf-8")
    assert text == places.page(), "run python tests/support/places.py"
