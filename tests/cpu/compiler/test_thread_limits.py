"""How many threads a call uses: each limit lowers it, and time decides between the two ways."""

import json
import os
import sys
import threading

import pytest
from every_call import COMPILED, LAYERS, in_new_process, skip_where_missing

import numnorm
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.parallel import Timings
from numnorm.backends.cpu.compiler.threads import environment_limit, quota_limit
from numnorm.threads import limit

# A pool of four threads on a machine with eight processors, or what passes for it.
SCRIPT = """
import json
import os
import sys
import threading

import numba
import numpy as np

import every_call
import numnorm
from numnorm.backends.cpu.compiler import threads
from numnorm.backends.cpu.compiler.threads import available

every_call.load_tbb()
processors = threads.usable_processors
threads.usable_processors = lambda: 8
threads.quota_limit = lambda: 8

def show(*values):
    print(json.dumps(values))
"""


def shown(script, layer=None, **environment):
    """What the last line shows of a script whose calls may use four threads."""
    own = {"NUMBA_NUM_THREADS": "4", "OMP_NUM_THREADS": None, "NUMBA_THREADING_LAYER": layer}
    printed = in_new_process("-c", SCRIPT + script, **own | environment)
    return json.loads(printed.splitlines()[-1])


def test_each_environment_variable_limits_the_threads():
    assert shown("show(available())") == [4]
    assert shown("show(available())", NUMBA_NUM_THREADS="3") == [3]
    assert shown("show(available())", OMP_NUM_THREADS="3,2") == [3]
    assert shown("show(available())", OMP_NUM_THREADS="5") == [4]


@pytest.mark.parametrize("value", ["", "0", "-2", "two", "1.5"])
def test_value_of_openmp_that_is_no_number_is_ignored(value):
    assert environment_limit(value) == environment_limit("")


def test_set_num_threads_of_numba_limits_the_threads():
    assert shown("numba.set_num_threads(2); show(available())") == [2]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity")
def test_affinity_limits_the_threads():
    script = """
threads.usable_processors = processors
allowed = os.sched_getaffinity(0)
before = available()
os.sched_setaffinity(0, {min(allowed)})
alone = available()
os.sched_setaffinity(0, allowed)
show(before == min(4, len(allowed)), alone, available() == before)
"""
    assert shown(script) == [True, 1, True]


def test_limits_of_threadpoolctl_are_honoured():
    pytest.importorskip("threadpoolctl")
    skip_where_missing("omp")
    script = """
from threadpoolctl import threadpool_limits
counts = [available()]
with threadpool_limits(2):
    counts.append(available())
    with threadpool_limits(1, "openmp"):
        counts.append(available())
    with threadpool_limits(1, "blas"):
        counts.append(available())
show(*counts, available())
"""
    assert shown(script, "omp") == [4, 2, 1, 2, 4]


def test_workers_of_joblib_share_the_processors():
    pytest.importorskip("joblib")
    script = """
import joblib

def count():
    from numnorm.backends.cpu.compiler import threads
    threads.usable_processors = lambda: 8
    return threads.available()

with joblib.parallel_config("loky", n_jobs=2, inner_max_num_threads=1):
    show(*joblib.Parallel()(joblib.delayed(count)() for _ in range(2)))
"""
    assert shown(script, NUMBA_NUM_THREADS=None) == [1, 1]


def files(folder, contents):
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


V2 = "0::/jobs/one\n"
V1 = "3:cpuset:/\n2:cpuacct,cpu:/jobs/one\n1:name=systemd:/\n"


@pytest.mark.parametrize(
    "groups, contents, count",
    [
        (V2, {"jobs/one/cpu.max": "300000 100000"}, 3),
        (V2, {"jobs/one/cpu.max": "250000 100000"}, 2),
        (V2, {"jobs/one/cpu.max": "50000 100000"}, 1),
        (V2, {"jobs/one/cpu.max": "max 100000", "jobs/cpu.max": "200000 100000"}, 2),
        # The path of the host, as a container without a namespace of its own sees it.
        (V2, {"cpu.max": "200000 100000"}, 2),
        ("0::/../other\n", {"cpu.max": "200000 100000"}, 2),
        (V1, {"cpu/jobs/one/cpu.cfs_quota_us": "600", "cpu/jobs/one/cpu.cfs_period_us": "200"}, 3),
        (V1, {"cpu/cpu.cfs_quota_us": "600", "cpu/cpu.cfs_period_us": "200"}, 3),
    ],
)
def test_quota_limits_the_threads(tmp_path, groups, contents, count):
    files(tmp_path, {"groups": groups} | contents)
    assert quota_limit(tmp_path, tmp_path / "groups") == count


