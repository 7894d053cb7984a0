"""``numnorm apply`` on arrays of Zarr, and between all formats."""

import json
import pickle
import shutil
import threading
import warnings
from pathlib import Path

import numcodecs
import numpy as np
import pytest
import zarr
from array_files import FORMATS, apply, bits, draw, load, path_in, save, snapshot
from zarr import codecs

import numnorm
from numnorm.commands.apply.formats import zarr as zarr_format
from numnorm.commands.terminal import CommandError

TINY = "0.001"  # blocks of 1048 bytes
IMAGES = (9, 6, 25)
CALLS = [
    ("layer_norm", (), {}),
    ("layer_norm", ("--axis", "0"), {"axis": 0}),
    ("rms_norm", ("--axis", "1"), {"axis": 1}),
    ("ada_norm", ("--k", "0.2"), {"k": 0.2}),
    ("batch_norm", (), {}),
    ("batch_norm", ("--channel-axis", "-1"), {"channel_axis": -1}),
    ("batch_norm", ("--channel-axis", "0"), {"channel_axis": 0}),
    ("group_norm", ("--groups", "3"), {"groups": 3}),
    ("group_norm", ("--groups", "5", "--channel-axis", "2"), {"groups": 5, "channel_axis": 2}),
    ("instance_norm", (), {}),
]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def check(capsys, x, method="layer_norm", *options, block_size="0.003", **keywords):
    """Normalize x.zarr and compare it with the call in memory, to the bit."""
    before = snapshot("x.zarr")
    arguments = (method, "x.zarr", "y.zarr", *options, "--block-size", block_size)
    assert apply(capsys, *arguments) == (0, "")
    assert bits(load("y.zarr")) == bits(getattr(numnorm, method)(x, **keywords))
    assert snapshot("x.zarr") == before
    assert {path.name for path in Path().iterdir()} == {"x.zarr", "y.zarr"}
    return zarr.open_array("y.zarr", mode="r")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("method", "options", "keywords"), CALLS)
def test_same_bits_as_in_memory(capsys, method, options, keywords, version):
    save("x.zarr", draw(IMAGES), zarr_format=version, chunks=(2, 4, 7))
    y = check(capsys, draw(IMAGES), method, *options, block_size="0.02", **keywords)
    assert (y.metadata.zarr_format, y.chunks) == (version, (2, 4, 7))


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("method", ["layer_norm", "batch_norm"])
def test_between_all_formats(capsys, source, target, method):
    x = draw((30, 7, 5))
    path, result = path_in(source, "x"), path_in(target, "y")
    save(path, x)
    assert apply(capsys, method, path, result, "--block-size", TINY) == (0, "")
    assert bits(load(result)) == bits(getattr(numnorm, method)(x))
    assert bits(load(path)) == bits(x)
    assert len(list(Path().iterdir())) == 2


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", ">f8", "i4", ">i2", "u8", "?"])
def test_dtypes(capsys, dtype, version):
    x = draw((11, 6), dtype)
    save("x.zarr", x, zarr_format=version)
    y = check(capsys, x)
    assert y.dtype == (np.dtype(dtype).newbyteorder("=") if "f" in dtype else np.float64)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (3, 0, 2), (1, 1), (1, 300), (300, 1)])
def test_small_and_empty_arrays(capsys, shape):
    save("x.zarr", draw(shape))
    check(capsys, draw(shape))


def test_empty_batches(capsys):
    save("x.zarr", draw((0, 5)))
    check(capsys, draw((0, 5)), "batch_norm")


def test_order_of_fortran_is_kept(capsys):
    save("x.zarr", draw((9, 6)), zarr_format=2, order="F")
    assert check(capsys, draw((9, 6))).metadata.order == "F"


def test_shards_are_kept_and_written_whole(capsys):
    save("x.zarr", draw((20, 6)), chunks=(2, 3), shards=(8, 6))
    y = check(capsys, draw((20, 6)), block_size="0.0002")
    assert (y.chunks, y.shards) == ((2, 3), (8, 6))


@pytest.mark.parametrize("method", ["layer_norm", "batch_norm"])
def test_no_chunk_is_written_twice(capsys, monkeypatch, method):
    from zarr.storage import LocalStore

    written, put = [], LocalStore.set

    async def spy(self, key, value):
        written.append(key)
        return await put(self, key, value)

    save("x.npy", draw((50, 30)))
    monkeypatch.setattr(LocalStore, "set", spy)
    arguments = (method, "x.npy", "y.zarr", "--chunks", 7, 11, "--block-size", "0.003")
    assert apply(capsys, *arguments) == (0, "")
    chunks = [key for key in written if key != "zarr.json"]
    assert len(chunks) == len(set(chunks)) == 8 * 3


