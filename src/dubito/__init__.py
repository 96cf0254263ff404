"""dubito, "I doubt": convolutional networks that know what they do not know.

Bayesian layers for PyTorch trained by variational inference, Softplus normalisation, and a split of every prediction's
uncertainty into aleatoric (the data is ambiguous) and epistemic (the model has not seen enough).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dubito import data, models, training
    from dubito.convert import to_bayesian, to_deterministic
    from dubito.divergence import kl_divergence
    from dubito.elbo import ELBO, FreeEnergy, KLSchedule
    from dubito.ensembles import Ensemble, ensemble, mc_dropout
    from dubito.errors import DubitoError
    from dubito.estimators import estimator
    from dubito.head import attach_head, log_softplus_normalize, softplus_normalize
    from dubito.layers import (
        BayesConv1d,
        BayesConv2d,
        BayesConv3d,
        BayesConvTranspose1d,
        BayesConvTranspose2d,
        BayesConvTranspose3d,
        BayesLayer,
        BayesLinear,
    )
    from dubito.logits import Logits
    from dubito.model_summary import Summary, summary
    from dubito.prediction import predict
    from dubito.pruning import prune
    from dubito.training.run import load
    from dubito.uncertainty import Prediction, decompose, decompose_logits

# Names are imported when first used, so that the command line can print its help without waiting for torch.
_HOMES = {
    "convert": ["to_bayesian", "to_deterministic"],
    "divergence": ["kl_divergence"],
    "elbo": ["ELBO", "FreeEnergy", "KLSchedule"],
    "ensembles": ["Ensemble", "ensemble", "mc_dropout"],
    "errors": ["DubitoError"],
    "estimators": ["estimator"],
    "head": ["attach_head", "log_softplus_normalize", "softplus_normalize"],
    "layers": [
        "BayesConv1d",
        "BayesConv2d",
        "BayesConv3d",
        "BayesConvTranspose1d",
        "BayesConvTranspose2d",
        "BayesConvTranspose3d",
        "BayesLayer",
        "BayesLinear",
    ],
    "logits": ["Logits"],
    "model_summary": ["Summary", "summary"],
    "prediction": ["predict"],
    "pruning": ["prune"],
    "training.run": ["load"],
    "uncertainty": ["Prediction", "decompose", "decompose_logits"],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_SUBPACKAGES = ("data", "models", "training")

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
    "Prediction",
    "Summary",
    "attach_head",
    "data",
    "decompose",
    "decompose_logits",
    "ensemble",
    "estimator",
    "kl_divergence",
    "load",
    "log_softplus_normalize",
    "mc_dropout",
    "models",
    "predict",
    "prune",
    "softplus_normalize",
    "summary",
    "to_bayesian",
    "to_deterministic",
    "training",
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
