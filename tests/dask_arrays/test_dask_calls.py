"""Calls with arrays of Dask: which calls are lazy, what is refused, the size of graphs, tokens."""

import json

import numpy as np
import pytest
from every_call import in_new_process
from filled_memory import NAN, NEGATIVE, filled_memory
from lazy_norms import computed

import numnorm

da = pytest.importorskip("dask.array")

X = np.arange(24.0).reshape(4, 6) ** 2
ROW, COLUMN = np.linspace(0.5, 2.0, 6), np.linspace(0.5, 2.0, 4)
STATISTICS = {"mean": COLUMN, "rstd": COLUMN}
IN_GROUPS = {"mean": X[:, :3], "rstd": X[:, :3] + 1.0}
CALLS = {
    "layer_norm": {"x": X, "gamma": ROW, "beta": ROW},
    "layer_norm_forward": {"x": X, "gamma": ROW, "beta": ROW},
    "layer_norm_backward": {"dy": X, "x": X, **STATISTICS, "gamma": ROW},
    "rms_norm": {"x": X, "gamma": ROW},
    "rms_norm_forward": {"x": X, "gamma": ROW},
    "rms_norm_backward": {"dy": X, "x": X, "rstd": COLUMN, "gamma": ROW},
    "ada_norm": {"x": X},
    "ada_norm_forward": {"x": X},
    "ada_norm_backward": {"dy": X, "x": X, **STATISTICS},
    "weight_norm": {"x": X, "g": COLUMN},
    "weight_norm_forward": {"x": X, "g": COLUMN},
    "weight_norm_backward": {"dy": X, "x": X, "norm": COLUMN, "g": COLUMN},
    "group_norm": {"x": X, "gamma": ROW, "beta": ROW},
    "group_norm_forward": {"x": X, "gamma": ROW, "beta": ROW},
    "group_norm_backward": {"dy": X, "x": X, **IN_GROUPS, "gamma": ROW},
    "instance_norm": {"x": X, "gamma": ROW, "beta": ROW},
    "instance_norm_forward": {"x": X, "gamma": ROW, "beta": ROW},
    "instance_norm_backward": {"dy": X, "x": X, "mean": X, "rstd": X + 1.0, "gamma": ROW},
    "standard_normal_variate": {"x": X},
    "standard_normal_variate_forward": {"x": X},
    "standard_normal_variate_backward": {"dy": X, "x": X, **STATISTICS},
}
EACH = [(name, argument) for name, arguments in CALLS.items() for argument in arguments]


def called(name, **arguments):
    options = {"groups": 3} if name.startswith("group") else {}
    return getattr(numnorm, name)(**{**CALLS[name], **arguments}, **options)


