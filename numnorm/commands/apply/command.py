"""``numnorm apply``: normalize an array file of any size."""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Sequence
from inspect import Parameter
from pathlib import Path
from typing import Any, get_args

import numnorm
from numnorm.array_types import EpsIn, NanPolicy
from numnorm.commands.apply.formats import format_of, name_of
from numnorm.commands.apply.formats.npy import read_array
from numnorm.commands.apply.formats.protocol import Source
from numnorm.commands.apply.methods import ARRAYS, MOVING, NEEDED, OPTIONS, STATISTICS, Job
from numnorm.commands.apply.run import BLOCK_SIZE, apply
from numnorm.commands.outputs import check_file, is_begun
from numnorm.commands.terminal import CommandError, CommandParser
from numnorm.derived import parameter_texts, parameters_of
from numnorm.operating_system import WINDOWS

_DESCRIPTION = """\
Normalize the array in INPUT and write the result to OUTPUT. Each is an .npy file, a directory of
Zarr (version 2 or 3), or a dataset in an HDF5 file: FILE.h5::/NAME.

The work is done in blocks, so that the arrays may be larger than memory; only what is normalized
together must fit; but robust_norm reads larger rows several times. The result is to the bit that of
numnorm.METHOD on the whole array. batch_norm takes the statistics of the array itself, in a pass of
its own, or those that were saved for another array: a test set is normalized by its training set;
with --nan-policy omit, the statistics of several blocks are the same up to rounding. weight_norm is
not offered, because weights are not data. Floating point arrays keep their dtype; integers and
booleans become float64. OUTPUT has the chunks and the compression of INPUT, if nothing else is
given. It appears when it is complete, or not at all. A process that is killed outright (SIGKILL)
leaves OUTPUT.numnorm-*.tmp beside it, which the next one removes; that of Zarr or of --resume, the
next one to the same OUTPUT."""

# They change no byte, or have another name in a request.
_REQUESTED_OTHERWISE = {"norm", "input", "output", "force", "resume", "scheduler"}

_MARKUP = re.compile(r"(?::math:)?`+([^`]*)`+")

_LARGEST_BLOCK = sys.maxsize / 2**20
"""The number of mebibytes that the machine can address."""

