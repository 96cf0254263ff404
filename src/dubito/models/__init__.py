"""The networks of the paper's appendix, built by :func:`build`."""

from dubito.models.architecture import ARCHITECTURES, Architecture
from dubito.models.initialization import initialize
from dubito.models.network import Activation, Inference, Network, build

__all__ = ["ARCHITECTURES", "Activation", "Architecture", "Inference", "Network", "build", "initialize"]
