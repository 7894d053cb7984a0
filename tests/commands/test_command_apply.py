"""``numnorm apply``: the same bits as in memory, in bounded memory, and never half a file."""

import errno
import importlib
import io
import logging
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import kernels
import numpy as np
import pytest
from array_files import apply, bits, draw
from hypothesis import given
from hypothesis import strategies as st

import numnorm
from numnorm.__main__ import main
from numnorm.commands.apply import boxes
from numnorm.commands.apply.formats import npy
from numnorm.commands.terminal import progress_bar

TINY = "0.0004"  # blocks of 419 bytes


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def check(capsys, x, method, *options, block_size=TINY, **keywords):
    """Normalize a file and compare it with the call in memory, to the bit."""
    np.save("x.npy", x)
    for name in {"gamma", "beta"} & keywords.keys():
        np.save(f"{name}.npy", keywords[name])
        options = (*options, f"--{name}", f"{name}.npy")
    arguments = (method, "x.npy", "y.npy", *options, "--block-size", block_size)
    assert apply(capsys, *arguments) == (0, "")
    result, expected = np.load("y.npy"), getattr(numnorm, method)(x, **keywords)
    assert bits(result) == bits(expected)
    assert result.flags.fnc == x.flags.fnc  # written in the order of the input
    assert os.path.getsize("y.npy") == 128 + result.nbytes


IMAGES = (9, 6, 25)
CALLS = [
    ("layer_norm", (), {}),
    ("layer_norm", ("--axis", "0"), {"axis": 0}),
    ("layer_norm", ("--axis", "-1", "0", "--eps", "0.01"), {"axis": (-1, 0), "eps": 0.01}),
    ("layer_norm", ("--axis", "0", "1", "2"), {"axis": (0, 1, 2)}),
    ("layer_norm", (), {"gamma": draw(25), "beta": draw(25, np.float64)}),
    ("rms_norm", ("--axis", "1"), {"axis": 1, "gamma": draw(6)}),
    (
        "ada_norm",
        ("--scale", "2", "--k", "0.2", "--ddof", "1", "--eps-in", "std"),
        {"scale": 2.0, "k": 0.2, "ddof": 1, "eps_in": "std"},
    ),
    ("standard_normal_variate", (), {}),
    ("standard_normal_variate", ("--axis", "0", "1", "--ddof", "1"), {"axis": (0, 1), "ddof": 1}),
    ("batch_norm", (), {"gamma": draw(6), "beta": draw(6)}),
    ("batch_norm", ("--channel-axis", "-1"), {"channel_axis": -1}),
    ("batch_norm", ("--channel-axis", "0"), {"channel_axis": 0, "gamma": draw(9)}),
    ("group_norm", ("--groups", "3"), {"groups": 3, "gamma": draw(6), "beta": draw(6)}),
    ("group_norm", ("--groups", "5", "--channel-axis", "2"), {"groups": 5, "channel_axis": 2}),
    ("instance_norm", (), {"gamma": draw(6)}),
    ("robust_norm", ("--factor", "normal"), {"factor": "normal"}),
    (
        "robust_norm",
        ("--axis", "0", "1", "--scale", "0.1", "0.9", "--center", "mean", "--eps", "0.5"),
        {"axis": (0, 1), "scale": (0.1, 0.9), "center": "mean", "eps": 0.5},
    ),
]


@pytest.mark.parametrize("slab", [200, npy.SLAB])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("method", "options", "keywords"), CALLS)
def test_same_bits_as_in_memory(capsys, monkeypatch, method, options, keywords, order, slab):
    monkeypatch.setattr(npy, "SLAB", slab)
    check(capsys, draw(IMAGES, order=order), method, *options, **keywords)


def test_a_method_of_quantiles_beside_the_norm(capsys):
    x = draw(IMAGES)
    np.save("x.npy", x)
    words = "robust_norm", "x.npy", "y.npy", "--method", "hazen", "--scale", "iqr"
    assert apply(capsys, *words) == (0, "")
    expected = numnorm.robust_norm(x, scale="iqr", method="hazen")
    assert bits(np.load("y.npy")) == bits(expected)


@pytest.mark.parametrize("block_size", ["1e-5", "0.001", "0.003", "64"])
@pytest.mark.parametrize(("method", "axis"), [("layer_norm", 1), ("batch_norm", None)])
def test_same_bits_for_any_block_size(capsys, method, axis, block_size):
    options, keywords = (("--axis", axis), {"axis": axis}) if axis else ((), {})
    check(capsys, draw(IMAGES), method, *options, block_size=block_size, **keywords)


