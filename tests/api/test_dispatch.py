"""What counts as an array, what is refused, and how a new kind of array would be added."""

import sys
import types

import kernels
import numpy as np
import pytest

import numnorm
from numnorm import backends

VALUES = [[1.0, 2.0, 6.0], [0.5, -3.0, 4.0]]
EXPECTED = numnorm.layer_norm(np.array(VALUES))


class Subclass(np.ndarray):
    """An array of the caller's own kind."""


class HasArray:
    """What turns into a NumPy array when asked."""

    def __init__(self, values=VALUES):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)


class Graph(HasArray):
    """Lazy, as a Dask collection: to turn it into an array is to compute it."""

    def __dask_graph__(self):
        return {}


class OnDevice(HasArray):
    """In the memory of a GPU: to turn it into an array is to copy it."""

    @property
    def __cuda_array_interface__(self):
        return {"shape": (2, 3), "typestr": "<f8", "data": (0, False), "version": 3}


class Attribute(HasArray):
    """On the device as well, which only the object knows and not its type."""

    def __init__(self):
        super().__init__()
        self.__cuda_array_interface__ = {}


class OnHost(HasArray):
    """Of a kind that can be on the device, but is not: so JAX and PyTorch say it."""

    @property
    def __cuda_array_interface__(self):
        raise AttributeError("in the memory of the host")


class Frame(HasArray):
    """With a method that has the name of a masked array's mask: so pandas has it."""

    def mask(self, condition):
        return self


class Unwilling:
    """What raises an error of its own when it should turn into an array."""

    def __init__(self, error):
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error


# What counts as an array


@pytest.mark.parametrize(
    "x",
    [
        VALUES,
        tuple(map(tuple, VALUES)),
        [np.array(row) for row in VALUES],
        np.array(VALUES).view(Subclass),
        HasArray(),
        OnHost(),
        Frame(),
    ],
    ids=["lists", "tuples", "list-of-arrays", "subclass", "has-array", "on-host", "frame"],
)
def test_taken_as_an_array(x):
    y = numnorm.layer_norm(x)
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, EXPECTED)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_matrix():
    y = numnorm.layer_norm(np.matrix(VALUES), np.matrix(VALUES)[0].A1)
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, EXPECTED * VALUES[0])


def test_memmap(tmp_path):
    x = np.memmap(tmp_path / "x", np.float64, "w+", shape=(2, 3))
    x[...] = VALUES
    out = np.memmap(tmp_path / "y", np.float64, "w+", shape=(2, 3))
    assert type(numnorm.layer_norm(x)) is np.ndarray
    np.testing.assert_array_equal(numnorm.layer_norm(x), EXPECTED)
    assert numnorm.layer_norm(x, out=out) is out
    out.flush()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y").reshape(2, 3), EXPECTED)
    np.testing.assert_array_equal(numnorm.layer_norm(x, out=x), EXPECTED)


def test_memmap_that_is_read_only(tmp_path):
    np.array(VALUES).tofile(tmp_path / "x")
    x = np.memmap(tmp_path / "x", np.float64, "r", shape=(2, 3))
    np.testing.assert_array_equal(numnorm.layer_norm(x), EXPECTED)
    with pytest.raises(ValueError, match=r"^out must be writable"):
        numnorm.layer_norm(x, out=x)


def test_subclass_as_out():
    out = np.empty((2, 3)).view(Subclass)
    assert numnorm.layer_norm(VALUES, out=out) is out
    np.testing.assert_array_equal(np.asarray(out), EXPECTED)


def test_everything_else_may_be_a_list_or_have_an_array():
    x, dy, gamma, beta = VALUES, VALUES[::-1], [1.0, 2.0, 3.0], [0.0, 1.0, 0.0]
    arrays = [np.array(a) for a in (x, dy, gamma, beta)]
    y, mean, rstd = numnorm.layer_norm_forward(arrays[0], *arrays[2:])
    np.testing.assert_array_equal(numnorm.layer_norm(x, gamma, HasArray(beta)), y)
    expected = numnorm.layer_norm_backward(arrays[1], arrays[0], mean, rstd, arrays[2])
    got = numnorm.layer_norm_backward(dy, HasArray(x), mean.tolist(), HasArray(rstd), gamma)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_empty_list():
    y = numnorm.layer_norm([])
    assert y.shape == (0,)
    assert y.dtype == np.float64


# What is refused


@pytest.mark.parametrize("x", [3, 3.5, np.float32(3), np.array(3.0), True], ids=repr)
@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm", "instance_norm"])
def test_scalar(norm, x):
    with pytest.raises(ValueError, match=r"^x must have at least [12] ax[ei]s, got (a scalar|0)$"):
        getattr(numnorm, norm)(x)


