"""What MkDocs calls while it builds: see mkdocs.yml."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from site_builder import commands, formulas, repository, tutorials
from site_builder.pages import ROOT

log = logging.getLogger("mkdocs.site")
RAN: dict[str, tutorials.Ran] = {}
"""What the pages that have been run gave."""
FORMULAS: list[str] = []
PICTURE = re.compile(r'<img [^>]*?src="([^"]+)"[^>]*>(?!</a>)')


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Run the tutorials, and add the files that pages show: pictures of tutorials, and files of the repository."""
    for page, source in repository.PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    linked: set[str] = set()
    for file in [one for one in files if one.src_uri.endswith(".md")]:
        text = file.content_string
        linked |= repository.linked_files(file.src_uri, text)
        _run(file.src_uri, text, files, config)
    for name in sorted(linked):
        _add(files, config, str(repository.page_of(name)), repository.shown(name))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put in what was run, links to files of the repository, and the reference of the command line."""
    name = page.file.src_uri
    markdown = repository.with_links(name, markdown)
    if name in RAN:
        markdown = tutorials.with_outcomes(markdown, RAN[name], _pictures(name).rpartition("/")[2])
    if commands.PLACE in markdown:
        markdown = markdown.replace(commands.PLACE, commands.command_reference())
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML, and remember them for their font; a picture leads to its file, to be enlarged."""
    html = PICTURE.sub(r'<a class="picture" href="\1">\g<0></a>', formulas.to_mathml(html))
    FORMULAS.extend(formulas.formulas_of(html))
    return html


def on_post_build(config: MkDocsConfig) -> None:
    """Write the font of the formulas."""
    (Path(config.site_dir) / "assets" / "formulas.woff").write_bytes(formulas.font(FORMULAS))


def _run(name: str, text: str, files: Files, config: MkDocsConfig) -> None:
    try:
        ran = tutorials.run_page(name.removesuffix(".md").replace("/", "-"), text)
    except tutorials.TutorialError as error:
        raise PluginError(str(error)) from None
    if ran is None:
        return
    log.info("%s has been run in %.0f s", name, ran.seconds)
    RAN[name] = ran
    for picture in tutorials.pictures_of(text, ran):
        _add(files, config, f"{_pictures(name)}/{picture}", (ran.folder / picture).read_bytes())


def _pictures(name: str) -> str:
    """The folder of the site for the pictures that a page's code draws."""
    return name.removesuffix(".md") + "-pictures"


def _add(files: Files, config: MkDocsConfig, name: str, content: str | bytes) -> None:
    options: dict[str, Any] = {"inclusion": InclusionLevel.NOT_IN_NAV} if name.endswith(".md") else {}
    files.append(File.generated(config, name, content=content, **options))
