"""`dubito prune`: set the weights with little signal to zero and write a smaller run folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dubito.cli.failure import Debug, Trust
from dubito.cli.options import Checkpoint, Samples, flag, option, run_argument
from dubito.cli.output import require_matplotlib, require_writable
from dubito.cli.terminal import examples, numbers, print_table, quoted, size
from dubito.errors import OptionError
from dubito.harmless import say
from dubito.progress import progress_bar
from dubito.zoo import place_for

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module as Network

    from dubito.evaluation.harm import Harm
    from dubito.runs.run import Run

EXAMPLES = examples(
    "dubito prune runs/mnist --curve",
    "dubito prune runs/mnist --sparsity 0.9 --out runs/mnist-pruned",
    note="The signal-to-noise ratio of a weight is |mu| / sigma of its posterior. Biases are corrected so that each "
    "layer keeps its mean output. Accuracy and NLL are measured on the run's validation images. A warning says if the "
    "pruned network is worse: accuracy lower by more than 1 point, or NLL higher by more than 0.05, and by more than "
    "chance explains (95 % confidence). It names the largest sparsity that does no such harm. The pruned run works "
    "with predict, evaluate and report like any other.",
)
LEVELS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)
OFFERED = (0.1, 0.2, 0.3, 0.4, *LEVELS[1:])
"""Among which the largest sparsity without harm is looked for."""
TRAINING_IMAGES = 256
"""How many training images the biases are corrected on."""
_COPIED = ("config.yaml", "network.json", "environment.json", "metrics.csv", "posterior.csv")


def prune(
    run: Annotated[Path, run_argument("Run folder of a Bayesian network.")],
    sparsity: Annotated[float | None, option("SHARE", "Share of the weights to set to zero, such as 0.9.")] = None,
    out: Annotated[
        Path | None,
        option("FOLDER", "Folder for the pruned run, or for the curve.", default="RUN-pruned-SHARE, or RUN"),
    ] = None,
    curve: Annotated[
        bool, flag("--curve", "Measure accuracy at many sparsities: a table, pruning.csv and pruning.png.")
    ] = False,
    samples: Samples = 10,
    checkpoint: Checkpoint = "best",
    trust: Trust = False,
    debug: Debug = False,
) -> None:
    """Set the weights with the smallest signal-to-noise ratio to exactly zero."""
    import torch

    from dubito.convert import prune as pruned
    from dubito.files import refuse_existing
    from dubito.runs.run import Run

    if sparsity is None and not curve:
        raise OptionError("There is nothing to do: give --sparsity SHARE, --curve or both.")
    if curve:
        require_matplotlib()
    torch.set_flush_denormal(True)
    opened = Run.open(run)
    if opened.is_ensemble:
        raise OptionError(
            f"{run} is an ensemble, but single networks are pruned: prune its members one by one, {run}/members/0 and "
            "so on, and join them by `dubito ensemble`."
        )
    network = opened.load(checkpoint)
    pruned(network, 0.0 if sparsity is None else sparsity)  # refuses what cannot be pruned before anything is read
    home = place_for(run)
    folder = out or home
    if sparsity is not None:
        folder = out or Path(f"{home if run.name else run.resolve()}-pruned-{100 * sparsity:.4g}")
        refuse_existing(folder)
    require_writable(folder / "pruning.csv")
    levels = sorted({*(LEVELS if curve else (0.0,)), *([] if sparsity is None else [sparsity])})
    measuring = _Measuring(network, opened, samples)
    rows = measuring.rows(levels)
    print_table(
        numbers("sparsity", "weights left", "accuracy", "NLL"),
        [(f"{r['sparsity']:.1%}", f"{r['weights']:,}", f"{r['accuracy']:.2%}", f"{r['nll']:.4f}") for r in rows],
    )
    if sparsity is not None:
        chosen = next(row for row in rows if row["sparsity"] == sparsity)
        sparse = pruned(network, sparsity, inputs=measuring.training)
        _write(opened, sparse, folder, checkpoint, {"samples": samples, **chosen})
        _warn_of_harm(measuring, sparsity, run)
    if curve:
        Run(folder, opened.config, opened.data).write_table("pruning.csv", rows)
        _draw(rows, folder / "pruning.png")
        say(f"The curve is {folder / 'pruning.csv'} and {folder / 'pruning.png'}.")


class _Measuring:
    """Predicts the run's validation images at levels of sparsity, each of them once.

    Attributes:
        held_out: images that the run held out from its training.
        training: a batch that it was trained on.
    """

    def __init__(self, network: Network, run: Run, samples: int) -> None:
        from dubito.data import in_memory, normalize

        self.network, self.run, self.samples = network, run, samples
        trained, self.held_out = run.parts()
        some = trained.images[:: max(1, len(trained) // TRAINING_IMAGES)][:TRAINING_IMAGES]
        self.training = normalize(in_memory(some), run.data.mean, run.data.std)
        self._measured: dict[float, tuple[int, Tensor]] = {}

    def rows(self, levels: Sequence[float]) -> list[dict[str, Any]]:
        """Accuracy and NLL at every level of sparsity."""
        from dubito.evaluation.metrics import accuracy, nll

        labels, rows = self.held_out.labels, []
        with progress_bar("Pruning", len(levels) * len(labels)) as advance:
            for level in levels:
                weights, probs = self._predict(level, advance)
                row = {"sparsity": level, "weights": weights}
                rows.append({**row, "accuracy": accuracy(probs, labels), "nll": nll(probs, labels)})
        return rows

    def harm(self, level: float) -> Harm:
        """How much worse than without pruning the network is at this level."""
        from dubito.evaluation.harm import harm

        (_, before), (_, after) = (self._predict(one, lambda _: None) for one in (0.0, level))
        return harm(before, after, self.held_out.labels)

    def _predict(self, level: float, advance: Callable[[int], None]) -> tuple[int, Tensor]:
        import torch

        from dubito.convert import prune as pruned
        from dubito.convert import weights_left
        from dubito.data import normalize
        from dubito.prediction import Predictor

        if level not in self._measured:
            sparse = pruned(self.network, level, inputs=self.training)
            predictor, parts = Predictor(sparse, self.samples), []
            for part in self.held_out.images.split(1000):
                parts.append(predictor(normalize(part, self.run.data.mean, self.run.data.std)).probs)
                advance(len(part))
            self._measured[level] = weights_left(sparse), torch.cat(parts)
        return self._measured[level]


def _warn_of_harm(measuring: _Measuring, sparsity: float, run: Path) -> None:
    """Say that a sparsity makes the network worse, and what the largest is that does not."""
    from dubito.evaluation.harm import largest_harmless

    found = measuring.harm(sparsity)
    if not found.is_harmful:
        return
    offered = [level for level in OFFERED if level < sparsity]
    best = largest_harmless(offered, lambda level: measuring.harm(level).is_harmful)
    advice = (
        f"the largest sparsity without harm is {best:g}: dubito prune {quoted(run)} --sparsity {best:g}"
        if best
        else "no smaller sparsity that was tried is without harm"
    )
    say(
        f"Warning: a sparsity of {sparsity:g} makes the network worse: on {len(measuring.held_out):,} validation "
        f"images accuracy changes by {-100 * found.fall:+.1f} points and NLL by {found.rise:+.3f}, more than chance "
        f"explains; {advice}.",
        err=True,
    )


def _write(run: Run, network: Network, folder: Path, checkpoint: str, facts: dict[str, Any]) -> None:
    """Write the pruned network as a new run folder, and print how much smaller it is."""
    from dubito.convert import pack
    from dubito.files import new_folder, write_atomically
    from dubito.runs.run import NETWORK, Run

    tensors, shapes = pack({NETWORK + name: tensor for name, tensor in network.state_dict().items()})
    notes = {**run.read_checkpoint(checkpoint)[1], "pruned": shapes}
    before = (run.path / f"{checkpoint}.safetensors").stat().st_size
    with new_folder(folder) as place:
        for name in _COPIED:
            if (run.path / name).exists():
                write_atomically(place / name, (run.path / name).read_bytes())
        Run(place, run.config, run.data).write_checkpoint("best", tensors, notes)
        after = (place / "best.safetensors").stat().st_size
        facts |= {"run": run.path.resolve().name, "checkpoint": checkpoint, "bytes": after, "bytes_before": before}
        write_atomically(place / "pruning.json", json.dumps(facts, indent=2) + "\n")
    say(
        f"The pruned run is {folder}; its weights take {size(after)} instead of {size(before)} "
        f"({before / after:.1f} times less)."
    )


def _draw(rows: list[dict[str, Any]], file: Path) -> None:
    from dubito.evaluation.style import draw, to_png
    from dubito.files import write_atomically

    def paint(ax: Any) -> None:
        ax.plot([row["sparsity"] for row in rows], [row["accuracy"] for row in rows], marker="o", markersize=3)
        ax.set_xlabel("sparsity: share of the weights that are zero")
        ax.set_ylabel("validation accuracy")
        ax.xaxis.set_major_formatter("{x:.0%}")
        ax.yaxis.set_major_formatter("{x:.0%}")

    write_atomically(file, to_png(draw(paint)))
