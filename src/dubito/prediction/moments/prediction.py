"""Prediction without draws: means and variances of every unit in one pass, and the covariance of the logits.

The network's own `forward` runs on :class:`Moments` instead of tensors. With inputs of mean m and variance v, and
weights N(mu, sigma^2):

- a linear map F has mean F(m, mu) and variance F(m^2 + v, sigma^2) + F(v, mu^2), exactly, of which the first term is
  new here, independent between units (as the estimator ``local`` draws it), and the second is carried on;
- ReLU and the maximum of two Gaussians have closed forms (Clark 1961), and softplus, which is ReLU smoothed by logistic
  noise, has one for a mixture of Gaussians in place of that noise.

Variances alone lose most of the uncertainty at the logits, because units that share their inputs vary together. So the
logits are then followed back: each row of the Jacobian G of the logits, with E[f'(x)] for the slope of a nonlinearity
(which is exact for the covariance of f(x) with a Gaussian x), meets the variance v that arose anew in each unit, and
their covariance is the sum of G diag(v) G' over all layers. It goes back as far as `BUDGET` allows, and takes the
units' whole variance there. Branches that meet again, as in residual networks, need no special care.

Last, probabilities and their split come from a fixed set of Gaussian logits: the same answer every time.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubito.convert.copying import shared_copy
from dubito.errors import NonFiniteError, OptionError, ShapeError
from dubito.estimators import Estimator
from dubito.heads.points import gaussian_points
from dubito.heads.split import Sampling
from dubito.layers import forced
from dubito.linear_map import LinearMap
from dubito.prediction.draws import Draws, Workers, own_copy
from dubito.prediction.dropout import drawn_dropout
from dubito.prediction.moments import linear, nonlinear, shape  # noqa: F401  (their rules)
from dubito.prediction.moments.gaussian import root, safe_sqrt
from dubito.prediction.moments.linear import Weights
from dubito.prediction.moments.value import RULES, Moments, UnsupportedError
from dubito.variational.kl import describe_non_finite
from dubito.variational.posterior import Posterior, posteriors

POINTS = 64
"""How many Gaussian logits stand for their distribution, unless asked."""

LOGITS = 5
"""Covariances are followed back for this many logits of an image, its largest; the others vary on their own, as if the
units below them were independent."""

BUDGET = 1.5
"""How much work following the logits back may be, in forward passes."""


class MomentDraws(Draws):
    """Points that stand for the distribution of a network's outputs, from propagated moments; deterministic.

    Args:
        model: any network of functions that have a rule here.
        points: how many Gaussian logits stand for their distribution; rounded up to an even number.
        every_logit: whether covariances are followed back for every logit, not only for an image's largest.
        dropout: whether dropout layers count as MC dropout; None for what the model was built for.
        share: whether the parameters of `model` are used as they are, instead of copies.

    >>> import dubito
    >>> draws = MomentDraws(dubito.models.build("lenet5", in_channels=1))
    >>> [block.shape for block in draws.outputs(torch.randn(5, 1, 32, 32))]
    [torch.Size([64, 5, 10])]
    """

    def __init__(
        self,
        model: nn.Module,
        points: int = POINTS,
        *,
        every_logit: bool = False,
        dropout: bool | None = None,
        share: bool = False,
    ) -> None:
        if points < 2:
            raise OptionError(f"points is {points}, but method='moments' needs at least 2.")
        drops = drawn_dropout(model, dropout)
        self.samples = points + points % 2 if drops or posteriors(model) else 1
        self.sampling = Sampling.EXACT
        self._logits = sys.maxsize if every_logit else LOGITS
        self._prototype = own_copy(model, share)
        self._drops = [name for name, part in model.named_modules() if part in drops]
        self._workers: Workers[tuple[nn.Module, Propagate]] = Workers()

    def outputs(self, batch: Tensor) -> Iterator[Tensor]:
        """One block of points (T, N, C)."""
        with self._workers.one(self._make_worker) as (network, propagate):
            given = batch.clone()  # it may be changed in place
            moments = logit_moments(network, given, propagate, logits=self._logits)
        if not bool(moments.mean.isfinite().all()):
            raise NonFiniteError(f"The model's outputs are not finite: {describe_non_finite(self._prototype)}")
        yield moments.points(self.samples)

    def _make_worker(self) -> tuple[nn.Module, Propagate]:
        network = shared_copy(self._prototype)
        for name in self._drops:
            network.get_submodule(name).train()
        return network, Propagate()


@dataclass(frozen=True)
class LogitMoments:
    """The Gaussian that the logits of each image follow: mean + factor @ z + rest * z', with standard normal z and z'.

    Attributes:
        mean: (N, K).
        factor: (N, K, R) a root of the covariance, or None if the logits are certain.
        rest: (N, K) standard deviations of logits on their own, or None if the factor is all.
    """

    mean: Tensor
    factor: Tensor | None = None
    rest: Tensor | None = None

    @property
    def covariance(self) -> Tensor:
        """(N, K, K)."""
        if self.factor is None:
            return torch.zeros(*self.mean.shape, self.mean.shape[1], dtype=self.mean.dtype, device=self.mean.device)
        matrix = self.factor @ self.factor.mT
        return matrix if self.rest is None else matrix + torch.diag_embed(self.rest.square())

    def points(self, count: int) -> Tensor:
        """(T, N, K) logits that stand for the distribution, in pairs around the mean."""
        if self.factor is None:
            return self.mean.unsqueeze(0)
        inner = self.factor.shape[2]
        noise = gaussian_points(count, inner + (0 if self.rest is None else self.mean.shape[1])).to(self.mean)
        logits = self.mean + torch.einsum("nkr,tr->tnk", self.factor, noise[:, :inner])
        return logits if self.rest is None else logits + self.rest * noise[:, inner:].unsqueeze(1)


def logit_moments(
    model: nn.Module, batch: Tensor, propagate: Propagate | None = None, *, logits: int = LOGITS
) -> LogitMoments:
    """Mean and covariance of the logits of a batch; differentiable in the network's parameters.

    Args:
        model: any network of functions that have a rule here.
        batch: images on the model's device.
        propagate: one for several batches saves the preparation of weights.
        logits: for how many logits of an image, its largest, covariances are followed back.

    >>> import dubito
    >>> layer = dubito.BayesLinear(1, 2, bias=False, initial_std=0.5)
    >>> logit_moments(layer, torch.tensor([[2.0]])).covariance.detach()     # x^2 sigma^2 = 1
    tensor([[[1., 0.],
             [0., 1.]]])
    """
    with forced(model, propagate or Propagate()):
        try:
            outputs = model(Moments(batch))
        except UnsupportedError as error:
            raise OptionError(_complaint(model, error)) from None
    if isinstance(outputs, Tensor):
        outputs = Moments(outputs)
    if not isinstance(outputs, Moments):
        raise ShapeError(
            f"The model returned {type(outputs).__name__}, but method='moments' needs logits (N, C): use "
            "method='weights', or wrap the model in one that returns them."
        )
    outputs = outputs.current()
    if outputs.expected.dim() != 2 or outputs.expected.shape[0] != batch.shape[0]:
        raise ShapeError(
            f"The model made outputs of shape {tuple(outputs.expected.shape)} from inputs of shape "
            f"{tuple(batch.shape)}, but method='moments' needs logits of shape (N, C): use method='weights'."
        )
    mean = outputs.expected
    if outputs.certain:
        return LogitMoments(mean)
    classes = mean.shape[1]
    if classes <= logits:
        rows = torch.eye(classes, dtype=mean.dtype, device=mean.device).unsqueeze(0)
        return LogitMoments(mean, root(pulled_back(outputs, rows)))
    rows = F.one_hot(mean.topk(logits).indices, classes).to(mean.dtype)
    alone = outputs.variance * (1 - rows.sum(1))
    return LogitMoments(mean, rows.mT @ root(pulled_back(outputs, rows)), safe_sqrt(alone))


def _complaint(model: nn.Module, error: UnsupportedError) -> str:
    """Names the innermost module of `model` that was running when `error` was raised."""
    names = {id(module): name for name, module in model.named_modules()}
    where, trace = model, error.__traceback__
    while trace is not None:
        running = trace.tb_frame.f_locals.get("self")
        where = running if isinstance(running, nn.Module) and id(running) in names else where
        trace = trace.tb_next
    name = repr(names[id(where)]) if names[id(where)] else "the model itself"
    return (
        f"method='moments' cannot follow {name} ({type(where).__name__}), which calls {error}: use method='weights', "
        f"or one of the functions that it knows ({', '.join(sorted(RULES))})."
    )


class Propagate(Estimator):
    """The estimator that gives the moments of a layer's output.

    It keeps what it made of the layers' weights: use one for several batches, while the weights stay as they are.
    """

    name: ClassVar[str] = "moments"

    def __init__(self) -> None:
        self._weights: dict[Posterior, Weights] = {}

    def __call__(self, linear_map: LinearMap, x: Any, weight: Posterior, bias: Posterior | Tensor | None) -> Any:
        """The layer's linear map of moments, by weights that are moments too."""
        offset = self.read(bias) if isinstance(bias, Posterior) else bias
        return linear_map(x, self.read(weight), offset)

    def read(self, posterior: Posterior) -> Any:
        """The moments of the weights."""
        if posterior not in self._weights:
            self._weights[posterior] = Weights(posterior.mean, posterior.variance.to(posterior.mean.dtype))
        return self._weights[posterior]


