"""``numnorm apply``: normalize an array file of any size."""

from __future__ import annotations

import math
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from numnorm.commands.apply.arrayfile import (
    Array,
    ArrayFile,
    create_output,
    open_input,
    read_array,
)
from numnorm.commands.apply.blocks import boxes, steps, whole
from numnorm.commands.apply.methods import OPTIONS, STATISTICS, Job
from numnorm.commands.apply.statistics import (
    load_statistics,
    save_statistics,
    stream_statistics,
)
from numnorm.commands.errors import CommandError, CommandParser
from numnorm.commands.progress import progress_bar
from numnorm.commands.wholefile import appearing, check_writable

_DESCRIPTION = """\
Normalize the array in INPUT and write the result to OUTPUT, both .npy files.

The work is done in blocks through memory maps, so that the files may be larger than memory; only
what is normalized together must fit. The result is to the bit that of numnorm.METHOD on the whole
array. batch_norm takes the statistics of the array itself, in a pass of its own, or those that were
saved for another array: a test set is normalized by its training set. weight_norm is not offered,
because weights are not data. Floating point arrays keep their dtype; integers and booleans become
float64. OUTPUT appears when it is complete, or not at all. A process that is killed outright
(SIGKILL) leaves OUTPUT.numnorm-*.tmp beside it, which the next one removes."""

_LARGEST_BLOCK = sys.maxsize / 2**20
"""The number of mebibytes that the machine can address."""

_EPILOG = """\
examples:
  numnorm apply layer_norm activations.npy normalized.npy
  numnorm apply layer_norm images.npy normalized.npy --axis -2 -1 --gamma gamma.npy
  numnorm apply group_norm images.npy normalized.npy --groups 8 --eps 1e-6
  numnorm apply batch_norm train.npy train-normalized.npy --save-statistics train.npz
  numnorm apply batch_norm test.npy test-normalized.npy --statistics train.npz"""


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
    arguments = _parser().parse_args(argv)
    options = _options(arguments)
    _check_paths(arguments)
    with open(arguments.input, "rb") as file:
        source = open_input(file, arguments.input)
        if not source.shape:
            raise CommandError(f"{arguments.input} holds a single number: there is no axis")
        job = Job(arguments.method, options, source.shape)
        job.check(source.dtype)
        _apply(job, source, arguments)
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="numnorm apply",
        usage="%(prog)s METHOD INPUT OUTPUT [options]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("method", choices=OPTIONS, metavar="METHOD", help=", ".join(OPTIONS))
    parser.add_argument("input", type=Path, metavar="INPUT", help="the .npy file to read")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="the .npy file to write")
    given = parser.add_argument_group("options of the norms (a norm takes only its own)")
    given.add_argument("--gamma", type=Path, metavar="FILE", help="gain, an .npy file (default: 1)")
    given.add_argument("--beta", type=Path, metavar="FILE", help="bias, an .npy file (default: 0)")
    given.add_argument("--axis", type=int, nargs="+", help="axes to normalize over (default: -1)")
    given.add_argument("--channel-axis", type=int, metavar="AXIS", help="default: 1")
    given.add_argument("--groups", type=int, help="number of groups of channels")
    given.add_argument("--eps", type=float, help="added to the variance (default: 1e-5)")
    given.add_argument("--scale", type=float, help="C of ada_norm (default: 1)")
    given.add_argument("--k", type=float, help="k of ada_norm (default: 0.1)")
    given.add_argument(
        "--ddof", type=int, help="of ada_norm: its variance is over N - DDOF (default: 0)"
    )
    given.add_argument("--eps-in", choices=("variance", "std"), help="default: variance")
    statistics = given.add_mutually_exclusive_group()
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
    parser.add_argument("--force", action="store_true", help="replace files that exist")
    parser.add_argument(
        "--block-size",
        type=float,
        default=64.0,
        metavar="MIB",
        help="mebibytes to work on at a time; memory in use is a few times that (default: 64)",
    )
    return parser