@pytest.mark.parametrize("order", ["C", "F"])
def test_batch_norm_streams_over_many_blocks(capsys, order):
    check(capsys, draw((3000, 4), order=order), "batch_norm", block_size="0.001")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of kernels run as Python
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("spread", [0.0, 1e-44, 1e37, np.nan])
def test_batch_norm_beside_a_channel_at_the_end_of_the_range(capsys, spread, order):
    x = draw((40, 5), order=order)
    x[:, 2] *= spread
    check(capsys, x, "batch_norm", "--eps", "0", eps=0.0)


DTYPES = [np.float16, np.float64, np.int8, np.uint64, np.bool_, ">f4", ">i2", "<f8"]


@pytest.mark.parametrize(
    "method, dtype", kernels.pairs({name: name for name in ("layer_norm", "batch_norm")}, DTYPES)
)
def test_dtypes(capsys, method, dtype):
    check(capsys, draw((40, 12), dtype), method)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2), (1, 1), (1, 300), (300, 1)])
def test_small_and_empty_arrays(capsys, shape):
    check(capsys, draw(shape), "layer_norm")


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 4, 3)])
def test_batch_norm_of_empty_arrays(capsys, shape):
    check(capsys, draw(shape), "batch_norm")


def test_data_that_is_not_aligned(capsys):
    """Headers that other programs write need not end at a multiple of the item size."""
    x = draw((20, 10))
    header = "{'descr':'<f4','fortran_order':False,'shape':(20,10)}\n"
    Path("x.npy").write_bytes(with_header(header, x.tobytes()))
    assert apply(capsys, "layer_norm", "x.npy", "y.npy", "--block-size", TINY) == (0, "")
    assert bits(np.load("y.npy")) == bits(numnorm.layer_norm(x))


def with_header(header, data=b""):
    """The bytes of an .npy file whose header another program wrote."""
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


def test_headers_of_python_2_are_read_without_a_word(capsys):
    x = draw((20, 10))
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (20L, 10L), }\n"
    Path("x.npy").write_bytes(with_header(header, x.tobytes()))
    assert apply(capsys, "layer_norm", "x.npy", "y.npy") == (0, "")
    assert bits(np.load("y.npy")) == bits(numnorm.layer_norm(x))


