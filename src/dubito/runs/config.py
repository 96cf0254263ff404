"""The settings of a training, their presets, and how flags and YAML files override them.

One dataclass is the single list of settings: the command line makes its flags from it, a run folder stores it, and the
documentation of each setting is its help text here. Nothing in this file needs torch.
"""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from dubito.errors import OptionError, unknown
from dubito.foreign import read_yaml, reason_of
from dubito.zoo import find


def _setting(default: Any, help: str) -> Any:  # the word that Typer uses too
    return field(default=default, metadata={"help": help})


KINDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
"""How errors call the types of settings."""

LONGEST = {"class_weights": 10**6}
"""Characters of a setting, where it may have more than others."""

BUILT_IN = {
    "head": ("softplus", "softmax", "kendall_gal"),
    "estimator": ("local", "weight", "flipout", "mean"),
    "posterior": ("std", "alpha", "low_rank"),
}
"""Names that are known without torch, which the tables of heads, estimators and posteriors need."""

MOST_MEMBERS = 1000

LARGEST_SEED = 2**62
"""Torch's generators take a little more, but sums of seeds must fit too."""


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides what a training does; the values here are the preset ``default``."""

    model: str = _setting(
        "lenet5",
        "Network: a name that `dubito models` lists, hf:FOLDER or hf:OWNER/NAME for Hugging Face, or "
        "package.module:function for your own.",
    )
    data: str = _setting(
        "digits",
        "Data set: a name that `dubito data list` lists, a folder with one sub-folder per class, a "
        ".csv with the columns path and label, or an .npz.",
    )
    size: int = _setting(
        0,
        "Height and width of the images in pixels. 0 chooses: the size of a known data set; for "
        "files 224, or less if most are smaller.",
    )
    fit: Literal["auto", "crop", "pad", "stretch"] = _setting(
        "auto",
        "How images are made square: crop (keep the largest square in the middle), pad (add black "
        "borders) or stretch. auto is crop, or pad for digits.",
    )
    strict: bool = _setting(False, "Stop if a file cannot be read, instead of leaving it out.")
    workers: int = _setting(2, "Threads that read images from disk. With --engine ray: processes that train.")
    inference: Literal["vi", "frequentist", "dropout"] = _setting(
        "vi", "Kind of network: vi (Bayesian), frequentist (point estimates) or dropout (MC dropout)."
    )
    members: int = _setting(1, "Number of networks to train as an ensemble, with the seeds SEED, SEED + 1, ...")
    epochs: int = _setting(10, "Passes over the training data.")
    batch_size: int = _setting(64, "Images in each step, summed over all processes.")
    optimizer: str = _setting(
        "adam",
        "Optimiser: adam, adamw, sgd (Nesterov momentum 0.9), muon (orthogonal steps) or natural (natural gradients).",
    )
    learning_rate: float = _setting(2e-3, "Learning rate; with one-cycle, its highest value.")
    lr_schedule: Literal["constant", "one-cycle"] = _setting(
        "one-cycle",
        "Learning rate over time: constant, or one-cycle (rises linearly for a quarter of the "
        "training, then falls to 0 as a cosine).",
    )
    l2: float = _setting(0.0, "L2 penalty of frequentist and dropout networks; with adamw and muon, the weight decay.")
    hessian_rate: float = _setting(
        0.0,
        "Share of the Hessian estimate that each step of --optimizer natural replaces. 0 chooses it "
        "from the number of steps.",
    )
    clip: float = _setting(
        0.0, "Largest norm of the gradient; larger gradients are scaled down to it. 0 turns this off."
    )
    centralize: bool = _setting(
        True, "Subtract each filter's mean from its gradient. Deep softplus networks learn faster with it."
    )
    augment: bool = _setting(True, "Augment training images by random crops, and by flips if --flip allows it.")
    crop: int = _setting(2, "Largest shift by --augment in pixels, for images of up to 64 pixels a side.")
    flip: Literal["auto", "yes", "no"] = _setting(
        "auto",
        "Let --augment mirror images: yes, no or auto (photographs larger than 64 pixels, and known "
        "data sets whose classes allow it).",
    )
    activation: Literal["own", "softplus", "relu", "leaky_relu", "elu", "gelu", "silu", "mish", "tanh"] = _setting(
        "softplus",
        "Activation function: softplus, relu, leaky_relu, elu, gelu, silu, mish, tanh, or own (the "
        "usual one of the network).",
    )
    norm: Literal["own", "batch", "group", "frn"] = _setting(
        "own",
        "Normalisation: batch, group, frn (filter response), or own (the usual one of the network; for ResNets batch).",
    )
    bayesian: str = _setting(
        "all",
        "Layers that become Bayesian: all, last (the layer that computes the logits), or patterns of "
        "names such as 'layer4,fc'.",
    )
    init: str = _setting(
        "none",
        "Trained weights to start from: a .safetensors file, a torch state dict, a run folder, or zoo:NAME.",
    )
    freeze: str = _setting("none", "Modules and parameters to keep fixed: patterns of names such as 'conv1,layer1.*'.")
    head: str = _setting("softplus", "How outputs become probabilities: softplus, softmax or kendall_gal.")
    dropout: float = _setting(0.5, "Probability of dropping a unit, with --inference dropout.")
    estimator: str = _setting(
        "local", "How Bayesian layers add noise in training: local, weight, flipout, or mean (no noise)."
    )
    posterior: str = _setting("std", "Family of the posterior: std, alpha or low_rank.")
    initial_std: float = _setting(math.exp(-5), "Initial standard deviation of every weight.")
    relative_std: float = _setting(
        0.0,
        "Initial standard deviation relative to the root mean square of each weight tensor. 0 uses "
        "--initial-std instead.",
    )
    prior: str = _setting(
        "learned",
        "Prior of the weights: standard, fan_in, learned, mixture, log_uniform, empirical, or a "
        "number (its standard deviation).",
    )
    kl_schedule: Literal["blundell", "uniform", "warmup", "constant"] = _setting(
        "warmup", "How the KL term is weighted over time: blundell, uniform, warmup or constant."
    )
    warmup_epochs: float = _setting(2.0, "Epochs until --kl-schedule warmup reaches the full weight of the KL term.")
    temperature: float = _setting(
        0.05, "Factor of the KL term. 1 is Bayes' rule; smaller values make the posterior narrower."
    )
    samples: int = _setting(1, "Draws of the weights in each training step.")
    class_weights: str = _setting(
        "none",
        "Weight of each class in the loss: none (all equal), balanced (rare classes weigh more), or "
        "a number per class, such as 1,1,5.",
    )
    label_smoothing: float = _setting(
        0.0, "Label smoothing: the share of each label, 0 to 1, that is spread evenly over all classes."
    )
    validation_fraction: float = _setting(0.1, "Share of the training images used for validation only.")
    validation_samples: int = _setting(5, "Draws of the weights in each validation.")
    novelty: bool = _setting(True, "After training, fit novelty: how unlike the training images an image is.")
    seed: int = _setting(
        0, "Random seed of the initial weights, the split, the order of images, augmentation and noise."
    )
    split_seed: int = _setting(-1, "Random seed of the split into training and validation images. -1 uses --seed.")
    devices: int = _setting(1, "Processes on each machine, each with a device of its own (distributed data parallel).")
    num_nodes: int = _setting(1, "Machines.")
    device: str = _setting("auto", "Where to train: auto (a GPU if there is one), cpu, cuda or mps.")
    precision: Literal["32", "bf16"] = _setting(
        "32", "Precision of the layers in training: 32 (bits), or bf16, which is faster on processors that support it."
    )
    checkpoint_minutes: float = _setting(5.0, "Minutes between checkpoints; there is also one after each epoch.")
    tensorboard: bool = _setting(False, "Also write logs for TensorBoard into the run folder.")

    def __post_init__(self) -> None:
        counts = ("members", "epochs", "batch_size", "samples", "validation_samples", "devices", "num_nodes", "workers")
        rates = ("l2", "relative_std", "clip", "hessian_rate", "temperature", "warmup_epochs", "checkpoint_minutes")
        at_least = {**dict.fromkeys(counts, 1), **dict.fromkeys(("crop", "size", "seed", *rates), 0), "split_seed": -1}
        for name, least in at_least.items():
            if not getattr(self, name) >= least:
                raise OptionError(f"{name} is {getattr(self, name)}, but must be at least {least}.")
        for name in ("learning_rate", "initial_std"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise OptionError(f"{name} is {getattr(self, name)}, but must be positive and finite.")
        for name in ("temperature", "warmup_epochs", "l2", "clip", "relative_std", "checkpoint_minutes"):
            if not math.isfinite(getattr(self, name)):
                raise OptionError(f"{name} is {getattr(self, name)}, but must be finite.")
        whole = [one.name for one in fields(self) if one.type == "int"]
        at_most = {**dict.fromkeys(whole, LARGEST_SEED), "members": MOST_MEMBERS}
        for name, most in at_most.items():
            if getattr(self, name) > most:
                raise OptionError(f"{name} is {getattr(self, name)}, but must be at most {most}.")
        if not 0 < self.validation_fraction < 1:
            raise OptionError(f"validation_fraction is {self.validation_fraction}, but must lie between 0 and 1.")
        if not 0 <= self.label_smoothing <= 1:
            raise OptionError(f"label_smoothing is {self.label_smoothing}, but must lie in 0 ... 1.")
        if self.hessian_rate > 1:
            raise OptionError(f"hessian_rate is {self.hessian_rate}, but must be at most 1.")
        if self.optimizer == "natural" and self.inference != "vi":
            raise OptionError(f"optimizer is natural, which needs the inference vi, but inference is {self.inference}.")
        if self.optimizer == "muon" and self.inference == "vi":
            raise OptionError(
                "optimizer is muon, which trains point estimates, but inference is vi: use natural or adam."
            )
        if self.optimizer == "natural" and self.posterior != "std":
            raise OptionError(
                f"optimizer is natural, which needs the posterior std, but posterior is {self.posterior}: add "
                "--posterior std."
            )
        if self.model.strip() == "hf:":
            raise OptionError(
                "model is 'hf:', but after hf: comes a folder with a config.json, such a file, a type such as vit, or "
                "a repository OWNER/NAME."
            )
        if not self.init:
            raise OptionError("init is empty, but must be a file of weights, a run folder, zoo:NAME or none.")
        self.given_class_weights  # noqa: B018  (refuses what is none)
        processes = self.devices * self.num_nodes
        if self.batch_size % processes:
            raise OptionError(f"batch_size is {self.batch_size}, but must be a multiple of the {processes} processes.")
        if self.members > 1:
            self._check_ensemble(processes)

    def _check_ensemble(self, processes: int) -> None:
        if processes > 1:
            raise OptionError(
                f"members is {self.members}, but an ensemble is trained by one process: train the members as "
                "separate runs with the same split_seed, and join them with `dubito ensemble`."
            )
        if self.splits_logits:
            raise OptionError(
                f"members is {self.members}, but the head is {self.head}, and an ensemble needs the head "
                "softplus or softmax."
            )
        self.member(self.members - 1)  # refuses seeds that are too large

    def member(self, number: int) -> TrainingConfig:
        """The settings of one member of the ensemble: a seed of its own, the same validation images for all.

        >>> second = TrainingConfig(members=3, seed=5).member(1)
        >>> second.members, second.seed, second.seed_of_split
        (1, 6, 5)
        """
        return replace(self, members=1, seed=self.seed + number, split_seed=self.seed_of_split)

    @property
    def seed_of_split(self) -> int:
        """What decides which training images are held out for validation."""
        return self.seed if self.split_seed < 0 else self.split_seed

    def to_dict(self) -> dict[str, Any]:
        """The settings by name."""
        return asdict(self)

    def in_force(self) -> dict[str, Any]:
        """The settings that matter for this training, by name: without those of other kinds of inference.

        >>> "temperature" in TrainingConfig(inference="frequentist").in_force()
        False
        """
        settings = self.to_dict().items()
        return {name: value for name, value in settings if self.inference in USED_BY.get(name, (self.inference,))}

    @property
    def splits_logits(self) -> bool:
        """Whether both uncertainties are variances of logits, as Kendall & Gal have them, and not of probabilities."""
        return self.head == "kendall_gal"

    @property
    def given_class_weights(self) -> list[float] | None:
        """The weights that `class_weights` lists, in the order of the classes; None if it is a name.

        >>> TrainingConfig(class_weights="1, 0.5").given_class_weights
        [1.0, 0.5]
        """
        if self.class_weights in ("none", "balanced"):
            return None
        try:
            weights = [float(part) for part in self.class_weights.split(",")]
        except ValueError:
            weights = []
        if not weights or not all(0 <= weight < math.inf for weight in weights) or not any(weights):
            raise OptionError(
                f"class_weights is {reprlib.repr(self.class_weights)}, but must be none, balanced, or a number for "
                "each class, such as 1,1,5: finite, not negative and not all 0."
            )
        return weights

    @property
    def layer_options(self) -> dict[str, Any]:
        """Which layers are Bayesian, and their options; none for other networks."""
        if self.inference != "vi":
            return {}
        try:
            prior: str | float = float(self.prior)
        except ValueError:
            prior = self.prior
        options = {"estimator": self.estimator, "posterior": self.posterior, "initial_std": self.initial_std}
        return {**options, "prior": prior, "bayesian": self.bayesian, "relative_std": self.relative_std}


USED_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("bayesian", "estimator", "posterior", "initial_std", "relative_std", "prior"), ("vi",)),
    "hessian_rate": ("vi",),
    **dict.fromkeys(("kl_schedule", "warmup_epochs", "temperature"), ("vi",)),
    **dict.fromkeys(("samples", "validation_samples"), ("vi", "dropout")),
    "dropout": ("dropout",),
    "l2": ("frequentist", "dropout"),
}
"""Settings that only some kinds of inference use."""

PRESETS: dict[str, dict[str, Any]] = {
    # Tuned on CIFAR-10's validation split. Small batches and mild crops, because these networks underfit before they
    # overfit in so few epochs; one-cycle, because it converges in them; a prior whose scale is learned, because it is
    # the tighter bound; KL warmed up, so that weights find a use before the prior removes them; and a temperature
    # below 1, because at 1 a mean-field posterior explains too little.
    "default": {},
    # The paper's appendix. Its "sample size 10" is read as the draws of equation (3), its -10 as a log-variance.
    "paper": {
        "epochs": 100,
        "batch_size": 128,
        "learning_rate": 1e-3,
        "lr_schedule": "constant",
        "l2": 5e-4,
        "centralize": False,
        "augment": False,
        "posterior": "alpha",
        "initial_std": math.exp(-5),
        "prior": "standard",
        "kl_schedule": "blundell",
        "temperature": 1.0,
        "samples": 10,
        "validation_samples": 10,
    },
    # A trained network goes on: two epochs of natural gradients, posteriors that start narrow for the size of each
    # layer's weights and pay only for what they change, and draws of weights, which are what predictions see.
    "finetune": {
        "epochs": 2,
        "optimizer": "natural",
        "learning_rate": 0.03,
        "centralize": False,
        "head": "softmax",
        "crop": 4,
        "estimator": "weight",
        "relative_std": 0.1,
        "prior": "empirical",
        "kl_schedule": "constant",
        "temperature": 1.0,
    },
}
"""Named settings; what a preset does not name has its default."""

FINETUNE_OTHERWISE: dict[str, Any] = {
    **{name: PRESETS["finetune"][name] for name in ("centralize", "head", "crop", "estimator", "prior")},
    "epochs": 5,
    "learning_rate": 3e-4,
    "relative_std": 0.05,
    "warmup_epochs": 1.0,
    "temperature": 0.05,
}
"""The preset ``finetune`` for other optimisers, and for networks without posteriors."""

WIDER_NETWORKS: dict[str, dict[str, Any]] = {
    "alexnet": {"learning_rate": 1e-3, "temperature": 0.01, "clip": 3.0},
    "vgg16": {"learning_rate": 2e-4, "temperature": 0.01, "clip": 3.0},
}
"""Where the preset ``default`` differs for wider networks: a step moves more inputs, and more weights cost KL. Without
clipping AlexNet's loss jumps about once in a training of 20 epochs, which costs it an epoch or two; with it VGG16 takes
twice the learning rate."""

RESIDUAL: dict[str, Any] = {
    "head": "softmax",
    "epochs": 20,
    "crop": 4,
    "centralize": False,
    "dropout": 0.1,
}
RESIDUAL_BY_INFERENCE: dict[str, dict[str, Any]] = {
    "vi": {"estimator": "weight", "prior": "fan_in", "temperature": 0.05, "warmup_epochs": 5.0},
    "frequentist": {"optimizer": "sgd", "learning_rate": 0.1, "l2": 5e-4},
    "dropout": {"optimizer": "sgd", "learning_rate": 0.1, "l2": 5e-4},
}
"""Where the preset ``default`` differs for residual networks: the recipe that they are usually trained by; draws of
weights, because the noise of ``local`` averages out before the global pooling."""

SMALL_RESIDUAL = ("resnet20", "resnet32", "resnet56")
SMALL_RESIDUAL_PLAIN: dict[str, Any] = {"optimizer": "muon", "learning_rate": 4e-3, "l2": 0.1}
"""What these do otherwise without posteriors. In 20 epochs on CIFAR-10, a ResNet-20 has a validation NLL of 0.272 with
muon, and of 0.279 with SGD and crops of 2 pixels. In larger networks muon's products of matrices cost too much."""

