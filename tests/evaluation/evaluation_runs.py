"""Run folders made without Lightning, in a second."""

from __future__ import annotations

from pathlib import Path

import torch

from dubito.data import Batches, open_dataset, split_validation
from dubito.training import DataDescription, Run, configure


def make_run(folder: Path, *, trained: bool = False, data: str = "digits", **settings: object) -> Run:
    """A run of LeNet-5 without Lightning; untrained unless asked for."""
    config = configure(data=data, **settings)
    images = open_dataset(data).train()
    kept, _ = split_validation(images.labels, config.validation_fraction, config.seed)
    names = images.class_names
    run = Run(folder, config, DataDescription(data, images.channels, names, images.mean, images.std, 0, len(kept)))
    run.create()
    torch.manual_seed(config.seed)
    network = run.build()
    if trained:
        optimizer = torch.optim.Adam(network.parameters(), 3e-3)
        batches = Batches(images.images[kept], images.labels[kept], 32, shuffle=True, mean=images.mean, std=images.std)
        for inputs, targets in batches:
            loss = torch.nn.functional.nll_loss(network.probability_head.log_probs(network(inputs)), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    run.write_checkpoint("best", {f"network.{name}": t for name, t in network.state_dict().items()}, {})
    return run
