"""The statistics of batch norm, estimated again from images: at the posterior mean, or under draws of the weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dubito.layers import estimator


@torch.no_grad()
def estimate_statistics(network: nn.Module, batches: Iterable[Tensor], *, draws: bool = True) -> nn.Module:
    """Set the running statistics of batch norm to their means over these batches of images; returns the network.

    With `draws` every batch sees a new draw of the weights, as in training; otherwise the posterior mean. Use it for a
    network that was converted after its training, or whose weights were changed by hand: its statistics are then those
    of the mean, or of other weights. The images should be augmented as in training, because the weights were trained
    with statistics of such images.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> images = torch.randn(64, 2)
    >>> _ = estimate_statistics(network, [images])
    >>> torch.allclose(network[1].running_mean, network[0](images).mean(0), atol=1e-6)
    True
    """
    norms = [part for part in network.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    modes = {part: part.training for part in network.modules()}
    momenta = {part: part.momentum for part in norms}
    try:
        for part in norms:
            part.reset_running_stats()
            part.momentum = None  # a plain average
        with estimator(network.eval(), "weight" if draws else "mean"):
            for part in norms:
                part.train()
            for images in batches:
                network(images)
    finally:
        for module, training in modes.items():
            module.training = training
        for part, momentum in momenta.items():
            part.momentum = momentum
    return network