NATURAL: dict[str, Any] = {
    "learning_rate": 0.2,
    "estimator": "weight",
    "relative_std": 0.1,
    "prior": "0.2",
    "kl_schedule": "constant",
    "temperature": 1.0,
}
"""Where other presets differ for the optimiser ``natural``: the true free energy from the first step, and draws of
weights, which cost least."""

NARROW_NETWORKS: dict[str, dict[str, Any]] = {"lenet5": {"dropout": 0.05}}
"""Where the preset ``default`` differs for MC dropout in narrow networks: half of six channels is too little to learn
from. LeNet-5's validation accuracy on CIFAR-10 fell with every step from 0.05 to 0.1, 0.25 and 0.5."""


def configure(preset: str = "default", file: str | os.PathLike[str] | None = None, **settings: Any) -> TrainingConfig:
    """Settings from a preset, overridden by a YAML file, overridden by `settings` (None changes nothing).

    >>> configure("paper", epochs=3).epochs
    3
    """
    if preset not in PRESETS:
        raise OptionError(unknown("preset", preset, PRESETS))
    given = {} if file is None else _read_yaml(Path(file))
    given.update({name: value for name, value in settings.items() if value is not None})
    given = by_todays_names(given)
    begun = _of_run(given.get("init"))
    model = str({**begun, **given}.get("model", TrainingConfig.model))
    of_model: dict[str, Any] = {}
    if preset == "default":
        of_model = WIDER_NETWORKS.get(model, {})
        if "resnet" in model:
            inference = str(given.get("inference", "vi"))
            of_model = {**RESIDUAL, **RESIDUAL_BY_INFERENCE.get(inference, {})}
            if model in SMALL_RESIDUAL and inference != "vi" and "optimizer" not in given:
                of_model.update(SMALL_RESIDUAL_PLAIN)
        if given.get("inference") == "dropout":
            of_model = {**of_model, **NARROW_NETWORKS.get(model, {})}
    named = PRESETS[preset]
    if preset == "finetune":
        wanted = {**named, "inference": "vi", **given}
        if wanted["inference"] != "vi" or wanted["optimizer"] != "natural":
            named = FINETUNE_OTHERWISE
    elif given.get("optimizer") == "natural":
        of_model = {**of_model, **NATURAL}
    return _settled({**named, **of_model, **begun, **given})


