"""Device arrays: their libraries, and the messages for arrays that do not fit."""

import contextlib
import pkgutil
import sys
import types

import numpy as np
import pytest
import reference
import simulated_target
from fake_libraries import numba

import numnorm
from numnorm.array_likes import is_on_device
from numnorm.backends import cuda
from numnorm.backends.contract.backend import Backend
from numnorm.backends.cuda.arrays import device_array as arrays
from numnorm.backends.cuda.arrays import launch as launch
from numnorm.backends.cuda.arrays.libraries import library_of

X = np.arange(12, dtype=np.float32).reshape(3, 4) ** 2


LABELS = {
    "cupy": "cupy.ndarray",
    "torch": "torch.Tensor",
    "jax": "jax.Array",
    "numba": "DeviceNDArray",
}


def refused(error, pattern, function, *arguments, **options):
    with pytest.raises(error, match=pattern) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


# On a device, or not


def test_on_device(library):
    assert is_on_device(library.take(X.copy()))
    assert arrays.as_float_array("x", library.take(X.copy())).element.name == "float32"


@pytest.mark.parametrize("kind", [2, 13, 1, 10])
def test_by_dlpack_alone(kind):
    array = type("Array", (), {"__dlpack_device__": lambda self: (kind, 0)})()
    assert is_on_device(array) is (kind in (2, 13))


def test_what_cannot_be_handed_over_is_on_no_device():
    def raises(self):
        raise BufferError("on several")

    assert not is_on_device(type("Array", (), {"__dlpack_device__": raises})())
    assert not is_on_device(X)
    assert not is_on_device([1.0])


def test_tensors_on_the_host_stay_there(imported):
    torch = imported("torch")
    y = numnorm.layer_norm(torch.Tensor(X[:0], "cpu"), torch.Tensor(X[0], "cpu"))
    assert type(y) is torch.Tensor
    assert y.device == "cpu"


def test_arrays_of_jax_on_the_host_stay_there(imported):
    jax = imported("jax")
    array = jax.Array(X[:0])
    array.platform = "cpu"
    y = numnorm.layer_norm(array)
    assert type(y) is jax.Array
    assert y.platform == "cpu"


def test_arrays_of_numba_cuda_mlir(monkeypatch):
    modules = numba("numba_cuda_mlir.cuda", "numba_cuda_mlir.numba_cuda")
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    x = modules["numba_cuda_mlir.cuda"].take(X)
    y = numnorm.layer_norm(x)
    assert type(y) is type(x)
    np.testing.assert_array_max_ulp(y.host, numnorm.layer_norm(X), 8)  # two sums in other orders


def test_library_that_is_not_known():
    class Array:
        __cuda_array_interface__ = {}

    supported = ", ".join(LABELS.values())
    refused(
        TypeError, rf"^x must be one of numpy.ndarray, {supported}, got", numnorm.rms_norm, Array()
    )


# What does not fit


def test_integers(library):
    refused(
        TypeError,
        "^x must be converted to float16, bfloat16, float32 or float64 on the device, got int64$",
        numnorm.layer_norm,
        library.take(X.astype(np.int64)),
    )
    refused(
        TypeError,
        "^gamma must be converted to .* on the device, got bool$",
        numnorm.layer_norm,
        library.take(X),
        library.take(X[0] > 2),
    )


HOST = {"array": lambda: X[0], "list": lambda: X[0].tolist(), "number": lambda: 1.0}


@pytest.mark.parametrize("kind", HOST)
def test_parameter_on_the_host(library, kind):
    label = LABELS[library.called]
    for name in ("gamma", "beta"):
        refused(
            TypeError,
            rf"^{name} must be a {label} on device 0, as x is, got [\w.]+$",
            numnorm.layer_norm,
            library.take(X),
            **{name: HOST[kind]()},
        )


def test_tensor_on_the_host_as_parameter(imported):
    torch = imported("torch")
    pattern = "^gamma must be a torch.Tensor on device 0, as x is, got .*Tensor on the host$"
    gamma = torch.Tensor(X[0], "cpu")
    refused(TypeError, pattern, numnorm.layer_norm, torch.take(X), gamma)


