"""Files of the parameters of recurrent cells, and parameters from arrays by name.

A file of `save` is an .npz file: the arrays by names such as ``layers[1][0].weight_x``, and one
entry with a description of the layers in JSON. Nothing in it is pickled.
"""

import contextlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from numnorm.arguments import brief, check_dtype, result_dtype
from numnorm.array_likes import as_plain_array
from numnorm.rnn.batch_statistics import LSTMStatistics
from numnorm.rnn.parameters import KINDS
from numnorm.rnn.passes import Packed, pack

Array = np.ndarray[Any, Any]

_KINDS = {kind.parameters: kind for kind in KINDS}
_TYPES = {kind.__name__: kind for kind in (*_KINDS, LSTMStatistics)}
_DESCRIPTION = "numnorm.rnn"
_VERSION = 1
# The bytes before the name of an entry of a zip archive, and the most that may follow its content:
# fields for large files.
_HEADER, _MOST_BETWEEN = 30, 64


def save(path: str | os.PathLike[str], layers: Any) -> None:
    """Write the parameters of recurrent cells to an .npz file, whole or not at all.

    Parameters
    ----------
    path : str or path-like
        The file, which needs no suffix. An existing one is replaced in one step when the new one is
        complete; after an error it is as it was, and one without write permission stays.
    layers : parameters, list or tuple
        `LSTMParameters`, `ProjectedLSTMParameters`, `GRUParameters`, `RNNParameters`,
        `LSTMStatistics` or packed parameters; or lists and tuples of them, such as the layers of
        `stacked`. Their arrays lie on the host.

    Raises
    ------
    TypeError
        If `layers` holds something else, or an array has an unsupported dtype.
    OSError
        If the file cannot be written.

    See Also
    --------
    load : Read the file.

    Notes
    -----
    ``numpy.load`` reads the arrays, too, by names such as ``layers[1][0].weight_x`` for the forward
    direction of the second layer; bfloat16 is stored as uint16. The options of calls, such as
    `norm` and `eps`, are no part of parameters, except of packed ones.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> layers = [rnn.lstm_init(3, 2, rng=rng), rnn.gru_init(2, 4, rng=rng)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rnn.save(f"{folder}/layers.npz", layers)
    ...     loaded = rnn.load(f"{folder}/layers.npz")
    >>> type(loaded[1]).__name__, bool((loaded[1].weight_x == layers[1].weight_x).all())
    ('GRUParameters', True)
    """
    from numnorm.files import replacing  # late: most programs write no file

    path, arrays = _path(path), dict[str, Any]()
    text = json.dumps({"version": _VERSION, "layers": _described("layers", layers, arrays)})
    arrays[_DESCRIPTION] = np.array(text)
    with replacing(path) as file:
        np.savez(file, **arrays)


def load(path: str | os.PathLike[str]) -> Any:
    """Return the parameters of recurrent cells from a file of `save`.

    Parameters
    ----------
    path : str or path-like
        The file. Nothing in it is unpickled.

    Returns
    -------
    parameters, list or tuple
        What was saved: the same types, dtypes and values, with new NumPy arrays.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged, compressed, of another format version, or no file of `save`.
    ImportError
        If it holds bfloat16, and ml_dtypes is not installed.

    See Also
    --------
    save : Write the file.
    parameters_from_arrays : Parameters from the file of ``numpy.savez``.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rnn.save(f"{folder}/cell.npz", rnn.RNNParameters(np.ones((2, 3)), np.eye(2)))
    ...     parameters = rnn.load(f"{folder}/cell.npz")
    >>> parameters.weight_x.shape, parameters.bias
    ((2, 3), None)
    """
    import zipfile  # late: most programs read no file

    path = _path(path)
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(
                f"{path} must be a file of numnorm.rnn.save, got what is no whole .npz file"
            )
        with _naming_damage(path):
            archive = zipfile.ZipFile(file)
            described = f"{_DESCRIPTION}.npy" in archive.namelist()
            text = str(_read(archive, _DESCRIPTION)) if described else "null"
            description = json.loads(text)
        if not isinstance(description, dict):
            raise ValueError(
                f"{path} must be a file of numnorm.rnn.save, got an .npz file of other arrays, "
                f"which parameters_from_arrays takes by name"
            )
        version = description.get("version")
        if version != _VERSION:
            raise ValueError(
                f"{path} must have the format version {_VERSION}, got {brief(version)}"
            )
        with _naming_damage(path):
            names = {name.removesuffix(".npy") for name in archive.namelist()} - {_DESCRIPTION}
            arrays = {name: _read(archive, name) for name in names}
            layers = _restored("layers", description["layers"], arrays)
            if arrays:
                raise ValueError(f"{min(arrays)} belongs to no layer")
    return layers


