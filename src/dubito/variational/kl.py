"""KL[q || p] of a layer or a whole network: the complexity cost of the free energy (paper, equation 1).

In that order, summed over every weight, in nats: no mean, no division by the number of layers. The functions of
every weight are computed for all layers at once, then summed by layers.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dubito.errors import NonFiniteError, OptionError
from dubito.kernels.autograd import has_values
from dubito.variational.posterior import Identity, Parameterization, Posterior
from dubito.variational.prior import Prior

__all__ = ["kl_divergence"]


def kl_divergence(module: nn.Module, *, samples: int | None = None) -> Tensor:
    """KL[q || p] of every Bayesian layer below `module`, each once, as a scalar in nats.

    A layer or a posterior that is used in several places counts once. A network without Bayesian layers has
    divergence 0. Half-precision weights give a float32 result.

    Args:
        module: any module, itself a Bayesian layer or not.
        samples: None for the closed form (one draw where the prior has none); a number for the Monte Carlo form of
            the paper's equation (3), the mean over that many draws of log q(w) - log p(w).

    >>> import dubito
    >>> layer = dubito.BayesLinear(1, 1, bias=False, initial_std=1.0)
    >>> _ = nn.init.constant_(layer.weight_mean, 2.0)
    >>> kl_divergence(layer)                    # (2^2 + 1^2 - 1) / 2 - log 1
    tensor(2., grad_fn=<AddBackward0>)
    """
    if samples is not None and samples < 1:
        raise OptionError(f"samples is {samples}, but must be at least 1, or None for the closed form.")
    from dubito.layers.base import posteriors_kept

    with posteriors_kept(module):
        groups = _groups(module)
        terms = [_of_group(kind.prior, layers, samples) for kind, layers in groups.items()]
    if not terms:
        anchor = next(module.parameters(), torch.zeros(()))
        return torch.zeros((), device=anchor.device)
    total = terms[0]
    for term in terms[1:]:
        total = total + term.to(total.device)
    _require_finite(total, module)
    return total


class _Kind(NamedTuple):
    """What the weights of a group have in common."""

    prior: type[Prior]
    parameterization: Parameterization
    dtype: torch.dtype
    device: torch.device


_Layer = tuple[Prior, dict[str, Posterior]]


def _groups(module: nn.Module) -> dict[_Kind, list[_Layer]]:
    """The distinct tensors of weights below `module`, by what can be computed together."""
    from dubito.layers.base import BayesLayer

    groups: dict[_Kind, list[_Layer]] = defaultdict(list)
    seen: set[Identity] = set()
    for layer in module.modules():  # yields a shared module once
        if isinstance(layer, BayesLayer):
            # Weights that share their mean alone are drawn apart, so they are two random variables.
            posteriors = {n: q for n, q in layer.posteriors().items() if q.identity not in seen}
            seen.update(q.identity for q in posteriors.values())
            if posteriors:
                first = next(iter(posteriors.values()))
                kind = _Kind(type(layer.prior), first.parameterization, first.mean.dtype, first.mean.device)
                groups[kind].append((layer.prior, posteriors))
    return groups


def _of_group(kind: type[Prior], layers: list[_Layer], samples: int | None) -> Tensor:
    priors, posteriors = [prior for prior, _ in layers], [posteriors for _, posteriors in layers]
    if samples is None:
        return kind.divergence(priors, posteriors)
    draws = []
    for _ in range(samples):
        weights = [{name: q.draw() for name, q in layer.items()} for layer in posteriors]
        log_q = [
            q.log_prob(w[name]).sum() for layer, w in zip(posteriors, weights, strict=True) for name, q in layer.items()
        ]
        draws.append(torch.stack(log_q).sum() - kind.log_prob(priors, weights))
    return torch.stack(draws).mean()


def _require_finite(total: Tensor, module: nn.Module) -> None:
    if has_values(total) and not bool(total.isfinite()):
        raise NonFiniteError(f"The KL divergence is {total.item()}: {describe_non_finite(module)}")


def describe_non_finite(module: nn.Module) -> str:
    """A sentence that says which parameters or buffers of `module` are not finite."""
    named = [*module.named_parameters(), *module.named_buffers()]
    broken = [name for name, tensor in named if tensor.is_floating_point() and not bool(tensor.isfinite().all())]
    if not broken:
        return "every parameter is finite, so some are too large for their type; use a smaller learning rate."
    shown = ", ".join(broken[:5]) + (f" and {len(broken) - 5} more" if len(broken) > 5 else "")
    return f"NaN or infinite values in {shown}; go back to an earlier checkpoint and use a smaller learning rate."
