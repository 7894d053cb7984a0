"""Functions that are made from a public one: signatures, errors of calls, docstrings, pickles."""

import inspect
import pickle

import pytest

from numnorm.derived import derived, parameters_section, signature_for


def public(x, h=None, *, eps: float = 1e-5, masks: int = 0, **_):
    """Return nothing.

    Parameters
    ----------
    x : array
        Any shape, as in the paper
        [1]_. More of it.
    h, eps : float
        Both [2]_.
    masks : int

    Returns
    -------
    None
    """


def taken(*arguments, **options):
    return arguments, options


SIGNATURE = signature_for(public, {"eps": "float"}, "tuple", without={"masks", "_"})
made = derived(globals(), "made", SIGNATURE, taken, "Return what it gets.")
without_h = derived(globals(), "without_h", SIGNATURE, taken, without={"h"})


def test_arguments_arrive():
    assert made(1) == ((1, None), {"eps": 1e-5})
    assert made(h=2, x=1, eps=3) == ((1, 2), {"eps": 3})
    assert without_h(1, 2) == ((1,), {"eps": 1e-5})


def test_it_looks_like_any_function_of_its_module():
    assert str(inspect.signature(made)) == (
        "(x: 'Any', h: 'Any' = None, *, eps: 'float' = 1e-05) -> 'tuple'"
    )
    assert (made.__module__, made.__qualname__) == (__name__, "made")
    assert made.__doc__ == "Return what it gets."
    assert pickle.loads(pickle.dumps(made)) is made
    assert made.__globals__ is globals()


def test_a_wrong_call_raises_the_error_of_python():
    with pytest.raises(TypeError, match=r"made\(\) missing 1 required positional argument: 'x'$"):
        made()
    with pytest.raises(TypeError, match=r"made\(\) got an unexpected keyword argument 'masks'$"):
        made(1, masks=0)
    with pytest.raises(TypeError, match=r"made\(\) takes from 1 to 2 positional arguments but 3"):
        made(1, 2, 3)


def test_entries_of_the_docstring():
    section = """\
Parameters
----------
x : array
    Any shape, as in the paper.
    More of it.
eps : float
    Both."""
    assert parameters_section(public, ["x", "eps"], {}) == section
    own = {"x": "x : list\n    Its own."}
    assert (
        parameters_section(public, ["x"], own) == "Parameters\n----------\nx : list\n    Its own."
    )
