"""`save` and `load`: what comes back is what was there, and files are whole or refused."""

import io
import json
import os
import pickle
import sys
import time
import zipfile

import ml_dtypes
import numpy as np
import pytest

from numnorm import rnn

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
X = np.random.default_rng(3).standard_normal((4, 2, 3), np.float32)


def drawn(kind="lstm", inputs=3, hidden=2, **options):
    return getattr(rnn, f"{kind}_init")(inputs, hidden, rng=np.random.default_rng(0), **options)


def converted():
    """Weights without a norm, whose gains have size 0."""
    return rnn.lstm_from_torch(np.ones((8, 3)), np.ones((8, 2)))


def assert_same(one, other):
    """Compare structures, types, dtypes, shapes and bytes."""
    assert type(one) is type(other)
    if isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, rnn.Packed):
        assert (one.kind, one.spec, one.dtype) == (other.kind, other.spec, other.dtype)
        assert_same(one.given, other.given)
    elif one is not None:
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


LAYERS = {
    "lstm": drawn,
    "gru": lambda: drawn("gru"),
    "rnn": lambda: drawn("rnn", norm="rms"),
    "projections": lambda: drawn(proj_size=1),
    "None": lambda: rnn.GRUParameters(np.ones((6, 3)), np.ones((6, 2))),
    "without a norm": converted,
    "statistics": lambda: rnn.lstm_statistics_init(5, 2, variant="cell_only"),
    "list": lambda: [drawn(), drawn("gru", 2, 4), drawn("rnn", 4, 1)],
    "one in a list": lambda: [drawn()],
    "empty": lambda: [],
    "tuple": lambda: (drawn("rnn"), drawn("rnn", 2)),
    "both directions": lambda: [(drawn(), drawn()), drawn("gru", 4, 2)],
    "both in a list": lambda: ([drawn(), drawn(proj_size=1)], drawn("gru", 3, 2)),
    "with statistics": lambda: {"lstm": drawn(), "batch": rnn.lstm_statistics_init(5, 2)}.values(),
    "ints": lambda: rnn.RNNParameters(np.ones((2, 3), np.int8), np.ones((2, 2), bool)),
    "no inputs": lambda: rnn.RNNParameters(np.ones((2, 0)), np.eye(2)),
    "other byte order": lambda: rnn.RNNParameters(np.ones((2, 3), ">f4"), np.eye(2)),
    "Fortran": lambda: rnn.RNNParameters(np.asfortranarray(np.ones((2, 3))), np.eye(2)),
    "nan": lambda: rnn.RNNParameters(np.full((2, 3), np.nan), np.full((2, 2), -0.0)),
}


