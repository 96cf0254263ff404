r"""Natural-gradient variational inference (Khan & Rue 2021; Lin, Schmidt & Khan 2020; Shen et al. 2024).

With L the mean negative log-likelihood of N training examples, the prior N(mu0, s0^2) and the temperature t, the free
energy L + t KL / N of q = N(mu, sigma^2) is smallest where sigma^2 = t / (N (h + delta)). Here delta = t / (N s0^2),
and h is the diagonal of the Hessian of L, averaged over q. By Price's theorem h' = dL/dsigma / sigma is an unbiased
estimate of it, whatever the estimator that drew the network. One step is

    h   <-  h + r (h' - h) + r^2 (h' - h)^2 / (2 (h + delta))
    g   <-  b g + (1 - b) dL/dmu
    mu  <-  mu - lr (h0 + delta) (g / (1 - b^step) + delta (mu - mu0)) / (h + delta)

The layers hold sigma, and so h needs no memory of its own: with x = (h' + delta) / (h + delta) - 1, which is
(N / t) sigma dL/dsigma + sigma^2 / s0^2 - 1, the first line says sigma^2 <- sigma^2 / (1 + r x + (r x)^2 / 2), and
(h0 + delta) / (h + delta) is sigma^2 over the sigma^2 that the training began with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from dubito.errors import NonFiniteError, OptionError
from dubito.softplus import inverse_softplus, softplus
from dubito.variational.families import StdPosterior
from dubito.variational.joint_optimizer import JointOptimizer
from dubito.variational.posterior import posteriors

AT_ONCE = 1 << 17
"""Weights that move in one go: so few that what is computed on the way stays in the processor's cache."""

RENEWALS = 0.25
"""r times the number of steps: how often h forgets what it was in the course of a training. One draw a step makes h' so
noisy that more would not follow the curvature, but the noise, in trainings of a few epochs."""


def rate_for(steps: int) -> float:
    """r for a training of so many steps.

    >>> rate_for(2000)
    0.000125
    """
    return min(0.1, RENEWALS / steps)