KEPT = {
    "blosc 2": {
        "zarr_format": 2,
        "compressors": numcodecs.Blosc("lz4hc", 3, numcodecs.Blosc.BITSHUFFLE),
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    },
    "gzip 2": {"zarr_format": 2, "compressors": numcodecs.GZip(2)},
    "none 2": {"zarr_format": 2, "compressors": None},
    "blosc 3": {"compressors": [codecs.BloscCodec(cname="lz4", clevel=2, shuffle="bitshuffle")]},
    "checked 3": {"compressors": [codecs.ZstdCodec(level=3), codecs.Crc32cCodec()]},
    "none 3": {"compressors": None},
    "transposed 3": {"filters": [codecs.TransposeCodec(order=(1, 0))]},
    "names 3": {"dimension_names": ("time", "space"), "attributes": {"units": "V", "n": [1]}},
    "fill 3": {"fill_value": -9.0},
    "keys 3": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
}


@pytest.mark.parametrize("options", KEPT.values(), ids=KEPT)
def test_what_is_kept_of_the_input(capsys, options):
    save("x.zarr", draw((9, 6)), **options)
    y, x = check(capsys, draw((9, 6))), zarr.open_array("x.zarr", mode="r")
    assert y.metadata.to_dict() == x.metadata.to_dict()


def test_what_is_not_kept(capsys):
    """Codecs that round, fill values of another dtype, and attributes of packed numbers."""
    attributes = {"scale_factor": 0.1, "add_offset": 2.0, "units": "K"}
    delta = numcodecs.Delta("i2")
    options = {"zarr_format": 2, "filters": [delta], "fill_value": -1, "attributes": attributes}
    save("x.zarr", draw((9, 6), "i2"), **options)
    y = check(capsys, draw((9, 6), "i2"))
    assert (y.filters, y.fill_value, dict(y.attrs)) == ((), 0.0, {"units": "K"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("gzip:2", {"name": "gzip", "configuration": {"level": 2}}),
        ("zstd", {"name": "zstd", "configuration": {"level": 0, "checksum": False}}),
        ("zstd:7", {"name": "zstd", "configuration": {"level": 7, "checksum": False}}),
        ("none", None),
    ],
)
def test_compression_and_chunks_that_are_given(capsys, given, expected):
    save("x.zarr", draw((20, 6)), chunks=(2, 3), shards=(8, 6))
    y = check(capsys, draw((20, 6)), "layer_norm", "--compression", given, "--chunks", 5, 100)
    assert (y.chunks, y.shards) == ((5, 6), None)
    assert [codec.to_dict() for codec in y.compressors] == ([] if expected is None else [expected])


@pytest.mark.parametrize("version", [2, 3])
def test_version_and_level_that_are_given(capsys, version):
    save("x.zarr", draw((9, 6)), zarr_format=5 - version)
    options = ("--zarr-format", version, "--compression", "blosc:3")
    y = check(capsys, draw((9, 6)), "layer_norm", *options)
    assert (y.metadata.zarr_format, y.chunks) == (version, (4, 4))
    assert y.compressors[0].clevel == 3