@contextlib.contextmanager
def _naming_damage(path: Path | str) -> Iterator[None]:
    """Turn the errors of the block, of which zipfile and numpy raise many kinds, into one."""
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{path} must be whole, got a damaged file ({reason})") from error


def _path(path: Any) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise TypeError(f"path must be a str or path-like, got {brief(path)}") from None


def _described(name: str, value: Any, arrays: dict[str, Array]) -> dict[str, Any]:
    """Return the description of parameters for `_restored`, and put their arrays into `arrays`."""
    if type(value) in (list, tuple):
        elements = [_described(f"{name}[{n}]", item, arrays) for n, item in enumerate(value)]
        return {type(value).__name__: elements}
    if isinstance(value, Packed):
        return {
            "packed": _described(name, value.given, arrays),
            "options": value.kind.choices_of(value.spec),
            "dtype": value.dtype.name,
        }
    if type(value) not in _TYPES.values():
        raise TypeError(
            f"{name} must be {', '.join(_TYPES)}, Packed, or a list or tuple of them, "
            f"got an object of type {type(value).__name__}"
        )
    fields: dict[str, str | None] = {}
    for field, given in value._asdict().items():
        fields[field] = None
        if given is not None:
            key = f"{name}.{field}"
            array = as_plain_array(key, given)
            result_dtype(key, array.dtype)
            fields[field] = array.dtype.name
            arrays[key] = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    return {"type": type(value).__name__, "fields": fields}


def _restored(name: str, description: dict[str, Any], arrays: dict[str, Array]) -> Any:
    """Return what was described, and remove its arrays from `arrays`."""
    for container in (list, tuple):
        if container.__name__ in description:
            elements = description[container.__name__]
            return container(_restored(f"{name}[{n}]", e, arrays) for n, e in enumerate(elements))
    if "packed" in description:
        parameters = _restored(name, description["packed"], arrays)
        kind = _KINDS[type(parameters)]
        spec = kind.make_spec(*description["options"])
        return pack(kind, spec, parameters, description["dtype"])
    values: dict[str, Any] = {}
    for field, dtype in description["fields"].items():
        if dtype is None:
            values[field] = None
            continue
        array = arrays.pop(f"{name}.{field}")
        if dtype == "bfloat16":
            array = _of_bfloat16(f"{name}.{field}", array)
        if array.dtype.name != dtype:
            raise ValueError(f"{name}.{field} has dtype {array.dtype.name}, not {dtype}")
        values[field] = array
    return _TYPES[description["type"]](**values)


def _of_bfloat16(name: str, words: Array) -> Array:
    """Return an array of bfloat16 from words of two bytes."""
    try:
        import ml_dtypes  # noqa: F401  # NumPy knows the name from then on
    except ImportError as error:
        raise ImportError(
            f'{name} has dtype bfloat16, which needs ml_dtypes: pip install "numnorm[bfloat16]"'
        ) from error
    return words.view(check_dtype("bfloat16"))


def _read(archive: Any, name: str) -> Array:
    """Return an array of a file of `save`."""
    entry = archive.getinfo(f"{name}.npy")
    # `save` compresses nothing, and a small compressed file could fill the memory.
    if entry.compress_type:
        raise ValueError(f"{name} is compressed")
    # It is read whole, so that its checksum is compared before anything is parsed.
    content = io.BytesIO(archive.read(entry))
    result: Array = np.lib.format.read_array(content, allow_pickle=False)
    return result