class NaturalGradient(JointOptimizer):
    """An optimiser for networks in which some or all layers are Bayesian.

    Give it the gradient of the negative log-likelihood alone; it adds KL itself. It works with any estimator and any
    number of draws. Gradients may be clipped, and accumulated over several small batches. The standard deviations of
    the layers are always up to date.

    Args:
        model: a network; its posteriors must be of the family ``std`` with a Gaussian prior, ``learned`` included.
        lr: the learning rate, which means what it does in SGD as long as h is near where it started.
        num_data: the number of training examples, N.
        temperature: multiplies KL; 1 is the true free energy.
        momentum: b, the share of the gradient's running mean that a step keeps.
        hessian: h0, where h starts: the posteriors get the standard deviations that belong to it. None starts from the
            standard deviations that they have.
        hessian_rate: r, the share of h that a step replaces; None is 0.25 / `steps`.
        steps: how many steps the training has; None is 10,000.
        others: makes the optimiser of the parameters without a posterior; None is SGD with the same learning rate and
            momentum. Its steps are taken, and its state is kept, with this one's.

    >>> import dubito
    >>> model = dubito.attach_head(dubito.BayesLinear(4, 3, estimator="weight"), "softmax")
    >>> objective = dubito.ELBO(num_data=1000)
    >>> optimizer = NaturalGradient(model, lr=0.1, num_data=1000, steps=100)
    >>> objective(model, torch.randn(8, 4), torch.randint(3, (8,))).nll.backward()
    >>> optimizer.step()
    """

    minimizes: ClassVar[str] = "nll"
    """The term of the free energy whose gradient it takes."""

    remedy: ClassVar[str] = "lower the learning rate, start with smaller standard deviations, or clip the gradient"
    """What to do about a training that diverges."""

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        num_data: int,
        *,
        temperature: float = 1.0,
        momentum: float = 0.9,
        hessian: float | None = None,
        hessian_rate: float | None = None,
        steps: int | None = None,
        others: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    ) -> None:
        steps = 10_000 if steps is None else steps
        if steps < 1:
            raise OptionError(f"steps is {steps}, but must be the number of steps of the training, at least 1.")
        rate = rate_for(steps) if hessian_rate is None else hessian_rate
        _require_numbers(lr, num_data, temperature, momentum, hessian, rate)
        self._posteriors = _learning(model)
        self._scale = num_data / temperature
        for q in self._posteriors:
            q.prior.gaussian(q)  # refuses a prior that is none
            if hessian is not None:
                _set_hessian(q, hessian, self._scale)
        own = [q.mean for q in self._posteriors] + [q.rho for q in self._posteriors]
        super().__init__(own, {"lr": lr, "momentum": momentum, "hessian_rate": rate, "step": 0})
        for q in self._posteriors:
            self.state[q.mean]["momentum"] = torch.zeros_like(q.mean)
            self.state[q.mean]["initial_variance"] = q.variance.detach().mean()
        known = set(map(id, own))
        rest = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
        if rest:
            self._adopt(SGD(rest, lr, momentum, dampening=momentum) if others is None else others(rest))

    def _move_own(self) -> None:
        moved = [q for q in self._posteriors if q.mean.grad is not None]
        gradients = _gradients(moved)
        self.param_groups[0]["step"] += bool(moved)
        for block in _blocks(self._tensors(q, *of_q) for q, of_q in zip(moved, gradients, strict=True)):
            self._move(*block)

    def _tensors(self, q: StdPosterior, of_mean: Tensor, of_rho: Tensor) -> tuple[Tensor, ...]:
        """All that a step needs of a posterior; what is the same for every weight is a single number."""
        state = self.state[q.mean]
        return q.mean, q.rho, of_mean, of_rho, state["momentum"], state["initial_variance"], *q.prior.gaussian(q)

    def _move(
        self,
        means: list[Tensor],
        rhos: list[Tensor],
        of_mean: list[Tensor],
        of_rho: list[Tensor],
        momenta: list[Tensor],
        initial_variances: list[Tensor],
        prior_means: list[Tensor],
        prior_variances: list[Tensor],
    ) -> None:
        group = self.param_groups[0]
        variances = self._new_variances(rhos, of_rho, prior_variances)
        torch._foreach_lerp_(momenta, of_mean, 1 - group["momentum"])
        # the gradient of the free energy: g / (1 - b^step) + delta (mu - mu0)
        direction = torch._foreach_sub(means, prior_means)
        torch._foreach_div_(direction, prior_variances)
        torch._foreach_div_(direction, self._scale)
        torch._foreach_add_(direction, momenta, alpha=1 / (1 - group["momentum"] ** group["step"]))
        torch._foreach_div_(variances, initial_variances)
        torch._foreach_addcmul_(means, direction, variances, value=-group["lr"])

    def _new_variances(self, rhos: list[Tensor], of_rho: list[Tensor], prior_variances: list[Tensor]) -> list[Tensor]:
        """Renew h, write the standard deviations that belong to it into the layers, and return their squares."""
        rate = self.param_groups[0]["hessian_rate"]
        # An erased weight has the standard deviation 0, which no quotient may see.
        tiny = torch.finfo(rhos[0].dtype).tiny
        stds = [softplus(rho).clamp_min_(tiny) for rho in rhos]
        # 1 + r x with x = (N / t) sigma dL/dsigma + sigma^2 / s0^2 - 1, where dL/dsigma = dL/drho / (1 - exp(-sigma))
        growth = torch._foreach_neg(stds)
        torch._foreach_expm1_(growth)
        growth = torch._foreach_div(torch._foreach_mul(of_rho, stds), growth)
        torch._foreach_mul_(growth, -rate * self._scale)
        torch._foreach_addcdiv_(growth, torch._foreach_mul(stds, stds), prior_variances, value=rate)
        torch._foreach_add_(growth, 1 - rate)
        # 1 + r x + (r x)^2 / 2 = ((1 + r x)^2 + 1) / 2
        torch._foreach_mul_(growth, growth)
        torch._foreach_add_(growth, 1)
        torch._foreach_mul_(growth, 0.5)
        torch._foreach_rsqrt_(growth)
        torch._foreach_mul_(stds, growth)
        for rho, std in zip(rhos, stds, strict=True):
            rho.copy_(inverse_softplus(std))
        return list(torch._foreach_mul(stds, stds))


