"""A look at the finished site: every link leads somewhere, every public name is there, nothing is fetched.

python -m site_builder.check build/site
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import dubito

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
FETCHED = {"stylesheet", "icon", "preconnect", "prefetch", "preload", "dns-prefetch", "modulepreload"}
"""What a `link` asks the browser to fetch."""
OUTSIDE_CSS = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])(?:https?:)?//[^)'\"]+")


class Html(HTMLParser):
    """The links, the anchors and what a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if LOADS.get(tag, "") in found:
            self.loads.append(found[LOADS[tag]])
        if tag == "link" and FETCHED & set(found.get("rel", "").split()):
            self.loads.append(found.get("href", ""))


def faults(site: Path) -> list[str]:
    """A sentence for each fault of the site."""
    pages = {path: Html(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [fault for path, page in pages.items() for fault in _faults_of(path, page, pages, site)]
    for sheet in sorted(site.rglob("*.css")):
        found += [f"{sheet.relative_to(site)} fetches {url}" for url in OUTSIDE_CSS.findall(sheet.read_text("utf-8"))]
    return found + [f"The reference has no {name}." for name in missing_names(pages.values())]


def missing_names(pages: Iterable[Html]) -> list[str]:
    """Public names without an anchor in the reference."""
    anchors = set().union(*(page.anchors for page in pages))
    packages = ("data", "decisions", "models", "training", "zoo")
    names = [f"dubito.{name}" for name in dubito.__all__]
    names += [f"dubito.{package}.{name}" for package in packages for name in getattr(dubito, package).__all__]
    return sorted(name for name in names if name not in anchors)


def _faults_of(path: Path, page: Html, pages: dict[Path, Html], site: Path) -> Iterable[str]:
    where = path.relative_to(site)
    for target in page.loads:
        if urlsplit(target).netloc:
            yield f"{where} fetches {target}"
        elif not target.startswith("data:") and not _file(path, target, site).is_file():
            yield f"{where} loads {target}, which is not there"
    for target in page.links:
        address = urlsplit(target)
        if address.scheme or address.netloc:
            continue
        file = _file(path, address.path, site) if address.path else path
        if not file.is_file():
            yield f"{where} links to {target}, which is not there"
        elif address.fragment and file in pages and unquote(address.fragment) not in pages[file].anchors | {"__skip"}:
            yield f"{where} links to {target}, an anchor that is not there"


def _file(page: Path, target: str, site: Path) -> Path:
    path = unquote(urlsplit(target).path)
    found = (site / path.lstrip("/") if path.startswith("/") else page.parent / path).resolve()
    return found / "index.html" if found.is_dir() else found


def main() -> int:
    """Print the faults; their number decides the exit code."""
    site = Path(sys.argv[1]).resolve()
    found = faults(site)
    print(
        "\n".join(found)
        or f"{sum(1 for _ in site.rglob('*.html'))} pages: every link leads somewhere, nothing is fetched."
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
