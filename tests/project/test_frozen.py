"""What a frozen program holds: the hook for PyInstaller, beside what numnorm imports by name."""

import importlib.metadata
import runpy
import sys
import types
from pathlib import Path

import pytest
from every_call import in_new_process

import numnorm
from numnorm import _pyinstaller

PACKAGE = Path(numnorm.__file__).parent
ROOT = Path(__file__).parents[2]
(HOOK,) = (path for folder in _pyinstaller.get_hook_dirs() for path in Path(folder).glob("hook-*"))


def modules():
    """The modules of the package, by name."""
    for path in PACKAGE.rglob("*.py"):
        if "-" not in path.name:
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            yield ".".join(parts).removesuffix(".__init__")


@pytest.fixture
def hook(monkeypatch):
    """What the hook says, with PyInstaller's function that names submodules replaced."""
    stand_in = types.ModuleType("PyInstaller.utils.hooks")
    stand_in.collect_submodules = lambda package, filter: [n for n in modules() if filter(n)]
    monkeypatch.setitem(sys.modules, "PyInstaller", types.ModuleType("PyInstaller"))
    monkeypatch.setitem(sys.modules, "PyInstaller.utils", types.ModuleType("PyInstaller.utils"))
    monkeypatch.setitem(sys.modules, "PyInstaller.utils.hooks", stand_in)
    return runpy.run_path(str(HOOK))


def test_pyinstaller_finds_the_hook():
    assert HOOK.name == "hook-numnorm.py"
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (line,) = (line for line in project.splitlines() if "get_hook_dirs" in line)
    target = line.partition('"')[2].rstrip('"')
    entry = importlib.metadata.EntryPoint("hook-dirs", target, "pyinstaller40")
    assert entry.load() is _pyinstaller.get_hook_dirs


def test_what_is_imported_by_name_is_in_the_program(hook):
    code = """
import sys
import numpy as np
import numnorm
x = np.arange(24.0).reshape(2, 3, 4)
y, mean, rstd = numnorm.layer_norm_forward(x)
numnorm.layer_norm_backward(y, x, mean, rstd)
numnorm.batch_norm(x), numnorm.batch_moments(x), numnorm.group_norm(x, groups=3)
numnorm.layer_norm(x, where=x > 1), numnorm.batch_norm(x, weights=x)
numnorm.moving_norm(x, 2), numnorm.exponential_norm(x, 0.5, where=x > 3)
parameters = numnorm.rnn.lstm_init(4, 2, rng=np.random.default_rng(0), dtype="float64")
y, h, c, saved = numnorm.rnn.lstm_forward(x, parameters)
numnorm.rnn.lstm_backward(y, saved)
print(*(name for name in sys.modules if name.startswith("numnorm")))
"""
    loaded = in_new_process("-c", code, NUMBA_DISABLE_JIT="1").split()
    assert "numnorm.backends.cpu.rows.rows" in loaded
    assert set(loaded) <= {"numnorm", *hook["hiddenimports"]}


def test_what_other_libraries_need_comes_with_an_import_of_it(hook):
    for name in ("numnorm._dask", "numnorm.sklearn.base", "numnorm.backends.cuda", "numnorm.jax"):
        assert name not in hook["hiddenimports"]
        assert name in modules()


def test_sources_are_in_the_program(hook):
    # `numnorm.backends.sources` hashes them.
    assert hook["module_collection_mode"] == "pyz+py"
