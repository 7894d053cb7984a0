"""The dashboard of asv: what was recorded, and what the site shows of it."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "asv_benchmarks" / "results"
SUITES = ROOT / "asv_benchmarks" / "benchmarks"
DASHBOARD = ROOT / "docs" / "_build" / "html" / "performance" / "asv"
COMMITS, BENCHMARKS = 20, 40  # at least


def recorded():
    for path in sorted(RESULTS.glob("*/*-*.json")):
        yield path, json.loads(path.read_text("utf-8"))


def measured(results):
    """The benchmarks of a commit that have a value, with the numbers of their parameters."""
    for name, found in results["results"].items():
        values = found[0] if isinstance(found[0], list) else [found[0]]
        # asv writes NaN for what failed or was not chosen: it does not equal itself.
        yield from (
            (name, i) for i, value in enumerate(values) if value is not None and value == value
        )


def test_results_are_of_enough_commits_and_benchmarks():
    counts = Counter()
    for _, results in recorded():
        counts.update(measured(results))
    commits = [results["commit_hash"] for _, results in recorded()]
    assert len(set(commits)) == len(commits) >= COMMITS
    assert sum(count >= COMMITS for count in counts.values()) >= BENCHMARKS


@pytest.mark.site
def test_the_newest_commit_has_results_of_every_suite():
    suites = {
        path.stem
        for path in SUITES.glob("*.py")
        if re.search(r"def (time|timeraw|track|peakmem)_", path.read_text("utf-8"))
    }
    newest = max((results for _, results in recorded()), key=lambda results: results["date"])
    assert {name.partition(".")[0] for name, _ in measured(newest)} == suites


def test_results_name_a_kind_of_machine():
    for path, results in recorded():
        machine = json.loads((path.parent / "machine.json").read_text("utf-8"))
        assert results["params"]["machine"] == machine["machine"] == path.parent.name
        assert machine["cpu"]


@pytest.mark.site
def test_site_shows_the_commits():
    index = json.loads((DASHBOARD / "index.json").read_text("utf-8"))
    hashes = set(index["revision_to_hash"].values())
    assert hashes == {results["commit_hash"] for _, results in recorded()}


@pytest.mark.site
def test_site_has_a_graph_for_each_benchmark():
    index = json.loads((DASHBOARD / "index.json").read_text("utf-8"))
    graphs = {path.stem: path for path in (DASHBOARD / "graphs" / "summary").glob("*.json")}
    assert graphs.keys() == index["benchmarks"].keys()
    assert all(json.loads(path.read_text("utf-8")) for path in graphs.values())
