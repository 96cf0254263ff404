"""Files of the repository that pages link to: they become part of the site, so that no link leads out of it."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from site_builder.pages import INLINE_CODE, LINK, ROOT, is_outside, links, outside_of_code

PAGES = {
    "project/contributing.md": "CONTRIBUTING.md",
    "project/changelog.md": "CHANGELOG.md",
    "project/security.md": "SECURITY.md",
}
"""Pages of the site that are files of the repository's root."""
PLACE = "repository"
CODE = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "bash"}
"""What is shown as a page with coloured code; other files are copied."""


def source_of(page: str) -> str:
    """Where a page's text stands in the repository."""
    return PAGES.get(page, f"docs/{page}")


def resolve(page: str, target: str) -> str | None:
    """The file of the repository that a link leads to, or None if it leads elsewhere or stays on its page."""
    path = target.partition("#")[0]
    if not path or is_outside(target) or target.startswith(("run:", "/")):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(source_of(page)), path))


def page_of(file: str) -> str | None:
    """The page or file of the site that shows a file of the repository; None for a folder."""
    known = {source: page for page, source in PAGES.items()}
    if file in known:
        return known[file]
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if (ROOT / file).is_dir():
        return None
    return f"{PLACE}/{file}.md" if Path(file).suffix in CODE else f"{PLACE}/{file}"


def linked_files(page: str, text: str) -> set[str]:
    """Files of the repository outside docs that a page links to and that the site has to hold."""
    found = {resolve(page, target) for target in links(text)} - {None}
    return {file for file in found if file and (page_of(file) or "").startswith(f"{PLACE}/")}


def shown(file: str) -> str | bytes:
    """The content of a linked file's page, or the file itself."""
    content = (ROOT / file).read_bytes()
    language = CODE.get(Path(file).suffix)
    if language is None:
        return content
    text = content.decode("utf-8").rstrip("\n")
    return f"---\nsearch:\n  exclude: true\n---\n\n# {file}\n\n````{language}\n{text}\n````\n"


def with_links(page: str, text: str) -> str:
    """The page with links to files of the repository as links within the site."""

    def change(match: re.Match[str]) -> str:
        target = match["target"]
        file = resolve(page, target)
        if file is None:
            return match[0]
        place = page_of(file)
        if place is None:  # a folder: its name says where to look
            return re.sub(r"^\[(.*)\]\($", r"\1", match["before"])
        anchor = target.partition("#")[2]
        path = posixpath.relpath(place, posixpath.dirname(page) or ".")
        return f"{match['before']}{path}{'#' + anchor if anchor else ''}{match['after']}"

    def change_part(part: str) -> str:
        kept: list[str] = []  # what stands between backticks is no link
        hidden = INLINE_CODE.sub(lambda match: f"\0{kept.append(match[0]) or len(kept) - 1}\0", part)
        return re.sub(r"\0(\d+)\0", lambda match: kept[int(match[1])], LINK.sub(change, hidden))

    return outside_of_code(text, change_part)
