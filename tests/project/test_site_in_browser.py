"""The built site in headless Chromium, without a network: no request fails, and none leaves it."""

import json

import pytest
from browser import needs_chromium, opened, served
from test_site import PAGES, SITE

pytestmark = pytest.mark.site

AT_ONCE = 20  # frames of one page
STARTS = range(0, len(PAGES), AT_ONCE)


def frames(first):
    """A page with some pages of the site as frames."""
    return "".join(f'<iframe src="/{name}"></iframe>' for name in PAGES[first : first + AT_ONCE])


@pytest.fixture(scope="module")
def server():
    with served(SITE, {f"/frames/{first}": frames(first) for first in STARTS}) as server:
        yield server


def requested(log):
    """The URLs that pages asked for, other than the browser itself."""
    found = json.loads(log.read_text("utf-8"))
    started = found["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    for event in found["events"]:
        parameters = event.get("params", {})
        if event["type"] == started and "127.0.0.1" in parameters.get("initiator", ""):
            yield parameters["url"]


@needs_chromium
@pytest.mark.parametrize("first", STARTS)
def test_no_request_fails_or_leaves_the_site(server, first, tmp_path):
    log = tmp_path / "net.json"
    server.failed.clear()
    opened(f"{server.address}/frames/{first}", f"--log-net-log={log}")
    urls = set(requested(log))
    chosen = {f"{server.address}/{name}" for name in PAGES[first : first + AT_ONCE]}
    assert chosen <= urls
    assert {url for url in urls if not url.startswith(server.address)} == set()
    assert server.failed == []
