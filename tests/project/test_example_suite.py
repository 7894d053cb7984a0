"""Another project runs the benchmarks: asv_benchmarks/example, in a repository of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "asv_benchmarks"
CHOSEN = r"track_forward\('layer_norm', \(1, 256\)\)"


def run(*command, **env):
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **env}, timeout=600
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


def test_a_project_times_numnorm_with_its_own_asv(project, tmp_path):
    # As if `numnorm-benchmarks` were installed.
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/asv_benchmarks").symlink_to(BENCHMARKS)
    paths = [str(tmp_path / "packages"), os.environ.get("PYTHONPATH", "")]
    # asv's name of PYTHONPATH, which it would discard.
    env = {"ASV_PYTHONPATH": os.pathsep.join(filter(None, paths)), "HOME": str(tmp_path)}
    asv = [sys.executable, "-m", "asv"]
    run(*asv, "machine", "--yes", "--machine", "mine", **env)
    head = run("git", "rev-parse", "HEAD").strip()
    options = ["--python=same", "--quick", "--machine", "mine", "--set-commit-hash", head]
    run(*asv, "run", *options, "--bench", CHOSEN, **env)
    (path,) = (project / "results/mine").glob(f"{head[:8]}*.json")
    results = json.loads(path.read_text("utf-8"))
    (name,) = results["results"]
    assert name == "numnorm_ratios.Matrices.track_forward"
    values = dict(zip(results["result_columns"], results["results"][name], strict=False))["result"]
    # asv writes NaN for what was not chosen.
    assert sum(value is not None and value > 0 for value in values) == 1


def test_the_configuration_is_as_short_as_the_page_says():
    assert len((BENCHMARKS / "example/asv.conf.json").read_text("utf-8").splitlines()) <= 10
