"""The message for the one who waits for the compiler: in time, once, and only then."""

import logging
import time
from pathlib import Path

import pytest

from numnorm.backends.cpu.compiler import waiting

FOLDER = Path("cache")


@pytest.fixture
def messages(monkeypatch, caplog):
    """A function that returns the messages so far; the first is due after 50 ms."""
    monkeypatch.setattr(waiting, "_left", 0.05)
    monkeypatch.setattr(waiting, "_said", False)
    caplog.set_level(logging.INFO, "numnorm")
    yield lambda: caplog.messages
    if waiting._timer is not None:
        waiting.end(waiting._kernel)


def test_it_comes_while_the_kernel_is_compiled(messages):
    waiting.begin("kernel.float32", f"kept in {FOLDER}")
    assert messages() == []
    deadline = time.monotonic() + 10
    while not messages() and time.monotonic() < deadline:
        time.sleep(0.001)
    (message,) = messages()
    assert message.startswith("numnorm compiles kernel.float32 for its first use")
    assert "kept in cache" in message
    assert "`python -m numnorm compile`" in message
    waiting.end("kernel.float32")
    waiting.begin("another", f"kept in {FOLDER}")
    time.sleep(0.1)
    assert messages() == [message]


def test_short_compilations_are_not_worth_it(messages):
    waiting.begin("kernel", FOLDER)
    waiting.end("kernel")
    time.sleep(0.1)
    assert messages() == []


def test_many_short_compilations_are(messages):
    for _ in range(6):
        waiting.begin("kernel", FOLDER)
        time.sleep(0.02)
        waiting.end("kernel")
    assert len(messages()) == 1


def test_a_kernel_that_compiles_another(messages):
    waiting.begin("outer", FOLDER)
    waiting.begin("inner", FOLDER)
    waiting.end("inner")
    time.sleep(0.1)
    assert len(messages()) == 1


def test_a_child_has_a_timer_of_its_own(messages):
    waiting.begin("kernel of the parent", FOLDER)
    timer = waiting._timer
    waiting._after_fork_in_child()
    waiting.begin("kernel of the child", FOLDER)
    assert waiting._timer is not timer
    timer.cancel()
