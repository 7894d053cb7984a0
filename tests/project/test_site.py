"""The built site: every link and picture is there, and no page asks the network for anything.

`nox -s docs` builds it and runs this; ``pytest -m site`` alone walks what was built last.
"""

import functools
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.site

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
# The theme has templates beside its scripts.
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
PAGES = [name for name in PAGES if not name.startswith("_static/")]
STYLES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.css"))

# What a browser loads by itself, as opposed to what a reader follows.
LOADED = {
    **dict.fromkeys([("img", "src"), ("script", "src"), ("source", "src"), ("link", "href")]),
    **dict.fromkeys([("iframe", "src"), ("object", "data"), ("video", "src"), ("embed", "src")]),
}


class Page(HTMLParser):
    """The anchors of a page, what it loads, and where its links lead."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.loaded, self.links = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag, name) == ("a", "name"):
                self.anchors.add(value)
            elif (tag, name) in LOADED:
                self.loaded.append(value)
            elif name == "srcset":
                self.loaded += [part.split()[0] for part in value.split(",")]
            elif (tag, name) == ("a", "href"):
                self.links.append(value)


@functools.cache
def page(name):
    return Page((SITE / name).read_text("utf-8"))


def is_elsewhere(url):
    parts = urlsplit(url)
    return bool(parts.scheme or parts.netloc) and parts.scheme != "data"


def file_of(url, base):
    """The file of a relative URL; a folder's is its index."""
    path = (SITE / base).parent / unquote(urlsplit(url).path) if urlsplit(url).path else SITE / base
    return (path / "index.html" if path.is_dir() else path).resolve()


def test_site_was_built():
    assert {"index.html", "choosing.html", "norms/layer.html", "performance/index.html"} <= {*PAGES}
    assert "generated/reference/numnorm.layer_norm.html" in PAGES


@pytest.mark.parametrize("name", PAGES)
def test_page_loads_nothing_from_the_network(name):
    assert [url for url in page(name).loaded if is_elsewhere(url)] == []


@pytest.mark.parametrize("name", STYLES)
def test_style_loads_nothing_from_the_network(name):
    text = (SITE / name).read_text("utf-8")
    urls = re.findall(r"""(?:url\(|@import\s)\s*["']?([^"')\s]+)""", text)
    assert [url for url in urls if is_elsewhere(url)] == []
    missing = [url for url in urls if not url.startswith(("data:", "#", "%23"))]
    assert [url for url in missing if not file_of(url, name).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_links_and_pictures_of_the_page_exist(name):
    broken = []
    for url in page(name).loaded + page(name).links:
        # "#__" is the theme's, "#/" a tab of the dashboard.
        if is_elsewhere(url) or url.startswith(("data:", "#__", "#/")):
            continue
        path, anchor = file_of(url, name), unquote(urlsplit(url).fragment)
        if not path.exists():
            broken.append(url)
        elif anchor and path.suffix == ".html":
            of_page = page(path.relative_to(SITE.resolve()).as_posix())
            if anchor not in of_page.anchors:
                broken.append(url)
    assert broken == []


@pytest.mark.parametrize("name", PAGES)
def test_pictures_have_a_text(name):
    text = (SITE / name).read_text("utf-8")
    assert [tag for tag in re.findall(r"<img\b[^>]*>", text) if "alt=" not in tag] == []