@pytest.mark.parametrize(
    "contents",
    [
        {},
        {"groups": V2},
        {"groups": V2, "cpu.max": "max 100000"},
        {"groups": V2, "cpu.max": "what is this"},
        {"groups": V2, "cpu.max": "100000 0"},
        {"groups": V1, "cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        {"groups": V1, "cpu.max": "100000 100000"},
    ],
)
def test_no_quota_is_no_limit(tmp_path, contents):
    files(tmp_path, contents)
    assert quota_limit(tmp_path, tmp_path / "groups") == sys.maxsize


NESTED = """
counts = [available()]
with numnorm.num_threads(3):
    counts.append(available())
    with numnorm.num_threads(1):
        counts.append(available())
        with numnorm.num_threads(9):
            counts.append(available())
    counts.append(available())
show(*counts, available())
"""


def test_innermost_num_threads_counts():
    assert shown(NESTED) == [4, 3, 1, 4, 3, 4]


def test_num_threads_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), numnorm.num_threads(2):
        assert limit.get() == 2
        1 / 0
    assert limit.get() == sys.maxsize


def test_num_threads_is_the_setting_of_a_thread():
    found = []
    with numnorm.num_threads(2):
        other = threading.Thread(target=lambda: found.append(limit.get()))
        # A thread of a free-threaded Python begins with the settings of the one that starts it.
        inherits = getattr(sys.flags, "thread_inherit_context", False)
        other.start()
        other.join()
        assert limit.get() == 2
    assert found == [2 if inherits else sys.maxsize]


@pytest.mark.parametrize("count", [0, -1])
def test_num_threads_of_too_few_is_an_error(count):
    with pytest.raises(ValueError, match=f"^count must be at least 1, got {count}$"):
        numnorm.num_threads(count)


@pytest.mark.parametrize("count", [1.5, "2", None])
def test_num_threads_of_no_int_is_an_error(count):
    with pytest.raises(TypeError, match=r"^count must be an int, got .*$"):
        numnorm.num_threads(count)


LAUNCHED = """
case = every_call.CASES["layer_norm float32 (523, 509)"]
launches = every_call.Launches()
digests, counts = set(), []
for count in (4, 3, 2, 1):
    with numnorm.num_threads(count):
        digests.add(every_call.digest(case))
    counts.append(sorted(set(launches.take())))
show(*counts, len(digests), numba.get_num_threads())
"""


@pytest.mark.skipif(not COMPILED, reason="threads need compiled kernels")
@pytest.mark.parametrize("layer", LAYERS)
def test_calls_use_as_many_threads_as_num_threads_says(layer):
    skip_where_missing(layer)
    assert shown(LAUNCHED, layer) == [[4], [3], [2], [], 1, 4]


SMALL = """
x = np.ones((50, 700))
numnorm.layer_norm(x)
small = numba.np.ufunc.parallel._is_initialized
with numnorm.num_threads(1):
    numnorm.layer_norm(np.ones((2000, 1000)))
show(small, numba.np.ufunc.parallel._is_initialized)
"""


@pytest.mark.skipif(not COMPILED, reason="threads need compiled kernels")
def test_small_calls_and_one_thread_start_no_threads():
    assert shown(SMALL) == [False, False]


# Time. A serial call takes 100 units, and a parallel one as many as a test says.

WORK = 100


def ways(timings, serial, parallel, calls):
    """Which calls are serial where both ways take so long."""
    chosen = []
    for _ in range(calls):
        chosen.append(timings.serial)
        timings.add(timings.serial, WORK, serial if timings.serial else parallel)
    return chosen


def test_parallel_calls_that_gain_time_stay_parallel():
    chosen = ways(Timings(), 1_000_000, 500_000, 1000)
    assert chosen[:2] == [False, True]  # the first call alone is not slowed down
    assert 2 <= sum(chosen) <= 1 + 1000 // tuning.PARALLEL_RETRY


def test_parallel_calls_that_lose_time_become_serial():
    chosen = ways(Timings(), 1_000_000, 8_000_000, 1000)
    assert sum(chosen[:10]) > 5
    assert 2 <= 1000 - sum(chosen) <= 10


def test_parallel_calls_come_back():
    timings = Timings()
    assert all(ways(timings, 1_000_000, 8_000_000, 1000)[-100:])
    chosen = ways(timings, 1_000_000, 500_000, 3000)
    assert sum(chosen[-1000:]) <= 1 + 1000 // tuning.PARALLEL_RETRY


def test_single_delay_changes_nothing():
    timings = Timings()
    ways(timings, 1_000_000, 500_000, 50)
    timings.add(False, WORK, 5_000_000)
    assert not timings.serial


def test_compilation_does_not_delay_the_next_try_for_long():
    timings = Timings()
    ways(timings, 1_000_000, 500_000, 3)
    timings.add(False, WORK, 20_000_000_000)
    chosen = ways(timings, 1_000_000, 500_000, 4000)
    assert sum(chosen) <= 2100
    assert not all(chosen[2000:2010])
