"""What was tried: a table of trainings with other settings than the preset's."""

import shutil
from pathlib import Path

from dubito.paper.cells import CPU_EPOCHS
from dubito.paper.document import compose
from dubito.paper.trials import trials
from dubito.runs.run import Run
from dubito.training import configure

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "results/reproduction/trials"


def test_every_committed_trial_differs_from_the_preset_and_shows_its_best_epoch():
    rows = trials(COMMITTED).splitlines()[2:]
    folders = sorted(path.parent for path in COMMITTED.glob("*/config.yaml"))
    assert len(rows) == len(folders) > 0
    for row, folder in zip(rows, folders, strict=True):
        run = Run.open(folder)
        usual = configure("default", model=run.config.model, data=run.config.data, inference=run.config.inference)
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        changed = [name for name, value in run.config.to_dict().items() if value != getattr(usual, name)]
        if changed == ["epochs"]:  # longer than any cell, or what others of as many epochs are compared with
            alike = [Run.open(other).config for other in folders if other != folder]
            fields = ("model", "data", "inference", "epochs")
            beside = [c for c in alike if all(getattr(c, name) == getattr(run.config, name) for name in fields)]
            assert run.config.epochs > max(CPU_EPOCHS.values()) or beside
        other = [name for name in changed if name != "epochs"]
        assert [part.split()[0] for part in cells[1].split(", ")] == (other or ["none"])
        lowest = min(float(line["val_nll"]) for line in run.metrics())
        assert (cells[4], cells[6]) == (f"{lowest:.3f}", f"{run.metrics()[-1]['val_nll']:.3f}")
        assert cells[2] == f"{len(run.metrics())} of {run.config.epochs}"


def test_the_document_has_them_where_there_are_some(tmp_path):
    results = tmp_path / "cpu"
    results.mkdir()
    assert "What was tried" not in compose(results, "../cpu")
    shutil.copytree(COMMITTED, tmp_path / "trials")
    assert trials(COMMITTED) in compose(results, "../cpu")
    assert "(../trials)" in compose(results, "../cpu")
