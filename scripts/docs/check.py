"""Opens every page of site/ in headless Chromium: ``make docs-check``.

A page fails by a link or a picture that leads nowhere (anchors included), an error on the console, an exception of a
script, and by asking for anything from elsewhere. Then the search has to find a word, and the dark mode to be dark.
Needs the system's Chromium (Debian: ``apt-get install chromium``).
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
#: Chromium otherwise looks up hosts of its maker; as root it has no sandbox.
_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
_WORD = "recompilation"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve_site() -> Iterator[str]:
    """Serve the site while the block runs; yield its address."""
    handler = functools.partial(_Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def faults_of(page: Page, address: str, name: str, anchors: dict[str, set[str]]) -> list[str]:
    """What is wrong with one page; notes its anchors and the links that lead to those of others."""
    faults: list[str] = []
    listeners = {
        "console": lambda message: message.type == "error" and faults.append(f"console: {message.text}"),
        "pageerror": lambda error: faults.append(f"exception: {error}"),
        "requestfailed": lambda request: faults.append(f"cannot be loaded: {request.url}"),
        "request": lambda request: (
            request.url.startswith((address, "data:", "blob:")) or faults.append(f"from elsewhere: {request.url}")
        ),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    response = page.goto(f"{address}/{name}", wait_until="load")
    if response is None or not response.ok:
        faults.append(f"status {response.status if response else 'none'}")
    faults += page.eval_on_selector_all(
        "img", "all => all.filter(i => !i.complete || i.naturalWidth == 0).map(i => 'picture: ' + i.src)"
    )
    anchors[name] = set(page.eval_on_selector_all("[id]", "all => all.map(e => e.id)"))
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    return faults


def links_of(page: Page) -> set[str]:
    """The addresses that the page links to."""
    return set(page.eval_on_selector_all("a[href]", "all => all.map(a => a.href)"))


def dead(links: dict[str, set[str]], address: str, anchors: dict[str, set[str]]) -> Iterator[str]:
    """The links of each page that lead to no page, or to no place in one. Those to other sites are not followed."""
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


def search_and_dark(page: Page, address: str) -> Iterator[str]:
    """Types a word into the search, and presses the button of the dark mode."""
    page.goto(f"{address}/index.html", wait_until="load")
    page.click("input[name=query]")
    page.keyboard.type(_WORD)
    try:
        page.wait_for_selector(".md-search-result__link", state="attached", timeout=20_000)
    except TimeoutError:
        yield f"search: {_WORD!r} is not found"
    color = "getComputedStyle(document.body).backgroundColor"
    page.goto(f"{address}/index.html", wait_until="load")
    light = page.evaluate(color)
    page.click("label[title=Dark]")
    if page.evaluate(color) == light or page.evaluate("document.body.dataset.mdColorScheme") != "slate":
        yield "dark mode: the page stays light"


def check(browser: Browser, address: str, shots: Path | None) -> list[str]:
    """All faults, each with its page."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    names = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if path.name != "404.html")
    faults, links, anchors = [], {}, dict[str, set[str]]()
    for name in names:
        faults += [f"{name}: {fault}" for fault in faults_of(page, address, name, anchors)]
        links[name] = links_of(page)
        if shots is not None:
            page.screenshot(path=str(shots / f"{name.replace('/', '-')}.png"), full_page=True)
    faults += dead(links, address, anchors)
    faults += search_and_dark(page, address)
    if shots is not None:
        page.screenshot(path=str(shots / "dark.png"))
    print(f"{len(names)} pages, {sum(map(len, links.values()))} links, {len(faults)} faults")
    return faults


def main() -> int:
    """Prints the faults; 1 if there are any. An argument names a folder for pictures of the pages."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("docs-check: no Chromium was found: apt-get install chromium", file=sys.stderr)
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
    print("\n".join(faults))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
