"""The numbers that the paper prints. They stand in no other file.

What dubito measures never comes from here; tables put the two side by side at the very end.
"""

from __future__ import annotations

ACCURACY: dict[tuple[str, str, str], float] = {
    ("vgg16", "vi", "mnist"): 99,
    ("vgg16", "vi", "cifar10"): 86,
    ("vgg16", "vi", "cifar100"): 45,
    ("vgg16", "frequentist", "mnist"): 99,
    ("vgg16", "frequentist", "cifar10"): 85,
    ("vgg16", "frequentist", "cifar100"): 48,
    ("alexnet", "vi", "mnist"): 99,
    ("alexnet", "vi", "cifar10"): 73,
    ("alexnet", "vi", "cifar100"): 36,
    ("alexnet", "frequentist", "mnist"): 99,
    ("alexnet", "frequentist", "cifar10"): 73,
    ("alexnet", "frequentist", "cifar100"): 38,
    ("lenet5", "vi", "mnist"): 98,
    ("lenet5", "vi", "cifar10"): 69,
    ("lenet5", "vi", "cifar100"): 31,
    ("lenet5", "frequentist", "mnist"): 98,
    ("lenet5", "frequentist", "cifar10"): 68,
    ("lenet5", "frequentist", "cifar100"): 33,
    ("lenet5", "dropout", "mnist"): 99,
    ("lenet5", "dropout", "cifar10"): 83,
}
"""Table 1: accuracy in percent by model, inference and data; the paper has none for dropout on CIFAR-100."""

UNCERTAINTY: dict[tuple[str, str], tuple[float, float, float]] = {
    ("vgg16", "mnist"): (0.00110, 0.0004, 99),
    ("vgg16", "cifar10"): (0.00099, 0.0013, 85),
    ("alexnet", "mnist"): (0.00110, 0.0019, 99),
    ("alexnet", "cifar10"): (0.00099, 0.0002, 73),
    ("lenet5", "mnist"): (0.00110, 0.0026, 98),
    ("lenet5", "cifar10"): (0.00099, 0.0404, 69),
}
"""Table 2: aleatoric and epistemic uncertainty, and accuracy in percent, by model and data, with the softplus head."""

NOISE: dict[float, float] = {0.0: 0.00099897, 0.1: 0.00099885, 0.2: 0.00099875, 0.3: 0.00099838}
"""The noise figure: aleatoric uncertainty of one MNIST image by noise level, Bayesian VGG."""
