"""Lightning callbacks: one keeps the run folder, one shows how the training goes."""

from __future__ import annotations

import reprlib
import signal
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from types import FrameType
from typing import Any

import pytorch_lightning as pl
import torch
from rich.console import Console
from torch import nn

from dubito.errors import DubitoError, RunError
from dubito.foreign import reading
from dubito.layers import BayesLayer
from dubito.progress import Advance, progress_bar
from dubito.runs.run import NETWORK, Run, fitting
from dubito.training.classifier import Classifier, TrainingSums
from dubito.training.classifier import Progress as Position
from dubito.training.optimizer_state import pack_state, restore_state


class InterruptedTraining(DubitoError):  # noqa: N818 - stopping is no error
    """Ctrl-C: the training stopped between two steps, with a checkpoint."""


class RunKeeper(pl.Callback):
    """Writes checkpoints and metrics into the run folder, and turns Ctrl-C into a clean stop.

    A checkpoint holds everything that the next step depends on: weights, the whole state of the optimiser, and the
    position. Noise and batches are functions of seed and position, so a resumed run continues bit for bit.
    """

    def __init__(self, run: Run, minutes: float = 5.0) -> None:
        self.run = run
        self.minutes = minutes
        self.rows: list[dict[str, Any]] = []
        self.trace: list[dict[str, Any]] = []
        self.best = float("inf")
        self._resumed: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None
        self._interrupted = False
        self._saved = self._step_began = time.monotonic()

    def resume(self, module: Classifier) -> Position:
        """Read the last checkpoint into the module; the optimiser gets its state when the fit starts."""
        tensors, notes = self.run.read_checkpoint("last")
        if "optimizer" not in notes:
            raise RunError(f"{self.run.path} was trained by an earlier version and cannot be continued; train again.")
        weights = {k.removeprefix(NETWORK): t for k, t in tensors.items() if k.startswith(NETWORK)}
        with reading(self.run.path / "last.safetensors", "restore it or train again"):
            module.network.load_state_dict(fitting(weights, module.network))
            module.start = Position(**_numbers(notes["progress"], whole=True))
            for name, value in _numbers(notes["sums"]).items():
                if not hasattr(module.sums, name):
                    raise ValueError(f"its sums have {name[:50]!r}")
                setattr(module.sums, name, value)
            self.best = _numbers({"best": notes["best"]})["best"]
            self.rows = _table(notes["rows"], {name for name, *_ in Display.COLUMNS})
            self.trace = _table(notes["trace"], {"epoch", "layer", "index", "mean", "std"}, {"layer"})
        self._write_tables()  # a kill may have come between the checkpoint and these files
        self._resumed = tensors, notes["optimizer"]
        return module.start

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A context in which the first Ctrl-C asks for a clean stop and the second one stops at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Give the optimiser its state back."""
        assert isinstance(pl_module, Classifier)
        if self._resumed is not None:
            restore_state(trainer.optimizers[0], pl_module.network, *self._resumed)
            self._resumed = None

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, index: int) -> None:
        """Start the step's clock."""
        self._step_began = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write a checkpoint if it is time or Ctrl-C was pressed."""
        assert isinstance(pl_module, Classifier)
        now = time.monotonic()
        pl_module.sums.seconds += now - self._step_began
        due = now - self._saved > self.minutes * 60
        at = pl_module.position(batch_idx + 1)
        if at.batch >= pl_module._num_batches:
            return  # the epoch's end, with its validation and checkpoint, is next
        if trainer.is_global_zero and (self._interrupted or due):
            self.save(trainer, pl_module, at)
        if self._interrupted:
            raise InterruptedTraining(f"Stopped in epoch {at.epoch + 1}.")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the epoch's row of metrics, the checkpoint, and the best weights if these are."""
        assert isinstance(pl_module, Classifier)
        epoch = pl_module.start.epoch + trainer.current_epoch + 1
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        sums = pl_module.sums
        timing = {"seconds": round(sums.seconds, 2), "learning_rate": rate}
        self.rows.append({"epoch": epoch, **timing, **sums.means(), **pl_module.validation})
        self.trace += _one_weight_per_layer(pl_module.network, epoch)
        if trainer.is_global_zero:
            if pl_module.validation["val_nll"] < self.best:
                self.best = pl_module.validation["val_nll"]
                self.run.write_checkpoint("best", _weights(pl_module), {"epoch": epoch})
            self.save(trainer, pl_module, Position(epoch, 0))
            self._write_tables()
        if self._interrupted and epoch < pl_module.epochs:
            raise InterruptedTraining(f"Stopped after epoch {epoch}.")

    def _write_tables(self) -> None:
        num_data = self.run.data.num_data
        rows = [{**row, "free_energy": row["train_nll"] + row["kl"] / num_data} for row in self.rows]
        self.run.write_table("metrics.csv", rows)
        if self.trace:
            self.run.write_table("posterior.csv", self.trace)

    def save(self, trainer: pl.Trainer, module: Classifier, at: Position) -> None:
        """Write last.safetensors."""
        state, optimizer = pack_state(trainer.optimizers[0], module.network)
        notes = {
            "optimizer": optimizer,
            "settings": self.run.settings(),
            "progress": asdict(at),
            "sums": asdict(module.sums if at.batch else TrainingSums()),  # of the unfinished epoch
            "rows": self.rows,
            "trace": self.trace,
            "best": self.best,
        }
        self.run.write_checkpoint("last", {**_weights(module), **state}, notes)
        self._saved = time.monotonic()


