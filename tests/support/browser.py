"""Chromium without a window and without a network, on a folder that this process serves."""

import contextlib
import functools
import http.server
import shutil
import subprocess
import threading

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
OPTIONS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--virtual-time-budget=20000"),
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder and pages that are not in it, and keeps what it did not find."""

    def __init__(self, folder, pages):
        self.pages, self.failed = pages, []
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
        self.address = f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path not in self.server.pages:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.server.pages[self.path].encode())

    def send_error(self, code, *arguments, **options):
        if self.path != "/favicon.ico":  # which a browser asks for if a page names no icon
            self.server.failed.append(self.path)
        super().send_error(code, *arguments, **options)

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def served(folder, pages=None):
    """Serve a folder, and pages by their paths, while the block runs."""
    with Server(folder, pages or {}) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def opened(url, *options):
    """Return the elements of a page, as HTML, after its scripts have run."""
    command = [CHROMIUM, *OPTIONS, *options, url]
    return subprocess.run(command, capture_output=True, check=True, timeout=300, text=True).stdout