def test_parameter_on_the_device_for_an_array_on_the_host(library):
    row = library.take(X[0])
    text = rf"must lie on the host, as other arrays do, got a {kind_of(row)} on a device$"
    refused(TypeError, f"^gamma {text}", numnorm.layer_norm, X, row)
    refused(TypeError, f"^out {text}", numnorm.layer_norm, X, out=library.take(X))
    running = {"running_mean": row, "running_var": row}
    refused(TypeError, f"^running_mean {text}", numnorm.batch_norm, X, **running)


def kind_of(array):
    return rf"{type(array).__module__}\.{type(array).__qualname__}"


def test_a_list_of_arrays_of_a_device_is_not_copied_to_the_host(library):
    arrays = [library.take(X[0]), library.take(X[1])]
    refused(TypeError, "^x must lie on the host", numnorm.layer_norm, arrays)
    refused(TypeError, "^gamma must lie on the host", numnorm.layer_norm, X, [arrays])


def test_parameter_on_another_device(library):
    pattern = "^gamma must be on device 0, as x is, got one on device 1$"
    refused(ValueError, pattern, numnorm.layer_norm, library.take(X), library.take(X[0], 1))
    pattern = "^g must be on device 1, as x is, got one on device 0$"
    refused(ValueError, pattern, numnorm.weight_norm, library.take(X, 1), library.take(X[:, 0]))


def test_parameter_of_another_library(imported):
    x, gamma = imported("cupy").take(X), imported("torch").take(X[0])
    pattern = r"^gamma must be a cupy.ndarray on device 0, as x is, got .*Tensor$"
    refused(TypeError, pattern, numnorm.layer_norm, x, gamma)


def test_parameter_of_another_shape(library):
    pattern = r"^gamma must have shape \(4,\), the normalized axes of x, got \(3,\)$"
    refused(ValueError, pattern, numnorm.layer_norm, library.take(X), library.take(X[:, 0].copy()))


def test_out(library):
    def use(out):
        return numnorm.layer_norm(library.take(X), out=out)

    if library.called == "jax":
        refused(
            TypeError, "^out must be None: a jax.Array cannot be written$", use, library.take(X)
        )
        return
    refused(TypeError, "^out must be a .* on device 0, as x is, got numpy.ndarray$", use, X.copy())
    refused(ValueError, r"^out must have shape \(3, 4\)", use, library.take(X[:2].copy()))
    refused(ValueError, "^out must be on device 0", use, library.take(X.copy(), 1))
    refused(
        TypeError,
        "^out must have dtype float32, that of the result, got float64$",
        use,
        library.take(X.astype(np.float64)),
    )


def test_numbers_are_the_norms_own(library):
    y = numnorm.ada_norm(library.take(X), scale=2, k=0.5)
    expected = reference.ada_norm(X, scale=2, k=0.5)[0]
    np.testing.assert_allclose(y.host, np.float64(expected), rtol=1e-5)


def test_tensor_that_requires_a_gradient(imported):
    torch = imported("torch")
    x = torch.take(X)
    x.requires_grad = True
    refused(TypeError, "^x must not require a gradient.*detach", numnorm.layer_norm, x)
    torch.gradients = False
    assert type(numnorm.layer_norm(x)) is torch.Tensor


def test_negated_view(imported):
    x = imported("torch").take(X)
    x.negated = True
    refused(TypeError, "^x must not be a negated view.*resolve_neg", numnorm.layer_norm, x)


def test_arrays_bound_to_other_streams(imported):
    take = imported("numba").take
    streams = [types.SimpleNamespace(handle=number) for number in (5, 6)]
    x, gamma = take(X, stream=streams[0]), take(X[0].copy(), stream=streams[1])
    beta = take(X[0].copy())  # of the default stream
    refused(ValueError, "^gamma must be bound to the stream of x", numnorm.layer_norm, x, gamma)
    assert numnorm.layer_norm(x, beta, beta).host.shape == X.shape
    for keyword, value in {"where": X > 0, "weights": np.ones_like(X)}.items():
        own, other = ({keyword: take(value.copy(), stream=stream)} for stream in streams)
        message = f"^{keyword} must be bound to the stream of x"
        refused(ValueError, message, numnorm.layer_norm, x, **other)
        assert numnorm.layer_norm(x, **own).host.shape == X.shape


