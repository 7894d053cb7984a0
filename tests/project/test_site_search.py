"""The search of the built site: words of the field lead first to the page that helps.

Chromium runs the scripts of the site's own search page.
"""

import json
from html.parser import HTMLParser

import pytest
from browser import needs_chromium, opened, served
from test_site import SITE

pytestmark = pytest.mark.site

FIRST = {
    "SNV": "norms/standard_normal_variate",
    "z-score": "norms/standard_normal_variate",
    "CMVN": "generated/gallery/cmvn_utterance",
    "sliding-window CMVN": "norms/moving",
    "StandardScaler": "scikit_learn",
    "RevIN": "norms/reversible",
    "EMSC": "norms/emsc",
    "LSTM layer norm": "recurrent",
    "LayerNorm": "norms/layer",
    "BatchNorm": "norms/batch",
    "RMSNorm": "norms/rms",
    "scanpy": "coming_from/scanpy",
    "Dask": "clusters",
    "Hampel filter": "norms/moving_robust",
}
# The scripts of search.html, and a call of what it calls, for each of the words.
SCRIPTS = ("doctools", "language_data", "sphinx_highlight", "searchtools")
PAGE = """\
<html data-content_root="./"><body>
{scripts}
<div id="search-progress"></div><pre id="found"></pre>
<script>
  Search.setIndex = index => {{
    Search._index = index;
    const found = {{}};
    for (const words of {words}) {{
      const results = Search._performSearch(...Search._parseQuery(words));
      found[words] = results.reverse().slice(0, 3).map(result => result[0]);
    }}
    document.getElementById("found").textContent = JSON.stringify(found);
  }};
</script>
<script src="/searchindex.js"></script>
</body></html>
"""


class Found(HTMLParser):
    """What the page wrote."""

    text, inside = "", False

    def handle_starttag(self, tag, attributes):
        self.inside = ("id", "found") in attributes

    def handle_data(self, data):
        self.text += data if self.inside else ""


@pytest.fixture(scope="module")
def found():
    """The first pages for each of the words."""
    scripts = "".join(f'<script src="/_static/{name}.js"></script>' for name in SCRIPTS)
    page = PAGE.format(scripts=scripts, words=json.dumps(list(FIRST)))
    parser = Found()
    with served(SITE, {"/search_all": page}) as server:
        parser.feed(opened(f"{server.address}/search_all"))
    return json.loads(parser.text)


@needs_chromium
@pytest.mark.parametrize(("words", "page"), FIRST.items())
def test_first_result(words, page, found):
    assert found[words][0] == page, found[words]