REFUSED = {
    "None": lambda: None,
    "str": lambda: "abc",
    "bytes": lambda: b"abc",
    "dict": lambda: {"a": 1.0},
    "set": lambda: {1.0, 2.0},
    "generator": lambda: (value for value in (1.0, 2.0)),
    "object": object,
    "masked": lambda: np.ma.array(VALUES, mask=[[0, 1, 0], [0, 0, 0]]),
    "masked-nowhere": lambda: np.ma.array(VALUES),
    "graph": Graph,
    "on-device": OnDevice,
    "on-device-by-attribute": Attribute,
    "raises-type-error": lambda: Unwilling(TypeError("implicit conversion")),
    "raises-runtime-error": lambda: Unwilling(RuntimeError("requires grad")),
    "ragged": lambda: [[1.0, 2.0], [3.0]],
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_refused(make):
    with pytest.raises(TypeError, match=r"^x must ") as caught:
        numnorm.layer_norm(make())
    assert "\n" not in str(caught.value)


# Objects of libraries that people use beside NumPy: what the message tells them to do.


class Tracer(HasArray):
    """Stands for a value that JAX does not have yet: its classes derive from one of this name."""


class NeedsGradient(Unwilling):
    """Stands for a tensor of PyTorch that is part of a graph."""

    requires_grad = True


class Nullable(HasArray):
    """Stands for a data frame with pandas' nullable dtypes."""

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, object)

    def to_numpy(self, dtype=None):
        return np.array(self.values, dtype)


class Sparse:
    """Stands for a sparse matrix of SciPy, of which NumPy makes a single object."""

    def toarray(self):
        return np.array(VALUES)


OnDisk = type("Dataset", (HasArray,), {"__module__": "h5py._hl.dataset"})
ADVICE = {
    "lazy": (Graph, r"be in memory, got .*Graph, which is lazy: use \.compute\(\) or map_blocks"),
    "on-disk": (OnDisk, r"be in memory, got an object of type h5py\.Dataset: read it first.*"),
    "tracer": (
        Tracer,
        "have values, got a tracer of JAX: use numnorm.jax inside of jit, grad and vmap",
    ),
    "gradient": (
        lambda *_: NeedsGradient(RuntimeError("can't")),
        r"not require a gradient, got a tensor that does: use \.detach\(\), torch\.no_grad\(\) or "
        r"the function of docs/gallery/torch_autograd\.py",
    ),
    "nullable": (
        Nullable,
        r"hold numbers, got .*Nullable of objects: use \.to_numpy\(dtype=float\)",
    ),
    "sparse": (lambda *_: Sparse(), r"be an array .*, got .*Sparse: use \.toarray\(\)"),
    "masked": (
        np.ma.array,
        "not be a masked array: fill it first, or give norms its data and where=~mask",
    ),
    "ragged": (lambda *_: [[1.0, 2.0], [3.0]], "be rectangular, .* rows differ in length"),
    "library": (
        lambda *_: Unwilling(TypeError("Got unsupported ScalarType BFloat16")),
        r"be an array .*Unwilling: Got unsupported ScalarType BFloat16",
    ),
}


@pytest.mark.parametrize("make, message", ADVICE.values(), ids=ADVICE)
def test_message_says_what_to_do(make, message):
    with pytest.raises(TypeError, match=rf"^x must {message}$"):
        numnorm.layer_norm(make(VALUES))
    with pytest.raises(TypeError, match=rf"^gamma must {message}$"):
        numnorm.layer_norm(VALUES, make(VALUES[0]))


@pytest.mark.parametrize("kind", ["lazy", "on-disk", "tracer", "gradient", "masked"])
def test_it_is_seen_anywhere_in_a_list(kind):
    make, message = ADVICE[kind]
    for x in ([VALUES[0], make(VALUES[1])], ([VALUES], [[VALUES[0], make(VALUES[1])]])):
        with pytest.raises(TypeError, match=rf"^x must {message}$"):
            numnorm.layer_norm(x)
        with pytest.raises(TypeError, match=rf"^gamma must {message}$"):
            numnorm.layer_norm(VALUES, x)


def test_array_of_xarray_in_memory_is_taken():
    # It has Dask's method, which then returns None.
    kind = type("DataArray", (HasArray,), {"__dask_graph__": lambda self: None})
    np.testing.assert_array_equal(numnorm.layer_norm(kind()), EXPECTED)
    np.testing.assert_array_equal(numnorm.layer_norm([kind(VALUES[0]), VALUES[1]]), EXPECTED)


@pytest.mark.parametrize(
    "values", [["a", "b"], [None, 1.0], [1j, 2.0]], ids=["str", "None", "complex"]
)
def test_list_of_what_is_no_number(values):
    with pytest.raises(TypeError, match=r"^x must have dtype float16, bfloat16, float32, float64"):
        numnorm.layer_norm(values)


