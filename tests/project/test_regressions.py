"""asv's tab of regressions: made-up results of a history, of which one commit is slower."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

results = pytest.importorskip("asv.results")
runner = pytest.importorskip("asv.runner")
util = pytest.importorskip("asv.util")

COMMITS, SLOW_FROM = 24, 15
NAMES = ["ratios.track_steady", "ratios.track_slower"]
OWN = Path(__file__).parents[2] / "asv_benchmarks" / "asv.conf.json"
CONFIG = {
    "version": 1,
    "project": "made-up",
    "repo": ".",
    "branches": ["HEAD"],
    "regressions_thresholds": util.load_json(OWN, js_comments=True)["regressions_thresholds"],
}
BENCHMARK = {"code": "", "param_names": [], "params": [], "type": "track", "unit": "copies"}
MACHINE = {"machine": "mine"}


def git(*arguments):
    author = ("-c", "user.name=numnorm", "-c", "user.email=numnorm@example.org")
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", *author, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=env
    ).stdout.split()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), "utf-8")


@pytest.fixture
def history(tmp_path, monkeypatch):
    """Commits with results: one benchmark takes half more from a commit on, both have noise."""
    monkeypatch.chdir(tmp_path)
    git("init", "--quiet")
    for i in range(COMMITS):
        git("commit", "--quiet", "--allow-empty", "--message", f"Commit {i}")
    commits = git("rev-list", "--reverse", "HEAD")
    described = {name: {**BENCHMARK, "name": name, "version": "1"} for name in NAMES}
    write(tmp_path / "asv.conf.json", CONFIG)
    write(tmp_path / "results/benchmarks.json", {"version": 2, **described})
    write(tmp_path / "results/mine/machine.json", {"version": 1, **MACHINE})
    # What a ratio varies by from run to run.
    noise = np.random.default_rng(0).normal(1, 0.03, (COMMITS, len(NAMES)))
    for i, commit in enumerate(commits):
        found = results.Results(MACHINE, {}, commit, i * 1000, "3.11", "made-up", {})
        for name, value in zip(NAMES, noise[i] * [1, 1.5 if i >= SLOW_FROM else 1], strict=True):
            result = runner.BenchmarkResult([float(value)], [None], [None], 0, "", None)
            found.add_result(described[name], result)
        found.save(tmp_path / "results")
    return commits


def test_a_slowdown_is_listed_with_its_commit(history, tmp_path):
    publish = [sys.executable, "-m", "asv", "publish", "--no-pull"]
    done = subprocess.run(publish, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (listed,) = json.loads((tmp_path / "html/regressions.json").read_text("utf-8"))["regressions"]
    name, *_, now, best, jumps = listed
    ((before, at, _, _),) = jumps
    index = json.loads((tmp_path / "html/index.json").read_text("utf-8"))
    assert name == "ratios.track_slower"
    assert index["revision_to_hash"][str(at)] == history[SLOW_FROM]
    # asv leaves the commit before out where the step is between neighbours.
    assert before is None
    # Medians of 9 and 15 values, each of which varies by 3 %.
    assert now / best == pytest.approx(1.5, rel=0.05)
