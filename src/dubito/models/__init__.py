"""Networks by name: a registry of builders, the three networks of the paper's appendix, residual networks,
Hugging Face's, and the user's own.

>>> import dubito
>>> model = dubito.models.build("lenet5", num_classes=10, in_channels=1)
>>> dubito.models.names()[:3]
('lenet5', 'alexnet', 'vgg16')
"""

from dubito.models.architecture import ARCHITECTURES, Architecture
from dubito.models.building import build
from dubito.models.initialization import initialize
from dubito.models.network import Network
from dubito.models.parts import Activation, Norm
from dubito.models.registry import Inference, Plan, names, register
from dubito.models.resnet import ResNet, WideResNet
from dubito.models.weights import load_weights, read_weights

__all__ = [
    "ARCHITECTURES",
    "Activation",
    "Architecture",
    "Inference",
    "Network",
    "Norm",
    "Plan",
    "ResNet",
    "WideResNet",
    "build",
    "initialize",
    "load_weights",
    "names",
    "read_weights",
    "register",
]