@pytest.mark.parametrize("case", LAYERS)
def test_what_is_loaded_is_what_was_saved(tmp_path, case):
    layers = LAYERS[case]()
    layers = layers if isinstance(layers, list | tuple) else tuple(layers)
    rnn.save(tmp_path / "layers.npz", layers)
    assert_same(rnn.load(tmp_path / "layers.npz"), layers)
    assert [path.name for path in tmp_path.iterdir()] == ["layers.npz"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_dtypes(tmp_path, kind, dtype):
    parameters = drawn(kind, dtype=dtype)
    rnn.save(str(tmp_path / "file"), parameters)
    loaded = rnn.load(str(tmp_path / "file"))
    assert_same(loaded, parameters)
    assert all(p is None or p.flags.writeable for p in loaded)


PACKED = {
    "lstm": [("layer", "paper"), ("rms", "per_gate"), ("ada", "cell_only"), (None, "paper")],
    "gru": [("rms", False), ("layer", True), ("ada", True), (None, False)],
    "rnn": [(None, "relu"), ("layer", "tanh"), ("rms", "relu"), ("ada", "tanh")],
}


PACKED_CASES = [
    pytest.param(kind, *options, marks=[pytest.mark.full] if n else [])
    for kind, cases in PACKED.items()
    for n, options in enumerate(cases)
]


@pytest.mark.parametrize("kind, norm, option", PACKED_CASES)
def test_packed(tmp_path, kind, norm, option):
    name = {"lstm": "variant", "gru": "reset_after", "rnn": "nonlinearity"}[kind]
    options = {"norm": norm, name: option}
    init = {k: v for k, v in options.items() if k in ("norm", "variant")}
    packed = getattr(rnn, f"{kind}_pack")(drawn(kind, **init), **options)
    rnn.save(tmp_path / "p.npz", [packed])
    (loaded,) = rnn.load(tmp_path / "p.npz")
    assert_same(loaded, packed)
    one, other = (getattr(rnn, kind)(X, p, **options) for p in (packed, loaded))
    for a, b in zip(one, other, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("proj_size", [None, 1])
def test_packed_of_other_dtypes(tmp_path, proj_size):
    packed = rnn.lstm_pack(drawn(dtype=ml_dtypes.bfloat16, proj_size=proj_size), dtype=np.float64)
    rnn.save(tmp_path / "p.npz", (packed, drawn("gru")))
    assert_same(rnn.load(tmp_path / "p.npz")[0], packed)


def test_a_norm_is_still_refused(tmp_path):
    rnn.save(tmp_path / "p.npz", converted())
    with pytest.raises(ValueError, match="norm must be None for parameters"):
        rnn.lstm(X, rnn.load(tmp_path / "p.npz"))


def test_lists_become_arrays(tmp_path):
    rnn.save(tmp_path / "p.npz", rnn.RNNParameters([[1.0, 2.0]], [[3.0]]))
    assert_same(
        rnn.load(tmp_path / "p.npz"), rnn.RNNParameters(np.array([[1.0, 2.0]]), np.array([[3.0]]))
    )


def test_numpy_reads_the_arrays(tmp_path):
    layers = [drawn(), (drawn("gru"), drawn("gru", dtype=ml_dtypes.bfloat16))]
    rnn.save(tmp_path / "layers.npz", layers)
    with np.load(tmp_path / "layers.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["layers[0].gamma_c"], layers[0].gamma_c)
        stored = arrays["layers[1][1].weight_x"].view(ml_dtypes.bfloat16)
    assert stored.tobytes() == layers[1][1].weight_x.tobytes()


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_bfloat16_through_a_file_of_numpy(kind):
    """NumPy writes it as two bytes without a name."""
    parameters = drawn(kind, dtype=ml_dtypes.bfloat16)
    arrays = np.load(io.BytesIO(of_numpy(**parameters._asdict())))
    assert_same(rnn.parameters_from_arrays(type(parameters), arrays), parameters)


# Files that are refused


def names_the_file(caught, path):
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_flipped_byte_is_found(tmp_path):
    """Or it is one of the archive that means nothing, such as a date, and all comes back."""
    parameters = rnn.RNNParameters(np.ones((1, 2), np.float32), np.ones((1, 1)), np.zeros(1))
    path, damaged = tmp_path / "p.npz", tmp_path / "damaged.npz"
    rnn.save(path, parameters)
    content = path.read_bytes()
    found = 0
    for place in range(len(content)):
        for flip in (1 << place % 8, 0xFF):
            changed = bytearray(content)
            changed[place] ^= flip
            damaged.write_bytes(changed)
            try:
                assert_same(rnn.load(damaged), parameters)
            except ValueError as error:
                found += 1
                assert str(damaged) in str(error)
                assert "\n" not in str(error)
    assert found > len(content)  # of twice as many


def test_every_shorter_file_is_found(tmp_path):
    path = tmp_path / "p.npz"
    rnn.save(path, drawn("rnn", 1, 1))
    content = path.read_bytes()
    for length in [*range(0, len(content), 7), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ValueError) as caught:
            rnn.load(path)
        names_the_file(caught, path)


class Harmful:
    def __reduce__(self):
        return os.abort, ()


def npz(*, version=1, description=None, **arrays):
    file = io.BytesIO()
    tree = {"type": "RNNParameters", "fields": {name: a.dtype.name for name, a in arrays.items()}}
    text = json.dumps({"version": version, "layers": tree if description is None else description})
    named = {f"layers.{name}": a for name, a in arrays.items()}
    np.savez(file, **{"numnorm.rnn": np.array(text)}, **named)
    return file.getvalue()


def of_numpy(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def of_zip(method=zipfile.ZIP_STORED, others=(), **options):
    """Return an archive of a file of `save`, with other entries or compressed."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        with zipfile.ZipFile(io.BytesIO(npz(**options))) as own:
            for name in own.namelist():
                archive.writestr(name, own.read(name))
        for name in others:
            archive.writestr(name, b"not an array")
    return file.getvalue()


def with_a_pickle():
    file = io.BytesIO(npz(weight_x=np.ones((1, 1)), weight_h=np.ones((1, 1))))
    with zipfile.ZipFile(file, "a") as archive, archive.open("layers.bias.npy", "w") as entry:
        np.lib.format.write_array(entry, np.array([Harmful()]), allow_pickle=True)
    return file.getvalue()


ONES = {"weight_x": np.ones((1, 1)), "weight_h": np.ones((1, 1))}
OTHER = "must be a file of numnorm.rnn.save, got"
REFUSED = {
    "empty": (b"", f"{OTHER} what is no whole .npz file"),
    "text": (b"weight_x = 1\n" * 100, f"{OTHER} what is no whole .npz file"),
    "pickle": (pickle.dumps(Harmful()), f"{OTHER} what is no whole .npz file"),
    "npy": (b"\x93NUMPY\x01\x00v\x00{}", f"{OTHER} what is no whole .npz file"),
    "npz of savez": (of_numpy(**ONES), f"{OTHER} an .npz file of other arrays"),
    "npz with None": (of_numpy(**ONES, bias=None), f"{OTHER} an .npz file of other arrays"),
    "null": (of_numpy(**{"numnorm.rnn": np.array("null")}), f"{OTHER} an .npz file of other"),
    "version": (npz(version=2, **ONES), "must have the format version 1, got 2"),
    "version with entries of its own": (
        of_zip(version=2, others=["layers.zst"], **ONES),
        "must have the format version 1, got 2",
    ),
    "compressed": (
        of_zip(zipfile.ZIP_DEFLATED, weight_x=np.zeros((1, 1 << 20)), weight_h=np.eye(1)),
        "got a damaged file (ValueError: numnorm.rnn is compressed)",
    ),
    "name outside": (
        of_zip(others=["../../outside.npy"], **ONES),
        "got a damaged file (ValueError: the magic string is not correct",
    ),
    "no version": (
        of_numpy(**{"numnorm.rnn": np.array("{}")}),
        "must have the format version 1, got None",
    ),
    "no JSON": (of_numpy(**{"numnorm.rnn": np.array("{")}), "got a damaged file (JSONDecodeError:"),
    "object": (with_a_pickle(), "got a damaged file (ValueError: Object arrays cannot be loaded"),
    "missing": (npz(weight_x=np.ones((1, 1))), "got a damaged file (TypeError: "),
    "unknown name": (npz(**ONES, weight_y=np.ones(1)), "got a damaged file (TypeError: "),
    "unknown type": (
        npz(description={"type": "Cell", "fields": {}}),
        "got a damaged file (KeyError: 'Cell')",
    ),
    "unknown options": (
        npz(
            description={
                "packed": {"type": "RNNParameters", "fields": dict.fromkeys(ONES, "float64")},
                "options": ["layer", "sine"],
                "dtype": "float64",
            },
            **ONES,
        ),
        "got a damaged file (ValueError: nonlinearity must be",
    ),
    "left over": (
        npz(description={"list": []}, **ONES),
        "got a damaged file (ValueError: layers.weight_h belongs to no layer)",
    ),
    "other dtype": (
        npz(
            description={
                "type": "RNNParameters",
                "fields": {"weight_x": "float64", "weight_h": "float32"},
            },
            **ONES,
        ),
        "(ValueError: layers.weight_h has dtype float64, not float32)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_files_are_refused(tmp_path, case):
    path, (content, message) = tmp_path / "p.npz", REFUSED[case]
    path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        rnn.load(path)
    assert message in str(caught.value)
    names_the_file(caught, path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        rnn.load(tmp_path / "p.npz")
    names_the_file(caught, tmp_path / "p.npz")


def test_a_path_is_needed():
    for call in (rnn.load, lambda path: rnn.save(path, [])):
        with pytest.raises(
            TypeError, match=r"^path must be a str or path-like, got an object of t"
        ):
            call(io.BytesIO())


def test_bfloat16_without_its_package(tmp_path, monkeypatch):
    rnn.save(tmp_path / "p.npz", drawn(dtype=ml_dtypes.bfloat16))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match=r"weight_x has dtype bfloat16, which needs ml_dtypes: p"):
        rnn.load(tmp_path / "p.npz")


WRONG = {
    "layers must be LSTMParameters, ": lambda: rnn.lstm(X, drawn()),
    "layers[0] must be LSTMParameters, ": lambda: [np.ones(3)],
    "layers[1][0] must be LSTMParameters, ": lambda: [drawn(), ({}, drawn())],
    "layers.weight_x must have dtype float16, ": lambda: rnn.RNNParameters(
        np.ones((1, 1)) * 1j, np.eye(1)
    ),
    "layers.weight_h must be an array or turn into one, got an object": lambda: rnn.RNNParameters(
        np.eye(1), object()
    ),
    "layers.weight_h must not be a masked array": lambda: rnn.RNNParameters(
        np.eye(1), np.ma.ones((1, 1))
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_be_saved_leaves_the_file(tmp_path, message):
    path, before = tmp_path / "p.npz", drawn()
    rnn.save(path, before)
    layers = WRONG[message]()
    with pytest.raises(TypeError) as caught:
        rnn.save(path, layers)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert_same(rnn.load(path), before)
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


def test_the_same_layers_give_the_same_bytes(tmp_path):
    for name in "ab":
        rnn.save(tmp_path / name, [drawn(), drawn("gru")])
        time.sleep(0.01)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def opened(content):
    """Return what NumPy makes of a file of `savez`, or None if NumPy refuses it."""
    try:
        return np.load(io.BytesIO(content))
    except Exception:  # of which NumPy raises many kinds
        return None


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_to_a_file_of_numpy_is_found(save):
    # An array that is larger than what NumPy reads at once, and a parameter that is None.
    parameters = drawn("rnn", 65, 64)._replace(beta=None)
    file = io.BytesIO()
    save(file, **parameters._asdict())
    whole = file.getvalue()
    edges = [*range(200), *range(len(whole) - 900, len(whole))]
    refused = 0
    for place in [*edges, *range(200, len(whole) - 900, 999)]:
        for bit in (0, 1, 5):
            content = bytearray(whole)
            content[place] ^= 1 << bit
            arrays = opened(bytes(content))
            if arrays is None:
                continue
            try:
                assert_same(rnn.parameters_from_arrays(type(parameters), arrays), parameters)
            except ValueError:
                refused += 1
    assert refused > 100


def test_an_entry_that_the_directory_lacks_is_missed():
    file = io.BytesIO()
    np.savez(file, **drawn("rnn")._asdict())
    content = bytearray(file.getvalue())
    # The length of a comment of the second entry, into which the next entries go.
    entry = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 4)
    content[entry + 33] ^= 1  # its higher byte
    with pytest.raises(ValueError, match=r"^arrays must be whole, got a damaged file"):
        rnn.parameters_from_arrays(rnn.RNNParameters, opened(bytes(content)))


@pytest.mark.parametrize("allow_pickle", [False, True])
@pytest.mark.parametrize("value", [[None, 1.0], {"a": 1}])
def test_objects_are_no_parameters(value, allow_pickle):
    arrays = {"weight_x": np.ones((2, 3)), "weight_h": np.eye(2)}
    bias = np.array(value, object)
    if bias.ndim or allow_pickle:
        file = io.BytesIO()
        np.savez(file, **arrays, bias=bias)
        file.seek(0)
        with pytest.raises(ValueError, match=r"^bias must hold numbers, got objects$"):
            rnn.parameters_from_arrays(rnn.RNNParameters, np.load(file, allow_pickle=allow_pickle))
    with pytest.raises(ValueError, match=r"^bias must hold numbers, got objects$"):
        rnn.parameters_from_arrays(rnn.RNNParameters, arrays | {"bias": bias})
