"""The estimators among data frames, copies, processes, threads and searches."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas
import polars
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.cross_decomposition import PLSRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from numnorm import sklearn as estimators

EVERY = [getattr(estimators, name)() for name in estimators.__all__]
X = np.random.default_rng(0).standard_normal((30, 12)).cumsum(axis=1) + 5


@pytest.fixture(params=EVERY, ids=str)
def estimator(request):
    return clone(request.param)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("library", [pandas, polars])
def test_data_frames(estimator, library, dtype):
    names = [f"{n} nm" for n in range(900, 912)]
    frame = library.DataFrame(dict(zip(names, X.T.astype(dtype), strict=True)))
    expected = estimator.fit_transform(X.astype(dtype))
    plain = clone(estimator).fit_transform(frame)
    assert isinstance(plain, np.ndarray)
    framed = clone(estimator).set_output(transform=library.__name__)
    result = framed.fit(frame).transform(frame)
    assert isinstance(result, library.DataFrame)
    assert list(result.columns) == list(framed.get_feature_names_out()) == names
    assert {str(kind).lower() for kind in result.dtypes} == {dtype}
    np.testing.assert_array_equal(result.to_numpy(), expected)
    np.testing.assert_array_equal(plain, expected)


@pytest.mark.parametrize("kind", [sparse.csr_array, sparse.csr_matrix, sparse.coo_array])
def test_sparse_matrices_are_refused_in_one_line(estimator, kind):
    for call in (estimator.fit, estimator.fit(X).transform):
        with pytest.raises(TypeError, match="dense data is required") as caught:
            call(kind(X))
        assert "\n" not in str(caught.value)


def test_an_array_that_lies_elsewhere_is_refused_in_one_line(monkeypatch):
    class Elsewhere:
        def __dlpack__(self, **options):
            raise BufferError("it lies on a device")

        def __dlpack_device__(self):
            return (2, 0)

    monkeypatch.setattr("numnorm.sklearn.base._namespace", lambda X: np)
    with pytest.raises(TypeError, match=r"^X must be shareable as an array of NumPy: .*") as caught:
        estimators.LayerNormalizer().fit(Elsewhere())
    assert "\n" not in str(caught.value)


def test_wrong_parameters_are_named(estimator):
    estimator.set_params(copy="no")
    with pytest.raises(ValueError, match=r"^The 'copy' parameter of \w+ must be"):
        estimator.fit(X)


def test_another_process_gives_the_same(tmp_path):
    fitted = [(estimator.fit(X), estimator.transform(X)) for estimator in map(clone, EVERY)]
    (tmp_path / "pickled").write_bytes(pickle.dumps((X, fitted)))
    script = f"""
import pickle, numpy, pathlib
x, fitted = pickle.loads(pathlib.Path({str(tmp_path / "pickled")!r}).read_bytes())
for estimator, expected in fitted:
    numpy.testing.assert_array_equal(estimator.transform(x), expected)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_threads_share_an_estimator(estimator):
    estimator.fit(X)
    parts = [X[i : i + 7] + i for i in range(23)] * 4
    expected = [estimator.transform(part) for part in parts]
    with ThreadPoolExecutor(8) as pool:
        for one, two in zip(pool.map(estimator.transform, parts), expected, strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_search_in_two_processes_finds_what_one_finds():
    y = X[:, 3] - X[:, 7]
    pipeline = make_pipeline(estimators.StandardNormalVariate(), PLSRegression())
    grid = {"standardnormalvariate__ddof": [0, 1], "plsregression__n_components": [1, 3]}
    scores = [
        GridSearchCV(pipeline, grid, cv=3, n_jobs=jobs).fit(X, y).cv_results_["mean_test_score"]
        for jobs in (1, 2)
    ]
    np.testing.assert_array_equal(*scores)


def test_import_needs_scikit_learn_and_says_so():
    script = """
import sys
import numnorm
assert "sklearn" not in sys.modules
sys.modules["sklearn"] = None
import numnorm.sklearn
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last == (
        "ImportError: numnorm.sklearn needs scikit-learn: pip install 'numnorm[sklearn]'"
    )
