"""What the commands share at a terminal: arguments, errors in one line, signals, progress bars."""

from __future__ import annotations

import _thread
import argparse
import functools
import importlib
import importlib.util
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn


class CommandError(Exception):
    """An error for the user, in one line."""


class _KeptLines(argparse.RawDescriptionHelpFormatter):
    """A formatter that keeps the line breaks of a description and of the help of an option."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        wrapped = [super(_KeptLines, self)._split_lines(line, width) for line in text.splitlines()]
        return [line for lines in wrapped for line in lines]


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose help keeps its line breaks.

    Parameters
    ----------
    **options
        The arguments of :class:`argparse.ArgumentParser`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_KeptLines, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Exit with status 2 and only `message`: the usage is in ``--help``."""
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(2)


def one_line(error: BaseException) -> str:
    """Return the message of `error` without line breaks.

    Parameters
    ----------
    error : BaseException
        The error.

    Returns
    -------
    str
        For an error of the operating system, the file and the reason without its number.
    """
    if isinstance(error, OSError) and error.strerror:
        file = f"{error.filename}: " if error.filename is not None else ""
        return f"{file}{error.strerror}"
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}" if str(error) else "not enough memory"
    return " ".join(str(error).split())


def require(name: str, extra: str = "demo") -> Any:
    """Import a module of an optional extra.

    Parameters
    ----------
    name : str
        The full name of the module.
    extra : str, default "demo"
        The name of the extra.

    Returns
    -------
    module
        The module; typed as Any because not all of them carry types.

    Raises
    ------
    CommandError
        If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise CommandError(
            f'{package} cannot be imported ({one_line(error)}): pip install "numnorm[{extra}]"'
        ) from error


_ENDING = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""The signals, and Python's default handler of each."""
if hasattr(signal, "SIGHUP"):
    _ENDING[signal.SIGHUP] = signal.SIG_DFL

_SOON = 0.01
"""In seconds."""


@contextmanager
def signals_raise() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt in the block, and SIGTERM and SIGHUP SystemExit.

    An interrupted compiler leaves incomplete objects, whose finalizers fail. Python would print
    their tracebacks below the message of the command; from the signal on, they are suppressed. So
    is what asyncio logs of Zarr's interrupted tasks.
    """
    # Only the main thread may set handlers; a signal that is ignored (nohup) stays ignored.
    main = threading.current_thread() is threading.main_thread()
    before = {
        number: signal.signal(number, _leave)
        for number, usual in _ENDING.items()
        if main and signal.getsignal(number) == usual
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.unraisablehook = functools.partial(_keep_quiet, number)
    logging.getLogger("asyncio").disabled = True
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _keep_quiet(number: int, unraisable: sys.UnraisableHookArgs) -> None:
    # Python drops an exception that a signal raises in a finalizer or in a callback from C, such
    # as those of LLVM. So the signal is sent again, a moment later.
    if issubclass(unraisable.exc_type, (KeyboardInterrupt, SystemExit)):
        again = threading.Timer(_SOON, _signal_main_thread, (number,))
        again.daemon = True
        again.start()


def _signal_main_thread(number: int) -> None:
    main = threading.main_thread().ident
    if main is None or not hasattr(signal, "pthread_kill"):
        _thread.interrupt_main(signal.Signals(number))  # does not wake a thread that waits
    else:
        signal.pthread_kill(main, number)


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
    logger = logging.getLogger("numnorm")
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: console.print(record.getMessage(), markup=False, highlight=False)  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
