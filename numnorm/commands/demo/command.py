"""``numnorm demo``: how fast small networks learn with each norm."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from numnorm.commands.compile.ahead import prepare
from numnorm.commands.compile.calls import Job
from numnorm.commands.demo import curves
from numnorm.commands.demo.classifier import Classifier
from numnorm.commands.demo.layers import AdaNorm, Array, BatchNorm, LayerNorm, NoNorm, Norm, RmsNorm
from numnorm.commands.demo.recurrent import cells, comparison, pictures, report
from numnorm.commands.demo.training import one_thread, train, watched
from numnorm.commands.errors import CommandError, CommandParser, require
from numnorm.commands.wholefile import appearing, check_writable

NORMS: dict[str, type[Norm]] = {
    "none": NoNorm,
    "batch": BatchNorm,
    "layer": LayerNorm,
    "RMS": RmsNorm,
    "Ada": AdaNorm,
}
BATCH_SIZES = (128, 4)
HIDDEN = (256, 256)
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
Data = tuple[tuple[Array, Array], tuple[Array, Array]]


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
    first_step, names = (
        (comparison.first_step, cells.NORMS) if recurrent else (first_classifier_step, NORMS)
    )
    # What takes longest comes last in the tables.
    prepare([Job(first_step, (name,)) for name in reversed(names)])
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


def _classifiers(data: Data, epochs: int, seed: int) -> Draw:
    """Compare the norms in the classifier, print the results, and return their drawing."""
    results = compare(data, epochs, seed)
    curves.print_tables(results)
    curves.print_conclusions(results, len(data[1][1]))
    return functools.partial(curves.draw, results)


def _lstms(data: Data, epochs: int, seed: int) -> Draw:
    """Compare the LSTMs, print the results, and return their drawing."""
    results = comparison.compare(comparison.tasks(data, epochs, seed), seed)
    report.print_report(results)
    return functools.partial(pictures.draw, results)


def digits(seed: int) -> Data:
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
    images, labels = (images[order] / 16).astype(np.float32), labels[order]
    return (images[VALIDATION:], labels[VALIDATION:]), (images[:VALIDATION], labels[:VALIDATION])


def compare(
    data: Data, epochs: int, seed: int, batch_sizes: Iterable[int] = BATCH_SIZES
) -> curves.Results:
    """Train with each norm at each batch size.

    Parameters
    ----------
    data : tuple
        Images and labels for training; images and labels for validation.
    epochs : int
        The number of passes over the training images.
    seed : int
        The seed of the weights and of the order of the images, the same for all networks.
    batch_sizes : iterable of int
        The batch sizes.

    Returns
    -------
    dict
        For each batch size and each norm the validation error in percent after each epoch.
    """
    with one_thread():
        return {
            batch_size: {name: _errors(data, name, batch_size, epochs, seed) for name in NORMS}
            for batch_size in batch_sizes
        }


def first_classifier_step(name: str) -> None:
    """Train a tiny classifier for an epoch, so that the kernels of its norm are compiled."""
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((2, 4), np.float32), np.zeros(2, int)
    next(train(Classifier((4, 4, 10), NORMS[name], rng), samples, samples, 2, rng))


def _errors(data: Data, name: str, batch_size: int, epochs: int, seed: int) -> list[float]:
    training, validation = data
    widths = (training[0].shape[1], *HIDDEN, 10)
    network = Classifier(widths, NORMS[name], np.random.default_rng(seed))
    order = np.random.default_rng([seed, batch_size])
    errors = train(network, training, validation, batch_size, order)
    return watched(f"batch size {batch_size:>3}, {name:<5}", errors, epochs)
