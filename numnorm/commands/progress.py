"""Progress bars on stderr, if it is a terminal, and there the messages of numnorm."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(description: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs, if stderr is a terminal and rich is installed.

    A second one moves while a kernel is being compiled. What numnorm says meanwhile through
    `logging` stands above them.

    Parameters
    ----------
    description : str
        What is being done.
    total : int
        The number of units of work.
    done : int, default 0
        The number of units that were done before.

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

    bars = Progress(console=Console(stderr=True))
    with bars, _messages_to(bars.console), _compiling(bars):
        bar = bars.add_task(description, total=total, completed=done)
        yield lambda amount: bars.advance(bar, amount)


@contextmanager
def _compiling(bars: Any) -> Iterator[None]:
    """Show a moving bar whenever something is compiled while the block runs."""
    from numba.core import event

    bar = bars.add_task("compiling", total=None, visible=False)
    depth = 0

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, started: Any) -> None:
            nonlocal depth
            depth += 1
            bars.update(bar, visible=True)

        def on_end(self, ended: Any) -> None:
            nonlocal depth
            depth -= 1
            bars.update(bar, visible=depth > 0)

    with event.install_listener("numba:compile", Listener()):
        yield


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
