"""KL[q || p] of a layer or a whole network: the complexity cost of the free energy (paper, equation 1).

In that order, summed over every weight, in nats: no mean, no division by the number of layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dubito.errors import NonFiniteError, OptionError
from dubito.variational.posterior import Posterior, drawn_groups, posteriors


def kl_divergence(module: nn.Module, *, samples: int | None = None) -> Tensor:
    """KL[q || p] of every posterior below `module`, each once, as a scalar in nats.

    A posterior that is used in several places counts once. A network without posteriors has divergence 0.
    Half-precision weights give a float32 result.

    Args:
        module: any module.
        samples: None for the closed form (one draw where the prior has none); a number for the Monte Carlo form of
            the paper's equation (3), the mean over that many draws of log q(w) - log p(w). Inside a pass, as in
            :class:`dubito.ELBO`, they start with the weights of the forward pass.

    >>> import dubito
    >>> layer = dubito.BayesLinear(1, 1, bias=False, initial_std=1.0)
    >>> _ = nn.init.constant_(layer.weight_mean, 2.0)
    >>> float(kl_divergence(layer))             # (2^2 + 1^2 - 1) / 2 - log 1
    2.0
    """
    if samples is not None and samples < 1:
        raise OptionError(f"samples is {samples}, but must be at least 1, or None for the closed form.")
    found = list(posteriors(module).values())
    if not found:
        anchor = next(module.parameters(), torch.zeros(()))
        return torch.zeros((), device=anchor.device)
    terms = _joint(found) if samples is None else [_estimate(q, samples) for q in found]
    total = terms[0]
    for term in terms[1:]:
        total = total + term.to(total.device)
    _require_finite(total, module)
    return total


def _joint(found: list[Posterior]) -> list[Tensor]:
    """The divergences in closed form; a family may add up those of several posteriors."""
    families = dict.fromkeys(type(q) for q in found)
    return [term for family in families for term in family.divergences([q for q in found if type(q) is family])]


def _estimate(q: Posterior, samples: int) -> Tensor:
    """The mean of log q(w) - log p(w) over draws, the first of which is that of the pass under way."""
    weights = drawn_groups(q, 1, False) + [q.draw() for _ in range(samples - 1)]
    return torch.stack([q.log_prob(w) - q.prior.log_prob(w) for w in weights]).mean()


def _require_finite(total: Tensor, module: nn.Module) -> None:
    if torch.compiler.is_compiling() or total.is_meta:
        return
    try:
        finite = bool(total.isfinite())
    except RuntimeError:  # a transform of torch.func is at work, which shows no values
        return
    if not finite:
        raise NonFiniteError(f"The KL divergence is {total.item()}: {describe_non_finite(module)}")


def describe_non_finite(module: nn.Module) -> str:
    """A sentence that says which parameters or buffers of `module` are not finite."""
    named = [*module.named_parameters(), *module.named_buffers()]
    broken = [name for name, tensor in named if tensor.is_floating_point() and not bool(tensor.isfinite().all())]
    if not broken:
        return "every parameter is finite, so some are too large for their type; use a smaller learning rate."
    shown = ", ".join(broken[:5]) + (f" and {len(broken) - 5} more" if len(broken) > 5 else "")
    return f"NaN or infinite values in {shown}; go back to an earlier checkpoint and use a smaller learning rate."