def _blocks(rows: Iterable[tuple[Tensor, ...]]) -> Iterator[list[list[Tensor]]]:
    """The tensors of each kind, in blocks of about AT_ONCE weights: small ones together, large ones in pieces."""
    block: list[tuple[Tensor, ...]] = []
    size = 0
    for row in rows:
        for piece in _pieces(row):
            block.append(piece)
            size += piece[0].numel()
            if size >= AT_ONCE:
                yield list(map(list, zip(*block, strict=True)))
                block, size = [], 0
    if block:
        yield list(map(list, zip(*block, strict=True)))


def _pieces(row: tuple[Tensor, ...]) -> Iterable[tuple[Tensor, ...]]:
    """The row itself, or pieces of it if its tensors are large and lie in memory one weight after the other."""
    count = row[0].numel()
    if count <= AT_ONCE or not all(part.is_contiguous() and part.numel() in (1, count) for part in row):
        return [row]
    return zip(*(repeat(part) if part.numel() == 1 else part.view(-1).split(AT_ONCE) for part in row))  # noqa: B905


def _learning(model: nn.Module) -> list[StdPosterior]:
    """The posteriors that learn; an error if there are none, or others than the family ``std``."""
    found: list[StdPosterior] = []
    for name, q in posteriors(model).items():
        if not q.mean.requires_grad:
            continue
        if not isinstance(q, StdPosterior):
            raise OptionError(
                f"The posterior of {name} is of the family {q.name!r}, but the natural gradient needs 'std': build the "
                "network with posterior='std'."
            )
        if q.mean.dtype not in (torch.float32, torch.float64):
            raise OptionError(
                f"The weights of {name} are {q.mean.dtype}, but the natural gradient needs float32 or float64: keep "
                "them so, and compute in half precision by torch.autocast."
            )
        found.append(q)
    if not found:
        raise OptionError("The network has no posterior to train: convert it with dubito.to_bayesian.")
    return found


def _set_hessian(q: StdPosterior, hessian: float, scale: float) -> None:
    """Give a posterior the standard deviation of this h: sigma^2 = t / (N (h + delta))."""
    _, spread = q.prior.gaussian(q)
    q.set_std((hessian * scale + 1 / spread).rsqrt().expand_as(q.mean))


def _require_numbers(
    lr: float, num_data: int, temperature: float, momentum: float, hessian: float | None, rate: float
) -> None:
    positive = {"lr": lr, "num_data": num_data, "temperature": temperature}
    if hessian is not None:
        positive["hessian"] = hessian
    for name, value in positive.items():
        if not (value > 0 and math.isfinite(value)):
            raise OptionError(f"{name} is {value}, but the natural gradient needs a positive finite number.")
    if not 0 <= momentum < 1:
        raise OptionError(f"momentum is {momentum}, but must be at least 0 and below 1.")
    if not 0 < rate <= 1:
        raise OptionError(f"hessian_rate is {rate}, but must be above 0 and at most 1.")


def _gradients(moved: list[StdPosterior]) -> list[tuple[Tensor, Tensor]]:
    """Of mean and rho of each; what would spoil the posteriors is refused before anything has changed."""
    found = [(q.mean.grad, q.rho.grad) for q in moved if q.mean.grad is not None and q.rho.grad is not None]
    if len(found) < len(moved):
        raise OptionError(
            "The means have gradients but the standard deviations have none, so the network was not drawn: use the "
            "estimator weight, local or flipout, and model.train()."
        )
    norms = torch._foreach_norm([gradient for both in found for gradient in both]) if found else [torch.zeros(())]
    if not math.isfinite(float(torch.stack(norms).sum())):
        raise NonFiniteError(
            f"The gradient is not finite, so the step was skipped and nothing was changed; {NaturalGradient.remedy}."
        )
    return found
