"""`dubito zoo`: the trained networks that come with dubito, the card of one of them, or a copy to work on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from dubito.cli.failure import Debug
from dubito.cli.options import option
from dubito.cli.terminal import Column, examples, numbers, print_table, quoted
from dubito.errors import OptionError
from dubito.harmless import say
from dubito.zoo import SCHEME, card, figures, find, names

EXAMPLES = examples(
    "dubito zoo",
    "dubito zoo lenet5-mnist",
    "dubito zoo lenet5-mnist --out runs/mine",
    "dubito serve zoo:lenet5-mnist",
    note="Use zoo:NAME in place of a run folder, in Python too: dubito.load('zoo:lenet5-mnist'). The networks are part "
    "of the installation and cannot be changed. To fit a new decision rule, for example, make a copy with --out.",
)


def zoo(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show the card of this network.", show_default=False)
    ] = None,
    out: Annotated[Path | None, option("FOLDER", "Copy this network into a new run folder.")] = None,
    debug: Debug = False,
) -> None:
    """List the trained networks that come with dubito, with their figures on test images."""
    if name is None:
        if out is not None:
            raise OptionError(
                "--out is for a copy of one network: name it, as in `dubito zoo lenet5-mnist --out FOLDER`."
            )
        _list()
    elif out is None:
        say(card(name.removeprefix(SCHEME)).partition("\n---\n")[2].strip())
    else:
        _copy(find(SCHEME + name.removeprefix(SCHEME)), out)


def _list() -> None:
    columns = [Column("name"), Column("data"), Column("method", fold=True)]
    columns += numbers("accuracy", "NLL", "ECE", "novelty", "MB")
    found = {name: figures(name) for name in names()}
    print_table(columns, [_row(name, of_one) for name, of_one in found.items()])
    say("\nAccuracy, negative log-likelihood and calibration error are measured on test images.")
    say("novelty: how well it separates test images from another data set (area under the ROC curve; 0.5 is chance).")
    say(f"Best of their kind by validation NLL: {', '.join(_best(found))}.")
    say("Next: dubito serve zoo:lenet5-mnist")


def _best(found: dict[str, dict[str, Any]]) -> list[str]:
    """Of each network and data set, the one that validation images speak for."""
    best: dict[tuple[str, str], str] = {}
    for name in sorted(found, key=lambda name: float(found[name]["validation"]["nll"])):
        best.setdefault((found[name]["network"], found[name]["data"]), name)
    return sorted(best.values())


def _row(name: str, found: dict[str, Any]) -> list[str]:
    test, (other, scores) = found["test"], next(iter(found["ood"].items()))
    size = sum(file.stat().st_size for file in find(SCHEME + name).iterdir())
    numbers = [f"{test['accuracy']:.2%}", f"{test['nll']:.3f}", f"{test['ece']:.3f}"]
    return [name, found["data"], found["method"], *numbers, f"{scores['novelty']:.3f} {other}", f"{size / 1e6:.1f}"]


def _copy(folder: Path, out: Path) -> None:
    from dubito.files import new_folder, refuse_existing

    refuse_existing(out)
    with new_folder(out) as place:
        shutil.copytree(folder, place, dirs_exist_ok=True)
    say(f"The copy of {folder.name} is in {out}.")
    say(f"Next: dubito predict {quoted(out)} IMAGES...")
