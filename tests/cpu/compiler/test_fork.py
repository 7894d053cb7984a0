"""Processes that are forked, and spawned, from one that uses numnorm; and what importing changes.

GNU OpenMP, which Numba's layer `omp` is on Linux, ends a child at its first parallel region when
its parent has had one before the fork.
"""

import json
import os

import pytest
from every_call import COMPILED, in_new_process, skip_where_missing

pytestmark = [
    pytest.mark.skipif(not COMPILED, reason="threads need compiled kernels"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]

LAYERS = ["omp", "workqueue"]

COMMON = """
import json
import multiprocessing
import os
import threading
import traceback
import warnings

import numpy as np

import every_call
import numnorm
from every_call import CASES, digest

# Python warns of a fork while there are other threads: that is what is tested.
warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
every_call.load_tbb()

norms = "layer_norm", "batch_norm"
cases = [c for c in CASES.values() if c.norm in norms and c.dtype == "float32"]
tiny = [c for c in cases if c.size == "tiny"]
large = [c for c in cases if c.size == "large"]

def digests(some):
    return {case.label: digest(case) for case in some}

def run_in_parallel(launches):
    # Kernels tell it that are loaded after it was made.
    launches.take()
    digests(large)
    assert launches.take(), "nothing ran in parallel"

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid

def ends_well(pid):
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, f"the child ended with status {status}"

def is_right(expected):
    assert digests(cases) == expected
"""


@pytest.fixture(scope="module")
def expected():
    """The digest of each case, from a process that neither forks nor starts a thread."""
    script = COMMON + "print(json.dumps(digests(cases)))"
    return json.loads(in_new_process("-c", script, NUMBA_NUM_THREADS="1"))


def run(script, expected, layer):
    """Run a script that ends well if all is right; `expected` is there."""
    skip_where_missing(layer)
    common = COMMON + f"expected = json.loads({json.dumps(expected)!r})\n"
    environment = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"}
    in_new_process("-c", common + script, **environment)


POOL = """
launches = every_call.Launches()
run_in_parallel(launches)
with multiprocessing.get_context("{method}").Pool(2) as pool:
    assert dict(zip(expected, pool.map(digest, cases, chunksize=1))) == expected
is_right(expected)
run_in_parallel(launches)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("layer", LAYERS)
def test_pool_after_a_parallel_call(expected, layer, method):
    run(POOL.format(method=method), expected, layer)


CHILD_OF_A_CHILD = """
run_in_parallel(every_call.Launches())

def child():
    is_right(expected)
    ends_well(in_child(lambda: is_right(expected)))
    is_right(expected)

ends_well(in_child(child))
"""


@pytest.mark.parametrize("layer", LAYERS)
def test_child_of_a_child(expected, layer):
    run(CHILD_OF_A_CHILD, expected, layer)


BEFORE_ANY_PARALLEL_CALL = """
digests(tiny)

def child():
    run_in_parallel(every_call.Launches())  # which nothing forbids here
    is_right(expected)
    ends_well(in_child(lambda: is_right(expected)))

children = [in_child(child) for _ in range(2)]
for pid in children:
    ends_well(pid)
is_right(expected)
"""


@pytest.mark.parametrize("layer", LAYERS)
def test_fork_before_any_parallel_call(expected, layer):
    run(BEFORE_ANY_PARALLEL_CALL, expected, layer)


# The caller has a parallel kernel of their own, and numnorm's first call is the child's, or even
# its first import.
AFTER_OTHER_PARALLEL_CODE = """
import os
import numba
import numpy as np

@numba.njit(parallel=True)
def total(x):
    result = 0.0
    for i in numba.prange(x.size):
        result += x[i]
    return result

assert total(np.ones(1000)) == 1000
pid = os.fork()
if pid == 0:
    import numnorm
    numnorm.layer_norm(np.ones((1000, 300), np.float32))
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.parametrize("already", ["", "import numnorm"], ids=["not-imported", "imported"])
@pytest.mark.parametrize("layer", LAYERS)
def test_fork_after_parallel_code_of_the_caller(layer, already):
    skip_where_missing(layer)
    if layer == "omp" and not already:
        pytest.skip("nothing in the child tells what its parent ran before numnorm was there")
    environment = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"}
    in_new_process("-c", already + AFTER_OTHER_PARALLEL_CODE, **environment)


WHILE_THREADS_CALL = """
digests(cases)
stop = threading.Event()

def keep_calling():
    while not stop.is_set():
        digests(large)

threads = [threading.Thread(target=keep_calling) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(5):
    # A child that waits for a thread which it does not have would wait for ever.
    ends_well(in_child(lambda: is_right(expected)))
stop.set()
for thread in threads:
    thread.join()
is_right(expected)
"""


@pytest.mark.parametrize("layer", LAYERS)
def test_fork_while_other_threads_call(expected, layer):
    run(WHILE_THREADS_CALL, expected, layer)


WHILE_ANOTHER_THREAD_COMPILES = """
started = threading.Event()
event.register("numba:compile", type("", (event.Listener,), {
    "on_start": lambda self, _: started.set(), "on_end": lambda self, _: None,
})())
threading.Thread(target=lambda: numnorm.ada_norm(np.ones((2, 3)))).start()
started.wait()
# Its parent's compiler would never be done here.
ends_well(in_child(lambda: numnorm.rms_norm(np.ones((2, 3)))))
"""


def test_fork_while_another_thread_compiles(expected, tmp_path):
    imports = "from numba.core import event\nimport numnorm.backends.cpu.rows.rows\n"
    script = COMMON + imports + WHILE_ANOTHER_THREAD_COMPILES
    in_new_process("-c", script, NUMBA_CACHE_DIR=str(tmp_path))


STATE = """
import locale
import signal
import sys

import numba

def state():
    return {
        "config": {n: repr(v) for n, v in vars(numba.config).items() if n.isupper()},
        "environment": dict(os.environ),
        "errors": np.geterr(),
        "print": np.get_printoptions(),
        "warnings": list(map(repr, warnings.filters)),
        "signals": [repr(signal.getsignal(n)) for n in signal.valid_signals()],
        "switch": sys.getswitchinterval(),
        "recursion": sys.getrecursionlimit(),
        "path": list(sys.path),
        "locale": locale.setlocale(locale.LC_ALL),
        "random": repr(np.random.get_state()),
        # Half of the smallest normal number: 0 where the processor flushes to zero.
        "subnormal": float(np.float32(2.0**-126) * np.float32(0.5)),
    }

def check(before):
    after = state()
    for name, value in before.items():
        assert after[name] == value, name
"""

IMPORTING = """
before = state()
assert not any(name.startswith("numnorm.backends.cpu") for name in sys.modules)
import numnorm.backends.cpu.rows.rows
check(before)
assert numba.np.ufunc.parallel._is_initialized is False, "importing starts threads"
"""

CALLING = """
every_call.choose_by_size()
before = state()
is_right(expected)
check(before)
assert numba.get_num_threads() == 2
numba.set_num_threads(1)
is_right(expected)
assert numba.get_num_threads() == 1
check(before)
assert numba.threading_layer() == "{layer}"
"""


@pytest.mark.parametrize("script", [IMPORTING, CALLING], ids=["importing", "calling"])
@pytest.mark.parametrize("layer", LAYERS)
def test_state_of_the_process_stays(expected, layer, script):
    run(STATE + script.replace("{layer}", layer), expected, layer)