def arrays_of(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name, argument", EACH)
def test_any_lazy_array_makes_the_call_lazy(name, argument):
    expected = called(name)
    lazy = called(name, **{argument: da.from_array(CALLS[name][argument], chunks=2)})
    assert type(lazy) is type(expected) or isinstance(lazy, da.Array)
    assert all(isinstance(array, da.Array) for array in arrays_of(lazy))
    for mine, theirs in zip(arrays_of(computed(lazy)), arrays_of(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("byte", [NAN, NEGATIVE])
@pytest.mark.parametrize("name", CALLS)
def test_checks_of_a_call_read_no_new_memory(name, byte):
    lazy = {key: da.from_array(array, chunks=2) for key, array in CALLS[name].items()}
    with filled_memory(byte):
        result = called(name, **lazy)
    expected = computed(called(name, **lazy))
    for mine, theirs in zip(arrays_of(computed(result)), arrays_of(expected), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_list_beside_a_lazy_array():
    y = numnorm.layer_norm(X.tolist(), da.from_array(ROW, chunks=2))
    np.testing.assert_array_equal(y, numnorm.layer_norm(X, ROW))


# What is refused


def whole(array=X):
    return da.from_array(array, chunks=(2, -1))


def check_refused(kind, message, name, **changed):
    with pytest.raises(kind, match=f"^{message}") as caught:
        called(name, **changed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name, argument", EACH)
def test_wrong_shapes_and_dtypes(name, argument):
    lazy = da.from_array(CALLS[name][argument], chunks=-1)
    others = {key: whole() for key in CALLS[name] if key == "x" and key != argument}
    if argument == "x":
        if len(CALLS[name]) > 1:
            changed = lazy[:3, :5] if name[0] != "g" else lazy[:3, :3]
            check_refused(ValueError, r"\w+ must have shape \(", name, **{argument: changed})
    else:
        check_refused(
            ValueError, rf"{argument} must have shape \(", name, **{argument: lazy[:3]}, **others
        )
    for dtype, real in ((object, None), (complex, None), ("U3", None)):
        assert real is None
        changed = {argument: lazy.astype(dtype)}
        check_refused(
            TypeError, rf"{argument} must (have dtype|hold real)", name, **changed, **others
        )


@pytest.mark.parametrize("name", CALLS)
def test_what_no_lazy_call_takes(name):
    lazy = whole()
    check_refused(ValueError, "out must be None for lazy arrays", name, x=lazy, out=X.copy())
    unknown = lazy[lazy[:, 0] > 0]
    check_refused(ValueError, "x must have chunks of known lengths", name, x=unknown)
    masked = lazy.map_blocks(np.ma.masked_array, meta=np.ma.empty((0, 0)))
    check_refused(TypeError, "x must not be a masked array", name, x=masked)
    scalar = {key: da.ones(()) for key in CALLS[name] if key in ("x", "dy")}
    check_refused(ValueError, "x must have at least (1 axis|2 axes), got", name, **scalar)


WRONG = {
    "axis must be between -2 and 1": {"axis": 2},
    "axis must not name an axis twice": {"axis": (0, -2)},
    "axis must be an int": {"axis": 0.5},
    "eps must be at least 0": {"eps": -1.0},
    "eps must be a number": {"eps": "small"},
    "eps must be finite": {"eps": np.inf},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options(message):
    check_refused((TypeError, ValueError), message, "layer_norm", x=whole(), **WRONG[message])


def test_wrong_options_of_other_norms():
    with pytest.raises(ValueError, match=r"^groups must divide the 6 channels of x, got 4"):
        numnorm.group_norm(whole(), groups=4)
    refused = ValueError, "detach must be None, 'mean', 'scale'"
    check_refused(*refused, "layer_norm_backward", x=whole(), detach="x")
    check_refused(ValueError, "ddof must be less than", "ada_norm", x=whole(), ddof=6)
    check_refused(
        ValueError, "ddof must be less than", "standard_normal_variate", x=whole(), ddof=6
    )
    check_refused(ValueError, "scale must be greater", "ada_norm", x=whole(), scale=0.0)
    refused = TypeError, "detach_factor must be True or False"
    check_refused(*refused, "ada_norm_backward", x=whole(), detach_factor=2)
    check_refused(
        ValueError, "channel_axis must not be 0", "instance_norm", x=whole(), channel_axis=0
    )


def test_two_libraries_in_one_call():
    other = pytest.importorskip("dask_array")
    with pytest.raises(TypeError, match=r"^x must be of the library of all arrays"):
        numnorm.layer_norm(whole(), other.from_array(ROW))


# Graphs


def tasks(*arrays):
    """The number of all tasks of lazy arrays."""
    return len(set().union(*(dict(array.__dask_graph__()) for array in arrays)))


@pytest.mark.parametrize("longer", [0, 1])
@pytest.mark.parametrize("chunks", [(1, -1), (1, 2), (4, 2)])
@pytest.mark.parametrize("norm", ["layer", "rms", "ada", "weight", "group", "instance"])
def test_graphs_are_linear_in_the_number_of_blocks(norm, chunks, longer):
    sizes = []
    for length in (64, 128):
        shape = (4, length, 8) if longer else (length, 4, 8)
        x = da.ones(shape, chunks=(*chunks, 2))
        options = {"groups": shape[1] // 2} if norm == "group" else {}
        if longer and norm not in ("group", "instance"):
            options["axis"] = (1, 2)
        y, *saved = getattr(numnorm, f"{norm}_norm_forward")(x, **options)
        gradients = getattr(numnorm, f"{norm}_norm_backward")(y, x, *saved, **options)
        sizes.append(tasks(y, *saved, *arrays_of(gradients)))
    assert sizes[1] <= 2.1 * sizes[0]


def test_plain_norm_of_whole_rows_has_one_task_for_each_block():
    x = da.ones((4096, 8), chunks=(1, -1))
    assert tasks(numnorm.layer_norm(x, np.ones(8))) - tasks(x) <= 4096 + 2


TOKENS = """
import importlib, json, sys
import dask, numpy as np, numnorm

library = importlib.import_module(sys.argv[1])
x = np.arange(48.0).reshape(4, 6, 2) ** 2
names = []

def add(result):
    names.extend(array.name for array in (result if isinstance(result, tuple) else (result,)))
    return result

with dask.config.set({"tokenize.ensure-deterministic": True}):
    for chunks in ((2, 2, -1), (2, 2, 1)):
        lazy = library.from_array(x, chunks=chunks)
        for name, options in (
            ("layer_norm", {"axis": (1, 2)}), ("layer_norm", {}), ("rms_norm", {}),
            ("weight_norm", {}), ("ada_norm", {"eps_in": "std", "ddof": 1}),
            ("group_norm", {"groups": 3}), ("instance_norm", {}),
            ("standard_normal_variate", {"ddof": 1}),
        ):
            add(getattr(numnorm, name)(lazy, **options))
            y, *saved = add(getattr(numnorm, f"{name}_forward")(lazy, **options))
            add(getattr(numnorm, f"{name}_backward")(y, lazy, *saved, **options))
        running = library.zeros(6, chunks=3), library.ones(6, chunks=3)
        numnorm.instance_norm(lazy, running_mean=running[0], running_var=running[1])
        names.extend(array.name for array in running)
print(json.dumps(names))
"""


@pytest.mark.parametrize("library", ["dask.array", "dask_array"])
def test_names_of_blocks_are_the_same_in_every_process(library):
    pytest.importorskip(library)
    first, second = (json.loads(in_new_process("-c", TOKENS, library)) for _ in range(2))
    assert first == second and len(first) > 50


@pytest.mark.parametrize("library", ["dask.array", "dask_array"])
def test_a_gain_with_as_many_axes_as_x_broadcasts_unless_it_has_one(library):
    array = pytest.importorskip(library)
    values = np.arange(12.0).reshape(2, 6)
    lazy = numnorm.layer_norm(array.from_array(values, chunks=(1, 3)), [[3.0]], axis=(0, 1))
    # A few roundings of numbers of about 5.
    expected = numnorm.layer_norm(values, [[3.0]], axis=(0, 1))
    np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-14, atol=1e-14)
    with pytest.raises(ValueError, match=r"gamma must have shape \(6,\)"):
        numnorm.batch_norm(array.ones(6, chunks=2), np.ones(1), channel_axis=0)


@pytest.mark.parametrize("norm", [numnorm.batch_norm, numnorm.instance_norm])
def test_running_statistics_are_two_arrays(norm):
    both = da.zeros(6)
    with pytest.raises(ValueError, match="running_var must not be the array of running_mean"):
        norm(da.ones((2, 6, 3)), running_mean=both, running_var=both)


def test_moments_of_no_channels_have_no_values():
    assert numnorm.batch_moments(da.zeros((0, 3)), channel_axis=0).count == 0


@pytest.mark.parametrize("x", [np.ones((3, 2)), da.ones((3, 2))], ids=["numpy", "dask"])
def test_what_comes_after_no_moments(x):
    with pytest.raises(TypeError, match="after must be Moments, got"):
        numnorm.batch_moments(x, after=3)