HEADERS = {
    "too many elements": "(0, 2**62)",
    "too long an axis": "(0, 2**70)",
    "too many entries": "(2**62, 0)",
    "too many entries still": "(2**70, 0)",
    "too many as floats": "(0, 2**60)",
    "too many digits to print": "(2**15000, -(2**15000))",
    "65 axes": "(1,) * 65",
    "open": "{'descr': (",
    "keys of two kinds": "{1: 2, 'a': 3}",
    "a list as key": "{[]: 1}",
    "empty descr": "{'descr': (), 'fortran_order': False, 'shape': (1,)}",
    "many signs": "-" * 9000 + "1",
    "many brackets": "[" * 5000 + "]" * 5000,
    "no text": "\0",
    "an escape": "'\\d'",
    "indented": "  1\n 2L",
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
@pytest.mark.parametrize("place", ["x.npy", "gamma.npy"])
def test_headers_that_nobody_should_write(capsys, place, header):
    if header.startswith("("):
        shape = "".join(f"{hex(length)}," for length in eval(header))
        header = f"{{'descr': '|i1', 'fortran_order': False, 'shape': ({shape})}}"
    for name in ("x.npy", "gamma.npy"):
        np.save(name, draw(1))
    Path(place).write_bytes(with_header(header, b"1"))
    status, said = apply(capsys, "layer_norm", "x.npy", "y.npy", "--gamma", "gamma.npy")
    assert status == 2
    assert said.startswith(f"numnorm apply: error: {place} is not an .npy file that can be read: ")
    assert said.count("\n") == 1
    assert sorted(os.listdir()) == ["gamma.npy", "x.npy"]


@pytest.mark.parametrize("shape", [(0, 2**59), (2**59, 0), (1,) * 64])
def test_shapes_that_an_array_just_can_have(capsys, shape):
    header = f"{{'descr': '|i1', 'fortran_order': False, 'shape': {shape}}}"
    Path("x.npy").write_bytes(with_header(header, b"1"))
    assert apply(capsys, "rms_norm", "x.npy", "y.npy", "--axis", "1") == (0, "")
    assert np.load("y.npy").shape == shape


ERRORS = {
    "no input": (("layer_norm", "none.npy", "y.npy"), "the input none.npy does not exist"),
    "a directory": (("layer_norm", "sub", "y.npy"), "the input sub is not a regular file"),
    "text": (("layer_norm", "text.npy", "y.npy"), "text.npy is not an .npy file"),
    "nothing": (("layer_norm", "nothing.npy", "y.npy"), "nothing.npy is not an .npy file"),
    "npz": (("layer_norm", "x.npz", "y.npy"), "x.npz is not an .npy file"),
    "header": (("layer_norm", "header.npy", "y.npy"), "header.npy is not an .npy file"),
    "shape": (("layer_norm", "shape.npy", "y.npy"), "its shape (-3, 3) is negative"),
    "complex": (("layer_norm", "complex.npy", "y.npy"), "complex.npy has dtype complex64"),
    "string": (("layer_norm", "string.npy", "y.npy"), "string.npy has dtype <U2"),
    "record": (("layer_norm", "record.npy", "y.npy"), "records cannot be normalized"),
    "bfloat16": (("layer_norm", "bfloat16.npy", "y.npy"), "do not tell bfloat16 from bytes"),
    "scalar": (("layer_norm", "scalar.npy", "y.npy"), "there is no axis"),
    "truncated": (
        ("layer_norm", "truncated.npy", "y.npy"),
        "its header promises 240 bytes of data, the file has 239",
    ),
    "axis": (("layer_norm", "x.npy", "y.npy", "--axis", "2"), "axis must be between -2 and 1"),
    "axis twice": (("layer_norm", "x.npy", "y.npy", "--axis", "1", "-1"), "an axis twice"),
    "channel": (("batch_norm", "x.npy", "y.npy", "--channel-axis", "2"), "channel_axis must be"),
    "samples": (("instance_norm", "x.npy", "y.npy", "--channel-axis", "0"), "axis of the samples"),
    "one axis": (("batch_norm", "vector.npy", "y.npy"), "channel_axis must be"),
    "gamma": (
        ("layer_norm", "x.npy", "y.npy", "--gamma", "x.npy"),
        "gamma must have shape (6,), the normalized axes of x, got (10, 6)",
    ),
    "gamma in one block": (
        ("layer_norm", "vector.npy", "y.npy", "--gamma", "x.npy"),
        "gamma must have shape (7,), the normalized axes of x, got (10, 6)",
    ),
    "beta": (("batch_norm", "x.npy", "y.npy", "--beta", "x.npy"), "beta must have shape (6,)"),
    "gamma missing": (("layer_norm", "x.npy", "y.npy", "--gamma", "none.npy"), "none.npy: No such"),
    "gamma complex": (("layer_norm", "x.npy", "y.npy", "--gamma", "complex.npy"), "has dtype"),
    "groups": (("group_norm", "x.npy", "y.npy", "--groups", "4"), "groups must divide the 6"),
    "no groups": (("group_norm", "x.npy", "y.npy"), "group_norm needs --groups"),
    "eps": (("layer_norm", "x.npy", "y.npy", "--eps", "-1"), "eps must be at least 0, got -1"),
    "ddof": (("ada_norm", "x.npy", "y.npy", "--ddof", "6"), "ddof must be less"),
    "block size": (("layer_norm", "x.npy", "y.npy", "--block-size", "0"), "must be positive"),
    "endless": (("layer_norm", "x.npy", "y.npy", "--block-size", "inf"), "must be positive"),
    "vast": (("layer_norm", "x.npy", "y.npy", "--block-size", "1e303"), "must be positive and at"),
    "no number": (("layer_norm", "x.npy", "y.npy", "--block-size", "nan"), "must be positive"),
    "not for": (
        ("layer_norm", "x.npy", "y.npy", "--groups", "2"),
        "--groups is not for layer_norm, which takes --gamma, --beta, --axis, --eps",
    ),
    "not for rms": (
        ("rms_norm", "x.npy", "y.npy", "--beta", "x.npy"),
        "--beta is not for rms_norm",
    ),
    "not for batch": (("batch_norm", "x.npy", "y.npy", "--axis", "0"), "--axis is not for batch"),
    "itself": (("layer_norm", "x.npy", "./x.npy"), "the output x.npy is the input"),
    "symbolic link": (("layer_norm", "x.npy", "link.npy"), "the output link.npy is the input"),
    "hard link": (("layer_norm", "x.npy", "hard.npy"), "the output hard.npy is the input"),
    "gamma itself": (
        ("layer_norm", "vector.npy", "g.npy", "--gamma", "g.npy"),
        "the output g.npy is the gain (--gamma): it would be overwritten",
    ),
    "gamma by a link": (
        ("layer_norm", "vector.npy", "glink.npy", "--beta", "vector.npy", "--gamma", "g.npy"),
        "the output glink.npy is the gain (--gamma): it would be overwritten",
    ),
    "beta itself": (
        ("layer_norm", "vector.npy", "./g.npy", "--beta", "g.npy"),
        "the output g.npy is the bias (--beta): it would be overwritten",
    ),
    "beta by a hard link": (
        ("layer_norm", "vector.npy", "ghard.npy", "--beta", "g.npy"),
        "the output ghard.npy is the bias (--beta): it would be overwritten",
    ),
    "no directory": (("layer_norm", "x.npy", "none/y.npy"), "none does not exist"),
    "output directory": (("layer_norm", "x.npy", "sub"), "the output sub is not a regular file"),
    "device": (("layer_norm", "x.npy", os.devnull), "is not a regular file"),
    "suffix": (("layer_norm", "x.npy", "y.csv"), "the output y.csv must end in .npy"),
    "no suffix": (("layer_norm", "x.npy", "y"), "the output y must end in .npy"),
    "exists": (("layer_norm", "x.npy", "vector.npy"), "vector.npy exists: --force replaces it"),
    "statistics not for": (
        ("layer_norm", "x.npy", "y.npy", "--statistics", "s.npz"),
        "--statistics is not for layer_norm",
    ),
    "both": (
        ("batch_norm", "x.npy", "y.npy", "--statistics", "s.npz", "--save-statistics", "t.npz"),
        "not allowed with argument",
    ),
    "suffix of statistics": (
        ("batch_norm", "x.npy", "y.npy", "--save-statistics", "s.npy"),
        "the file of statistics s.npy must end in .npz",
    ),
    "statistics missing": (
        ("batch_norm", "x.npy", "y.npy", "--statistics", "none.npz"),
        "none.npz: No such file",
    ),
    "statistics itself": (
        ("batch_norm", "x.npy", "stats.npy", "--statistics", "s.npz", "--force"),
        "the output stats.npy is the statistics (--statistics): it would be overwritten",
    ),
    "other arrays": (
        ("batch_norm", "x.npy", "y.npy", "--statistics", "x.npz"),
        "x.npz is not an .npz file with the arrays mean and var",
    ),
    "one array": (
        ("batch_norm", "x.npy", "y.npy", "--statistics", "x.npy"),
        "x.npy is not an .npz file with the arrays mean and var",
    ),
    "no archive": (
        ("batch_norm", "x.npy", "y.npy", "--statistics", "text.npy"),
        "text.npy is not an .npz file with the arrays mean and var",
    ),
    "broken archive": (
        ("batch_norm", "x.npy", "y.npy", "--statistics", "broken.npz"),
        "broken.npz is not an .npz file with the arrays mean and var",
    ),
    "pickled statistics": (
        ("batch_norm", "x.npy", "y.npy", "--statistics", "pickled.npz"),
        "pickled.npz is not an .npz file with the arrays mean and var",
    ),
    "channels of statistics": (
        ("batch_norm", "x.npy", "y.npy", "--statistics", "s.npz", "--channel-axis", "0"),
        "mean in s.npz must be 10 floats, one for each channel, got float64 of shape (6,)",
    ),
    "negative variance": (
        ("batch_norm", "x.npy", "y.npy", "--statistics", "negative.npz"),
        "var in negative.npz must not be negative, got -1.0",
    ),
    "method": (("norm", "x.npy", "y.npy"), "argument METHOD: invalid choice: 'norm'"),
    "number": (("layer_norm", "x.npy", "y.npy", "--eps", "small"), "argument --eps"),
    "nothing at all": ((), "the following arguments are required: METHOD, INPUT, OUTPUT"),
    "abbreviation": (("layer_norm", "x.npy", "y.npy", "--ep", "1"), "--ep"),
}


@pytest.fixture
def bad_files():
    np.save("x.npy", draw((10, 6)))
    np.savez("x.npz", draw((10, 6)))
    np.save("vector.npy", draw(7))
    np.save("scalar.npy", np.float32(1))
    np.save("complex.npy", np.zeros((2, 3), np.complex64))
    np.save("string.npy", np.array(["ab"]))
    np.save("record.npy", np.zeros(3, [("a", "f4"), ("b", "i4")]))
    np.save("bfloat16.npy", np.zeros((2, 3), "V2"))
    whole = Path("x.npy").read_bytes()
    Path("truncated.npy").write_bytes(whole[:-1])
    Path("header.npy").write_bytes(whole[:40])
    Path("shape.npy").write_bytes(whole.replace(b"(10, 6)", b"(-3, 3)"))
    Path("text.npy").write_text("1 2 3\n4 5 6\n")
    Path("nothing.npy").touch()
    Path("sub").mkdir()
    Path("link.npy").symlink_to("x.npy")
    Path("hard.npy").hardlink_to("x.npy")
    np.save("g.npy", draw(7))
    Path("glink.npy").symlink_to("g.npy")
    Path("ghard.npy").hardlink_to("g.npy")
    np.savez("s.npz", mean=np.zeros(6), var=np.ones(6))
    Path("stats.npy").hardlink_to("s.npz")
    np.savez("negative.npz", mean=np.zeros(6), var=np.array([1.0, -1, 1, 1, 1, 1]))
    np.savez("pickled.npz", mean=np.array([Marker()] * 6, object), var=np.ones(6))
    Path("broken.npz").write_bytes(Path("s.npz").read_bytes()[:300])


@pytest.mark.usefixtures("bad_files")
@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_errors_are_one_line_and_leave_nothing(capsys, arguments, message):
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    status, said = apply(capsys, *arguments)
    assert status == 2
    assert said.startswith("numnorm apply: error: ")
    assert message in said
    assert said.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before


class Marker:
    """What leaves a trace when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("unpickled"),)


@pytest.mark.parametrize("place", ["x.npy", "gamma.npy"])
def test_pickled_objects_are_refused_without_being_loaded(capsys, place):
    np.save("x.npy", draw((10, 6)))
    np.save(place, np.array([Marker()] * 6, object), allow_pickle=True)
    status, said = apply(capsys, "layer_norm", "x.npy", "y.npy", "--gamma", place)
    assert status == 2
    assert said == (
        f"numnorm apply: error: {place} holds pickled Python objects, which are never loaded\n"
    )
    assert not Path("unpickled").exists()
    np.load(place, allow_pickle=True)
    assert Path("unpickled").exists()  # so the trap works


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("closed", ["sub", "sub/y.npy"])
def test_places_that_are_not_writable(capsys, closed):
    np.save("x.npy", draw((10, 6)))
    Path("sub").mkdir()
    Path("sub/y.npy").touch()
    Path(closed).chmod(0o500)
    status, said = apply(capsys, "layer_norm", "x.npy", "sub/y.npy")
    Path(closed).chmod(0o700)
    assert (status, "is not writable" in said) == (2, True)


def test_places_that_the_system_calls_not_writable(capsys, monkeypatch):
    np.save("x.npy", draw((10, 6)))
    monkeypatch.setattr(os, "access", lambda *_: False)
    status, said = apply(capsys, "layer_norm", "x.npy", "y.npy")
    assert (status, "is not writable" in said) == (2, True)


def test_output_is_replaced_with_its_mode_and_through_its_link(capsys):
    np.save("x.npy", draw((10, 6)))
    Path("old.npy").write_text("old")
    Path("old.npy").chmod(0o640)
    Path("y.npy").symlink_to("old.npy")
    assert apply(capsys, "layer_norm", "x.npy", "y.npy", "--force") == (0, "")
    assert Path("y.npy").is_symlink()
    assert Path("old.npy").stat().st_mode & 0o777 == 0o640
    assert bits(np.load("y.npy")) == bits(numnorm.layer_norm(np.load("x.npy")))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk(capsys, monkeypatch, number):
    def full(*_):
        raise OSError(number, os.strerror(number))

    np.save("x.npy", draw((10, 6)))
    Path("y.npy").write_text("old")
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    status, said = apply(capsys, "layer_norm", "x.npy", "y.npy", "--force")
    assert status == 2
    assert said.endswith(f"bytes can be had for y.npy: {os.strerror(number)}\n")
    assert Path("y.npy").read_text() == "old"
    assert sorted(os.listdir()) == ["x.npy", "y.npy"]


@pytest.mark.parametrize("known", [False, True])
def test_room_is_reserved_where_there_is_no_fallocate(capsys, monkeypatch, known):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unsupported, raising=False)
    if not known:
        monkeypatch.delattr(os, "posix_fallocate")
    check(capsys, draw((700, 600)), "layer_norm", block_size="0.3")


def child(code, *arguments):
    """Start Python on `code`, which finds the arguments in sys.argv and signals as in a shell."""
    preamble = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    if hasattr(signal, "SIGHUP"):  # ignored below nohup
        preamble += "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    path = os.pathsep.join([str(Path(numnorm.__file__).parents[1]), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", preamble + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


RUN = "import sys; from numnorm.__main__ import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.skipif(sys.platform == "win32", reason="needs resource limits")
@pytest.mark.parametrize("fallocate", [True, False])
def test_file_size_limit(fallocate):
    np.save("x.npy", draw((1000, 100)))
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    without = "" if fallocate else "import os; vars(os).pop('posix_fallocate', None)\n"
    with child(limit + without + RUN, "apply", "layer_norm", "x.npy", "y.npy") as process:
        said = process.communicate()
    assert said == (
        "",
        f"numnorm apply: error: no 400128 bytes can be had for y.npy: {os.strerror(errno.EFBIG)}\n",
    )
    assert process.returncode == 2
    assert os.listdir() == ["x.npy"]


def wait_until_half_way(process):
    """Return when the first block of the output has been written."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        for path in Path().glob("y.npy.numnorm-*.tmp"):
            with path.open("rb") as file:
                file.seek(128)
                if any(file.read(4000)):
                    return
        time.sleep(0.002)
    raise AssertionError(f"not begun or done already: {process.poll()}")


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("old", [None, "old"])
@pytest.mark.parametrize(
    ("number", "status", "left"),
    [("SIGKILL", -9, 1), ("SIGTERM", 143, 0), ("SIGHUP", 129, 0), ("SIGINT", 130, 0)],
)
def test_killed_half_way(number, status, left, old):
    np.save("x.npy", draw((4000, 1000)))
    if old is not None:
        Path("y.npy").write_text(old)
    arguments = ("apply", "layer_norm", "x.npy", "y.npy", "--block-size", "0.004", "--force")
    with child(RUN, *arguments) as process:
        wait_until_half_way(process)
        process.send_signal(getattr(signal, number))
        said = process.communicate()[1]
    assert process.returncode == status
    assert said == ("numnorm apply: interrupted\n" if number == "SIGINT" else "")
    assert (Path("y.npy").read_text() if Path("y.npy").exists() else None) == old
    assert len(list(Path().glob("y.npy.numnorm-*.tmp"))) == left


WHILE_THE_COMMAND_LOADS = """
import importlib, signal, sys, time
from numnorm.__main__ import main

class HalfMade:
    def __init__(self, number):
        signal.raise_signal(number)
        self.whole = True

    def __del__(self):
        assert self.whole

class Finalized:
    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)

def signalled(name):
    {kind}(int(sys.argv[1]))
    time.sleep(60)

importlib.import_module = signalled
sys.exit(main(["apply", "layer_norm", "x.npy", "y.npy"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(
    ("number", "status", "says"),
    [("SIGINT", 130, "numnorm apply: interrupted\n"), ("SIGTERM", 143, ""), ("SIGHUP", 129, "")],
)
@pytest.mark.parametrize("kind", ["HalfMade", "Finalized"])
def test_signals_while_something_is_made_or_finalized(number, status, says, kind):
    """As llvmlite's strings and callbacks are, where a kernel is compiled as the signal comes."""
    code = WHILE_THE_COMMAND_LOADS.format(kind=kind)
    with child(code, int(getattr(signal, number))) as process:
        assert process.communicate(timeout=30) == ("", says)  # and sleeps no longer
    assert process.returncode == status


def test_interrupted_while_the_command_loads(capsys, monkeypatch):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert apply(capsys, "layer_norm", "x.npy", "y.npy") == (130, "numnorm apply: interrupted\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_without_a_stream(stream):
    """As after `>&-` or `2>&-`, where Python has None."""
    np.save("x.npy", draw((10, 6)))
    closed = f"import sys; sys.{stream} = None\n"
    with child(closed + RUN, "apply", "layer_norm", "x.npy", "y.npy") as process:
        assert process.communicate() == ("", "")
    assert process.returncode == 0
    assert bits(np.load("y.npy")) == bits(numnorm.layer_norm(np.load("x.npy")))


def test_help_tells_of_what_a_killed_process_leaves(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["apply", "--help"])
    assert "OUTPUT.numnorm-*.tmp" in capsys.readouterr().out


def test_help_has_a_line_for_each_meaning_of_an_option(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["apply", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    for line in [
        "--window STEPS of moving_norm (int, or float or timedelta): The number of steps of a "
        "window of moving_robust_norm (int): The number",
        "--center of moving_norm, moving_robust_norm (bool, default False): Whether the window",
        'of robust_norm ({"median", "mean"} or float, default "median"): What is subtracted --',
        "--scale SCALE of ada_norm (float, default 1): C in the formula, greater than 0 of moving_",
        "of robust_norm (float, default 0): Added to the divisor --",
        "of pcen (float): The weight of a new step, above 0 and at most 1: librosa's b --",
        # The end of the sentence differs.
        'exponential_norm, emsc, pcen, robust_norm ({"propagate", "omit", "raise"}): '
        "What to do with NaN --",
    ]:
        assert line in words


@pytest.mark.parametrize("name", ["z.npy.numnorm-0123456789ab.tmp", ".numnorm-0123456789ab.tmp"])
def test_what_a_killed_run_left_is_named_and_removed(capsys, caplog, name):
    np.save("x.npy", draw((10, 6)))
    with open(name, "wb") as file:
        file.truncate(3 << 20)
    assert apply(capsys, "layer_norm", "x.npy", "y.npy") == (0, "")
    path = Path(os.path.realpath(name))
    assert caplog.messages == [f"removed {path} (3.0 MiB), which a killed process left"]
    assert sorted(os.listdir()) == ["x.npy", "y.npy"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_what_another_run_is_writing_stays(capsys):
    np.save("x.npy", draw((4000, 1000)))
    arguments = ("apply", "layer_norm", "x.npy", "y.npy", "--block-size", "0.004")
    with child(RUN, *arguments) as process:
        wait_until_half_way(process)
        process.send_signal(signal.SIGSTOP)
        assert apply(capsys, "layer_norm", "x.npy", "z.npy") == (0, "")
        process.send_signal(signal.SIGCONT)
        assert process.communicate() == ("", "")
    assert process.returncode == 0
    assert Path("y.npy").read_bytes() == Path("z.npy").read_bytes()
    assert sorted(os.listdir()) == ["x.npy", "y.npy", "z.npy"]


TRAIN, TEST = draw((60, 4, 5)), 2 + draw((7, 4, 9))


@pytest.mark.parametrize("axis", [1, 0])
def test_a_test_set_is_normalized_by_its_training_set(capsys, axis):
    train, test = np.moveaxis(TRAIN, 1, axis), np.moveaxis(TEST, 1, axis)
    options = ("--channel-axis", axis, "--block-size", TINY)
    np.save("train.npy", train)
    np.save("test.npy", test)
    saving = ("train.npy", "y.npy", "--save-statistics", "train.npz", *options)
    assert apply(capsys, "batch_norm", *saving) == (0, "")
    assert bits(np.load("y.npy")) == bits(numnorm.batch_norm(train, channel_axis=axis))
    using = ("test.npy", "z.npy", "--statistics", "train.npz", *options)
    assert apply(capsys, "batch_norm", *using) == (0, "")
    moments = numnorm.batch_moments(train, channel_axis=axis)
    running = {"running_mean": moments.mean, "running_var": moments.var()}
    z = numnorm.batch_norm(test, channel_axis=axis, training=False, **running)
    assert bits(np.load("z.npy")) == bits(z)
    # The definition, in twice the precision; the roundoff of the result is that of float32.
    exact, others = train.astype(np.float64), tuple({0, 1, 2} - {axis})
    mean, var = (f(exact, axis=others, keepdims=True) for f in (np.mean, np.var))
    expected = (test.astype(np.float64) - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(z, expected, rtol=2.0**-22, atol=2.0**-22)
    with np.load("train.npz") as saved:
        assert sorted(saved) == ["mean", "var"]
        # The statistics of float32 values are good to the roundoff of float32.
        np.testing.assert_allclose(saved["mean"], mean.ravel(), rtol=2.0**-24)
        np.testing.assert_allclose(saved["var"], var.ravel(), rtol=2.0**-23)


def test_saved_statistics_give_the_same_bits_for_the_same_array(capsys):
    np.save("x.npy", TRAIN)
    arguments = ("batch_norm", "x.npy", "y.npy", "--save-statistics", "s.npz")
    assert apply(capsys, *arguments) == (0, "")
    assert apply(capsys, "batch_norm", "x.npy", "z.npy", "--statistics", "s.npz") == (0, "")
    assert Path("y.npy").read_bytes() == Path("z.npy").read_bytes()


@pytest.mark.parametrize("existing", ["y.npy", "s.npz"])
def test_what_exists_is_replaced_only_by_force(capsys, existing):
    np.save("x.npy", TRAIN)
    Path(existing).write_text("old")
    arguments = ("batch_norm", "x.npy", "y.npy", "--save-statistics", "s.npz")
    status, said = apply(capsys, *arguments)
    assert (status, f"{existing} exists: --force replaces it" in said) == (2, True)
    assert sorted(os.listdir()) == sorted(["x.npy", existing])
    assert Path(existing).read_text() == "old"
    assert apply(capsys, *arguments, "--force") == (0, "")
    assert bits(np.load("y.npy")) == bits(numnorm.batch_norm(TRAIN))


def test_no_statistics_of_nothing(capsys):
    np.save("x.npy", draw((0, 5)))
    arguments = ("batch_norm", "x.npy", "y.npy", "--save-statistics", "s.npz")
    assert apply(capsys, *arguments) == (
        2,
        "numnorm apply: error: x.npy is empty: it has no statistics\n",
    )
    assert os.listdir() == ["x.npy"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_terminals_only(monkeypatch, terminal):
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("layer_norm", 4) as done:
        done(2)
        done(2)
    assert ("100%" in stream.getvalue()) == terminal


def test_a_bar_moves_while_something_is_compiled(monkeypatch):
    event = importlib.import_module("numba.core.event")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("layer_norm", 4):
        for _ in range(2):  # one in the other
            event.broadcast(event.Event("numba:compile", event.EventStatus.START))
        event.broadcast(event.Event("numba:compile", event.EventStatus.END))
        while "compiling" not in stream.getvalue():
            time.sleep(0.01)
        event.broadcast(event.Event("numba:compile", event.EventStatus.END))
        stream.seek(0)
        stream.truncate()
    assert "layer_norm" in stream.getvalue()
    assert "compiling" not in stream.getvalue().splitlines()[-1]


def test_messages_stand_above_the_progress(monkeypatch):
    stream, logger = Terminal(), logging.getLogger("numnorm")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    before = logger.level, list(logger.handlers)
    with progress_bar("layer_norm", 4):
        logger.info("compiling [%s]", "a kernel")
    assert "compiling [a kernel]" in stream.getvalue()
    assert (logger.level, logger.handlers) == before


@given(st.lists(st.integers(0, 7), min_size=1, max_size=4), st.integers(1, 500), st.data())
def test_boxes_cover_an_array_once_within_the_budget(shape, budget, data):
    axes = data.draw(st.permutations(range(len(shape))))
    axes = axes[: data.draw(st.integers(0, len(axes)))]
    multiples = [data.draw(st.integers(1, 3)) for _ in axes]
    cuttable = list(zip(axes, multiples, strict=True))
    lengths = boxes.box_lengths(shape, cuttable, budget)
    count = np.zeros(shape, int)
    for box in boxes.boxes(boxes.whole(shape), lengths):
        count[box] += 1
        for axis, multiple in cuttable:
            assert box[axis].start % multiple == 0
        finest = math.prod(
            min(dict(cuttable).get(axis, length), length) for axis, length in enumerate(shape)
        )
        assert math.prod(boxes.shape_of(box)) <= max(budget, finest)
    assert np.all(count == 1)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("shape", "method", "options"),
    [
        ((2**20, 1024), "layer_norm", ()),
        ((2**20, 1024), "batch_norm", ()),
        ((2**15, 2**15), "layer_norm", ("--axis", "0")),
    ],
)
def test_memory_for_four_gigabytes(shape, method, options):
    x = np.lib.format.open_memmap("x.npy", "w+", np.float32, shape)
    rng = np.random.default_rng(0)
    for start in range(0, shape[0], shape[0] // 64):
        part = x[start : start + shape[0] // 64]
        part[...] = rng.standard_normal(part.shape, np.float32) + start
    x.flush()
    peak = "\nprint(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    code = "import sys; from numnorm.__main__ import main; assert main(sys.argv[1:]) == 0" + peak
    with child(code, "apply", method, "x.npy", "y.npy", *options) as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    print(f"peak {int(out) / 1024:.0f} MiB")
    assert int(out) * 1024 < 1e9
    y = np.load("y.npy", mmap_mode="r")
    if method == "layer_norm" and not options:
        assert bits(y[-1000:]) == bits(numnorm.layer_norm(x[-1000:]))
    assert math.isclose(float(y[:, -1].var()), 1, rel_tol=0.2) or not options
