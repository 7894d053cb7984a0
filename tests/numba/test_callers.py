"""Compiled callers of every kind: parallel, in threads, nested, and cached on disk."""

import importlib.metadata
import json
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
from every_call import output_of, start
from nopython import check, compiled, same
from package_copy import Copy

import numnorm
from numnorm.backends.sources import NUMBA

pytestmark = compiled
rng = np.random.default_rng(38)

# A module with cached callers. It prints their results, those of the public function, and how many
# callers were found on disk.
CALLERS = """
import json
import numba
import numpy as np
import numnorm
import numnorm._numba

numnorm._numba.init()

@numba.njit(cache=True)
def inner(x, gamma, beta):
    return numnorm.layer_norm(x, gamma, beta)

@numba.njit(cache=True)
def twice(x, gamma, beta):
    return inner(inner(x, gamma, beta), gamma, beta)

@numba.njit(cache=True, parallel=True)
def of_rows(x, gamma, beta):
    result = np.empty_like(x)
    for i in numba.prange(x.shape[0]):
        result[i] = inner(x[i], gamma, beta)
    return result

if __name__ == "__main__":
    x = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
    found = of_rows(x, x[0], x[1]), twice(x, x[0], x[1])
    expected = numnorm.layer_norm(x, x[0], x[1])
    again = numnorm.layer_norm(expected, x[0], x[1])
    hits = [len(f.stats.cache_hits) for f in (of_rows, twice)]
    same = [a.tobytes() == b.tobytes() for a, b in zip(found, (expected, again))]
    print(json.dumps([same, hits, float(expected.sum())]))
"""


def test_a_parallel_caller():
    x = rng.standard_normal((9, 5, 40)).astype(np.float32)

    @numba.njit(parallel=True)
    def of_slices(x):
        result, total = np.empty_like(x), 0.0
        for i in numba.prange(x.shape[0]):
            result[i] = numnorm.layer_norm(x[i])
            total += numnorm.layer_norm(x[i, 0] * 2)[0]
        return result, numnorm.layer_norm(x + x), total

    slices, whole, total = of_slices(x)
    same(slices, numnorm.layer_norm(x))
    same(whole, numnorm.layer_norm(x + x))
    # Threads add in any order.
    assert total == pytest.approx(float(numnorm.layer_norm(x[:, 0] * 2)[:, 0].sum()), abs=1e-6)


def test_an_error_inside_prange_leaves_rows_as_they_were():
    # In a process of its own: what becomes of the error depends on Numba's threads.
    code = """
import json, numba, numpy as np, numnorm
import numnorm._numba
numnorm._numba.init()

@numba.njit(parallel=True)
def rows(x, eps, check):
    y = np.full_like(x, np.nan)
    if check:
        numnorm.layer_norm(x[0], eps=eps[2])
    for i in numba.prange(len(x)):
        y[i] = numnorm.layer_norm(x[i], eps=eps[i])
    return y

x, eps = np.random.default_rng(0).standard_normal((8, 5)), np.full(8, 1e-5)
eps[2] = -1.0
found = []
for check in (True, False):
    try:
        y = rows(x, eps, check)
    except (ValueError, SystemError) as error:
        found.append(type(error).__name__)
    else:
        is_missing = np.isnan(y).all(1)
        right = np.array_equal(y[~is_missing], numnorm.layer_norm(x[~is_missing]))
        found.append(bool(is_missing[2] and right))
print(json.dumps(found))
"""
    before, inside = json.loads(output_of(start("-c", code)))
    assert before == "ValueError"
    assert inside in (True, "ValueError", "SystemError")


def test_threads():
    x = rng.standard_normal((8, 50, 40)).astype(np.float32)
    n = numnorm.layer_norm_forward(x)
    expected = numnorm.layer_norm_backward(x[::-1], x, n.mean, n.rstd).dx

    @numba.njit(nogil=True)
    def passes(dy, x):
        n = numnorm.layer_norm_forward(x)
        return n.y, numnorm.layer_norm_backward(dy, x, n.mean, n.rstd).dx

    passes(x[0], x[0])
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            results = list(pool.map(passes, x[::-1], x))
            assert b"".join(y.tobytes() for y, _ in results) == n.y.tobytes()
            assert b"".join(dx.tobytes() for _, dx in results) == expected.tobytes()


