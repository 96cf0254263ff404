"""Saved networks: any network as a folder of safetensors and JSON.

    network.json           how the network is built again, its structure, head, classes, normalisation, image size
    network.safetensors    its tensors; those of pruned networks are packed
    novelty.safetensors, decision.json   what a predictor of it was fitted with, if it was saved too
    member0/, member1/ ... the members of an ensemble, each a saved network

Nothing is ever pickled, and no code is run that the folder brings: a network that dubito cannot build is loaded into an
instance that the user gives.
"""

from __future__ import annotations

from dubito.saving.loading import is_saved, load, open_folder, read_network, saved_fingerprint, saved_temperature
from dubito.saving.saved import save

__all__ = ["is_saved", "load", "open_folder", "read_network", "save", "saved_fingerprint", "saved_temperature"]