def parameters_from_arrays(kind: Any, arrays: Mapping[str, Any]) -> Any:
    """Return parameters from arrays by name, such as the file of ``numpy.savez``.

    A parameter that is None is stored by ``savez`` as an object, which ``numpy.load`` does not read
    unless it may unpickle; here it becomes None again without that. Arrays of bfloat16, which such
    a file holds without the name of their dtype, are of bfloat16 again. A file that ``numpy.load``
    has opened is read whole first, and refused if it is damaged.

    Parameters
    ----------
    kind : type
        `LSTMParameters`, `ProjectedLSTMParameters`, `GRUParameters` or `RNNParameters`.
    arrays : mapping of str to array
        Has no names but those of the parameters; a parameter that it lacks is None.

    Returns
    -------
    LSTMParameters, ProjectedLSTMParameters, GRUParameters or RNNParameters

    Raises
    ------
    TypeError
        If `kind` is no such type, or `arrays` is no mapping.
    ValueError
        If a weight is missing, a name is unknown, an array holds objects, or a file is damaged.

    Examples
    --------
    >>> import io
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> file = io.BytesIO()  # or the name of a file, which needs no `seek`
    >>> parameters = rnn.RNNParameters(np.ones((2, 3)), np.eye(2))
    >>> np.savez(file, **parameters._asdict())
    >>> start = file.seek(0)
    >>> loaded = rnn.parameters_from_arrays(rnn.RNNParameters, np.load(file))
    >>> loaded.weight_x.shape, loaded.bias
    ((2, 3), None)
    """
    if kind not in _KINDS:
        names = ", ".join(known.__name__ for known in _KINDS)
        raise TypeError(f"kind must be one of {names}, got {brief(kind)}")
    if not isinstance(arrays, Mapping):
        raise TypeError(f"arrays must be a mapping, such as of numpy.load, got {brief(arrays)}")
    if isinstance(arrays, np.lib.npyio.NpzFile):
        with _naming_damage("arrays"):
            _check_whole(arrays.zip)
    for name in arrays:
        if name not in kind._fields:
            raise ValueError(f"arrays must have names of {kind.__name__}, got {name!r}")
    values = {name: _present(arrays, name) for name in arrays}
    for name in kind._fields:
        if name not in kind._field_defaults and values.get(name) is None:
            raise ValueError(f"arrays must have {name!r}, which is missing")
    return kind(**values)


def _check_whole(archive: Any) -> None:
    """Raise unless every entry has its checksum, and none is missing between the others."""
    damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} has another checksum")
    end = 0
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        _check_gap(end, entry.header_offset)
        end = entry.header_offset + _HEADER + len(entry.filename) + entry.compress_size
    _check_gap(end, archive.start_dir)


def _check_gap(end: int, start: int) -> None:
    """Raise if there is room for an array between the end of an entry and the next one."""
    if start - end > _MOST_BETWEEN:
        raise ValueError(f"{start - end} bytes belong to no array")


def _present(arrays: Mapping[str, Any], name: str) -> Any:
    """Return an array, or None for one that stands for None."""
    try:
        value = arrays[name]
    except ValueError as error:
        if "allow_pickle" not in str(error) or not isinstance(arrays, np.lib.npyio.NpzFile):
            raise
        if not _is_one_object(arrays.zip, name):
            raise ValueError(f"{name} must hold numbers, got objects") from None
        return None
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            if value.shape != () or value.item() is not None:
                raise ValueError(f"{name} must hold numbers, got objects")
            return None
        if value.dtype == np.dtype("V2"):  # as NumPy reads bfloat16, whose name its files lack
            return _of_bfloat16(name, value)
    return value


def _is_one_object(archive: Any, name: str) -> bool:
    """Return whether an array of objects has no axes, as None has in a file."""
    with archive.open(f"{name}.npy") as file:
        if np.lib.format.read_magic(file) != (1, 0):
            return False
        return bool(np.lib.format.read_array_header_1_0(file)[0] == ())
