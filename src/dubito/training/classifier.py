"""The Lightning module that trains a network by its free energy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import Precision
from pytorch_lightning.utilities.enums import GradClipAlgorithmType
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError
from typing_extensions import Self, Unpack

from dubito.convert import hold_statistics
from dubito.convert.structure import restructure, structure
from dubito.data.batches import key_seed
from dubito.errors import NonFiniteError, OptionError, RunError
from dubito.foreign import open_file, reading, reason_of
from dubito.heads.categorical import LabelOptions
from dubito.layers import BayesLayer
from dubito.models import build
from dubito.models.recipe import build_again, recipe
from dubito.models.trust import trusting
from dubito.prediction import Prediction, Predictor
from dubito.runs.attached import attach_data, data_of
from dubito.runs.description import DataDescription
from dubito.training.optimizers import OptimizerSettings, loss_term, make_optimizer, optimizer_maker, remedy
from dubito.variational.elbo import ELBO, KLSchedule

_CONTENT = "dubito"
"""Where a Trainer's checkpoint has what tells how the network is made."""
KL_EVERY = 100
"""Steps after which KL is computed anew for those who watch, if the optimiser does not need it."""
_KEPT = (
    *("num_data", "epochs", "num_classes", "batches_per_epoch", "optimizer", "learning_rate", "lr_schedule", "l2"),
    *("hessian_rate", "centralize", "samples", "validation_samples", "test_samples", "seed", "channels_last"),
)
"""The arguments that a Trainer's checkpoint keeps as they are."""


@dataclass
class Progress:
    """How far a training has come: whole epochs, and steps into the next one."""

    epoch: int = 0
    batch: int = 0


@dataclass
class TrainingSums:
    """Sums over the steps of an epoch, for its row of metrics."""

    images: int = 0
    correct: int = 0
    nll: float = 0.0
    kl: float = 0.0
    steps: int = 0
    seconds: float = 0.0

    def means(self) -> dict[str, float]:
        """The epoch's means; KL is that of the posterior after its last step."""
        images = max(self.images, 1)
        return {"train_nll": self.nll / images, "train_accuracy": self.correct / images, "kl": self.kl}


def one_cycle(progress: float) -> float:
    """The share of the peak learning rate: a linear rise over the first quarter, then a cosine to 0.

    >>> [round(one_cycle(p), 3) for p in (0, 0.125, 0.25, 0.625, 1)]
    [0.04, 0.52, 1.0, 0.5, 0.0]
    """
    rise = 0.25
    if progress < rise:
        return 0.04 + 0.96 * progress / rise
    return 0.5 * (1 + math.cos(math.pi * (progress - rise) / (1 - rise)))


@torch.no_grad()
def centralize_gradients(network: nn.Module) -> None:
    """Remove from every filter's gradient its mean over the filter's inputs (Yong et al. 2020).

    Softplus activations are positive, so the weights of a filter have gradients of one sign, and Adam, which looks at
    signs, moves them all together: with thousands of inputs a small step then shifts the output by many times its
    spread. Only means of weights are touched; shifts are what the bias is for.

    >>> layer = nn.Linear(2, 1)
    >>> layer(torch.ones(1, 2)).sum().backward()
    >>> centralize_gradients(layer)
    >>> layer.weight.grad, layer.bias.grad
    (tensor([[0., 0.]]), tensor([1.]))
    """
    for layer in network.modules():
        weight = layer.weight_mean if isinstance(layer, BayesLayer) else layer._parameters.get("weight")
        if isinstance(weight, Tensor) and weight.dim() > 1 and weight.grad is not None:
            filters = weight.grad.unsqueeze(0)  # groups, outputs, inputs, ...
            if getattr(layer, "transposed", False):
                filters = weight.grad.unflatten(0, (cast(int, layer.groups), -1)).transpose(1, 2)
            filters.sub_(filters.mean(tuple(range(2, filters.dim())), keepdim=True))


def _num_classes(network: nn.Module) -> int:
    """What the network says itself."""
    classes = getattr(network, "num_classes", None)
    if not isinstance(classes, int):
        raise OptionError(
            f"The network ({type(network).__name__}) does not say how many classes it tells apart: give num_classes."
        )
    return classes


