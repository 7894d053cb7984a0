"""Many Python threads at once, under the threading layers that are not made for it, too."""

import json
import os

import pytest
from every_call import COMPILED, in_new_process, skip_where_missing

pytestmark = pytest.mark.skipif(not COMPILED, reason="threads need compiled kernels")

# One layer where the environment chooses it, as a session of nox does for each of them.
LAYERS = [os.environ.get("NUMBA_THREADING_LAYER", "")]
LAYERS = LAYERS if LAYERS[0] else ["workqueue", "omp", "tbb"]
POOL = os.environ.get("NUMBA_NUM_THREADS", "2")


def run(script, layer, **environment):
    """What a script prints that has `at_once` to call a function in many threads."""
    skip_where_missing(layer)
    environment |= {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": POOL}
    return json.loads(in_new_process("-c", AT_ONCE + script, **environment))


AT_ONCE = """
import json
import random
import threading

import numba

import every_call
from every_call import CASES, Launches, digest

every_call.load_tbb()
every_call.choose_by_size()

def at_once(count, work):
    start = threading.Barrier(count)
    failures = []

    def guarded(number):
        start.wait()
        try:
            failures.extend(work(number))
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures
"""

MANY_CALLS = """
launches = Launches()
numba.set_num_threads(1)
expected = {label: digest(case) for label, case in CASES.items()}
assert not launches.take()
numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)

def fifty_cases(number):
    # Of four calls or more each.
    labels = random.Random(number).choices(list(CASES), k=50)
    return [label for label in labels if digest(CASES[label]) != expected[label]]

failures = at_once(16, fifty_cases)
print(json.dumps([failures, launches.layer, len(launches.take())]))
"""


@pytest.mark.parametrize("layer", LAYERS)
def test_many_calls_from_many_threads(layer):
    failures, actual, launches = run(MANY_CALLS, layer)
    assert failures == []
    assert actual == layer
    assert (launches > 0) == (POOL != "1")


FIRST_CALLS = """
labels = ["layer_norm float32 (3, 7)", "layer_norm float32 (523, 509)"]
digests = {label: set() for label in labels}

def first_call(number):
    label = labels[number % 2]
    digests[label].add(digest(CASES[label]))
    return ()

failures = at_once(8, first_call)
numba.set_num_threads(1)
for label in labels:
    if digests[label] != {digest(CASES[label])}:
        failures.append(label)
print(json.dumps(failures))
"""


WITHOUT_A_LAYER = """
x = np.random.default_rng(0).normal(size=(500, 500))
serial = [numnorm.layer_norm(row) for row in x]
print(json.dumps(np.array_equal(numnorm.layer_norm(x), serial)))
"""


def test_layer_that_cannot_be_loaded(tmp_path):
    # A library of this name that is none stands before any that might be there.
    imports = (
        "import json, numpy as np, numnorm, sys\nsys.modules['numba.np.ufunc.tbbpool'] = None\n"
    )
    environment = {"NUMBA_THREADING_LAYER": "tbb", "NUMBA_NUM_THREADS": "2"}
    assert json.loads(in_new_process("-c", imports + WITHOUT_A_LAYER, **environment))


@pytest.mark.skipif(len(LAYERS) == 1, reason="compiling has nothing to do with the layer")
def test_first_calls_of_many_threads_compile_at_once(tmp_path):
    # An empty folder of compiled kernels, so that all of them compile.
    assert run(FIRST_CALLS, LAYERS[0], NUMBA_CACHE_DIR=str(tmp_path)) == []


NUMBER_OF_ITS_OWN = """
case = CASES["layer_norm float32 (523, 509)"]
digests = set()

def calls(number):
    own = 1 + number % 2
    numba.set_num_threads(own)
    digests.update(digest(case) for _ in range(10))
    return [] if numba.get_num_threads() == own else [number]

print(json.dumps([at_once(8, calls), len(digests)]))
"""


@pytest.mark.skipif(POOL == "1", reason="needs two threads to choose from")
@pytest.mark.parametrize("layer", LAYERS)
def test_each_thread_keeps_its_own_number_of_threads(layer):
    failures, digests = run(NUMBER_OF_ITS_OWN, layer)
    assert failures == []
    assert digests == 1
