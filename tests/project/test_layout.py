"""Where each source stands, how much a folder may hold, and what a backend must offer."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import numnorm
from numnorm.backends import cpu, sources

PACKAGE = Path(numnorm.__file__).parent
BACKENDS = PACKAGE / "backends"
MOST_ENTRIES = 14
MOST_FILES = 24
MOST_LINES = 1000
MOST_PARAMETERS = 12

# A folder imports from the lines below its own and from itself, never from a line above.
ORDER = {
    "cpu": (
        {"xla"},
        {"recurrent"},
        {"sparse", "weighted"},
        {"rows", "columns", "moving"},
        {"order"},
        {"statistics"},
        {"memory"},
        {"simd"},
        {"compiler"},
        {"tuning"},
    ),
    "cuda": (
        {"recurrent"},
        {"weighted"},
        {"rows", "columns", "moving", "device_functions"},
        {"statistics"},
        {"arrays", "threads"},
        {"compiler"},
    ),
}
FILES = [
    pytest.param(backend, path, id=path.relative_to(BACKENDS).as_posix())
    for backend in ORDER
    for path in sorted((BACKENDS / backend).rglob("*.py"))
]
FOLDERS = sorted({path.parent for path in BACKENDS.rglob("*.py")})


def modules_imported(path):
    """The modules that a file imports, a name of a package as a module of it where it is one."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            package = BACKENDS.parents[1].joinpath(*node.module.split("."))
            for alias in node.names:
                is_module = (package / f"{alias.name}.py").exists()
                yield f"{node.module}.{alias.name}" if is_module else node.module


def line_of(backend, folder):
    (line,) = (i for i, folders in enumerate(ORDER[backend]) if folder in folders)
    return line


@pytest.mark.parametrize("backend, path", FILES)
def test_imports_follow_the_order_of_the_folders(backend, path):
    home = path.relative_to(BACKENDS / backend).parts[0].removesuffix(".py")
    if home == "__init__":
        return
    for module in modules_imported(path):
        if module.startswith("numnorm.backends."):
            other, *rest = module.split(".")[2:]
            assert other == backend or other not in ORDER, f"{module} is another backend's"
            if other == backend and rest[0] != home:
                below = line_of(backend, rest[0]) > line_of(backend, home)
                assert below, f"{module} does not stand below {home}"


@pytest.mark.parametrize("backend", ORDER)
def test_no_module_imports_itself_through_others(backend):
    root = BACKENDS.parents[1]
    imported = {
        ".".join(path.relative_to(root).with_suffix("").parts): set(modules_imported(path))
        for path in (BACKENDS / backend).rglob("*.py")
        if path.name != "__init__.py"
    }
    while imported:
        last = {name for name, others in imported.items() if others.isdisjoint(imported)}
        assert last, f"these import each other: {sorted(imported)}"
        imported = {name: others for name, others in imported.items() if name not in last}


def test_a_backend_has_few_entries_at_its_top():
    for backend in ORDER:
        entries = [p for p in (BACKENDS / backend).iterdir() if p.name != "__pycache__"]
        assert len(entries) <= MOST_ENTRIES, backend


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.relative_to(BACKENDS).as_posix())
def test_a_folder_holds_few_files(folder):
    assert len(list(folder.glob("*.py"))) <= MOST_FILES


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix()
)
def test_a_file_is_short(path):
    assert len(path.read_text("utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("backend, path", FILES)
def test_a_kernel_takes_few_parameters(backend, path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == "kernel":
            taken = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            assert len(taken) <= MOST_PARAMETERS, f"{len(taken)} in line {node.lineno}"


def test_what_is_compiled_is_part_of_the_hash_of_the_sources():
    hashed = {Path(path) for path in sources._files(sources.PACKAGE, sources.NUMBA.folders)}
    for path in hashed:
        tree = ast.parse(path.read_text("utf-8"))
        homes = {
            alias.asname or alias.name: PACKAGE.parent / f"{node.module.replace('.', '/')}.py"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        compiled = [
            argument.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and getattr(node.func, "id", None) in ("helper", "inlined", "shared")
            for argument in node.args
            if isinstance(argument, ast.Name)
        ]
        for name in compiled:
            assert homes.get(name, path) in hashed, f"{path}: {name}"


# Protocols

PROTOCOLS = [
    value
    for path in sorted((BACKENDS / "contract").glob("*.py"))
    for name, value in vars(
        importlib.import_module(f"numnorm.backends.contract.{path.stem}")
    ).items()
    if name.endswith("Backend") and value.__module__.endswith(f".{path.stem}")
]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.__name__)
def test_the_cpu_offers_each_protocol(protocol):
    for name, function in inspect.getmembers(protocol, inspect.isfunction):
        if not name.startswith("_"):
            _, *parameters = inspect.signature(function).parameters
            assert parameters == [*inspect.signature(getattr(cpu, name)).parameters], name