class Classifier(pl.LightningModule):
    """Trains, validates, tests and predicts with any network that has a classification head.

    Use it with a Trainer of your own and any loaders that give (images, labels). Checkpoints hold plain data, no
    pickled network: `load_from_checkpoint` builds a network that :func:`dubito.models.build` made, and takes any other
    as an instance, ``load_from_checkpoint(path, network=MyNetwork())``, which is made Bayesian where the saved one was.

    >>> import logging, tempfile, warnings
    >>> import dubito
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    >>> warnings.simplefilter("ignore")
    >>> network = dubito.models.build("lenet5", num_classes=2, in_channels=1)
    >>> loader = DataLoader(TensorDataset(torch.randn(8, 1, 32, 32), torch.arange(8) % 2), batch_size=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    ...     trainer = pl.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=folder, **quiet)
    ...     trainer.fit(Classifier(network, num_data=8, epochs=1), loader, loader)
    ...     module = Classifier.load_from_checkpoint(trainer.checkpoint_callback.best_model_path)
    ...     tested = trainer.test(module, loader, verbose=False)
    ...     predictions = trainer.predict(module, loader)
    >>> sorted(tested[0])
    ['test_accuracy', 'test_aleatoric', 'test_ece', 'test_epistemic', 'test_nll']
    >>> predictions[0].probs.shape
    torch.Size([4, 2])

    Args:
        network: a network with a head, see :func:`dubito.attach_head`.
        num_data: the number of training images.
        epochs: how many the whole training has; the learning rate's schedule needs it.
        num_classes: None asks the network.
        batches_per_epoch: None asks the Trainer.
        optimizer: one of `dubito.training.optimizers.OPTIMIZERS`.
        learning_rate: the learning rate, or its peak with ``one-cycle``.
        lr_schedule: ``constant`` or ``one-cycle``, see :func:`one_cycle`.
        l2: the L2 penalty.
        hessian_rate: the share of the Hessian that a step of ``natural`` replaces; 0 is 0.25 / steps.
        centralize: remove each filter's mean from its gradient, see :func:`centralize_gradients`.
        schedule: the weight of KL in every minibatch.
        samples: draws of the network in each training step.
        validation_samples: draws of the network for each validation.
        test_samples: draws of the network in `test` and `predict`, which use seed 0, as :class:`dubito.Predictor` does.
        seed: of the noise of every step, together with epoch, batch and rank; None uses torch's random state.
        channels_last: train on images in this memory format, which makes residual networks a fifth faster on a CPU.
        labels: class weights and label smoothing of the free energy, see :class:`dubito.ELBO`.
    """

    def __init__(
        self,
        network: nn.Module,
        num_data: int,
        epochs: int,
        *,
        num_classes: int | None = None,
        batches_per_epoch: int | None = None,
        optimizer: str = "adam",
        learning_rate: float = 1e-3,
        lr_schedule: str = "constant",
        l2: float = 0.0,
        hessian_rate: float = 0.0,
        centralize: bool = False,
        schedule: KLSchedule | Mapping[str, Any] | None = None,
        samples: int = 1,
        validation_samples: int = 5,
        test_samples: int = 10,
        seed: int | None = None,
        channels_last: bool = False,
        **labels: Unpack[LabelOptions],
    ) -> None:
        super().__init__()
        self.network = network
        self.objective = ELBO(num_data, samples=samples, **labels)
        self.epochs = epochs
        self.batches_per_epoch = batches_per_epoch
        optimizer_maker(optimizer)  # refuses an unknown one
        self.optimizer = optimizer
        self.schedule = schedule if isinstance(schedule, KLSchedule) else KLSchedule(**(schedule or {}))
        self.optimizer_settings = OptimizerSettings(
            learning_rate,
            l2,
            num_data,
            temperature=self.schedule.temperature,
            hessian_rate=hessian_rate,
        )
        self.lr_schedule = lr_schedule
        self.centralize = centralize
        self.validation_samples = validation_samples
        self.test_samples = test_samples
        self.seed = seed
        self.channels_last = channels_last
        self.start = Progress()
        self.sums = TrainingSums()
        self.validation: dict[str, float] = {}
        classes = num_classes if num_classes is not None else _num_classes(network)
        self._accuracy = MulticlassAccuracy(classes, average="micro")
        self._calibration = MulticlassCalibrationError(classes, n_bins=15)
        self._totals = torch.zeros(4, dtype=torch.float64)
        self._predictor: Predictor | None = None
        kept = {name: value for name, value in locals().items() if name in _KEPT}
        self.save_hyperparameters({**kept, "schedule": asdict(self.schedule), **_plain(labels)}, logger=False)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        *,
        network: nn.Module | None = None,
        trust: bool = False,
        **options: Any,
    ) -> Self:
        """The module of a Trainer's checkpoint, with its network.

        Args:
            checkpoint_path: the file.
            map_location: where its tensors go, as in `torch.load`.
            network: an instance to load into, for a network that :func:`dubito.models.build` did not make.
            trust: run the function that builds the network, if it was built as ``package.module:function``.
            options: arguments of the module that take the place of those in the checkpoint.
        """
        with reading(checkpoint_path, "save it again"):
            checkpoint = _read_checkpoint(checkpoint_path, map_location)
            return cls._restored(checkpoint_path, checkpoint, network, trust, options)

    @classmethod
    def _restored(
        cls,
        checkpoint_path: Any,
        checkpoint: dict[str, Any],
        network: nn.Module | None,
        trust: bool,
        options: dict[str, Any],
    ) -> Self:
        """The module of a checkpoint's content."""
        content = checkpoint.get(_CONTENT)
        if content is None:
            raise RunError(f"{checkpoint_path} is not a checkpoint of a dubito.training.Classifier.")
        prefix = "network."
        tensors = {k.removeprefix(prefix): v for k, v in checkpoint["state_dict"].items() if k.startswith(prefix)}
        if network is None and content["built_as"] is None:
            raise RunError(
                f"{checkpoint_path} holds a {content['class']}, which dubito cannot build: give an instance, "
                "load_from_checkpoint(path, network=...)."
            )
        try:
            with trusting(trust):
                network = build_again(build, content["built_as"]) if network is None else network
            fitted = restructure(network, content["structure"], tensors)
        except RunError as error:
            raise RunError(f"{checkpoint_path} ({content['class']}) cannot be loaded: {error}.") from None
        if content["data"] is not None:
            attach_data(fitted, DataDescription.of(content["data"]))
        given = {**checkpoint.get("hyper_parameters", {}), **options}
        module = cls(fitted, **given)
        module.load_state_dict(checkpoint["state_dict"])
        module.on_load_checkpoint(checkpoint)
        return module.eval()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what tells how the network is made, as plain data."""
        data = data_of(self.network)
        checkpoint[_CONTENT] = {
            "class": type(self.network).__name__,
            "built_as": recipe(self.network),
            "structure": structure(self.network),
            "data": None if data is None else {**asdict(data), "class_names": list(data.class_names)},
        }

    def forward(self, images: Tensor) -> Tensor:
        """The network's outputs."""
        return self.network(images)

    def position(self, batch_idx: int) -> Progress:
        """Epoch and batch of a step, counted from the start of the whole training, also after resuming."""
        first = self.start.batch if self.current_epoch == 0 else 0
        return Progress(self.start.epoch + self.current_epoch, first + batch_idx)

    @property
    def _num_batches(self) -> int:
        if self.batches_per_epoch:
            return self.batches_per_epoch
        counted = self.trainer.num_training_batches
        if math.isinf(counted):
            raise OptionError("The training data has no length, so give Classifier its batches_per_epoch.")
        return int(counted)

    def on_train_epoch_start(self) -> None:
        """Let frozen batch norm keep its statistics."""
        hold_statistics(self.network)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The free energy of one minibatch."""
        at, total = self.position(batch_idx), self._num_batches
        if self.seed is not None:
            torch.manual_seed(key_seed(self.seed, 2, at.epoch, at.batch, self.global_rank))
        optimizer = self.trainer.optimizers[0]
        self._set_learning_rate((at.epoch + at.batch / total) / self.epochs)
        images, labels = batch
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        kl_weight = self.schedule.weight(min(at.batch, total - 1), total, at.epoch)
        term = loss_term(optimizer)
        with_kl = term == "loss" or at.batch % KL_EVERY == 0 or at.batch == total - 1
        terms = self.objective(self.network, images, labels, kl_weight, with_kl=with_kl)
        nll, kl = terms.nll.item(), terms.kl.item() if with_kl else self.sums.kl
        if not math.isfinite(nll + kl):
            raise NonFiniteError(
                f"The loss is not finite in epoch {at.epoch + 1}, batch {at.batch + 1} (NLL {nll:.4g}, KL {kl:.4g}); "
                f"{remedy(optimizer)}."
            )
        assert terms.log_probs is not None
        self.sums.images += len(labels)
        self.sums.correct += int((terms.log_probs.argmax(1) == labels).sum())
        self.sums.nll += nll * len(labels)
        self.sums.kl = kl
        self.sums.steps += 1
        loss: Tensor = getattr(terms, term)
        return loss

    def _set_learning_rate(self, progress: float) -> None:
        share = one_cycle(progress) if self.lr_schedule == "one-cycle" else 1.0
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = group["initial_lr"] * share

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Centralise the gradients if that is set."""
        if self.centralize:
            centralize_gradients(self.network)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients if the Trainer says so.

        Under autocast Lightning refuses this for fused optimisers, because they divide by a gradient scaler's factor
        only in their own step. Without a scaler, as with bf16, there is no factor.
        """
        precision = self.trainer.precision_plugin
        if getattr(precision, "scaler", None) is not None:
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val:
            kind = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
            Precision.clip_gradients(precision, optimizer, gradient_clip_val, kind)

    def on_validation_epoch_start(self) -> None:
        """Reset the metrics, and make the predictor of this epoch, whose draws all batches share."""
        seed = key_seed(self.seed or 0, 3, self.start.epoch + self.current_epoch)
        self._begin(Predictor(self.network, self.validation_samples, "weights", seed))

    def on_test_epoch_start(self) -> None:
        """Reset the metrics, and make the predictor."""
        self._begin(Predictor(self.network, self.test_samples))

    def on_predict_epoch_start(self) -> None:
        """Make the predictor."""
        self._begin(Predictor(self.network, self.test_samples))

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Predict a batch, and add up its metrics."""
        self._measure(*batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Predict a batch, and add up its metrics."""
        self._measure(*batch)

    def predict_step(self, batch: Tensor | Sequence[Tensor], batch_idx: int) -> Prediction:
        """The prediction of a batch of images, or of what starts with one."""
        assert self._predictor is not None
        return self._predictor(batch if isinstance(batch, Tensor) else batch[0])

    def on_validation_epoch_end(self) -> None:
        """Compute and log the validation's metrics, over all processes."""
        self.validation = self._measured("val")
        self.log_dict(self.validation, sync_dist=False, rank_zero_only=True)

    def on_test_epoch_end(self) -> None:
        """Compute and log the test's metrics, over all processes."""
        self.log_dict(self._measured("test"), sync_dist=False, rank_zero_only=True)

    def on_predict_epoch_end(self) -> None:
        """Free the drawn weights."""
        self._predictor = None

    def _begin(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._accuracy.reset()
        self._calibration.reset()
        self._totals = torch.zeros(4, dtype=torch.float64, device=self.device)

    def _measure(self, images: Tensor, labels: Tensor) -> None:
        assert self._predictor is not None
        prediction = self._predictor(images)
        self._accuracy.update(prediction.probs, labels)
        self._calibration.update(prediction.probs, labels)
        tiny = torch.finfo(prediction.probs.dtype).tiny
        nll = -prediction.probs.gather(1, labels[:, None]).clamp_min(tiny).log().sum()
        sums = [nll, prediction.aleatoric.sum(), prediction.epistemic.sum(), nll.new_tensor(float(len(labels)))]
        self._totals += torch.stack(sums).double()

    def _measured(self, prefix: str) -> dict[str, float]:
        self._predictor = None  # its drawn weights are not needed any more
        totals = self.all_gather(self._totals).view(-1, 4).sum(0)  # type: ignore[union-attr]
        nll, aleatoric, epistemic = (totals[:3] / totals[3]).tolist()
        return {
            f"{prefix}_accuracy": float(self._accuracy.compute()),
            f"{prefix}_nll": nll,
            f"{prefix}_ece": float(self._calibration.compute()),
            f"{prefix}_aleatoric": aleatoric,
            f"{prefix}_epistemic": epistemic,
        }

    def on_train_epoch_end(self) -> None:
        """Log the epoch's training means and reset them; callbacks have read them before."""
        self.log_dict(self.sums.means(), rank_zero_only=True)
        self.sums = TrainingSums()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser of that name for the network's parameters."""
        return make_optimizer(self.optimizer, self.network, replace(self.optimizer_settings, steps=self._steps()))

    def _steps(self) -> int | None:
        """Of all epochs, also if this Trainer stops before the last one; None if nobody knows."""
        if self.batches_per_epoch is not None:
            return self.epochs * self.batches_per_epoch
        trainer = self.trainer
        limit = trainer.estimated_stepping_batches  # asks the loader for its length too, unless there is no end
        if trainer.max_steps < 0 and math.isfinite(trainer.num_training_batches):
            return self.epochs * math.ceil(trainer.num_training_batches / trainer.accumulate_grad_batches)
        return int(limit) if math.isfinite(limit) else None


def _read_checkpoint(path: Any, map_location: Any) -> dict[str, Any]:
    """What a checkpoint holds: tensors and plain data alone."""
    try:
        with nullcontext(path) if hasattr(path, "read") else open_file(path) as file:
            content = torch.load(file, map_location=map_location, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch raises errors of many types, among them UnpicklingError
        raise ValueError(reason_of(error)) from None
    if not isinstance(content, dict):
        raise ValueError(f"it is a {type(content).__name__}")
    return content


def _plain(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the labels as lists and numbers."""
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in labels.items()}
