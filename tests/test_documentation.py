"""The pages of the documentation: links lead somewhere, commands, flags and names exist, and code is code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml
from markdown.extensions.toc import slugify
from site_builder.pages import DOCS, FENCE, ROOT, Block, blocks, is_outside, links
from site_builder.repository import PAGES
from typer.testing import CliRunner

import dubito
from dubito.cli import app

FILES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", *(ROOT / source for source in PAGES.values())])
NAMES = [path.relative_to(ROOT).as_posix() for path in FILES]
SHELL = {"", "console", "bash", "sh"}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def anchors(text: str) -> set[str]:
    """Those that MkDocs gives to headings."""
    headings = re.findall(r"^#+ +(.+?)\s*$", FENCE.sub("", text), flags=re.MULTILINE)
    return {slugify(re.sub(r"[`*]", "", heading), "-") for heading in headings}


def navigation() -> list[str]:
    class Loader(yaml.SafeLoader):
        """Reads the names of Python objects in mkdocs.yml as text."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: "")

    def files(part: object) -> list[str]:
        if isinstance(part, dict):
            part = list(part.values())
        return [name for one in part for name in files(one)] if isinstance(part, list) else [str(part)]

    return files(yaml.load(text_of("mkdocs.yml"), Loader)["nav"])


def test_the_navigation_names_every_page_once() -> None:
    found = navigation()
    there = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(found) == sorted([*there, *PAGES])


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    lost = []
    for target in links(text_of(name)):
        path, _, anchor = target.partition("#")
        if is_outside(target) or target.startswith("run:"):
            continue
        file = (ROOT / name).parent / path if path else ROOT / name
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            lost.append(target)
    assert lost == []


def commands(block: Block) -> list[list[str]]:
    """The words of each line that calls dubito."""
    lines = [line.partition(" | ")[0] for line in block.code.replace("\\\n", " ").splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("dubito ")]


@pytest.fixture(scope="module")
def help_texts() -> dict[tuple[str, ...], str]:
    return {}


def faults_of(words: list[str], known: dict[tuple[str, ...], str]) -> list[str]:
    name = tuple(words[:2] if words[0] == "data" else words[:1])
    if name not in known:
        result = CliRunner().invoke(app, [*name, "--help"], env={"COLUMNS": "200"})
        known[name] = result.output if result.exit_code == 0 else ""
    flags = {word.partition("=")[0] for word in words if word.startswith("--")}
    missing = [flag for flag in flags if not re.search(re.escape(flag) + r"(?![\w-])", known[name])]
    return [f"dubito {' '.join(name)} {flag}" for flag in missing] if known[name] else [f"dubito {' '.join(name)}"]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_and_flag_exists(name: str, help_texts: dict[tuple[str, ...], str]) -> None:
    shown = [words for block in blocks(text_of(name)) if block.language in SHELL for words in commands(block)]
    prose = FENCE.sub("", text_of(name))  # a table's first cell may be the name of a system, such as `dubito local`
    if name != "CHANGELOG.md":  # it tells of what has gone, too
        shown += [
            shlex.split(line.replace("'", ""))[1:] for line in re.findall(r"(?<!\| )`(dubito [a-z][^`\n]*)`", prose)
        ]
    shown = [words for words in shown if words[0].islower()]
    assert [fault for words in shown for fault in faults_of(words, help_texts)] == []


def test_the_pages_have_commands_to_check() -> None:
    found = [words for name in NAMES for block in blocks(text_of(name)) for words in commands(block)]
    assert len(found) > 50
    assert faults_of(["train", "--no-such-flag"], {}) == ["dubito train --no-such-flag"]
    assert faults_of(["no-such-command"], {}) == ["dubito no-such-command"]


@pytest.mark.parametrize("name", NAMES)
def test_python_is_python_and_marks_are_known(name: str) -> None:
    for block in blocks(text_of(name)):
        if block.language == "python":
            compile(block.code, f"{name}:{block.line}", "exec")
        assert set(block.marks) <= {"run", "fold", "{", ".text", ".output", "}"}, (name, block.line)
        assert not block.runs or block.language in ("python", "console"), (name, block.line)


def test_every_public_name_is_in_the_reference() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: (\S+)$", pages, flags=re.MULTILINE))
    assert [name for name in dubito.__all__ if f"dubito.{name}" not in listed] == []


def test_tables_of_figures_name_the_command_that_wrote_them() -> None:
    for path in (DOCS / "results").glob("*.md"):
        assert re.search(r"`(dubito|python|make) ", Path(path).read_text(encoding="utf-8")), path
