"""Progress bars on stderr, if it is a terminal."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs, if stderr is a terminal and rich is installed.

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

    with Progress(console=Console(stderr=True)) as bars:
        bar = bars.add_task(description, total=total)
        yield lambda amount: bars.advance(bar, amount)
