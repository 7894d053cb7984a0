"""What docs/install.md says was tried is what the records say."""

import platform
import sys
import tomllib

import pytest
import tried

PROJECT = tomllib.loads((tried.DOCS.parent / "pyproject.toml").read_text("utf-8"))["project"]


def test_page_is_up_to_date():
    text = tried.PAGE.read_text("utf-8")
    assert text == tried.page(), "run python tests/support/tried.py write"


def test_the_pythons_of_the_classifiers_were_tried():
    native = {each["python"] for each in tried.records() if each["how"] == "native"}
    named = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: Python :: 3." in c}
    assert named - native == set()
    free_threaded = any("Free Threading" in c for c in PROJECT["classifiers"])
    assert free_threaded <= any(python.endswith("t") for python in native)


@pytest.fixture
def empty_records(tmp_path, monkeypatch):
    monkeypatch.setattr(tried, "RECORDS", tmp_path / "tried.csv")
    tried.RECORDS.write_text(",".join(tried.FIELDS) + "\n", "utf-8")


def test_a_new_record_takes_the_place_of_the_old_one(empty_records):
    for what in ("a few calls", "all tests, and more"):
        tried.record("native", what, "Linux x86_64")
    tried.record("emulated", "calls", "Linux riscv64")
    emulated, native = tried.records()
    assert native["what"] == "all tests, and more"
    assert native["version"] == emulated["version"] == platform.python_version()
    assert native["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    first, _, row, *_ = tried.tables().splitlines()
    assert first == f"|  | {' | '.join(tried.PLATFORMS)} | Linux riscv64 |"
    assert row == f"| Python {native['python']} | native |{' not tried |' * 3} emulated |"


def test_pythons_are_sorted_by_their_numbers():
    pythons = ["3.9", "3.10", "3.14", "3.14t", "3.15"]
    assert sorted(sorted(pythons), key=tried.python_order) == pythons