CALLS = {
    "gamma": lambda value: numnorm.layer_norm(VALUES, value),
    "beta": lambda value: numnorm.layer_norm(VALUES, None, value),
    "dy": lambda value: numnorm.layer_norm_backward(value, VALUES, [0.0, 0.0], [1.0, 1.0]),
    "mean": lambda value: numnorm.layer_norm_backward(VALUES, VALUES, value, [1.0, 1.0]),
    "rstd": lambda value: numnorm.layer_norm_backward(VALUES, VALUES, [0.0, 0.0], value),
    "running_mean": lambda value: numnorm.batch_norm(
        VALUES, running_mean=value, running_var=np.ones(3), training=False
    ),
    "norm": lambda value: numnorm.weight_norm_backward(VALUES, VALUES, value),
}
SHAPES = {"dy": (2, 3), "mean": (2,), "rstd": (2,), "norm": (2,)}

SURPRISES = {
    "masked": lambda values: np.ma.array(values, mask=values > 1),
    "graph": Graph,
    "on-device": OnDevice,
}


def suitable(name):
    """Values that would be accepted for an argument."""
    shape = SHAPES.get(name, (3,))
    return np.linspace(1.0, 2.0, int(np.prod(shape))).reshape(shape)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[kernels.full] if name == "norm" else []) for name in CALLS]
)
def test_other_arguments_are_taken_as_arrays(name):
    CALLS[name](HasArray(suitable(name)))


@pytest.mark.parametrize("kind", SURPRISES)
@pytest.mark.parametrize("name", CALLS)
def test_no_argument_is_turned_into_an_array_behind_the_callers_back(name, kind):
    with pytest.raises(TypeError, match=f"^{name} must "):
        CALLS[name](SURPRISES[kind](suitable(name)))


@pytest.mark.parametrize("value", [{"a": 1.0}, "abc", object()], ids=["dict", "str", "object"])
@pytest.mark.parametrize("name", CALLS)
def test_no_argument_may_be_no_array_at_all(name, value):
    with pytest.raises((TypeError, ValueError), match=f"^{name} must "):
        CALLS[name](value)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("axis", [0, 1])
def test_out_is_what_comes_back(axis, order):
    out = np.empty((2, 3), order=order)
    assert numnorm.layer_norm(VALUES, axis=axis, out=out) is out
    np.testing.assert_array_equal(out, numnorm.layer_norm(VALUES, axis=axis))


@pytest.mark.parametrize(
    "out",
    [VALUES, (), "abc", HasArray(), np.ma.zeros((2, 3))],
    ids=["list", "tuple", "str", "has-array", "masked"],
)
def test_out_must_be_an_array(out):
    with pytest.raises(TypeError, match=r"^out must "):
        numnorm.layer_norm(VALUES, out=out)


# A new kind of array


@pytest.fixture
def fake_array(monkeypatch):
    """An array of a package that numnorm has never heard of, with a backend for it."""
    package, backend = types.ModuleType("fakearrays"), types.ModuleType("fakearrays_backend")

    class FakeArray:
        def __init__(self, values):
            self.values = np.asarray(values)
            self.shape = self.values.shape

        # What a Dask array and an array of a GPU have: without a backend they are refused.
        __cuda_array_interface__ = __dask_graph__ = None

        def __array__(self, dtype=None, copy=None):
            raise AssertionError("copied to the CPU behind the caller's back")

    def row_forward(norm, x, gamma, beta, layout, scaling, out, save):
        y = numnorm.layer_norm(x.values, eps=scaling.eps)
        saved = (np.zeros(layout.rows), np.ones(layout.rows)) if save else (None, None)
        return FakeArray(y), *saved

    package.Array = FakeArray
    backend.as_float_array = lambda name, value: value
    backend.row_forward = row_forward
    monkeypatch.setitem(sys.modules, "fakearrays", package)
    monkeypatch.setitem(sys.modules, "fakearrays_backend", backend)
    line = type(backends._REGISTRY[0])("fakearrays", "Array", "fakearrays_backend")
    monkeypatch.setattr(backends, "_REGISTRY", (*backends._REGISTRY, line))
    return FakeArray


def test_new_backend_is_one_line(fake_array):
    y, mean, _ = numnorm.layer_norm_forward(fake_array(VALUES))
    assert type(y) is fake_array
    np.testing.assert_array_equal(y.values, EXPECTED)
    assert mean.shape == (2,)
    np.testing.assert_array_equal(numnorm.layer_norm(fake_array(VALUES)).values, EXPECTED)
    np.testing.assert_array_equal(numnorm.layer_norm(VALUES), EXPECTED)


def test_subclass_of_a_new_kind_of_array(fake_array):
    kind = type("Narrower", (fake_array,), {})
    assert type(numnorm.layer_norm(kind(VALUES))) is fake_array


def test_registered_package_is_never_imported(monkeypatch):
    line = type(backends._REGISTRY[0])("fakearrays_not_there", "Array", "fakearrays_backend")
    monkeypatch.setattr(backends, "_REGISTRY", (line, *backends._REGISTRY))
    kind = type("NeverSeen", (HasArray,), {})
    np.testing.assert_array_equal(numnorm.layer_norm(kind()), EXPECTED)
    assert "fakearrays_not_there" not in sys.modules
