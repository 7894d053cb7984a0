"""Machine code of kernels on disk: compiled once, and found again by what kernels close over."""

import ctypes
import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import numnorm.backends

BACKEND = "numnorm.backends.cuda"

pytestmark = pytest.mark.sass

NAMES = """
import sys
from numnorm.backends.cuda.compiler import machine_code
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES
from numnorm.backends.cuda.statistics.stored import make_converted

def name_of(kernel, capability=(9, 0)):
    return machine_code.file_name(kernel, capability)

def kernel_of(source="float32", target="float64"):
    return make_converted(ELEMENT_TYPES[source], ELEMENT_TYPES[target])
"""


@pytest.fixture
def real_compiler():
    """The backend with its compiler, not with the simulated device of these tests."""
    if not any(importlib.util.find_spec(name) for name in ("numba_cuda", "numba_cuda_mlir")):
        pytest.skip("no compiler for CUDA; `nox -s sass` installs one")
    before = modules_of_backend()
    for name in before:
        del sys.modules[name]
    yield
    for name in modules_of_backend():
        del sys.modules[name]
    sys.modules.update(before)
    if BACKEND in before:
        numnorm.backends.cuda = before[BACKEND]


def modules_of_backend():
    return {name: module for name, module in sys.modules.items() if name.startswith(BACKEND)}


@pytest.fixture
def kernels(tmp_path, monkeypatch, real_compiler):
    """The functions of `NAMES`, and a folder for the files."""
    from numnorm.backends.cuda.compiler import machine_code

    found = {}
    exec(NAMES, found)
    monkeypatch.setattr(machine_code, "folders", lambda build: (tmp_path,))
    monkeypatch.setattr(machine_code, "folder_to_write", lambda build: tmp_path)
    return SimpleNamespace(**{name: found[name] for name in ("name_of", "kernel_of")})


@pytest.fixture
def loaded(monkeypatch, real_compiler):
    """A device that keeps what is loaded; returns the names of the compiled and of the loaded."""
    from sass import pretended_device

    from numnorm.backends.cuda.compiler import launches

    compiled, loaded, compile_kernel = [], [], launches.compiled

    def counted(function, *arguments, **options):
        compiled.append(function)
        return compile_kernel(function, *arguments, **options)

    def from_cubin(cubin):
        loaded.append(cubin)
        return SimpleNamespace(get_kernel=lambda name: name)

    monkeypatch.setattr(launches, "compiled", counted)
    monkeypatch.setattr(launches, "_capability", lambda number: (9, 0))
    monkeypatch.setattr(launches, "ObjectCode", SimpleNamespace(from_cubin=from_cubin))
    with pretended_device((9, 0)):
        yield compiled, loaded


def test_a_kernel_is_compiled_once(kernels, loaded):
    compiled, code = loaded
    names = [kernels.kernel_of()._on(0) for _ in range(2)]
    assert len(compiled) == 1 and len(code) == 2
    assert code[0] == code[1] and code[0][:4] == b"\x7fELF"
    assert names[0] == names[1] and names[0].startswith("_Z")


def test_a_damaged_file_is_compiled_again(kernels, loaded, tmp_path):
    compiled, code = loaded
    kernels.kernel_of()._on(0)
    (file,) = tmp_path.glob("*/*.bin")
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    kernels.kernel_of()._on(0)
    assert len(compiled) == 2 and code[1][:4] == b"\x7fELF"


def name_in_another_process(**environment):
    command = [sys.executable, "-c", f"{NAMES}\nprint(name_of(kernel_of()))"]
    environment = os.environ | environment
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()


def test_a_name_is_the_same_in_every_process(kernels):
    assert name_in_another_process() == kernels.name_of(kernels.kernel_of())


def test_settings_of_the_compiler_are_in_a_name(kernels):
    plain = {"NUMBA_OPT": "0"}
    others = plain, {"NUMBA_BOUNDSCHECK": "1"}, plain | {"NUMBA_CUDA_DEBUGINFO": "1"}
    names = {name_in_another_process(**settings) for settings in others}
    assert len(names | {kernels.name_of(kernels.kernel_of())}) == 4


