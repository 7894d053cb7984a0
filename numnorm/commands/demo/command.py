"""``numnorm demo``: how fast small networks learn with each norm."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from numnorm.commands.compile.calls import Job, prepare
from numnorm.commands.demo import classifier, classifier_report, lstm, lstm_report
from numnorm.commands.outputs import appearing, check_writable
from numnorm.commands.terminal import CommandError, CommandParser, require

VALIDATION = 597
"""A third of the digits."""

_DESCRIPTION = """\
Train the digits classifier of the layer-normalization paper (here 64-256-256-10 on the 1,797
handwritten digits that come with scikit-learn) at batch sizes 128 and 4 with no norm, batch, layer
and RMS norm and AdaNorm, and compare the validation errors in a table and a picture.

Every norm gets the same initial weights, the same batches and the same settings.

`numnorm demo lstm` does so with LSTMs without normalization, with batch norm and with layer norm:
on the digits, read row by row, 32, 4 and 1 at a time and cut short, and on walks around a square,
of which the last two points are to be told from the first two."""

Draw = Callable[[BinaryIO], None]


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
    if arguments.seed < 0:
        raise CommandError(f"--seed must not be negative, got {arguments.seed}")
    recurrent = arguments.network == "lstm"
    output = arguments.output or Path("numnorm-demo-lstm.png" if recurrent else "numnorm-demo.png")
    # Missing folders and packages are reported before the work starts.
    check_writable(output)
    for name in ("rich", "matplotlib", "threadpoolctl"):
        require(name)
    data = digits(arguments.seed)
    networks = lstm if recurrent else classifier
    # What takes longest comes last in the tables.
    prepare([Job(networks.first_step, (name,)) for name in reversed(networks.NORMS)])
    show = _lstms if recurrent else _classifiers
    draw = show(data, arguments.epochs, arguments.seed)
    with appearing(output) as file:
        draw(file)
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
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the picture (default: numnorm-demo.png; of lstm, numnorm-demo-lstm.png)",
    )
    return parser


def _classifiers(data: classifier.Data, epochs: int, seed: int) -> Draw:
    """Compare the norms in the classifier, print the results, and return their drawing."""
    results = classifier.compare(data, epochs, seed)
    classifier_report.print_tables(results)
    classifier_report.print_conclusions(results, len(data[1][1]))
    return functools.partial(classifier_report.draw, results)


def _lstms(data: classifier.Data, epochs: int, seed: int) -> Draw:
    """Compare the LSTMs, print the results, and return their drawing."""
    results = lstm.compare(lstm.tasks(data, epochs, seed), seed)
    lstm_report.print_report(results)
    return functools.partial(lstm_report.draw, results)


def digits(seed: int) -> classifier.Data:
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