_EPILOG = """\
examples:
  numnorm apply layer_norm activations.npy normalized.npy
  numnorm apply layer_norm images.npy normalized.npy --axis -2 -1 --gamma gamma.npy
  numnorm apply standard_normal_variate spectra.npy corrected.npy --ddof 1 --nan-policy omit
  numnorm apply group_norm images.npy normalized.npy --groups 8 --eps 1e-6
  numnorm apply batch_norm train.npy train-normalized.npy --save-statistics train.npz
  numnorm apply batch_norm test.npy test-normalized.npy --statistics train.npz
  numnorm apply robust_norm trace.npy normalized.npy --scale iqr --factor normal
  numnorm apply moving_norm eeg.npy normalized.npy --axis 0 --window 300 --center
  numnorm apply layer_norm data.h5::/images normalized.zarr --compression zstd:3 --resume"""


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str
        The words after ``numnorm apply``.

    Returns
    -------
    int
        The exit status, 0; errors are raised.
    """
    arguments = _parser(argv).parse_args(argv)
    options = _options(arguments)
    _check_paths(arguments)
    with format_of(arguments.input).opened(arguments.input) as source:
        if not source.shape:
            raise CommandError(f"{arguments.input} holds a single number: there is no axis")
        job = Job(arguments.norm, options, source.shape)
        job.check(source.dtype)
        request = _request(arguments, source)
        if job.streams:  # the parts are others on a cluster
            request["--scheduler"] = arguments.scheduler is not None
        apply(job, source, arguments, request)
    return 0


def _parser(argv: Sequence[str]) -> CommandParser:
    parser = CommandParser(
        prog="numnorm apply",
        usage="%(prog)s METHOD INPUT OUTPUT [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("norm", choices=OPTIONS, metavar="METHOD", help=", ".join(OPTIONS))
    parser.add_argument("input", metavar="INPUT", help="the array to read")
    parser.add_argument("output", metavar="OUTPUT", help="the array to write")
    _add_norms(parser, next((word for word in argv if word in OPTIONS), None))
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    parser.add_argument(
        "--block-size",
        type=float,
        metavar="MIB",
        help="mebibytes to work on at a time; memory in use is a few times that "
        f"(default: {BLOCK_SIZE}, or as much as whole chunks need)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on where a run to the same OUTPUT stopped, and let this one be resumed after an "
        "error, too; not for HDF5",
    )
    storage = parser.add_argument_group("options of Zarr and HDF5")
    storage.add_argument("--chunks", type=_length, nargs="+", metavar="N", help="lengths of chunks")
    storage.add_argument(
        "--compression",
        type=_compression,
        metavar="NAME[:LEVEL]",
        help="gzip, zstd, blosc or none for Zarr; gzip, lzf or none for HDF5",
    )
    storage.add_argument(
        "--zarr-format", type=int, choices=(2, 3), help="default: that of INPUT, or 3"
    )
    storage.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="work on a Dask cluster, whose workers reach both arrays by the same paths; "
        "OUTPUT is a Zarr array",
    )
    return parser


_DESCRIBED: dict[str, dict[str, Any]] = {
    "axis": {"nargs": "+"},
    "channel_axis": {"metavar": "AXIS"},
    "window": {"metavar": "STEPS"},
    "min_window": {"metavar": "STEPS"},
    "initial": {"metavar": "STEPS"},
}
"""What the parser must know of options beside their types."""


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


_KINDS: dict[str, dict[str, Any]] = {
    "Axis": {"type": int},
    "Integer": {"type": int},
    "NanPolicy": {"choices": get_args(NanPolicy)},
    "EpsIn": {"choices": get_args(EpsIn)},
    "Center": {"type": _number_or_word},
    "Scale": {"type": _number_or_word, "nargs": "+"},
    "Factor": {"type": _number_or_word},
    "Method": {"type": str},
}
"""How the value of an option is read, by the first word of its type; others are numbers."""


def _add_norms(parser: CommandParser, chosen: str | None) -> None:
    """Add the options of all norms, each as the chosen one has it, or else the first one."""
    norms = parser.add_argument_group("options of the norms (a norm takes only its own)")
    signatures: dict[str, Parameter] = {}
    for method in [*([] if chosen is None else [chosen]), *OPTIONS]:
        own = parameters_of(getattr(numnorm, method))
        for name in OPTIONS[method]:
            if name not in STATISTICS:
                signatures.setdefault(name, own[name])
    for name, parameter in signatures.items():
        kind, described = str(parameter.annotation), _DESCRIBED.get(name, {})
        if kind == "bool":
            is_on = parameter.default is True
            flag = _flag(name, switch=is_on)
            described = {"action": "store_const", "const": not is_on, "dest": name}
        elif name in ARRAYS:
            flag, described = _flag(name), {"type": Path, "metavar": "FILE"}
        else:
            read = _KINDS.get(kind.partition(" ")[0], {"type": float})
            flag, described = _flag(name), {**read, **described}
        norms.add_argument(flag, help=_help_of(name), **described)
    statistics = norms.add_mutually_exclusive_group()
    statistics.add_argument(
        "--statistics",
        type=Path,
        metavar="FILE",
        help="an .npz file with mean and var of the channels, for batch_norm (default: of INPUT)",
    )
    statistics.add_argument(
        "--save-statistics",
        type=Path,
        metavar="FILE",
        help="where to write the statistics of INPUT",
    )


def _help_of(option: str) -> str:
    """Return a line for each meaning of an option: the norms, the type and the first sentence.

    Of sentences that differ behind a colon, the line has what they share.
    """
    meanings: dict[tuple[str, str], dict[str, str]] = {}
    for method, options in OPTIONS.items():
        if option in options:
            kind, sentence = _first_words(method, option)
            own = meanings.setdefault((kind, sentence.partition(": ")[0]), {})
            own[method] = sentence
    lines = []
    for (kind, shared), sentences in meanings.items():
        first, *others = set(sentences.values())
        lines.append(f"of {', '.join(sentences)} ({kind}): {shared if others else first}")
    return "\n".join(lines).replace("%", "%%")


def _first_words(method: str, option: str) -> tuple[str, str]:
    """Return the type of an option of a norm, and the first sentence that its docstring has."""
    entry = parameter_texts(getattr(numnorm, method)).get(option, "")
    kind, _, text = _MARKUP.sub(r"\1", entry).partition("\n")
    kind = ".npy file" if option in ARRAYS else kind.removeprefix(" : ")
    return kind, " ".join(text.split()).partition(". ")[0].removesuffix(".")


def _length(text: str) -> int:
    length = int(text)
    if length < 1:
        raise ValueError
    return length


def _compression(text: str) -> tuple[str, int | None]:
    name, colon, level = text.partition(":")
    return name, int(level) if colon else None


def _options(arguments: Namespace) -> dict[str, Any]:
    """Return the keywords of the norm that are given; raise if it does not have one of them."""
    known = OPTIONS[arguments.norm]
    every = {name for options in OPTIONS.values() for name in options}
    stated = {name: value for name, value in vars(arguments).items() if value is not None}
    for name in sorted(every & stated.keys() - set(known)):
        own = ", ".join(_flag(each, _is_switch(each)) for each in known)
        raise CommandError(
            f"{_flag(name, stated[name] is False)} is not for {arguments.norm}, which takes {own}"
        )
    for needed in NEEDED[arguments.norm]:
        if needed not in stated:
            raise CommandError(f"{arguments.norm} needs {_flag(needed)}")
    if arguments.block_size is not None and not 0 < arguments.block_size <= _LARGEST_BLOCK:
        raise CommandError(
            f"--block-size must be positive and at most {_LARGEST_BLOCK:g}, "
            f"got {arguments.block_size:g}"
        )
    options = {name: stated[name] for name in known if name in stated and name not in STATISTICS}
    for name in ARRAYS & options.keys():
        options[name] = read_array(options[name])
    if isinstance(options.get("scale"), list):
        first, *others = options["scale"]
        options["scale"] = (first, *others) if others else None if first == "none" else first
    if "axis" in options:
        axes = tuple(options["axis"])
        if arguments.norm in MOVING and len(axes) > 1:
            raise CommandError(f"--axis must be one axis for {arguments.norm}, got {axes}")
        options["axis"] = axes[0] if arguments.norm in MOVING else axes
    return options


def _flag(name: str, switch: bool = False) -> str:
    return ("--no-" if switch else "--") + name.replace("_", "-")


def _is_switch(option: str) -> bool:
    """Return whether an option is on unless it is switched off."""
    method = next(method for method, options in OPTIONS.items() if option in options)
    parameter = parameters_of(getattr(numnorm, method)).get(option)
    return parameter is not None and parameter.default is True


def _check_paths(arguments: Namespace) -> None:
    """Raise if an output cannot be written, or would overwrite what is read."""
    source = format_of(arguments.input)
    module = format_of(arguments.output)
    read = {
        "input": source.place(arguments.input),
        "gain (--gamma)": arguments.gamma,
        "bias (--beta)": arguments.beta,
        "statistics (--statistics)": arguments.statistics,
    }
    written = {"output": module.place(arguments.output)}
    if arguments.save_statistics is not None:
        written["file of statistics"] = arguments.save_statistics
    for name, target in written.items():
        for role, path in read.items():
            if path is None:
                continue
            same = one_file = target.exists() and path.exists() and os.path.samefile(path, target)
            if same and (name, role) == ("output", "input") and module is source:
                same = module.is_same(arguments.input, arguments.output)
            if same:
                raise CommandError(f"the {name} {target} is the {role}: it would be overwritten")
            if one_file and WINDOWS:
                raise CommandError(
                    f"the {name} {target} is the file of the {role}: Windows replaces no open file"
                )
            inner = Path(os.path.realpath(path))
            outer = Path(os.path.realpath(target))
            if outer in inner.parents:
                raise CommandError(f"the {role} {path} is inside the {name} {target}")
            if inner in outer.parents:
                raise CommandError(f"the {name} {target} is inside the {role} {path}")
    module.check_output(arguments.output, arguments.force)
    if arguments.save_statistics is not None:
        # An earlier run may have written it just before its end: `apply` looks into the journal.
        later = arguments.resume and is_begun(module.place(arguments.output))
        replace = arguments.force or later
        check_file(arguments.save_statistics, "file of statistics", (".npz",), replace)
    if arguments.scheduler is not None and name_of(arguments.output) != "zarr":
        raise CommandError(
            "--scheduler writes Zarr alone: workers cannot write to one file at once"
        )


def _request(arguments: Namespace, source: Source) -> dict[str, Any]:
    """Return all that the bytes of the output depend on, for JSON."""
    request: dict[str, Any] = {"version of numnorm": numnorm.__version__}
    for name, value in vars(arguments).items():
        if name in _REQUESTED_OTHERWISE:
            continue
        if isinstance(value, Path) and name != "save_statistics":
            value = _digest(value)
        request[_flag(name)] = str(value) if isinstance(value, Path) else value
    request["METHOD"] = arguments.norm
    request["INPUT"] = [
        os.path.realpath(format_of(arguments.input).place(arguments.input)),
        arguments.input.partition("::")[2],
        list(source.shape),
        source.dtype.str,
        source.identity(),
    ]
    return request


def _digest(path: Path) -> str:
    import hashlib  # loads OpenSSL

    return hashlib.sha256(path.read_bytes()).hexdigest()
