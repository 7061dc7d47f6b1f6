"""Check the built site: nothing is loaded from a network, and all links within it have a target.

Each parameter is documented where it is used, not by a link to another function.

    python docs/check_site.py build/site [BROWSER]

With the program of a Chromium, the search is tried as well, on the pages as files.
"""

import re
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads without a click. Of `link`, only some kinds: others name pages.
LOADED = {
    "audio": "src", "embed": "src", "iframe": "src", "img": "src", "image": "href", "link": "href",
    "object": "data", "script": "src", "source": "src", "track": "src", "use": "href",
    "video": "src",
}  # fmt: skip
KINDS_OF_PAGES = {"alternate", "author", "canonical", "help", "license", "next", "prev"}
# What users look for first; the page of questions answers all of it.
WORDS = ("tweets", "reviews", "UMAP", "batch", "doublets", "DTM", "perplexity", "Windows")
BY_REFERENCE = re.compile(r">\s*As in\s+<")
IN_STYLES = r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)"""


class Page(HTMLParser):
    """The links, the loaded files and the anchors of a page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        text = path.read_text(encoding="utf-8")
        self.feed(text)
        self.by_reference = len(BY_REFERENCE.findall(text))
        self.loaded.update(re.findall(IN_STYLES, text))

    def handle_starttag(self, tag, attrs):
        """Keep what the attributes refer to."""
        given = {name: value for name, value in attrs if value is not None}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        where = given.get(LOADED.get(tag, ""))
        if tag == "link" and set(given.get("rel", "").split()) <= KINDS_OF_PAGES | {
            "index",
            "search",
        }:
            self.links.add(where or "")
        elif where is not None:
            self.loaded.add(where)
        if tag == "a" and "href" in given:
            self.links.add(given["href"])


def problems(site: Path) -> list[str]:
    """Return what is wrong with the pages of a site, one line each."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html")}
    found = [
        f"{style.relative_to(site)} loads {url}"
        for style in site.rglob("*.css")
        for url in re.findall(IN_STYLES, style.read_text(encoding="utf-8"))
    ]
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name} loads {url}" for url in page.loaded if re.match("(https?:)?//", url)]
        if page.by_reference:
            found.append(f"{name} documents {page.by_reference} entries by 'As in ...' alone")
        for url in page.links | page.loaded:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                found.append(f"{name} refers to {url}, which does not exist")
            elif parts.fragment and target in pages:
                if unquote(parts.fragment) not in pages[target].anchors | {"top"}:
                    found.append(f"{name} refers to {url}, but the page has no such anchor")
    return found


def found_by_search(site: Path, browser: str, words: str) -> str:
    """Return what the search page, opened as a file, lists for these words."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom",
            f"{(site / 'search.html').as_uri()}?q={words}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.split('id="search-results"', 1)[1].split("</ul>", 1)[0]


def problems_of_search(site: Path, browser: str) -> list[str]:
    """Return what is wrong with the search."""
    name = found_by_search(site, browser, "AnchorNMF")
    found = []
    if "AnchorNMF.html" not in name:
        found.append("search.html, opened as a file, does not find AnchorNMF")
    if "changelog.html" in name or "benchmarks.html" in name:
        found.append("search.html lists pages that are not documentation (nosearch)")
    if "faq.html" not in found_by_search(site, browser, "+".join(WORDS)):
        found.append(f"search.html does not find a page of questions with all of {WORDS}")
    return found


def main() -> None:
    """Check the site that the command line names."""
    site = Path(sys.argv[1]).resolve()
    found = problems(site)
    if len(sys.argv) > 2:
        found += problems_of_search(site, sys.argv[2])
    if found:
        sys.exit("\n".join(sorted(found)))


main()
