"""The comparison of ways of inference: dubito takes its commands, and trainings of one way share a row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer.main
from benchmarks import inference

from dubito.cli import app

ROOT = Path(__file__).parents[2]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands that are called; none is carried out."""
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(inference, "dubito", lambda *words: commands.append(words))
    return commands


@pytest.mark.parametrize("network", inference.NETWORKS)
def test_every_command_is_one_that_dubito_takes(network: str, called: list[tuple[str, ...]], tmp_path: Path) -> None:
    inference.main(["train", network, "--runs", str(tmp_path)])
    known = typer.main.get_command(app)
    for name, *words in called:
        known.commands[name].make_context(name, list(words))  # raises an error at a flag that does not exist
    trained = {words[words.index("--out") + 1] for words in called if words[0] == "train"}
    evaluated = [words[words.index("--folder") + 1] for words in called if words[0] == "evaluate"]
    assert len(trained) == len(inference.WAYS) + inference.MEMBERS - 1
    assert trained == set(evaluated) - {str(tmp_path / f"{network}-ensemble")}
    begun = {words[words.index("--init") + 1] for words in called if "--init" in words}
    assert begun == {str(tmp_path / f"{network}-twin-0")}


def test_trainings_of_one_way_share_a_row() -> None:
    figures = {"accuracy": 0.9, "nll": 0.3, "ece": 0.02, "mistakes_entropy": 0.8, "cifar100_entropy": 0.85}
    one = {"model": "lenet5", "data": "mnist", "way": "vi, natural", "seeds": [0], "epochs": 10, "figures": figures}
    other = {**one, "seeds": [1], "figures": {**figures, "accuracy": 0.94}}
    twin = {**one, "way": "frequentist, adam"}
    rows = inference.grouped([one, twin, other])
    assert [row["seeds"] for row in rows] == [[[0], [1]], [[0]]]
    table = inference.markdown(rows)
    assert "| vi, natural | 92.00 (90.00-94.00) | 0.300 (0.300-0.300) |" in table
    assert (
        "| frequentist, adam | 90.00 | 0.300 | 0.0200 | 0.800 / - / - | 0.850 / - / - | - | - | 1.00 | 1.00 |" in table
    )


def test_rows_of_other_networks_stay_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "inference.json"
    lenet, alexnet = ({"model": name, "data": "cifar10", "way": "old"} for name in ("lenet5", "alexnet"))
    assert inference.with_others([lenet], file) == [lenet]
    file.write_text(json.dumps([lenet, alexnet]))
    new = {**alexnet, "way": "new"}
    assert inference.with_others([new], file) == [lenet, new]


def test_the_page_has_the_tables_of_the_results() -> None:
    rows = json.loads((ROOT / "results/inference.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/results/inference.md").read_text(encoding="utf-8")
    assert inference.with_tables(page, rows) == page
    rows[0]["figures"]["accuracy"] = [0.123]
    assert "| 12.30 |" in inference.with_tables(page, rows)


def test_a_way_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        inference.main(["train", "lenet5", "--ways", "twin,nonsense"])
    assert "there is no way nonsense among twin" in capsys.readouterr().err
