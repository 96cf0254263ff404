"""The site's own parts: pages are run and their output put in, formulas and links are changed as they should be."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_builder import repository, tutorials
from site_builder.check import Html
from site_builder.commands import commands, help_of
from site_builder.pages import blocks, links
from site_builder.tutorials import TutorialError, pictures_of, run_page, with_outcomes

PAGE = """# A page

```python run
number = 6
print(number * 7)
```

```console run
echo seven > seven.txt && cat seven.txt
```

```python run fold
print(open("seven.txt").read().strip(), number)
```

```python
raise ValueError("this is only shown")
```

![A picture](run:drawn.png)
"""


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tutorials, "KEPT", tmp_path)
    monkeypatch.setattr(tutorials, "_fingerprint", lambda text: f"{abs(hash(text))}")
    return tmp_path


def test_a_page_is_run_once_in_one_process_and_one_folder(kept: Path) -> None:
    ran = run_page("page", PAGE)
    assert ran is not None
    assert [one.output for one in ran.outcomes] == ["42", "seven", "seven 6"]
    (ran.folder / "seven.txt").unlink()
    assert run_page("page", PAGE) == ran  # from what was kept
    assert pictures_of(PAGE, ran) == ["drawn.png"]
    shown = with_outcomes(PAGE, ran, "page-pictures")
    assert "```python\nnumber = 6\nprint(number * 7)\n```\n\n```{ .text .output }\n42\n```" in shown
    assert '??? note "The code"\n\n    ```python\n    print(open' in shown
    assert "![A picture](page-pictures/drawn.png)" in shown
    assert shown.count(".output") == 3
    assert run_page("nothing", "```python\n1\n```\n") is None


@pytest.mark.parametrize("block", ["```python run\n1 / 0\n```\n", "```console run\nfalse\n```\n"])
def test_a_block_that_fails_fails_the_page_every_time(kept: Path, block: str) -> None:
    for _ in range(2):
        with pytest.raises(TutorialError, match="page does not run"):
            run_page("page", block)


def test_code_is_no_link() -> None:
    text = "[a](b.md) `[c](d.md)` ![e](f.png)\n\n```\n[g](h.md)\n```\n"
    assert links(text) == ["b.md", "f.png"]
    assert [(one.language, one.line) for one in blocks(text)] == [("", 3)]


def test_links_to_the_repository_stay_within_the_site() -> None:
    text = "[a](../../examples/demo.py) [b](../../CONTRIBUTING.md#tests) [c](../../results) [d](save.md) `[e](../../x)`"
    changed = repository.with_links("how-to/page.md", text)
    assert changed == (
        "[a](../repository/examples/demo.py.md) [b](../project/contributing.md#tests) c [d](save.md) `[e](../../x)`"
    )
    assert repository.linked_files("how-to/page.md", text) == {"examples/demo.py"}
    assert "# examples/demo.py" in str(repository.shown("examples/demo.py"))


def test_every_command_is_in_the_reference() -> None:
    assert {("train",), ("data", "get"), ("zoo",)} <= set(commands())
    assert "--max-error" in help_of("decide")


def test_a_page_tells_what_it_fetches_and_where_it_leads() -> None:
    page = Html('<a href="x/" id="y">z</a><script src="https://far.away/a.js"></script><link rel="icon" href="b.svg">')
    assert (page.links, page.loads, page.anchors) == (["x/"], ["https://far.away/a.js", "b.svg"], {"y"})


def test_the_reference_shows_no_private_parameters(tmp_path: Path) -> None:
    griffe = pytest.importorskip("griffe")
    extensions = griffe.load_extensions(pytest.importorskip("site_builder.docstrings").Docstrings)
    (tmp_path / "known.py").write_text("def call(open, _hidden=1): ...\n")
    module = griffe.load("known", search_paths=[tmp_path], extensions=extensions)
    assert [parameter.name for parameter in module["call"].parameters] == ["open"]


def test_a_picture_leads_to_its_file() -> None:
    hooks = pytest.importorskip("site_builder.hooks", exc_type=ImportError)
    shown = '<img alt="a" src="b.png" />'
    linked = hooks.on_page_content(f"<p>{shown}</p>", None, None, None)
    assert linked == f'<p><a class="picture" href="b.png">{shown}</a></p>'
    assert hooks.on_page_content(linked, None, None, None) == linked


def test_formulas_become_mathml() -> None:
    formulas = pytest.importorskip("site_builder.formulas")
    page = formulas.to_mathml('<div class="arithmatex">\\[\\sum_{t=1}^T \\mathbb E[p_t] &lt; 1\\]</div> \\(not this\\)')
    assert page.count("<math") == 1
    assert "<munderover><mo>∑</mo>" in page
    assert chr(0x1D53C) in page  # a double-struck E
    assert "\\(not this\\)" in page
    assert len(formulas.font(formulas.formulas_of(page))) < 200_000
