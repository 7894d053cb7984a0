"""``numnorm demo``: how fast small networks learn with each norm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from numnorm.commands.compile.calls import Job, prepare
from numnorm.commands.demo import classifier, classifier_report, lstm, lstm_report
from numnorm.commands.demo.training import Samples, compare
from numnorm.commands.outputs import appearing, check_writable
from numnorm.commands.terminal import CommandError, CommandParser, require

VALIDATION = 597
"""A third of the digits."""

_DESCRIPTION = """\
Train the digits classifier of the layer-normalization paper (here 64-256-256-10 on the 1,797
handwritten digits that come with scikit-learn) at batch sizes 128 and 4 with no norm, batch, layer
and RMS norm and AdaNorm, and compare the validation errors in a table and a picture.

Every norm gets the same initial weights, the same batches and the same settings. With --seeds this
is repeated for other weights, batches and validation images, and means and standard deviations are
shown. The walks of `lstm` are the same for every seed.

`numnorm demo lstm` does so with LSTMs without normalization, with batch norm and with layer norm:
on the digits, read row by row, 32, 4 and 1 at a time and cut short, and on walks around a square,
of which the last two points are to be told from the first two."""


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str
        The words after ``numnorm demo``.

    Returns
    -------
    int
        The exit status, 0.
    """
    arguments = _parser().parse_args(argv)
    if arguments.epochs < 1:
        raise CommandError(f"--epochs must be at least 1, got {arguments.epochs}")
    if arguments.seeds < 1:
        raise CommandError(f"--seeds must be at least 1, got {arguments.seeds}")
    if arguments.seed < 0:
        raise CommandError(f"--seed must not be negative, got {arguments.seed}")
    recurrent = arguments.network == "lstm"
    output = arguments.output or Path("numnorm-demo-lstm.png" if recurrent else "numnorm-demo.png")
    # Missing folders and packages are reported before the work starts.
    check_writable(output)
    for name in ("rich", "matplotlib", "sklearn.datasets", "threadpoolctl"):
        require(name)
    networks, report = (lstm, lstm_report) if recurrent else (classifier, classifier_report)
    # What takes longest comes last in the tables.
    prepare([Job(networks.first_step, (name,)) for name in reversed(networks.NORMS)])
    runs = []
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        images = digits(seed)
        tasks = (
            lstm.tasks(images, arguments.epochs, seed)
            if recurrent
            else classifier.tasks(images, arguments.epochs)
        )
        runs.append(compare(tasks, networks.NORMS, seed))
    report.print_report(runs)
    with appearing(output) as file:
        report.draw(runs, file)
    print(f"The picture is {output}.")
    return 0


def _parser() -> CommandParser:
    parser = CommandParser(prog="numnorm demo", description=_DESCRIPTION)
    parser.add_argument("network", nargs="?", choices=("lstm",), help="compare LSTMs instead")
    parser.add_argument(
        "--epochs",
        type=int,
        default=12,
        help="default: %(default)s; of lstm, for digits 32 at a time, from which the others follow",
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed; default: %(default)s")
    parser.add_argument(
        "--seeds",
        type=int,
        default=1,
        metavar="N",
        help="seeds to take, one after the other; default: %(default)s",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the picture (default: numnorm-demo.png; of lstm, numnorm-demo-lstm.png)",
    )
    return parser


def digits(seed: int) -> tuple[Samples, Samples]:
    """Return scikit-learn's handwritten digits in random order, pixels from 0 to 1.

    Parameters
    ----------
    seed : int
        The seed of the order.

    Returns
    -------
    tuple
        Images and labels for training; images and labels for validation.
    """
    images, labels = require("sklearn.datasets").load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(images))
    images = (images[order] / 16).astype(np.float32)
    labels = labels[order]
    return (images[VALIDATION:], labels[VALIDATION:]), (images[:VALIDATION], labels[:VALIDATION])
