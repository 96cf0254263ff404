"""docs/how-to/convert.md is true: its code runs in order and prints what is shown, its tables are the recipe's."""

from __future__ import annotations

import json
import re

import pytest
from example_files import ROOT, example

DOCUMENT = (ROOT / "docs" / "how-to" / "convert.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", DOCUMENT, flags=re.DOTALL)


def test_code_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    names: dict[str, object] = {}
    for language, code in BLOCKS:
        if language == "python":
            exec(compile(code, "docs/how-to/convert.md", "exec"), names)
    (printed,) = [code for language, code in BLOCKS if language == "text"]
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("name", ["recipe", "recipe-augmented", "recipe-alexnet"])
def test_tables_are_those_that_the_recipe_prints(name: str) -> None:
    result = json.loads((ROOT / "results" / f"{name}.json").read_text())
    cells = example("recipe").cells
    rows = [cells(network, row, result["seconds"][network]) for network, row in result["test"].items()]
    table = DOCUMENT.split(f"| `results/{name}.json` |")[1].split("\n\n")[0].splitlines()[2:]
    assert table == [f"| {' | '.join(row)} |" for row in rows]
