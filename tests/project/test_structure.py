"""How the sources are built: which part imports which, how long they are, what is documented."""

import ast
import doctest
import functools
import importlib
import importlib.util
import inspect
import json
import operator
import pickle
import re
import sys
from pathlib import Path

import kernels
import numpy as np
import pytest
from every_call import in_new_process

import numnorm
import numnorm.autograd
import numnorm.cuda
import numnorm.xarray
from numnorm.commands.compile import calls
from numnorm.commands.doctor import selftest
from numnorm.norms.declared import BY_NAME, SPECS

PACKAGE = Path(numnorm.__file__).parent
SOURCES = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in SOURCES.items()}

FUNCTIONS = [name for name in numnorm.__all__ if inspect.isroutine(getattr(numnorm, name))]
# Those that make functions for kernels of the user's own.
MAKERS = [f"cuda.{name}" for name in numnorm.cuda.__all__ if name.endswith("_row")]
# The same norms for other libraries.
WRAPPERS = [f"xarray.{n}" for n in numnorm.xarray.__all__ if n.islower()]
WRAPPERS += [f"autograd.{name}" for name in numnorm.autograd.__all__]
# With the library that each needs.
PUBLIC_MODULES = dict.fromkeys(["numnorm", "numnorm.cuda", "numnorm.rnn"], "numpy")
PUBLIC_MODULES |= {f"numnorm.{name}": name for name in ("autograd", "jax", "sklearn", "xarray")}

# Each compiler for CUDA has a module.
CUDA_COMPILERS = "numba_cuda", "numba_cuda_mlir"

LONGEST = 100


def test_sources_are_found():
    assert {"__init__.py", "arguments.py", "norms/layer.py", "backends/cpu/compiler/jit.py"} <= set(
        TREES
    )


# Importing


def imported_names(script):
    printed = in_new_process(
        "-c", f"import sys, json\n{script}\nprint(json.dumps(list(sys.modules)))"
    )
    return set(json.loads(printed))


@pytest.mark.parametrize("module, before", [("numnorm", "pass"), ("numnorm.cuda", "import numpy")])
def test_import_loads_no_other_package(module, before):
    loaded = imported_names(f"import {module}") - imported_names(before)
    packages = {name.partition(".")[0] for name in loaded}
    assert packages - sys.stdlib_module_names == {"numnorm"}


def test_call_on_an_array_of_numpy_loads_no_other_kind_of_array():
    script = "import numnorm; numnorm.layer_norm([[1.0, 2.0]])"
    packages = {name.partition(".")[0] for name in imported_names(script)}
    assert packages.isdisjoint({"ml_dtypes", "cupy", "dask", "torch", "jax", "matplotlib", "rich"})


def test_recurrent_cells_are_imported_at_the_first_use():
    script = "import numnorm, sys; assert 'numnorm.rnn' not in sys.modules; numnorm.rnn.lstm"
    assert "numnorm.rnn.lstm" in imported_names(script)
    assert "rnn" in dir(numnorm)
    with pytest.raises(AttributeError, match=r"^module 'numnorm' has no attribute") as caught:
        numnorm.layernorm
    assert (caught.value.name, caught.value.obj) == ("layernorm", numnorm)  # for "Did you mean"


def imports_of(name):
    """The full names of the modules that a source imports, at its top or anywhere else."""
    package = ["numnorm", *Path(name).parent.parts]
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"numnorm(\.\w+)+", str(node.value)):
            yield node.value  # for importlib


def imported_within(name, *rooms):
    """The modules of the given rooms of numnorm, or packages, that a source imports."""
    prefixes = tuple(f"{room}." for room in rooms)
    return {module for module in imports_of(name) if f"{module}.".startswith(prefixes)}


