"""The pool of freed results: whose memory a result has, how much is kept, and for how long."""

import os
import threading

import numpy as np
import pytest

import numnorm
from numnorm.memory_pool import POOL, MemoryPool

MIB = 1 << 20


@pytest.fixture
def pool():
    """The pool of the process, with a limit of 64 MiB until the test is over."""
    before = numnorm.set_memory_pool(64 * MIB)
    yield POOL
    numnorm.set_memory_pool(before)


def kept(pool):
    return sum(block.nbytes for block in pool._free)


def drawn(rows=512):
    return np.random.default_rng(0).normal(size=(rows, 1024)).astype(np.float32)


def test_there_is_none_to_begin_with():
    pool = MemoryPool()
    assert pool.limit == 0
    memory = pool.take(MIB)
    assert memory.base is None
    assert kept(pool) == 0


def test_the_limit_before_is_returned():
    pool = MemoryPool()
    assert (pool.set_limit(5), pool.set_limit(7), pool.set_limit(0)) == (0, 5, 7)


def test_a_freed_result_makes_room_for_the_next(pool):
    x = drawn()
    expected = numnorm.layer_norm(x).copy()
    place = numnorm.layer_norm(x).ctypes.data
    again = numnorm.layer_norm(x)
    assert again.ctypes.data == place
    np.testing.assert_array_equal(again, expected)


def test_a_result_in_use_is_not_given_out(pool):
    x = drawn()
    first = numnorm.layer_norm(x)
    values, view = first.copy(), first[::7, ::3]
    del first
    others = [numnorm.layer_norm(-x + i) for i in range(4)]
    assert not any(np.shares_memory(view, other) for other in others)
    np.testing.assert_array_equal(view, values[::7, ::3])


def test_gradients_come_from_it_as_well(pool):
    x = drawn()
    _, mean, rstd = numnorm.layer_norm_forward(x)
    expected = [np.array(g) for g in numnorm.layer_norm_backward(x[::-1], x, mean, rstd)]
    for _ in range(3):
        for found, array in zip(
            numnorm.layer_norm_backward(x[::-1], x, mean, rstd), expected, strict=True
        ):
            np.testing.assert_array_equal(found, array)
    assert kept(pool) > 0


def test_much_smaller_results_do_not_waste_a_block(pool):
    numnorm.layer_norm(drawn(4096))
    before = kept(pool)
    small = numnorm.layer_norm(drawn(512))
    assert kept(pool) == before
    del small
    assert kept(pool) > before


def test_no_more_is_kept_than_the_limit(pool):
    numnorm.set_memory_pool(5 * MIB)
    results = [numnorm.layer_norm(drawn(512)) for _ in range(4)]  # of 2 MiB and two pages each
    while results:
        del results[0]
        assert kept(pool) <= 5 * MIB
    _, freed_last = pool._free
    assert np.shares_memory(numnorm.layer_norm(drawn(512)), freed_last)


def test_a_lower_limit_lets_go_at_once(pool):
    numnorm.layer_norm(drawn())
    assert kept(pool) > 0
    numnorm.set_memory_pool(0)
    assert kept(pool) == 0


def test_results_outlive_the_pool(pool):
    y = numnorm.layer_norm(drawn())
    values = y.copy()
    numnorm.set_memory_pool(0)
    numnorm.layer_norm(drawn() + 1)
    np.testing.assert_array_equal(y, values)
    del y
    assert kept(pool) == 0


def test_threads_get_memory_of_their_own():
    pool = MemoryPool()
    pool.set_limit(MIB)
    wrong = []

    def work(mark):
        for i in range(500):
            memory = pool.take(5000 + i % 3)
            memory[:] = mark
            held = pool.take(5000)
            held[:] = mark + 100
            if not (memory == mark).all():
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert kept(pool) > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_whose_parent_held_the_lock(pool):
    with pool._lock:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if numnorm.set_memory_pool(MIB) == 64 * MIB else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.parametrize(
    ("nbytes", "error", "message"),
    [
        (-1, ValueError, "nbytes must be at least 0, got -1"),
        (1.5, TypeError, "nbytes must be an int, got 1.5"),
        (None, TypeError, "nbytes must be an int, got None"),
    ],
)
def test_wrong_limits(nbytes, error, message):
    before = POOL.limit
    with pytest.raises(error) as caught:
        numnorm.set_memory_pool(nbytes)
    assert str(caught.value) == message
    assert POOL.limit == before


def test_what_a_result_refers_to_may_be_looked_at(pool, capsys):
    y = numnorm.layer_norm(drawn())
    view = y.base[:64]
    del y
    other = numnorm.layer_norm(drawn())
    assert not np.shares_memory(view, other)
    del view, other
    assert kept(pool) > 0
    assert capsys.readouterr().err == ""  # where an exception at an array's end is told