@pytest.mark.parametrize("name, value", [("NAME", "another"), ("PACKAGES", ("cuda-core", "numpy"))])
def test_the_compiler_and_its_version_are_in_a_name(kernels, monkeypatch, name, value):
    from numnorm.backends.cuda.compiler import machine_code

    before = kernels.name_of(kernels.kernel_of())
    monkeypatch.setattr(machine_code.compiler, name, value)
    machine_code._build.cache_clear()
    other = kernels.name_of(kernels.kernel_of())
    assert other.partition("/")[0] != before.partition("/")[0]


def test_the_library_for_grid_barriers_is_in_a_name(kernels, monkeypatch, tmp_path):
    from numnorm.backends.cuda.compiler import machine_code

    names, library = {kernels.name_of(kernels.kernel_of())}, tmp_path / "libcudadevrt.a"
    monkeypatch.setattr(machine_code, "device_runtime", lambda: library)
    for content in (None, b"13.5", b"13.6"):
        if content is not None:
            library.write_bytes(content)
        machine_code._build.cache_clear()
        names.add(kernels.name_of(kernels.kernel_of()))
    assert len(names) == 4


def test_what_a_kernel_closes_over_is_in_its_name(kernels):
    types = ("float16", "bfloat16", "float32", "float64")
    found = [kernels.kernel_of(source, target) for source in types for target in types]
    names = {kernels.name_of(kernel) for kernel in found}
    names |= {kernels.name_of(kernel, (8, 0)) for kernel in found}
    assert len(names) == 2 * len(found)


def test_a_kernel_with_an_unknown_part_is_not_kept(kernels):
    kernel, unknown = kernels.kernel_of(), object()

    def function(address):
        return unknown

    kernel.function = function
    assert kernels.name_of(kernel) is None


def test_a_launch_hands_over_plain_numbers(real_compiler, monkeypatch):
    from typing import NamedTuple

    from numnorm.backends.cuda.compiler import launches

    class Group(NamedTuple):
        address: int
        number: float

    launched = []
    monkeypatch.setattr(launches, "_device_count", lambda: 1)
    monkeypatch.setattr(launches, "_stream", lambda handle, device: f"stream {handle} on {device}")
    monkeypatch.setattr(launches, "LaunchConfig", lambda **options: options)
    monkeypatch.setattr(launches.Kernel, "_on", lambda kernel, device: f"kernel on {device}")
    monkeypatch.setattr(launches, "launch", lambda *arguments: launched.append(arguments))
    parameters = "address", (Group, ("address", "float32")), "float64"
    kernel = launches.Kernel(lambda x, group, eps: None, parameters, 128)
    kernel.launch(5, 7, 16, Group(32, 0.1), 0.2)
    ((stream, configuration, loaded, *numbers),) = launched
    assert (stream, loaded) == ("stream 7 on 0", "kernel on 0")
    assert (configuration["grid"], configuration["block"]) == (5, 128)
    assert numbers[:2] == [16, 32] and all(type(number) is int for number in numbers[:2])
    assert [type(number) for number in numbers[2:]] == [ctypes.c_float, ctypes.c_double]
    assert [number.value for number in numbers[2:]] == [np.float32(0.1), 0.2]


# What cuda.core 1.2 and the driver say.
@pytest.mark.parametrize("message", [
    "The specified grid size (9 * 1 * 1) exceeds the limit (8)",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: too many blocks in cooperative launch",
])  # fmt: skip
def test_blocks_that_do_not_run_at_the_same_time(real_compiler, monkeypatch, message):
    from numnorm.backends.cuda.compiler import launches
    from numnorm.backends.cuda.compiler.device_limits import CooperativeLaunchRefused

    def refused(*arguments):
        raise ValueError(message)

    monkeypatch.setattr(launches, "_device_count", lambda: 1)
    monkeypatch.setattr(launches, "_stream", lambda handle, device: None)
    monkeypatch.setattr(launches, "LaunchConfig", lambda **options: options)
    monkeypatch.setattr(launches.Kernel, "_on", lambda kernel, device: None)
    monkeypatch.setattr(launches, "launch", refused)
    kernel = launches.Kernel(lambda x: None, ("address",), 128, grid_barriers=True)
    with pytest.raises(CooperativeLaunchRefused):
        kernel.launch_cooperative(9, 0, 64, 16)
