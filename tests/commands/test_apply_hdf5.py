"""``numnorm apply`` on datasets in HDF5 files."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from array_files import apply, bits, draw, load, save, snapshot

import numnorm

IMAGES = (9, 6, 25)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def check(capsys, x, method="layer_norm", *options, block_size="0.01", **keywords):
    """Normalize /x of x.h5 and compare it with the call in memory; return the new dataset."""
    before = Path("x.h5").read_bytes()
    arguments = (method, "x.h5::/x", "y.h5::/y", *options, "--block-size", block_size)
    assert apply(capsys, *arguments) == (0, "")
    y = h5py.File("y.h5", "r")["y"]
    assert bits(y[()]) == bits(getattr(numnorm, method)(x, **keywords))
    assert Path("x.h5").read_bytes() == before
    return y


CALLS = [
    ("layer_norm", (), {}),
    ("layer_norm", ("--axis", "0", "-1"), {"axis": (0, -1)}),
    ("rms_norm", ("--axis", "1"), {"axis": 1}),
    ("ada_norm", ("--k", "0.2"), {"k": 0.2}),
    ("batch_norm", (), {}),
    ("batch_norm", ("--channel-axis", "0"), {"channel_axis": 0}),
    ("group_norm", ("--groups", "3"), {"groups": 3}),
    ("instance_norm", (), {}),
]


@pytest.mark.parametrize("chunks", [None, (2, 4, 7)])
@pytest.mark.parametrize(("method", "options", "keywords"), CALLS)
def test_same_bits_as_in_memory(capsys, method, options, keywords, chunks):
    save("x.h5::/x", draw(IMAGES), chunks=chunks)
    y = check(capsys, draw(IMAGES), method, *options, block_size="0.02", **keywords)
    assert y.chunks == chunks


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i4", ">i2", "u8", "?"])
def test_dtypes(capsys, dtype):
    save("x.h5::/x", draw((11, 6), dtype), chunks=(4, 4))
    check(capsys, draw((11, 6), dtype))


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2), (1, 1), (1, 300)])
def test_small_and_empty_arrays(capsys, shape):
    save("x.h5::/x", draw(shape))
    check(capsys, draw(shape))


def test_filters_and_attributes_are_kept(capsys):
    options = {"chunks": (4, 3), "compression": "gzip", "compression_opts": 7}
    save("x.h5::/x", draw((9, 6)), shuffle=True, fletcher32=True, **options)
    with h5py.File("x.h5", "a") as file:
        scale = file.create_dataset("scale", data=np.arange(6))
        scale.make_scale("space")
        file["x"].dims[1].attach_scale(scale)
        file["x"].attrs.update({"units": "V", "_FillValue": np.float32(-9)})
        file["x"].attrs["beside"] = scale.ref
    y = check(capsys, draw((9, 6)))
    assert (y.chunks, y.compression, y.compression_opts) == ((4, 3), "gzip", 7)
    names = y.attrs.keys() - {"DIMENSION_LIST", "DIMENSION_LABELS"}
    assert (y.shuffle, y.fletcher32, names, y.attrs["units"]) == (True, True, {"units"}, "V")


def make_dimensions(name="data.nc"):
    """A file with dimensions as netCDF-4 writes them: one with a variable, one without."""
    with h5py.File(name, "w") as file:
        file["values"] = draw((6, 5))
        time = file.create_dataset("axes/time", data=np.arange(6.0), track_order=True)
        time.make_scale("time")
        time.attrs.update({"units": "s", "_Netcdf4Dimid": np.int32(0)})
        channel = file.create_dataset("channel", (5,), ">f4")
        channel.make_scale(f"This is a netCDF dimension but not a netCDF variable.{5:10}")
        for axis, scale in enumerate((time, channel)):
            file["values"].dims[axis].attach_scale(scale)


def dimensions(path):
    """For each axis its label, and the paths and the values of its scales."""
    name, inside = path.split("::")
    with h5py.File(name, "r") as file:
        return [
            (dimension.label, [(scale.name, scale[()].tolist()) for scale in dimension.values()])
            for dimension in file[inside].dims
        ]


@pytest.mark.parametrize("output", ["data.nc::/normalized", "other.nc::/a/b"])
def test_dimensions_are_kept(capsys, output):
    make_dimensions()
    before = dimensions("data.nc::/values")
    assert [len(scales) for _, scales in before] == [1, 1]
    arguments = ("layer_norm", "data.nc::/values", output, "--force")
    for _ in range(2):
        assert apply(capsys, *arguments) == (0, "")
        assert dimensions(output) == before
    name, inside = output.split("::")
    with h5py.File(name, "r") as file:
        assert file["axes/time"].attrs["units"] == "s"
        assert file["axes/time"].is_scale
        # The scale knows all datasets that it belongs to, and none that is gone.
        used = {file[reference].name for reference, _ in file["axes/time"].attrs["REFERENCE_LIST"]}
        assert used == ({inside, "/values"} if name == "data.nc" else {inside})
    assert dimensions("data.nc::/values") == before


def other_values(file):
    file["channel"] = np.arange(5, dtype=">f4")
    file["channel"].make_scale("channel")


def other_length(file):
    file["channel"] = np.zeros(7, ">f4")
    file["channel"].make_scale("channel")


def no_scale(file):
    file["channel"] = np.zeros(5, ">f4")


def a_group(file):
    file["channel/more"] = 1


@pytest.mark.parametrize("other", [other_values, other_length, no_scale, a_group])
def test_a_dimension_that_another_one_has_the_name_of_keeps_its_name(capsys, other):
    make_dimensions()
    with h5py.File("other.nc", "w") as file:
        other(file)
    assert apply(capsys, "layer_norm", "data.nc::/values", "other.nc::/y") == (0, "")
    time, channel = dimensions("other.nc::/y")
    assert time == ("", [("/axes/time", list(range(6)))])
    assert channel == ("channel", [])


def test_a_dataset_in_the_place_of_a_group_of_scales(capsys):
    make_dimensions()
    assert apply(capsys, "layer_norm", "data.nc::/values", "other.nc::/axes") == (0, "")
    assert dimensions("other.nc::/axes") == [
        ("time", []),
        ("", [("/channel", [0.0] * 5)]),
    ]


def test_scales_that_are_gone_are_left_out(capsys):
    make_dimensions()
    with h5py.File("data.nc", "a") as file:
        del file["channel"]
    for output in ("data.nc::/y", "other.nc::/y"):
        assert apply(capsys, "layer_norm", "data.nc::/values", output) == (0, "")
        assert bits(load(output)) == bits(numnorm.layer_norm(draw((6, 5))))
        assert dimensions(output)[0] == ("", [("/axes/time", list(range(6)))])


def test_labels_of_dimensions_are_kept(capsys):
    save("x.h5::/x", draw((9, 6)))
    with h5py.File("x.h5", "a") as file:
        file["x"].dims[1].label = "space"
    y = check(capsys, draw((9, 6)))
    assert [dimension.label for dimension in y.dims] == ["", "space"]


@pytest.mark.parametrize("shape", [(3, 6), (0, 6)])
def test_the_largest_shape_is_kept(capsys, shape):
    save("x.h5::/x", draw(shape), chunks=(8, 4), maxshape=(None, 9))
    y = check(capsys, draw(shape))
    assert (y.chunks, y.maxshape) == ((8, 4), (None, 9))


def test_chunks_that_are_given_fit_into_the_largest_shape(capsys):
    save("x.h5::/x", draw((3, 6)), chunks=(2, 4), maxshape=(None, 9))
    y = check(capsys, draw((3, 6)), "layer_norm", "--chunks", 100, 100)
    assert (y.chunks, y.maxshape) == ((100, 9), (None, 9))


def test_filters_that_round_are_not_kept(capsys):
    save("x.h5::/x", draw((9, 6), "i4"), chunks=(4, 3), scaleoffset=0)
    assert check(capsys, draw((9, 6), "i4")).scaleoffset is None


@pytest.mark.parametrize(
    ("words", "compression", "level"),
    [("gzip", "gzip", 4), ("gzip:1", "gzip", 1), ("lzf", "lzf", None), ("none", None, None)],
)
def test_compression_and_chunks_that_are_given(capsys, words, compression, level):
    save("x.h5::/x", draw((9, 6)), chunks=(4, 3), compression="gzip")
    options = ("--compression", words, "--chunks", 5, 100)
    y = check(capsys, draw((9, 6)), "layer_norm", *options)
    assert (y.chunks, y.compression, y.compression_opts) == ((5, 6), compression, level)


def test_an_array_without_chunks_gets_some_if_it_is_compressed(capsys):
    np.save("x.npy", draw((900, 60)))
    options = ("--compression", "gzip", "--block-size", "0.1")
    assert apply(capsys, "layer_norm", "x.npy", "y.h5::/y", *options) == (0, "")
    with h5py.File("y.h5", "r") as file:
        assert file["y"].chunks == (436, 60)  # of 104857 bytes


def test_other_data_in_the_file_stay(capsys):
    x = draw((30, 7))
    save("x.h5::/a/x", x)
    save("x.h5::/a/other", draw((3, 3)))
    Path("x.h5").chmod(0o640)
    for name in ("/a/y", "/new/group/y", "y"):
        assert apply(capsys, "batch_norm", "x.h5::/a/x", f"x.h5::{name}") == (0, "")
        assert bits(load(f"x.h5::{name}")) == bits(numnorm.batch_norm(x))
    assert bits(load("x.h5::/a/x")) == bits(x)
    assert bits(load("x.h5::/a/other")) == bits(draw((3, 3)))
    assert Path("x.h5").stat().st_mode & 0o777 == 0o640
    assert os.listdir() == ["x.h5"]


def test_an_old_dataset_is_replaced_by_force_alone(capsys):
    save("x.h5::/x", draw((30, 7)))
    save("x.h5::/y", draw((3, 3)))
    before = snapshot()
    assert apply(capsys, "layer_norm", "x.h5::/x", "x.h5::/y") == (
        2,
        "numnorm apply: error: the output x.h5::/y exists: --force replaces it\n",
    )
    assert snapshot() == before
    assert apply(capsys, "layer_norm", "x.h5::/x", "x.h5::/y", "--force") == (0, "")
    assert bits(load("x.h5::/y")) == bits(numnorm.layer_norm(draw((30, 7))))


def make_files():
    save("x.h5::/x", draw((9, 6)))
    save("x.h5::/g/a", draw((2, 2)))
    save("x.h5::/complex", np.zeros((2, 2), "c8"))
    save("x.h5::/record", np.zeros(3, [("a", "f4"), ("b", "i4")]))
    save("x.h5::/text", np.array([b"ab"]))
    save("x.h5::/number", np.float32(1))
    save("bad.h5::/x", draw((900, 6)), chunks=(300, 6), compression="gzip", fletcher32=True)
    with h5py.File("x.h5", "a") as file:
        file["null"] = h5py.Empty("f4")
        file["strings"] = ["a", "b"]
        file["link"] = h5py.SoftLink("/x")
        file["broken"] = h5py.SoftLink("/nowhere")
        file["outside"] = h5py.ExternalLink("none.h5", "/x")
    with h5py.File("bad.h5", "r") as file:
        chunk = file["x"].id.get_chunk_info(1)
    content = bytearray(Path("bad.h5").read_bytes())
    content[chunk.byte_offset + 50] ^= 255
    Path("bad.h5").write_bytes(content)
    Path("cut.h5").write_bytes(Path("x.h5").read_bytes()[:-5000])
    Path("text.h5").write_text("x")
    Path("folder.h5").mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo("pipe.h5")


ERRORS = {
    "no file": (("none.h5::/x", "y.npy"), "the input none.h5 does not exist"),
    "no dataset": (("x.h5::/z", "y.npy"), "x.h5::/z does not exist: x.h5::/complex, x.h5::/g/a"),
    "no name": (("x.h5", "y.npy"), "x.h5 is a group: x.h5::/complex"),
    "group": (("x.h5::/g", "y.npy"), "x.h5::/g is a group: x.h5::/g/a"),
    "complex": (("x.h5::/complex", "y.npy"), "dtype complex64"),
    "record": (("x.h5::/record", "y.npy"), "has dtype [('a', '<f4'), ('b', '<i4')]"),
    "text": (("x.h5::/text", "y.npy"), "has dtype |S2"),
    "strings": (("x.h5::/strings", "y.npy"), "has dtype object"),
    "null": (("x.h5::/null", "y.npy"), "x.h5::/null is empty"),
    "number": (("x.h5::/number", "y.npy"), "holds a single number"),
    "broken link": (("x.h5::/broken", "y.npy"), "x.h5::/broken"),
    "external link": (("x.h5::/outside", "y.npy"), "x.h5::/outside"),
    "corrupt": (("bad.h5::/x", "y.npy"), "bad.h5::/x"),
    "cut": (("cut.h5::/x", "y.npy"), "cut.h5 cannot be opened as HDF5"),
    "no HDF5": (("text.h5::/x", "y.npy"), "text.h5 cannot be opened as HDF5"),
    "folder": (("folder.h5::/x", "y.npy"), "folder.h5 cannot be opened as HDF5"),
    "pipe": (("pipe.h5::/x", "y.npy"), "pipe.h5"),
    "output is a pipe": (("x.h5::/x", "pipe.h5::/y"), "pipe.h5"),
    "itself": (("x.h5::/x", "x.h5::x"), "the output x.h5 is the input: it would be overwritten"),
    "soft link": (("x.h5::/x", "x.h5::/link"), "the output x.h5 is the input"),
    "output is a group": (("x.h5::/x", "x.h5::/g"), "x.h5::/g is no dataset, and is not replaced"),
    "output is a broken link": (("x.h5::/x", "x.h5::/broken"), "is no dataset, and is not"),
    "in a dataset": (("x.h5::/g/a", "x.h5::/x/y"), "x.h5::/x/y is inside the dataset /x"),
    "in itself": (("x.h5::/x", "x.h5::/x/y"), "x.h5::/x/y is inside the dataset /x"),
    "no name of the output": (("x.h5::/x", "y.h5"), "the output y.h5 must name a dataset: y.h5::/"),
    "output is no HDF5": (("x.h5::/x", "text.h5::/y"), "text.h5 cannot be opened as HDF5"),
    "output is a folder": (("x.h5::/x", "folder.h5::/y"), "folder.h5 is not a regular file"),
    "nowhere": (("x.h5::/x", "none/y.h5::/y"), "none does not exist"),
    "compression": (
        ("x.h5::/x", "y.h5::/y", "--compression", "zstd"),
        "--compression of HDF5 is one of gzip, lzf, none, got zstd",
    ),
    "level": (("x.h5::/x", "y.h5::/y", "--compression", "gzip:12"), "y.h5::/y: "),
    "level of none": (("x.h5::/x", "y.h5::/y", "--compression", "lzf:1"), "y.h5::/y: "),
    "chunks": (("x.h5::/x", "y.h5::/y", "--chunks", 3), "--chunks must be 2 lengths"),
}


@pytest.mark.parametrize(("words", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_are_one_line_and_leave_nothing(capsys, words, message):
    make_files()
    before = snapshot()
    status, said = apply(capsys, "layer_norm", *words, "--force", "--block-size", "0.005")
    assert (status, said.count("\n"), message in said) == (2, 1, True), said
    assert said.startswith("numnorm apply: error: ")
    assert snapshot() == before


WRITER = "import h5py, sys; f = h5py.File('x.h5', 'a'); print('open', flush=True); sys.stdin.read()"


def test_a_file_that_another_program_writes_to_is_refused(capsys):
    save("x.h5::/x", draw((9, 6)))
    np.save("x.npy", draw((9, 6)))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WRITER], **pipes) as writer:
        assert writer.stdout.readline() == b"open\n"
        for source in ("x.h5::/x", "x.npy"):
            status, said = apply(capsys, "layer_norm", source, "x.h5::/y")
            assert (status, said.count("\n"), "x.h5 cannot be opened" in said) == (2, 1, True), said
        writer.communicate()
    assert sorted(os.listdir()) == ["x.h5", "x.npy"]


def test_a_library_that_is_not_installed_is_named(capsys, monkeypatch):
    save("x.h5::/x", draw((9, 6)))
    monkeypatch.delitem(sys.modules, "numnorm.commands.apply.formats.hdf5", raising=False)
    monkeypatch.setitem(sys.modules, "h5py", None)
    status, said = apply(capsys, "layer_norm", "x.h5::/x", "y.npy")
    assert (status, said.count("\n")) == (2, 1)
    assert "h5py cannot be imported" in said
    assert 'pip install "numnorm[storage]"' in said