def pulled_back(outputs: Moments, rows: Tensor) -> Tensor:
    """Covariance (N, R, R) of R linear functions of the outputs, given as rows (N or 1, R, ...)."""
    order = list(outputs.ancestors())
    followed = _followed(order, rows.shape[1])
    pending: dict[int, Tensor] = {id(outputs): rows}
    total: Tensor | None = None
    for node in reversed(order):
        jacobian = pending.pop(id(node), None)
        if jacobian is None:
            continue
        follow = id(node) in followed
        new = node.own if follow else node.variance
        if new is not None:
            flat = jacobian.flatten(2)
            part = (flat * new.flatten(1).unsqueeze(1)) @ flat.mT
            total = part if total is None else total + part
        for source, pull in node.links if follow else ():
            assert pull is not None
            arrived = pull(jacobian)
            pending[id(source)] = arrived + pending[id(source)] if id(source) in pending else arrived
    assert total is not None
    return total


def _followed(order: list[Moments], rows: int) -> set[int]:
    """The moments whose sources are followed back, as the budget allows: latest first."""
    budget = BUDGET * sum(node.work for node in order)
    reached, followed, uses = {id(order[-1])}, set(), Counter(id(source) for node in order for source, _ in node.links)
    for node in reversed(order):
        if id(node) in reached and all(pull for _, pull in node.links) and rows * node.cost <= budget:
            budget -= rows * node.cost
            followed.add(id(node))
            reached.update(id(source) for source, _ in node.links)
    for node in order:
        # Where nothing mixes units on the way to the end, their whole variance is the same there as here.
        sources = [id(source) for source, _ in node.links]
        if node.unmixed and len(sources) == 1 and uses[sources[0]] == 1 and sources[0] not in followed:
            followed.discard(id(node))
    return followed