def test_sparse_tensor(imported):
    x = imported("torch").take(X)
    x.layout = "torch.sparse_coo"
    refused(TypeError, "^x must be a dense tensor", numnorm.layer_norm, x)


def test_array_of_jax_on_several_devices(imported):
    jax = imported("jax")
    x = jax.take(X)
    one, other = x.devices(), jax.take(X, 1).devices()
    x.devices = lambda: one | other
    refused(ValueError, "^x must lie on one device, got an array on 2", numnorm.layer_norm, x)


# Devices, streams and waiting


def test_new_arrays_are_on_the_device_of_x(library):
    if library.called == "numba":
        pytest.skip("its current device is that of the compiler")
    for array in numnorm.layer_norm_forward(library.take(X, 1)):
        assert arrays.as_float_array("y", array).device == 1


def test_kernels_are_launched_on_the_device_of_x(library, monkeypatch):
    used, before = [], simulated_target.on_device
    monkeypatch.setattr(launch, "on_device", lambda number: used.append(number) or before(number))
    numnorm.layer_norm(library.take(X, 1))
    assert used == [1]


def test_a_device_that_the_compiler_cannot_use_is_left(imported, monkeypatch):
    cupy = imported("cupy")
    x, device = arrays.as_float_array("x", cupy.take(X, 1)), contextlib.ExitStack()
    left = []
    device.callback(left.append, True)
    monkeypatch.setattr(x.lib, "using", lambda number: device, raising=False)

    @contextlib.contextmanager
    def failing():
        raise RuntimeError("no context")
        yield

    monkeypatch.setattr(launch, "on_device", lambda number: failing())
    with pytest.raises(RuntimeError, match="no context"), launch.on_device_of(x):
        pass
    assert left == [True]


def test_stream_of_the_device_of_a_tensor(imported):
    torch = imported("torch")
    array_library = library_of(torch.Tensor)
    assert array_library.stream(torch.take(X, 1)) == array_library.stream(torch.take(X)) + 1


def test_stream_that_an_array_carries(imported):
    class Stream:
        handle = 7

    numba = imported("numba")
    x = numba.take(X, stream=Stream())
    assert library_of(type(x)).stream(x) == 7
    assert numnorm.layer_norm(x).stream is x.stream


def test_only_jax_is_waited_for(library, monkeypatch):
    waited = []
    monkeypatch.setattr(launch, "synchronize", waited.append)
    numnorm.layer_norm(library.take(X))
    assert waited == ([0] if library.called == "jax" else [])


def test_statistics_of_jax_without_float64(imported):
    jax = imported("jax")
    jax.config.jax_enable_x64 = False
    y, mean, rstd = numnorm.layer_norm_forward(jax.take(X))
    assert mean.dtype == rstd.dtype == np.float32
    for got, expected in zip((y, mean, rstd), reference.layer_norm(X), strict=True):
        np.testing.assert_allclose(got.host, np.float64(expected), rtol=1e-5, atol=1e-6)


# What is missing


def test_all_of_a_backend_is_there():
    for name in dir(Backend):
        assert name.startswith("_") or callable(getattr(cuda, name))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cuda.nothing


@pytest.mark.parametrize("function", [numnorm.pcen, numnorm.pcen_forward, numnorm.pcen_step])
def test_pcen_is_on_the_host_alone(function, library):
    with pytest.raises(NotImplementedError, match="copy x to the host first"):
        function(library.take(X), 1)


def test_no_module_hides_a_function():
    modules = {module.name for module in pkgutil.iter_modules(cuda.__path__)}
    assert not modules & set(dir(Backend))


def test_without_a_driver(library, monkeypatch):
    def raises():
        raise RuntimeError("no driver")

    monkeypatch.setattr(launch, "check_available", raises)
    with pytest.raises(RuntimeError, match="no driver"):
        numnorm.layer_norm(library.take(X))


def test_without_the_compiler(library, monkeypatch):
    monkeypatch.delitem(cuda.__dict__, "row_forward", raising=False)
    monkeypatch.setitem(sys.modules, "numnorm.backends.cuda.rows.forward", None)
    refused(
        ImportError,
        r"^arrays of a CUDA device need numba-cuda or .*: pip install 'numnorm\[cu13\]'",
        numnorm.layer_norm,
        library.take(X),
    )
