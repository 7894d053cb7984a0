"""Progress bars on stderr, if it is a terminal, and there the messages of numnorm."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs, if stderr is a terminal and rich is installed.

    What numnorm says meanwhile through `logging` stands above it.

    Parameters
    ----------
    description : str
        What is being done.
    total : int
        The number of units of work.

    Yields
    ------
    callable
        Call it with the number of units done since its last call.
    """
    # After `2>&-`, stderr is None.
    if sys.stderr is None or not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bars, _messages_to(bars.console):
        bar = bars.add_task(description, total=total)
        yield lambda amount: bars.advance(bar, amount)


@contextmanager
def _messages_to(console: Any) -> Iterator[None]:
    """Print the messages of numnorm's logger on a console of rich while the block runs."""
    logger, handler = logging.getLogger("numnorm"), logging.Handler(logging.INFO)
    handler.emit = lambda record: console.print(record.getMessage(), markup=False, highlight=False)  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
