"""Open every page of site/ in headless Chromium: ``make docs-check``.

    python scripts/docs/check.py [folder for screenshots]

Each page is loaded at 390, 1280 and 1920 px. A page fails if it scrolls sideways, has a dead link, anchor or picture,
logs an error, requests another host, or cuts code lines of up to 88 columns. Then search (over HTTP and from files),
dark mode and the 404 page are checked. Requires Chromium (Debian: ``apt-get install chromium``).
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

SITE = Path(__file__).resolve().parents[2] / "site"
WIDTHS = (390, 1280, 1920)
#: Without these, Chromium contacts hosts of its vendor; as root it has no sandbox.
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
_QUERY = "recompilation"
_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
_CUT_CODE = """[...document.querySelectorAll('article pre > code')].filter(code =>
    code.scrollWidth > code.clientWidth + 1 && Math.max(...code.innerText.split('\\n').map(l => l.length)) <= 88
).map(code => 'code is cut: ' + code.innerText.slice(0, 60))"""


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with the site's 404 page, as hosts of static sites do."""
        if code != 404:
            super().send_error(code, message, explain)
            return
        page = (SITE / "404.html").read_bytes()
        self.send_response(404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)


@contextmanager
def serve_site() -> Iterator[str]:
    """Serve the site while the block runs; yield its address."""
    handler = functools.partial(_QuietHandler, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def collect_faults(page: Page, address: str) -> Iterator[list[str]]:
    """Collect errors on the console, exceptions, failed requests, and requests to other hosts."""
    faults: list[str] = []
    listeners = {
        "console": lambda message: message.type == "error" and faults.append(f"console: {message.text}"),
        "pageerror": lambda error: faults.append(f"exception: {error}"),
        # A page that is left aborts what it still loads, on a busy machine.
        "requestfailed": lambda request: (
            request.failure == "net::ERR_ABORTED"
            or faults.append(f"cannot be loaded: {request.url}: {request.failure}")
        ),
        "request": lambda request: (
            request.url.startswith((address, "data:", "blob:", "about:"))
            or faults.append(f"request to another host: {request.url}")
        ),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    yield faults
    for event, listener in listeners.items():
        page.remove_listener(event, listener)


def page_faults(page: Page, address: str, name: str) -> list[str]:
    """Load a page at the current width, and return what is wrong with it."""
    with collect_faults(page, address) as faults:
        response = page.goto(f"{address}/{name}", wait_until="load")
    if response is None or not response.ok:
        faults.append(f"status {response.status if response else 'none'}")
    faults += page.eval_on_selector_all(
        "img", "all => all.filter(i => !i.complete || i.naturalWidth == 0).map(i => 'picture: ' + i.src)"
    )
    if (excess := page.evaluate(_OVERFLOW)) > 0:
        faults.append(f"scrolls sideways by {excess} px")
    if page.viewport_size is not None and page.viewport_size["width"] >= 1280:
        faults += page.evaluate(_CUT_CODE)
    return faults


def dead_links(links: dict[str, set[str]], address: str, anchors: dict[str, set[str]]) -> Iterator[str]:
    """Yield the links to missing pages and anchors. Links to other sites are not followed."""
    for name, found in links.items():
        for link in found:
            if not link.startswith(address):
                continue
            target, anchor = urldefrag(link)
            path = unquote(urlparse(target).path).lstrip("/") or "index.html"
            path += "index.html" if path.endswith("/") else ""
            if not (SITE / path).is_file():
                yield f"{name}: link to {path}, which is missing"
            elif anchor and not anchor.startswith("__") and unquote(anchor) not in anchors.get(path, {unquote(anchor)}):
                yield f"{name}: link to {path}#{anchor}, which is missing"


def search_faults(page: Page, address: str) -> Iterator[str]:
    """Yield what is wrong with the search: no result for a word, or an error."""
    with collect_faults(page, address) as faults:
        page.goto(f"{address}/index.html", wait_until="load")
        page.click("input[name=query]")
        page.keyboard.type(_QUERY)
        try:
            page.wait_for_selector(".md-search-result__link", state="attached", timeout=20_000)
        except TimeoutError:
            yield f"search at {address[:4]}: no result for {_QUERY!r}"
    yield from (f"search at {address[:4]}: {fault}" for fault in faults)


def dark_mode_faults(page: Page, address: str) -> Iterator[str]:
    """Press the button of the dark mode; yield a fault if the page stays light."""
    color = "getComputedStyle(document.body).backgroundColor"
    page.goto(f"{address}/index.html", wait_until="load")
    light = page.evaluate(color)
    page.click("label[title=Dark]")
    if page.evaluate(color) == light or page.evaluate("document.body.dataset.mdColorScheme") != "slate":
        yield "dark mode: the page stays light"


def missing_page_faults(page: Page, address: str) -> Iterator[str]:
    """Open an address without a page; yield a fault unless the 404 page answers."""
    page.goto(f"{address}/no_such_page.html", wait_until="load")
    if page.text_content("h1") != "Page not found":
        yield "404: the page for missing addresses is not shown"


def check_pages(page: Page, address: str, shots: Path | None) -> list[str]:
    """Return the faults of all pages at all widths, and the dead links."""
    names = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if path.name != "404.html")
    faults: list[str] = []
    links: dict[str, set[str]] = {}
    anchors: dict[str, set[str]] = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for name in names:
            faults += [f"{name} at {width} px: {fault}" for fault in page_faults(page, address, name)]
            if shots is not None:
                page.screenshot(path=str(shots / f"{name.replace('/', '-')}-{width}.png"))
            if name not in links:
                links[name] = set(page.eval_on_selector_all("a[href]", "all => all.map(a => a.href)"))
                anchors[name] = set(page.eval_on_selector_all("[id]", "all => all.map(e => e.id)"))
    faults += dead_links(links, address, anchors)
    print(f"{len(names)} pages at {len(WIDTHS)} widths, {sum(map(len, links.values()))} links")
    return faults


def check(browser: Browser, address: str, shots: Path | None) -> list[str]:
    """Return all faults, each with its page."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    faults = check_pages(page, address, shots)
    page.set_viewport_size({"width": 1280, "height": 900})
    faults += search_faults(page, address)
    faults += search_faults(page, SITE.as_uri())
    faults += missing_page_faults(page, address)
    faults += dark_mode_faults(page, address)
    if shots is not None:
        page.screenshot(path=str(shots / "dark.png"))
    return faults


def main() -> int:
    """Print the faults; return 1 if there are any."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("docs-check: Chromium is not installed: apt-get install chromium", file=sys.stderr)
        return 1
    shots = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if shots is not None:
        shots.mkdir(parents=True, exist_ok=True)
    with serve_site() as address, tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, headless=True, args=_FLAGS, env={"HOME": home, "PATH": "/usr/bin:/bin"}
        )
        try:
            faults = check(browser, address, shots)
        finally:
            browser.close()
    print("\n".join([*faults, f"{len(faults)} faults"]))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