@pytest.mark.parametrize("name", TREES)
def test_direction_of_imports(name):
    room = name.partition("/")[0]
    if room == "arguments.py":
        packages = {module.partition(".")[0] for module in imports_of(name)}
        assert packages - sys.stdlib_module_names <= {"numpy"}
    if room == "backends":
        # A backend is handed a norm's formulas.
        assert not imported_within(name, "numnorm.norms", "numnorm.rnn", "numnorm.commands")
    if room in ("norms", "rnn", "_dask"):
        allowed = ("numnorm.backends.contract", "numnorm.backends.formulas")
        backends = imported_within(name, "numnorm.backends") - imported_within(name, *allowed)
        registry = {
            f"numnorm.backends.{n}" for n in ("backend_for", "backend_of", "with_weighting")
        }
        assert backends <= {"numnorm.backends", *registry}
        assert not imported_within(name, "numnorm.commands")
    if room in ("backends", "norms", "rnn"):
        # They find it by name, when an argument is lazy.
        assert not imported_within(name, "numnorm._dask")
    if room in ("autograd", "xarray"):
        assert not imported_within(name, "numnorm.backends")
    if room == "cuda.py":
        # It hands formulas to one backend, whose parts it asks for by name.
        allowed = ("numnorm.backends.contract", "numnorm.backends.cuda.part")
        backends = imported_within(name, "numnorm.backends") - imported_within(name, *allowed)
        assert backends == {"numnorm.backends.cuda"}
    else:
        assert not imported_within(name, "numnorm.cuda")
    if room == "__init__.py":
        assert not imported_within(name, "numnorm.backends", "numnorm.commands")
    if room not in ("commands", "__main__.py"):
        assert not imported_within(name, "numnorm.commands", "numnorm.__main__")


@pytest.mark.parametrize("name", TREES)
def test_only_a_backend_and_the_commands_import_a_compiler(name):
    allowed = name.startswith(("commands/", "_numba/")) or re.match(r"backends/\w+/", name)
    assert allowed or not imported_within(name, "numba", "llvmlite", "scipy")


@pytest.mark.parametrize("name", [n for n in TREES if re.match(r"backends/\w+/", n)])
def test_options_of_compilation_are_chosen_in_one_place(name):
    options = {"fastmath", "error_model", "nogil", "parallel", "boundscheck"}
    compilers = {"jit", "njit", "vectorize", "guvectorize", "cfunc"}
    places = "cpu/compiler/jit.py", *(f"cuda/compiler/{name}.py" for name in CUDA_COMPILERS)
    for node in ast.walk(TREES[name]):
        if name not in [f"backends/{place}" for place in places]:
            word = getattr(node, "attr", getattr(node, "id", None))
            assert word not in compilers, f"line {node.lineno}"
            assert getattr(node, "arg", None) not in options, f"line {node.lineno}"


# Functions