def _one_weight_per_layer(network: nn.Module, epoch: int) -> list[dict[str, Any]]:
    """Mean and standard deviation of a fixed weight in the middle of each Bayesian layer."""
    found = []
    for name, layer in network.named_modules():
        if isinstance(layer, BayesLayer):
            index = layer.weight_mean.numel() // 2
            mean, std = (t.detach().reshape(-1)[index].item() for t in (layer.weight_mean, layer.weight_std))
            found.append({"epoch": epoch, "layer": name, "index": index, "mean": mean, "std": std})
    return found


def _numbers(values: Any, *, whole: bool = False) -> dict[str, Any]:
    """A dictionary of numbers, or of whole ones that count something; else a ValueError."""
    for name, value in values.items():
        is_count = type(value) is int and 0 <= value < 2**31
        if not is_count and (whole or not isinstance(value, float)):
            raise ValueError(f"{name[:50]} is {reprlib.repr(value)}")
    return dict(values)


def _table(rows: Any, columns: set[str], texts: Collection[str] = ()) -> list[dict[str, Any]]:
    """Rows that have at least these columns, all the same, and numbers where they have no texts; else a ValueError."""
    if not isinstance(rows, list):
        raise ValueError(f"a table is a {type(rows).__name__}")
    for row in rows:
        if not columns <= row.keys() or row.keys() != rows[0].keys():
            raise ValueError("a row of its tables has other columns")
        if not all(isinstance(row[name], str) for name in texts):
            raise ValueError("a row of its tables has numbers for texts")
        _numbers({name: value for name, value in row.items() if name not in texts})
    return rows


def _weights(module: Classifier) -> dict[str, torch.Tensor]:
    return {NETWORK + name: tensor for name, tensor in module.network.state_dict().items()}


class Display(pl.Callback):
    """A bar with the time left and the current NLL and KL, and a line for every finished epoch.

    Without a terminal, only the lines. `title` says which of several networks is being trained.
    """

    COLUMNS = (
        ("epoch", "epoch", 5, "{:.0f}"),
        ("train_nll", "NLL", 8, "{:.4f}"),
        ("kl", "KL", 10, "{:.4g}"),
        ("val_nll", "val NLL", 9, "{:.4f}"),
        ("val_accuracy", "val acc.", 10, "{:.2%}"),
        ("val_ece", "val ECE", 9, "{:.4f}"),
        ("val_aleatoric", "aleatoric", 11, "{:.5f}"),
        ("val_epistemic", "epistemic", 11, "{:.5f}"),
        ("seconds", "s", 6, "{:.0f}"),
    )

    def __init__(self, keeper: RunKeeper, console: Console | None = None, every: int = 1, title: str = "") -> None:
        self.keeper = keeper
        self.every = every
        self.title = title
        self.console = console or Console()
        self._bar = ExitStack()
        self._advance: Advance | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the header, start the bar."""
        assert isinstance(pl_module, Classifier)
        if not trainer.is_global_zero:
            return
        if self.title:
            seed = self.keeper.run.config.seed
            self.console.print(f"{self.title.capitalize()}, seed {seed}", style="bold", highlight=False)
        self.console.print(self.header(), style="bold", highlight=False)
        for row in self.keeper.rows:
            self._print(row)
        if self.console.is_terminal:
            total = pl_module.epochs * pl_module._num_batches
            done = pl_module.start.epoch * pl_module._num_batches + pl_module.start.batch
            bar = progress_bar("training", total, done=done, console=self.console)
            self._advance = self._bar.enter_context(bar)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar on."""
        if self._advance is not None:
            assert isinstance(pl_module, Classifier)
            means = pl_module.sums.means()
            epoch = pl_module.position(batch_idx).epoch + 1
            which = f"{self.title}  " if self.title else ""
            text = f"{which}epoch {epoch}/{pl_module.epochs}  NLL {means['train_nll']:.4f}  KL {means['kl']:.4g}"
            self._advance(what=text)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show that the network is being validated."""
        if self._advance is not None:
            self._advance(0, "validating")

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print a line for the epoch; the keeper comes first and has made its row."""
        if trainer.is_global_zero:
            self._print(self.keeper.rows[-1])

    def _print(self, row: dict[str, Any]) -> None:
        if row["epoch"] % self.every:
            return
        self.console.print(self.line(row), highlight=False)

    @classmethod
    def header(cls) -> str:
        """The titles of the columns."""
        return "".join(f"{title:>{width}}" for _, title, width, _ in cls.COLUMNS)

    @classmethod
    def line(cls, row: dict[str, Any]) -> str:
        """A row of metrics below them."""
        return "".join(f"{form.format(row[name]):>{width}}" for name, _, width, form in cls.COLUMNS)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Remove the bar."""
        self._advance = None
        self._bar.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Lightning does not tear down after an exception."""
        self.teardown(trainer, pl_module, "fit")
