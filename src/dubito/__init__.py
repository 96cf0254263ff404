"""dubito, "I doubt": convolutional networks that know what they do not know.

Bayesian layers for PyTorch trained by variational inference, Softplus normalisation, and a split of every prediction's
uncertainty into aleatoric (the data is ambiguous) and epistemic (the model has not seen enough).
"""

from dubito.convert import to_bayesian
from dubito.divergence import kl_divergence
from dubito.elbo import ELBO, FreeEnergy, KLSchedule
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
from dubito.prediction import predict
from dubito.uncertainty import Prediction, decompose, decompose_logits

__version__ = "0.1.0"

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
    "FreeEnergy",
    "KLSchedule",
    "Prediction",
    "attach_head",
    "decompose",
    "decompose_logits",
    "estimator",
    "kl_divergence",
    "log_softplus_normalize",
    "predict",
    "softplus_normalize",
    "to_bayesian",
]
