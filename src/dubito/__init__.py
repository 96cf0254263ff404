"""dubito, "I doubt": convolutional networks that know what they do not know.

Bayesian layers for PyTorch trained by variational inference, Softplus normalisation, and a split of every prediction's
uncertainty into aleatoric (the data is ambiguous) and epistemic (the model has not seen enough).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from dubito import data, decisions, models, training, zoo
    from dubito.convert import Logits, prune, to_bayesian, to_deterministic
    from dubito.convert.summary import Summary, summary
    from dubito.errors import DubitoError
    from dubito.evaluation import evaluate
    from dubito.evaluation.report import report
    from dubito.exporting import export
    from dubito.heads import attach_head, log_softplus_normalize, softplus_normalize
    from dubito.heads.split import Prediction, Regression, decompose
    from dubito.layers import (
        BayesConv1d,
        BayesConv2d,
        BayesConv3d,
        BayesConvTranspose1d,
        BayesConvTranspose2d,
        BayesConvTranspose3d,
        BayesLayer,
        BayesLinear,
        estimator,
    )
    from dubito.models.ensemble import Ensemble, ensemble, mc_dropout
    from dubito.prediction.predictor import Predictor, predict
    from dubito.runs.attached import attach_data
    from dubito.saving import load, save
    from dubito.saving.hub import from_pretrained, push_to_hub, save_pretrained
    from dubito.serving.running import serve
    from dubito.variational.elbo import ELBO, FreeEnergy, KLSchedule
    from dubito.variational.kl import kl_divergence
    from dubito.variational.natural_gradient import NaturalGradient

# Names are imported when first used, so that the command line can print its help without waiting for torch.
_HOMES = {
    "convert": ["Logits", "Summary", "prune", "summary", "to_bayesian", "to_deterministic"],
    "variational.kl": ["kl_divergence"],
    "variational.elbo": ["ELBO", "FreeEnergy", "KLSchedule"],
    "variational.natural_gradient": ["NaturalGradient"],
    "models.ensemble": ["Ensemble", "ensemble", "mc_dropout"],
    "errors": ["DubitoError"],
    "evaluation": ["evaluate"],
    "evaluation.report": ["report"],
    "exporting": ["export"],
    "heads": ["attach_head", "log_softplus_normalize", "softplus_normalize"],
    "layers": [
        "BayesConv1d",
        "BayesConv2d",
        "BayesConv3d",
        "BayesConvTranspose1d",
        "BayesConvTranspose2d",
        "BayesConvTranspose3d",
        "BayesLayer",
        "BayesLinear",
        "estimator",
    ],
    "prediction.predictor": ["Predictor", "predict"],
    "runs.attached": ["attach_data"],
    "saving": ["load", "save"],
    "saving.hub": ["from_pretrained", "push_to_hub", "save_pretrained"],
    "serving.running": ["serve"],
    "heads.split": ["Prediction", "Regression", "decompose"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_SUBPACKAGES = ("data", "decisions", "models", "training", "zoo")

__all__ = [
    "ELBO",
    "BayesConv1d",
    "BayesConv2d",
    "BayesConv3d",
    "BayesConvTranspose1d",
    "BayesConvTranspose2d",
    "BayesConvTranspose3d",
    "BayesLayer",
    "BayesLinear",
    "DubitoError",
    "Ensemble",
    "FreeEnergy",
    "KLSchedule",
    "Logits",
    "NaturalGradient",
    "Prediction",
    "Predictor",
    "Regression",
    "Summary",
    "attach_data",
    "attach_head",
    "data",
    "decisions",
    "decompose",
    "ensemble",
    "estimator",
    "evaluate",
    "export",
    "from_pretrained",
    "kl_divergence",
    "load",
    "log_softplus_normalize",
    "mc_dropout",
    "models",
    "predict",
    "prune",
    "push_to_hub",
    "report",
    "save",
    "save_pretrained",
    "serve",
    "softplus_normalize",
    "summary",
    "to_bayesian",
    "to_deterministic",
    "training",
    "zoo",
]


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        value = getattr(import_module(f"dubito.{_HOME_OF[name]}"), name)
    elif name in _SUBPACKAGES:
        value = import_module(f"dubito.{name}")
    else:
        raise AttributeError(f"module 'dubito' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
