"""Variational inference: posterior, prior, KL divergence and the free energy."""
