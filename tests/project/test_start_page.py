"""The numbers of the built start page: those of the README and of the pages that it links."""

import html
import re
from pathlib import Path

import pytest
from test_site import SITE

pytestmark = pytest.mark.site

ROOT = Path(__file__).parents[2]


def test_numbers():
    page = html.unescape((SITE / "index.html").read_text("utf-8"))
    text = " ".join(re.sub(r"<[^>]+>", "", page).split())
    readme = (ROOT / "README.md").read_text("utf-8")
    # The first column is the Zen 5.
    row = r"^\| layer norm{} \| ([\d.]+) \(([\d.]+)–([\d.]+)\)"
    ((times, least, most),) = re.findall(row.format(", new memory"), readme, re.MULTILINE)
    ((into, *_),) = re.findall(row.format(" into `out`"), readme, re.MULTILINE)
    assert f"{times} times as fast as PyTorch" in text
    assert f"{least} to {most} by shape; {into} into an array that exists (out=)" in text
    (errors,) = re.findall(r"float32 at 1e7 has an error of (\S+), PyTorch's is (\S+) ", readme)
    assert f"Exact to {errors[0]} at a mean of 1e7" in text
    assert f"PyTorch is off by {errors[1]}" in text
    # Of the norms only those of the table with all places.
    places = (ROOT / "docs" / "places.md").read_text("utf-8").partition("\n## Places\n")[2]
    norms = re.findall(r"^\| `\w+` \|(.*)\|$", places.partition("And the functions")[0], re.M)
    columns = list(zip(*(row.split("|") for row in norms), strict=True))
    everywhere = sum(all("✓" in cell for cell in column) for column in columns)
    on_gpu = sum("✓" in cell for cell in columns[-1])
    assert f"{len(norms)} norms in {everywhere} places" in text
    assert f"; {on_gpu} on a GPU, too" in text
