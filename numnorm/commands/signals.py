"""Signals that end a command by an exception: it cleans up, and says nothing else."""

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
"""The signals, and what Python does at each of them unless told otherwise."""
if hasattr(signal, "SIGHUP"):
    _ENDING[signal.SIGHUP] = signal.SIG_DFL

_SOON = 0.01
"""In seconds."""


@contextmanager
def signals_raise() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt in the block, and SIGTERM and SIGHUP SystemExit.

    A compiler that is left in the middle of its work has objects that are half made, whose
    finalizers fail when the exception is done with. Python would print that, with a traceback,
    below what the command says, so it is kept quiet from the signal on: the process ends.
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
    # Python drops an exception that comes in a finalizer or in a callback from C, where a signal
    # often does: LLVM calls one when it is done. So the signal comes again, once that is left.
    if issubclass(unraisable.exc_type, (KeyboardInterrupt, SystemExit)):
        again = threading.Timer(_SOON, _signal_main_thread, (number,))
        again.daemon = True
        again.start()


def _signal_main_thread(number: int) -> None:
    main = threading.main_thread().ident
    if main is None or not hasattr(signal, "pthread_kill"):
        _thread.interrupt_main(signal.Signals(number))  # which wakes no thread that waits
    else:
        signal.pthread_kill(main, number)