@pytest.mark.parametrize("version", [2, 3])
def test_arrays_in_a_group(capsys, version):
    root = zarr.open_group("store.zarr", mode="w", zarr_format=version)
    x = draw((9, 6))
    root.create_array("a/x", data=x, chunks=(4, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata("store.zarr")
    before = snapshot("store.zarr")
    assert apply(capsys, "layer_norm", "store.zarr/a/x", "store.zarr/a/y") == (0, "")
    np.save("x.npy", x)
    assert apply(capsys, "layer_norm", "x.npy", "store.zarr/z") == (0, "")
    assert before.items() <= snapshot("store.zarr").items()
    for name in ("a/y", "z"):
        y = zarr.open_group("store.zarr", mode="r", use_consolidated=False)[name]
        assert (bits(y[...]), y.metadata.zarr_format) == (bits(numnorm.layer_norm(x)), version)


def test_statistics_are_saved_and_used(capsys):
    train, test = draw((60, 4, 5)), 2 + draw((7, 4, 9))
    save("x.zarr", train)
    save("t.zarr", test)
    saving = ("batch_norm", "x.zarr", "y.zarr", "--save-statistics", "s.npz")
    assert apply(capsys, *saving, "--block-size", TINY) == (0, "")
    assert apply(capsys, "batch_norm", "t.zarr", "z.npy", "--statistics", "s.npz") == (0, "")
    moments = numnorm.batch_moments(train)
    running = {"running_mean": moments.mean, "running_var": moments.var()}
    assert bits(np.load("z.npy")) == bits(numnorm.batch_norm(test, training=False, **running))


def test_missing_chunks_are_the_fill_value(capsys):
    x = zarr.create_array("x.zarr", shape=(9, 6), chunks=(4, 4), dtype="f4", fill_value=2.0)
    x[:4, :4] = draw((4, 4))
    check(capsys, x[...])


def test_an_old_output_is_replaced_by_force_alone(capsys):
    save("x.zarr", draw((9, 6)))
    save("y.zarr", draw((3, 3)))
    before = snapshot()
    assert apply(capsys, "layer_norm", "x.zarr", "y.zarr") == (
        2,
        "numnorm apply: error: the output y.zarr exists: --force replaces it\n",
    )
    assert snapshot() == before
    check(capsys, draw((9, 6)), "layer_norm", "--force")


def test_large_chunks_make_large_blocks_or_an_error_if_their_size_is_given(capsys):
    x = draw((40, 1000))
    save("x.zarr", x, chunks=(40, 10))
    assert apply(capsys, "layer_norm", "x.zarr", "y.zarr", "--block-size", "0.1") == (
        2,
        "numnorm apply: error: chunks of (40, 10) make blocks of 1 MiB: give --block-size 1, "
        "or other --chunks\n",
    )
    check(capsys, x, block_size="1")


def damage(path, old, new):
    text = Path(path).read_text()
    assert old in text
    Path(path).write_text(text.replace(old, new))


def bad_metadata():
    Path("x.zarr/zarr.json").write_text("{")


def unknown_codec():
    damage("x.zarr/zarr.json", '"zstd"', '"nobody"')


def unknown_dtype():
    damage("x.zarr/zarr.json", '"float32"', '"bfloat16"')


def negative_shape():
    damage("x.zarr/zarr.json", "9,", "-9,")


def corrupt_chunk():
    Path("x.zarr/c/0/1").write_bytes(b"nothing of zstd")


def short_chunk():
    save("x.zarr", draw((9, 6)), compressors=None)
    Path("x.zarr/c/1/0").write_bytes(b"123")


def no_store():
    shutil.rmtree("x.zarr")


def a_file():
    no_store()
    Path("x.zarr").write_text("x")


def an_empty_directory():
    no_store()
    Path("x.zarr").mkdir()


def a_group():
    no_store()
    zarr.open_group("x.zarr", mode="w").create_array("a/b", data=draw((2, 2)))


def a_number():
    save("x.zarr", np.float32(3).reshape(()), chunks=())


def pickled():
    no_store()
    zarr.create_array("x.zarr", shape=(1,), chunks=(1,), dtype="f8", filters=None, zarr_format=2)
    damage("x.zarr/.zarray", '"filters": null', '"filters": [{"id": "pickle", "protocol": 5}]')
    Path("x.zarr/0").write_bytes(pickle.dumps(Harmful()))


class Harmful:
    """What ends the tests when it is unpickled."""

    def __reduce__(self):
        return exit, ("unpickled",)


def of(dtype):
    def made():
        no_store()
        zarr.create_array("x.zarr", shape=(4, 4), chunks=(2, 2), dtype=dtype, zarr_format=2)

    return made


DAMAGES = [
    (bad_metadata, "no array of Zarr that can be read"),
    (unknown_codec, "nobody"),
    (unknown_dtype, "bfloat16"),
    (negative_shape, "x.zarr"),
    (corrupt_chunk, "has a chunk that cannot be read"),
    (short_chunk, "has a chunk that cannot be read"),
    (no_store, "the input x.zarr does not exist"),
    (a_file, "no array of Zarr"),
    (an_empty_directory, "no array of Zarr"),
    (a_group, "x.zarr is a group, not an array: x.zarr/a/b"),
    (a_number, "holds a single number"),
    (pickled, "no array of Zarr that can be read"),
    (of("c8"), "dtype complex64"),
    (of("U4"), "dtype <U4"),
    (of([("a", "f4"), ("b", "i4")]), "dtype"),
    (of("M8[s]"), "dtype datetime64[s]"),
]


@pytest.mark.parametrize(("make", "message"), DAMAGES)
@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_bad_inputs_are_one_line_and_leave_nothing(capsys, make, message, resume):
    save("x.zarr", draw((9, 6)))
    save("y.zarr", draw((2, 2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make()
    before = snapshot()
    status, said = apply(capsys, "layer_norm", "x.zarr", "y.zarr", "--force", *resume)
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith("numnorm apply: error: ")
    assert message in said
    left = {path for path in snapshot() if ".numnorm-" not in str(path)}
    assert left == set(before)
    assert resume or snapshot() == before


PLACES = {
    "itself": ("x.zarr", "x.zarr/", "the output x.zarr is the input: it would be overwritten"),
    "link": ("x.zarr", "link.zarr", "the output link.zarr is the input"),
    "inside": ("x.zarr", "x.zarr/y", "the output x.zarr/y is inside the input x.zarr"),
    "file inside": ("x.zarr", "x.zarr/y.npy", "the output x.zarr/y.npy is inside the input"),
    "around": ("g.zarr/x", "g.zarr", "the input g.zarr/x is inside the output g.zarr"),
    "in another": ("x.zarr", "g.zarr/x/y", "is inside the array"),
    "group": ("x.zarr", "g.zarr", "the output g.zarr is no array of Zarr, and is not replaced"),
    "folder": ("x.zarr", "f.zarr", "the output f.zarr is no array of Zarr, and is not replaced"),
    "file": ("x.zarr", "file.zarr", "the output file.zarr is no array of Zarr"),
    "nowhere": ("x.zarr", "none/y.zarr", "none does not exist"),
}


@pytest.mark.parametrize(("source", "target", "message"), PLACES.values(), ids=PLACES)
def test_places_that_are_refused(capsys, source, target, message):
    save("x.zarr", draw((9, 6)))
    zarr.open_group("g.zarr", mode="w").create_array("x", data=draw((2, 2)))
    Path("link.zarr").symlink_to("x.zarr")
    Path("f.zarr").mkdir()
    Path("f.zarr/precious").write_text("x")
    Path("file.zarr").write_text("x")
    before = snapshot()
    status, said = apply(capsys, "layer_norm", source, target, "--force")
    assert (status, said.count("\n"), message in said) == (2, 1, True), said
    assert snapshot() == before


OPTIONS = {
    "chunks": (("y.zarr", "--chunks", 3), "--chunks must be 2 lengths"),
    "no chunk": (("y.zarr", "--chunks", 0, 3), "argument --chunks: invalid"),
    "name": (
        ("y.zarr", "--compression", "lzf"),
        "--compression of Zarr is none, gzip, zstd, blosc",
    ),
    "level": (("y.zarr", "--compression", "gzip:77"), "--compression gzip:77"),
    "no level": (("y.zarr", "--compression", "gzip:x"), "argument --compression: invalid"),
    "of npy": (("y.npy", "--chunks", 3, 3), "--chunks is not for y.npy"),
    "npy compressed": (("y.npy", "--compression", "gzip"), "--compression is not for y.npy"),
    "of hdf5": (("y.h5::/y", "--zarr-format", 2), "--zarr-format is not for y.h5::/y"),
}


@pytest.mark.parametrize(("words", "message"), OPTIONS.values(), ids=OPTIONS)
def test_options_that_are_refused(capsys, words, message):
    save("x.zarr", draw((9, 6)))
    before = snapshot()
    status, said = apply(capsys, "layer_norm", "x.zarr", *words)
    assert (status, said.count("\n"), message in said) == (2, 1, True), said
    assert snapshot() == before


def test_a_library_that_is_not_installed_is_named(capsys, monkeypatch):
    import sys

    save("x.zarr", draw((9, 6)))
    monkeypatch.delitem(sys.modules, "numnorm.commands.apply.formats.zarr", raising=False)
    monkeypatch.setitem(sys.modules, "zarr", None)
    status, said = apply(capsys, "layer_norm", "x.zarr", "y.zarr")
    assert (status, said.count("\n")) == (2, 1)
    assert 'pip install "numnorm[storage]"' in said


def test_metadata_is_valid_json(capsys):
    save("x.zarr", draw((9, 6)))
    check(capsys, draw((9, 6)))
    assert json.loads(Path("y.zarr/zarr.json").read_text())["node_type"] == "array"


def test_errors_in_several_threads_do_not_wait_for_each_other():
    save("x.zarr", draw((8, 4)), chunks=(1, 4))
    for chunk in range(8):
        Path(f"x.zarr/c/{chunk}/0").write_bytes(b"nothing of zstd")
    errors = []

    def read():
        with zarr_format.opened("x.zarr") as array:
            for _ in range(20):
                try:
                    array.read((slice(0, 8), slice(0, 4)))
                except CommandError as error:
                    errors.append(error)

    threads = [threading.Thread(target=read, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 80
