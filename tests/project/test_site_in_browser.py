"""The built site in headless Chromium, without a network: no request fails, and none leaves it."""

import functools
import http.server
import json
import shutil
import subprocess
import threading

import pytest
from test_site import PAGES, SITE

pytestmark = pytest.mark.site

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
AT_ONCE = 20  # frames of one page
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=20000"),
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]


class Server(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and at /frames/N a page with some of its pages as frames."""

    failed: list[str] = []

    def do_GET(self):
        if not self.path.startswith("/frames/"):
            super().do_GET()
            return
        first = int(self.path.removeprefix("/frames/"))
        frames = (f'<iframe src="/{name}"></iframe>' for name in PAGES[first : first + AT_ONCE])
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write("".join(frames).encode())

    def send_error(self, code, *arguments, **options):
        if self.path != "/favicon.ico":  # of the page with the frames
            self.failed.append(self.path)
        super().send_error(code, *arguments, **options)

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address():
    handler = functools.partial(Server, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def requested(log):
    """The URLs that pages asked for, other than the browser itself."""
    found = json.loads(log.read_text("utf-8"))
    started = found["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    for event in found["events"]:
        parameters = event.get("params", {})
        if event["type"] == started and "127.0.0.1" in parameters.get("initiator", ""):
            yield parameters["url"]


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("first", range(0, len(PAGES), AT_ONCE))
def test_no_request_fails_or_leaves_the_site(address, first, tmp_path):
    log = tmp_path / "net.json"
    command = [CHROMIUM, *OPTIONS, f"--log-net-log={log}", f"{address}/frames/{first}"]
    Server.failed.clear()
    subprocess.run(command, capture_output=True, check=True, timeout=300)
    urls = set(requested(log))
    chosen = {f"{address}/{name}" for name in PAGES[first : first + AT_ONCE]}
    assert chosen <= urls
    assert {url for url in urls if not url.startswith(address)} == set()
    assert Server.failed == []