def _options(arguments: Namespace) -> dict[str, Any]:
    """Return the given keywords of the norm; raise if it does not have one of them."""
    known = OPTIONS[arguments.method]
    every = {name for options in OPTIONS.values() for name in options}
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    for name in sorted(every & given.keys() - set(known)):
        own = ", ".join(map(_flag, known))
        raise CommandError(f"{_flag(name)} is not for {arguments.method}, which takes {own}")
    if arguments.method == "group_norm" and arguments.groups is None:
        raise CommandError("group_norm needs --groups")
    if not 0 < arguments.block_size <= _LARGEST_BLOCK:
        raise CommandError(
            f"--block-size must be positive and at most {_LARGEST_BLOCK:g}, "
            f"got {arguments.block_size:g}"
        )
    options = {name: given[name] for name in known if name in given and name not in STATISTICS}
    for name in {"gamma", "beta"} & options.keys():
        options[name] = read_array(options[name])
    if "axis" in options:
        options["axis"] = tuple(options["axis"])
    return options


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_paths(arguments: Namespace) -> None:
    source = arguments.input
    if not source.exists():
        raise CommandError(f"the input {source} does not exist")
    if not source.is_file():
        raise CommandError(f"the input {source} is not a regular file")
    read = {
        "input": source,
        "gain (--gamma)": arguments.gamma,
        "bias (--beta)": arguments.beta,
        "statistics (--statistics)": arguments.statistics,
    }
    written = [("output", arguments.output, ".npy")]
    if arguments.save_statistics is not None:
        written.append(("file of statistics", arguments.save_statistics, ".npz"))
    for name, target, suffix in written:
        for role, path in read.items():
            if path is not None and target.exists() and os.path.samefile(path, target):
                raise CommandError(f"the {name} {target} is the {role}: it would be overwritten")
        check_writable(target)
        if target.suffix.lower() != suffix:
            raise CommandError(f"the {name} {target} must end in {suffix}: no other is written")
        if target.exists() and not arguments.force:
            raise CommandError(f"the {name} {target} exists: --force replaces it")


def _apply(job: Job, source: ArrayFile, arguments: Namespace) -> None:
    """Write the result of `job`, in blocks."""
    path, block_size = arguments.output, int(arguments.block_size * 2**20)
    dtype = source.dtype.newbyteorder("=") if source.dtype.kind == "f" else np.dtype(np.float64)
    # Integers take more memory as floats than in the file.
    budget = block_size // max(source.dtype.itemsize, dtype.itemsize)
    size = math.prod(source.shape)
    saving = arguments.save_statistics
    if saving is not None and not size:
        raise CommandError(f"{arguments.input} is empty: it has no statistics")
    statistics = None
    if arguments.statistics is not None:
        assert job.channel_axis is not None
        statistics = load_statistics(arguments.statistics, source.shape[job.channel_axis])
    passes = 2 if job.method == "batch_norm" and statistics is None else 1
    with appearing(path) as file, progress_bar(job.method, passes * size) as done:
        target = create_output(file, path, source, dtype)
        if passes == 2 and size:
            assert job.channel_axis is not None
            statistics = stream_statistics(source, job.channel_axis, budget, done)
        if statistics is not None:
            job = _with_statistics(job, *statistics)
        step = steps(source.shape, source.by_storage(job.cuttable()), budget)
        for box in boxes(whole(source.shape), step):
            with target.written(box) as out:
                job.normalize(source.read(box), box, out)
            done(out.size)
            del out  # unmaps it
        if saving is not None and statistics is not None:
            save_statistics(saving, *statistics)


def _with_statistics(job: Job, mean: Array, variance: Array) -> Job:
    """Return batch norm with statistics of the whole array, so that it can run in parts."""
    given = {"running_mean": mean, "running_var": variance, "training": False}
    return replace(job, options={**job.options, **given})
