"""Each norm and cell, called by many threads at once, gives the bytes of a single thread.

The functions come from the declarations. The first calls are made at once, too: they import, plan
and load or compile kernels. It matters most on a Python without the GIL.
"""

import json
import os
import sysconfig

import pytest
from every_call import COMPILED, in_new_process, output_of, start

compiled = pytest.mark.skipif(not COMPILED, reason="needs compiled kernels")

THREADS = 32
SECONDS = float(os.environ.get("NUMNORM_TEST_SECONDS", "300"))
"""How long the slow test goes on, beside the time that compiling takes."""

AT_ONCE = """
import functools
import json
import random
import sys
import threading
import time

import every_call
import every_place
import kernels
import places
from numnorm.rnn.cells import CELLS

threads, seconds, compiling = json.loads(sys.argv[1])
calls = {str(case): functools.partial(places.passes, case) for case in places.cases()}
of_lstm = [norm for norm, variant in kernels.LSTMS if variant == "paper"]
by_default = {"lstm": of_lstm, "gru": kernels.GRUS, "rnn": kernels.RNNS}
for name, cell in CELLS.items():
    for norm in cell.kind.options["norm"] if compiling else by_default[name]:
        calls[f"{name} {norm}"] = functools.partial(every_place.cell_results, name, norm, "float64")
if compiling:  # these are large enough for several threads each
    every_call.load_tbb()
    every_call.choose_by_size()
    for label, case in every_call.CASES.items():
        calls[label] = functools.partial(every_call.results_of, case)
found = {label: set() for label in calls}
made, failures = [0] * threads, []
start = threading.Barrier(threads)


def work(number):
    chosen = random.Random(number)
    # Four threads each make the same first call, and the next ones in the same order.
    first = random.Random(number % (threads // 4)).sample(list(calls), len(calls))
    try:
        start.wait()
        for label in first:
            found[label].add(every_place.digest(calls[label]()))
            made[number] += 1
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            label = chosen.choice(first)
            found[label].add(every_place.digest(calls[label]()))
            made[number] += 1
    except BaseException as error:
        failures.append(f"{label}: {type(error).__name__}: {error}")


workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
for label, call in calls.items() if not failures else ():
    if found[label] != {every_place.digest(call())}:
        failures.append(label)
print(json.dumps([failures, sum(made), len(calls)]))
"""


def check(threads, seconds, compiling, **environment):
    process = start("-c", AT_ONCE, json.dumps([threads, seconds, compiling]), **environment)
    failures, made, calls = json.loads(output_of(process, timeout=seconds + 3600))
    assert failures == []
    assert made >= threads * calls
    return made


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="has the GIL")
def test_nothing_enables_the_gil():
    source = "import sys, numnorm; numnorm.layer_norm([[1.0, 3.0]]); print(sys._is_gil_enabled())"
    assert in_new_process("-c", source).strip() == "False"


def test_calls_at_once_import_at_once():
    # As Python, since what is imported late is the same.
    check(16, 0, False, NUMBA_DISABLE_JIT="1")


@compiled
def test_calls_at_once():
    check(THREADS, 0, False)


@compiled
@pytest.mark.slow
def test_first_calls_at_once_compile_and_later_ones_go_on(tmp_path):
    made = check(THREADS, SECONDS, True, NUMBA_CACHE_DIR=str(tmp_path))
    print(made, "calls")
