"""The search of the built site: words of the field lead first to the page that helps.

Chromium runs the scripts of the site's own search page.
"""

import functools
import http.server
import json
import shutil
import subprocess
import threading
from html.parser import HTMLParser

import pytest
from test_site import SITE

pytestmark = pytest.mark.site

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--dump-dom",
    "--virtual-time-budget=20000",
]
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
    "scanpy": "norms/batch",
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


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and the page that searches it."""

    def do_GET(self):
        if self.path != "/search_all":
            super().do_GET()
            return
        scripts = "".join(f'<script src="/_static/{name}.js"></script>' for name in SCRIPTS)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.format(scripts=scripts, words=json.dumps(list(FIRST))).encode())

    def log_message(self, *arguments):
        pass


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
    handler = functools.partial(Server, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [CHROMIUM, *OPTIONS, f"http://127.0.0.1:{server.server_port}/search_all"]
        dumped = subprocess.run(command, capture_output=True, check=True, timeout=300, text=True)
        server.shutdown()
    parser = Found()
    parser.feed(dumped.stdout)
    return json.loads(parser.text)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(("words", "page"), FIRST.items())
def test_first_result(words, page, found):
    assert found[words][0] == page, found[words]