def test_no_memory_is_kept_or_freed_twice():
    x = rng.standard_normal((30, 40)).astype(np.float32)

    @numba.njit
    def passes(x, gamma, out):
        for _ in range(100):
            n = numnorm.layer_norm_forward(x, gamma, gamma)
            numnorm.layer_norm_backward(n.y, x, n.mean, n.rstd, gamma, out=out)
            numnorm.layer_norm(x.T, axis=0)
        return n

    passes(x, x[0], np.empty_like(x))
    numba.core.runtime._nrt_python.memsys_enable_stats()
    before = numba.core.runtime.rtsys.get_allocation_stats()
    for _ in range(3):
        same(tuple(passes(x, x[0], x.copy())), tuple(numnorm.layer_norm_forward(x, x[0], x[0])))
    after = numba.core.runtime.rtsys.get_allocation_stats()
    assert after.alloc - before.alloc == after.free - before.free


def test_options_of_a_caller_change_no_result():
    # The first caller of a process compiles the parts of a call that later ones share.
    left, right = rng.normal(1e6, 1, (100, 5)), rng.normal(3e5, 1, (77, 5))

    def call(left, right, eps):
        normalized = numnorm.layer_norm(left, eps=eps)
        merged = numnorm.batch_moments(left).merge(numnorm.batch_moments(right))
        return normalized, merged.mean, merged.m2, merged.mean_lo, merged.var()

    for options in ({"fastmath": True, "error_model": "numpy"}, {}):
        jitted = numba.njit(**options)(call)
        same(jitted(left, right, 1e-5), call(left, right, 1e-5))
        for eps in (np.inf, np.nan):
            with pytest.raises(ValueError, match="eps must be finite"):
                jitted(left, right, eps)


def test_unsigned_integers():
    def call(x, number):
        groups = numnorm.group_norm(x, groups=number)
        return groups, numnorm.batch_norm(x, channel_axis=number)

    check(call, rng.standard_normal((3, 4)), np.uint64(1))


def test_results_are_named_tuples():
    def call(x):
        n = numnorm.layer_norm_forward(x)
        return n.y[0] + n.mean[0], n

    check(lambda x: numnorm.layer_norm_forward(x), rng.standard_normal((3, 4)))
    n = numba.njit(call)(rng.standard_normal((3, 4)))[1]
    assert type(n) is numnorm.Normalized


def callers(folder, **environment):
    (folder / "callers.py").write_text(CALLERS)
    return json.loads(output_of(start(str(folder / "callers.py"), **environment)))


def test_cached_callers_are_found_by_other_processes(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path / "callers")}
    first, second = (callers(tmp_path, **environment) for _ in range(2))
    assert first[:2] == [[True, True], [0, 0]]
    assert second[:2] == [[True, True], [1, 1]]


def test_cached_callers_notice_a_change_of_the_source(tmp_path):
    copy = Copy(tmp_path)
    assert callers(tmp_path, **copy.environment)[:2] == [[True, True], [0, 0]]
    before = callers(tmp_path, **copy.environment)
    assert before[:2] == [[True, True], [1, 1]]
    path, old = copy.package / "norms/affine.py", "return xhat * gamma + beta"
    source = path.read_text("utf-8")
    assert old in source
    path.write_text(source.replace(old, f"{old} + beta", 1), "utf-8")
    same_bytes, hits, total = callers(tmp_path, **copy.environment)
    assert same_bytes == [True, True]
    assert hits == [0, 0]
    assert total != before[2]


def test_cached_callers_depend_on_all_that_they_compile():
    assert {"_numba", "rnn", "norms", "backends/cpu"} <= set(NUMBA.folders)


def test_the_compiler_may_be_the_first_to_use_numnorm():
    code = """
import numba, numpy, numnorm, sys
import numnorm._numba
numnorm._numba.init()
assert "numnorm._public" not in sys.modules
print(numba.njit(lambda x: numnorm.layer_norm(x))(numpy.ones((2, 3))).sum())
"""
    assert output_of(start("-c", code)).split() == ["0.0"]


def test_a_process_without_numnorm_imports_little_of_it():
    code = """
import sys
import numnorm._numba
numnorm._numba.init()
print(*sorted(name for name in sys.modules if name.startswith(("numba", "numnorm"))))
"""
    assert output_of(start("-c", code)).split() == ["numnorm", "numnorm._numba"]


def test_numba_finds_the_entry_point():
    points = importlib.metadata.entry_points(group="numba_extensions")
    ours = [point for point in points if point.value == "numnorm._numba:init"]
    if not ours:
        pytest.skip("numnorm is not installed")
    assert all(point.load() is numnorm._numba.init for point in ours)


def test_registration_leaves_the_rest_of_numba_for_later():
    # It is a part of a process's first call of a norm, also where nothing is compiled.
    code = """
import sys
import numnorm._numba
import numnorm._public
import numnorm.rnn
numnorm._numba.init()
print("numnorm._numba.registration" in sys.modules, "numba.cpython.randomimpl" in sys.modules)
"""
    assert output_of(start("-c", code)).split() == ["True", "False"]
