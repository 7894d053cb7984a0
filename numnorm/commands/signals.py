"""Signals that end a command raise exceptions, so that it cleans up and prints no traceback."""

from __future__ import annotations

import _thread
import functools
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

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
    their tracebacks below the message of the command; from the signal on, they are suppressed.
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