def restore(stored: Any) -> TrainingConfig:
    """The settings of a run's own config.yaml: data that are complete in themselves, so no preset and no other file.

    >>> restore({"epochs": 3}).epochs
    3
    """
    if not isinstance(stored, Mapping):
        raise OptionError(f"The settings are a {type(stored).__name__}, but must be `name: value` lines.")
    return _settled(with_defaults(stored))


def _settled(merged: dict[str, Any]) -> TrainingConfig:
    """Settings of the right names and types, checked together."""
    known = get_type_hints(TrainingConfig)
    for name, value in merged.items():
        if name not in known:
            raise OptionError(unknown("setting", name, known))
        merged[name] = _checked(name, value, known[name])
    own = _own_activation(merged.get("model", TrainingConfig.model))
    if merged.get("activation", "own") == "own":
        merged["activation"] = own
    return TrainingConfig(**merged)


RENAMED = {"parameterization": "posterior", "warm_start": "init", "accelerator": "device"}
"""Settings of earlier versions that have another name today."""


def by_todays_names(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Stored settings under the names that they have today.

    >>> by_todays_names({"parameterization": "alpha"})
    {'posterior': 'alpha'}
    """
    return {RENAMED.get(name, name): value for name, value in stored.items()}


def with_defaults(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Stored settings by their names today, with the default of every setting that did not exist when they were stored.

    >>> with_defaults({"epochs": 3})["optimizer"]
    'adam'
    """
    return {**TrainingConfig().to_dict(), **by_todays_names(stored)}


def _of_run(init: Any) -> dict[str, Any]:
    """Settings that a training takes from the run folder that it starts from, unless given: those of its network."""
    if not isinstance(init, str) or not init:
        return {}
    file = find(init).expanduser() / "config.yaml"
    if not file.is_file():
        return {}
    stored = _read_yaml(file)
    return {name: stored[name] for name in ("model", "activation", "norm", "head") if name in stored}


def _own_activation(name: str) -> str:
    """The nonlinearity that a network has unless asked; a network that does not exist is refused."""
    if name == TrainingConfig.model:  # the registry needs torch, which the default should not wait for
        return TrainingConfig.activation
    from dubito.models.building import is_elsewhere
    from dubito.models.registry import registered

    if is_elsewhere(name):  # it is looked for when it is built
        return "own"
    own = registered(name).activation
    return "own" if own is None else own.value


def _checked(name: str, value: Any, kind: Any) -> Any:
    """`value` in the setting's type, or an error that names it."""
    if choices := get_args(kind):
        if not isinstance(value, str) or value not in choices:
            raise OptionError(unknown(name, value, choices))
        return value
    if value not in BUILT_IN.get(name, (value,)) and value not in (names := _registered(name)):
        raise OptionError(unknown(name, value, names))
    fits = isinstance(value, bool) == (kind is bool) and isinstance(value, (int, float, str))
    if kind is int and isinstance(value, float):
        fits = value.is_integer()
    if kind is str and len(str(value)) > LONGEST.get(name, 10_000):
        raise OptionError(f"{name} has {len(str(value))} characters, which is too long.")
    try:
        if fits:
            return kind(value)
    except (ValueError, OverflowError):
        pass
    raise OptionError(f"{name} is {reprlib.repr(value)}, but must be {KINDS[kind]}.")


def _registered(name: str) -> list[str]:
    """All names that a setting of `BUILT_IN` may have, those of a user's own parts included."""
    from dubito.estimators import ESTIMATORS
    from dubito.heads import HEADS
    from dubito.variational.families import FAMILIES

    heads = [head for head, kind in HEADS.items() if kind.classifies]
    return {"head": heads, "estimator": list(ESTIMATORS), "posterior": list(FAMILIES)}[name]


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = read_yaml(path)
    except FileNotFoundError:
        raise OptionError(f"The configuration file {path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise OptionError(f"The configuration file {path} cannot be read: {reason_of(error)}.") from None
    if isinstance(content, dict) and isinstance(content.get("training"), dict):
        content = content["training"]  # a run's own config.yaml
    if not isinstance(content, dict):
        raise OptionError(f"The configuration file {path} must hold settings as `name: value` lines.")
    return content