def lengths_of_functions(tree):
    """The name of each function, with the number of its lines without the docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                length -= node.body[0].end_lineno - node.body[0].lineno + 1
            yield node.name, length


@pytest.mark.parametrize("name", TREES)
def test_no_function_is_too_long_to_read(name):
    long = {f: length for f, length in lengths_of_functions(TREES[name]) if length > LONGEST}
    assert long == {}


def test_length_of_a_function():
    source = '''
def f(
    x,
):
    """Two
    lines."""

    def g():
        return x

    return g
'''
    assert dict(lengths_of_functions(ast.parse(source))) == {"f": 8, "g": 2}


def test_all_names_exist():
    assert sorted(numnorm.__all__) == list(numnorm.__all__)
    assert len(set(numnorm.__all__)) == len(numnorm.__all__)
    for name in numnorm.__all__:
        assert getattr(numnorm, name).__name__ == name


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_functions_of_a_norm_are_public(spec):
    for suffix, function in (("", spec.function), ("_forward", spec.forward)):
        assert getattr(numnorm, f"{spec.name}{suffix}") is function
    assert getattr(numnorm, f"{spec.name}_backward") is spec.backward
    assert getattr(numnorm, f"{spec.name}_step", None) is spec.step
    assert spec.name in FUNCTIONS


@pytest.mark.parametrize("written", ["README.md", "docs/norms/*.md"])
def test_every_norm_is_in_what_is_written_by_hand(written):
    pages = Path(__file__).parents[2].glob(written)
    words = {word for page in pages for word in re.findall(r"\w+", page.read_text("utf-8"))}
    assert {spec.name for spec in SPECS} - words == set()


@pytest.mark.parametrize("table", ["docs/scikit_learn.md", "docs/reference/scikit_learn.md"])
def test_every_estimator_is_in_every_table(table):
    estimators = pytest.importorskip("numnorm.sklearn").__all__
    content = (Path(__file__).parents[2] / table).read_text("utf-8")
    named = re.findall(r"^(?:\| `|   )([A-Z]\w+)\b", content, re.MULTILINE)
    assert sorted(named) == sorted(estimators)


def test_every_norm_and_every_dtype_is_compiled_by_default():
    assert {*kernels.DEFAULT, *kernels.COMPILED_AS} == set(calls.PARAMETERS)
    compiled = {dtype for cases in kernels.DEFAULT.values() for dtype, _ in cases}
    assert compiled == {"float16", "bfloat16", "float32", "float64"}


def test_every_norm_can_be_compiled_ahead():
    jobs = [name for job in calls.jobs(calls.PARAMETERS, ["float32"]) for name in job.arguments]
    batch = [job.function for job in calls.jobs(["batch_norm"], ["float32"])]
    assert batch == [calls.channels, calls.launcher]
    backward = {name for name in jobs if name in calls.PARAMETERS}
    forward = {name for names in jobs if isinstance(names, tuple) for name in names}
    for names in (backward, forward):  # norms may share their kernels
        compiled = {BY_NAME[name].norm for name in names & set(BY_NAME)}
        assert compiled == {spec.norm for spec in SPECS} - {None}


def test_doctor_tests_every_norm_with_kernels_of_its_own():
    compiled = {*calls.PARAMETERS, *calls.MOVING} - set(kernels.COMPILED_AS)
    assert compiled - {case.name for case in selftest.cases()} == set()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_are_plain(name):
    function = getattr(numnorm, name)
    assert inspect.isfunction(function)
    assert function.__qualname__ == name
    assert function.__closure__ is None
    assert not hasattr(function, "__wrapped__")
    assert getattr(sys.modules[function.__module__], name) is function
    assert pickle.loads(pickle.dumps(function)) is function
    keywords = [
        p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
    ]
    assert all(p.default is not p.empty for p in keywords if p.name != "groups")


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_partial_functions_pickle(spec):
    x = ast.literal_eval(spec.example.x)
    function = functools.partial(spec.function, **spec.example_arguments)
    copied = pickle.loads(pickle.dumps(function))
    np.testing.assert_array_equal(copied(x), function(x))


# Documentation


def section(docstring, title):
    """The lines of a section of a numpydoc docstring."""
    found = re.search(
        rf"^{title}\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", docstring, re.DOTALL | re.MULTILINE
    )
    return found.group(1) if found else ""


@pytest.mark.parametrize("name", FUNCTIONS + MAKERS + WRAPPERS)
def test_docstring_has_every_parameter_and_an_example(name):
    function = operator.attrgetter(name)(numnorm)
    docstring = inspect.getdoc(function)
    heads = re.findall(r"^(\w[\w, ]*?)(?: :.*)?$", section(docstring, "Parameters"), re.MULTILINE)
    documented = [parameter for head in heads for parameter in re.split(r",\s*", head)]
    assert documented == list(inspect.signature(function).parameters)
    assert f"numnorm.{name}(" in section(docstring, "Examples")
    assert section(docstring, "Returns")


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_has_an_example(module):
    pytest.importorskip(PUBLIC_MODULES[module])
    names = importlib.import_module(module)
    examples = doctest.DocTestParser().get_examples
    missing = [
        name
        for name in names.__all__
        if not examples(section(inspect.getdoc(getattr(names, name)) or "", "Examples"))
    ]
    assert missing == []


# What numpydoc would have beyond a summary, and a type where "As for `layer_norm`" stands.
NEED_NOT = {"ES01", "GL01", "GL02", "GL03", "PR04", "PR08", "PR09", "RT03", "RT04", "RT05", "SA01"}


@pytest.mark.parametrize("name", FUNCTIONS + MAKERS + WRAPPERS)
def test_numpydoc_finds_nothing(name):
    validate = pytest.importorskip("numpydoc.validate").validate
    findings = validate(f"numnorm.{name}")["errors"]
    assert [finding for finding in findings if finding[0] not in NEED_NOT] == []


@pytest.mark.parametrize("name", TREES)
def test_module_has_a_docstring(name):
    assert ast.get_docstring(TREES[name])


def test_modules_import():
    # What is compiled for CUDA needs a compiler for it; `tests/cuda` imports all of that.
    absent = ["backends/cuda/", "_pyinstaller/hook-"]  # PyInstaller runs it, nobody imports it
    formats = "commands/apply/formats/"
    of_libraries = {"jax": "jax/", "h5py": f"{formats}hdf5", "zarr": f"{formats}zarr"}
    absent += [m for name, m in of_libraries.items() if importlib.util.find_spec(name) is None]
    here = [name for name in TREES if not name.startswith(tuple(absent))]
    for name in here:
        module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if name not in ("__init__.py", "__main__.py"):
            importlib.import_module(f"numnorm.{module}")
