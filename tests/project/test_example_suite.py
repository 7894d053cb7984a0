"""Another project runs the benchmarks: asv_benchmarks/example, in a repository of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import needs_chromium, opened, served

pytest.importorskip("asv")

BENCHMARKS = Path(__file__).parents[2] / "asv_benchmarks"
NAME = "numnorm_ratios.Matrices.track_forward"
CHOSEN = r"track_forward\('layer_norm', \(1, 256\)\)"


def run(*command, **env):
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, **env},
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    shutil.copytree(BENCHMARKS / "example", folder)
    monkeypatch.chdir(folder)
    run("git", "init", "--quiet")
    run("git", "add", ".")
    author = ("-c", "user.name=numnorm", "-c", "user.email=numnorm@example.org")
    run("git", *author, "commit", "--quiet", "--message", "An example")
    return folder


@pytest.fixture
def installed(tmp_path):
    """The environment of a process as if `numnorm-benchmarks` were installed."""
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/asv_benchmarks").symlink_to(BENCHMARKS)
    paths = [str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    # asv discards PYTHONPATH and gives benchmarks the other one by this name.
    return {"PYTHONPATH": path, "ASV_PYTHONPATH": path, "HOME": str(tmp_path)}


@pytest.fixture
def results(project, installed):
    """What the project's own asv recorded of one benchmark."""
    asv = [sys.executable, "-m", "asv"]
    run(*asv, "machine", "--yes", "--machine", "mine", **installed)
    head = run("git", "rev-parse", "HEAD").strip()
    options = ["--python=same", "--quick", "--machine", "mine", "--set-commit-hash", head]
    run(*asv, "run", *options, "--bench", CHOSEN, **installed)
    (path,) = (project / "results/mine").glob(f"{head[:8]}*.json")
    return json.loads(path.read_text("utf-8"))


def test_a_project_times_numnorm_with_its_own_asv(results):
    (name,) = results["results"]
    assert name == NAME
    values = dict(zip(results["result_columns"], results["results"][name], strict=False))["result"]
    # asv writes NaN for what was not chosen.
    assert sum(value is not None and value > 0 for value in values) == 1


@pytest.mark.site  # npm brings the scripts of the page
@needs_chromium
def test_the_page_of_a_project_opens_without_a_network(results, installed, project):
    run(sys.executable, "-m", "asv_benchmarks.dashboard", "html", **installed)
    with served(project / "html") as server:
        page = opened(f"{server.address}/index.html")
    assert NAME in page
    assert server.failed == []
