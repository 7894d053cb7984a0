"""The paper: its form, its references, its links, its numbers and its picture."""

import json
import re
from pathlib import Path

import pytest
import yaml

DOCS = Path(__file__).parents[2] / "docs"
PAPER = (DOCS / "paper.md").read_text("utf-8")
_, HEAD, BODY = PAPER.split("---\n", 2)
REFERENCES = {
    key: dict(re.findall(r"^  (\w+) = \{(.*)\},$", fields, re.MULTILINE))
    for key, fields in re.findall(
        r"^@\w+\{(\w+),\n(.*?)^\}$",
        (DOCS / "paper.bib").read_text("utf-8"),
        re.DOTALL | re.MULTILINE,
    )
}
LINKS = re.findall(r"\]\(([^)\s]+)\)", BODY)
SPEED = ["peers.md", "moving/peers.md"]


def test_form_of_the_journal():
    # Its other section, on the use of AI, is in the steps of docs/releasing.md.
    sections = re.findall(r"^# (.+)$", BODY, re.MULTILINE)
    assert sections == [
        *("Summary", "Statement of need", "State of the field", "Software design"),
        *("Research impact statement", "Acknowledgements", "References"),
    ]
    assert {"title", "tags", "authors", "date", "bibliography"} <= set(yaml.safe_load(HEAD))
    words = re.sub(r"\]\([^)]*\)", "]", BODY).split()
    assert 750 <= len(words) <= 1750


def test_references_are_those_that_are_cited():
    assert set(re.findall(r"@(\w+)", BODY)) == set(REFERENCES)


@pytest.mark.parametrize("key", REFERENCES)
def test_reference_is_complete(key):
    fields = REFERENCES[key]
    assert key.endswith(fields["year"]) and {"title", "author"} <= set(fields)
    assert re.match(r"10\.\d{4,}/\S+$", fields.get("doi", "")) or "doi" not in fields
    assert "doi" in fields or fields["url"].startswith("https://")
    if "eprint" in fields:
        assert fields["doi"] == f"10.48550/arXiv.{fields['eprint']}"


@pytest.mark.parametrize("link", sorted({link.partition("#")[0] for link in LINKS}))
def test_what_is_linked_is_there(link):
    assert (DOCS / link).is_file()


def test_numbers_stand_in_the_tables():
    results = DOCS.parent / "asv_benchmarks" / "peers" / "results"
    speed = "".join((results / name).read_text("utf-8") for name in SPEED)
    ratios = re.findall(r"\d[\d.]*× \([\d.]+ to [\d.]+\)", BODY)
    assert len(ratios) == 4 and all(f" {ratio} |" in speed for ratio in ratios)
    numerics = (DOCS / "numerics.md").read_text("utf-8")
    errors = re.findall(r"\de-?\d+", BODY)
    rows = "".join(re.findall(r"^\|.*\n", numerics, re.MULTILINE))
    assert len(errors) == 7 and all(re.search(rf"[ ]{error}[ ,]", rows) for error in errors)
    log = (DOCS / "performance" / "log" / "statistics.md").read_text("utf-8")
    of_peers, shorter = re.search(r"Of (\d+) times of peers (\d+) are shorter", log).groups()
    assert f"{shorter} of {of_peers} timings" in BODY


def test_picture_shows_the_numbers_of_the_tables(monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.syspath_prepend(DOCS)
    from pictures import accuracy

    drawn = accuracy.errors()
    assert [len(libraries) for libraries in drawn.values()] == [4, 7]
    with image.open(accuracy.PICTURE) as picture:
        assert json.loads(picture.text["Description"]) == drawn
    assert f"](pictures/{accuracy.PICTURE.name})" in BODY
