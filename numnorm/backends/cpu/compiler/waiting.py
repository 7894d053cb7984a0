"""A message through `logging` for the one who waits for the compiler."""

import threading
import time

from numnorm.operating_system import at_fork

_DELAY = 2.0
"""The seconds of compiling in this process after which it says so, once."""

_left = _DELAY
_said = False
_timer: threading.Timer | None = None
_kernel = ""
_since = 0.0


def begin(kernel: str, fate: str) -> None:
    """Note that a kernel is being compiled, and what becomes of it.

    Do nothing while another kernel is being compiled, which then contains it.
    """
    global _timer, _kernel, _since
    if _timer is None and not _said:
        _kernel, _since = kernel, time.monotonic()
        _timer = threading.Timer(max(_left, 0.0), _say, (kernel, fate))
        _timer.daemon = True
        _timer.start()


def end(kernel: str) -> None:
    """Note that a kernel is compiled."""
    global _timer, _left
    if _timer is not None and kernel == _kernel:
        _timer.cancel()
        _timer = None
        _left -= time.monotonic() - _since


def _say(kernel: str, fate: str) -> None:
    global _said
    import logging  # here, as most processes find all kernels on disk

    _said = True
    logging.getLogger("numnorm").info(
        "numnorm compiles %s for its first use, which takes a while; compiled kernels are %s, and "
        "`python -m numnorm compile` compiles them ahead",
        kernel,
        fate,
    )


def _after_fork_in_child() -> None:
    """Forget a compilation of the parent: its thread and its timer do not exist in the child."""
    global _timer
    _timer = None


at_fork(after_in_child=_after_fork_in_child)
