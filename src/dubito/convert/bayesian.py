"""`to_bayesian`: any network with posteriors in place of its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from typing_extensions import Unpack

from dubito.convert.candidates import Choice, Picked, choose_parameters
from dubito.convert.copying import deep_copy, held_elsewhere, substitute, take_place
from dubito.errors import NonFiniteError
from dubito.estimators import Mean, Weight, make_estimator
from dubito.heads import Head, attach_head
from dubito.layers import TWINS, BayesianOptions, BayesLayer
from dubito.layers.parameter import draw_parameter, fan_in
from dubito.variational.families import family
from dubito.variational.kl import describe_non_finite
from dubito.variational.posterior import PAPER_STD, Posterior, close_pass, open_pass, posteriors


def to_bayesian(
    module: nn.Module,
    *,
    head: str | Head | None = None,
    only: Choice | Sequence[Choice] | None = None,
    last_layer: bool = False,
    inplace: bool = False,
    **bayesian: Unpack[BayesianOptions],
) -> nn.Module:
    """A Bayesian copy of `module`: its weights become the means of posteriors.

    Linear and convolutional layers of torch become their Bayesian twins. The parameters of other linear maps
    (attention, recurrent layers, embeddings, subclassed layers) are drawn whenever they are read. Normalisation and
    other modules are not changed, unless `only` names their parameters. The original does not change. Shared layers
    stay shared, tied weights share one posterior, hooks are kept, and frozen weights stay frozen (with their standard
    deviations). Converting twice changes nothing more. ``print(dubito.summary(network))`` says what became Bayesian,
    what did not, and why.

    Args:
        module: any network, or a single layer.
        head: the head of the copy; None keeps the one it has.
        only: which layers, None for all. A string is a pattern for names, such as ``"features.*"`` or ``"classifier"``,
            which takes all layers inside, or that of a parameter, such as ``"norm.weight"``; a type takes all layers of
            it, also inside modules of it; a function gets name and layer and says yes or no. A list combines several.
        last_layer: convert only the last of these layers.
        inplace: change `module` itself instead of a copy. For a single layer, use what is returned.
        bayesian: options of the new layers, see :class:`~dubito.layers.BayesianOptions`; `prior="empirical"` centres
            the prior on the weights too.

    >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(16, 10))
    >>> bayesian = to_bayesian(network, prior="empirical")
    >>> bayesian[3].weight_mean.equal(network[3].weight), type(network[3]).__name__
    (True, 'Linear')
    >>> [type(layer).__name__ for layer in to_bayesian(network, last_layer=True)]
    ['Conv2d', 'Softplus', 'Flatten', 'BayesLinear']
    """
    if any(not bool(p.isfinite().all()) for p in module.parameters() if _can_be_looked_at(p)):
        raise NonFiniteError(f"The network cannot be made Bayesian: {describe_non_finite(module)}")
    picked = choose_parameters(module, only, last_layer)
    network = module if inplace else deep_copy(module)
    converted = give_posteriors(network, picked, bayesian)
    begin_passes(converted)
    return converted if head is None else attach_head(converted, head)


def give_posteriors(network: nn.Module, picked: Picked, bayesian: BayesianOptions) -> nn.Module:
    """`network` itself with posteriors for these parameters; a single layer becomes another one."""
    with torch.random.fork_rng(devices=[]):  # families may start at random
        return _Conversion(network, picked, bayesian).run()


def begin_passes(network: nn.Module) -> None:
    """Make every call of the network one pass: it sees one draw of each posterior."""
    if not has_passes(network):
        network.register_forward_pre_hook(open_pass)
        network.register_forward_hook(close_pass, always_call=True)


def has_passes(network: nn.Module) -> bool:
    """Whether every call of the network is one pass."""
    return open_pass in network._forward_pre_hooks.values()


def _can_be_looked_at(parameter: Tensor) -> bool:
    ordinary = not is_lazy(parameter) and not parameter.is_meta and parameter.layout is torch.strided
    return ordinary and parameter.dtype.itemsize > 1  # torch cannot say of float8 whether it is finite


class _Conversion:
    """One conversion of a network; tied parameters get one posterior."""

    def __init__(self, network: nn.Module, picked: Picked, bayesian: BayesianOptions) -> None:
        self.network = network
        self.options: dict[str, Any] = dict(bayesian)
        self.layers = {name: network.get_submodule(name) for name in picked}
        self.picked = picked
        self.known: dict[int, Posterior] = {id(q.mean): q for q in posteriors(network).values()}
        uses = Counter(id(p) for part in network.modules() for p in part.parameters(recurse=False))
        self.tied = {which for which, count in uses.items() if count > 1} | set(self.known)

    def run(self) -> nn.Module:
        """The network with its parameters drawn."""
        kept = held_elsewhere(self.network)
        twins: dict[int, nn.Module] = {}
        for name, layer in self.layers.items():
            # Whatever holds a layer in its own way, or has changed its forward, keeps this very layer.
            if type(layer) in TWINS and "forward" not in vars(layer) and id(layer) not in kept:
                twins[id(layer)] = self._twin(layer)
            else:
                for parameter in self.picked[name]:
                    draw_parameter(layer, parameter, self._posterior(layer, parameter))
        return substitute(self.network, twins)

    def _twin(self, layer: nn.Module) -> BayesLayer:
        """The Bayesian twin of a layer, with its own parameters as means."""
        options = dict(self.options)
        if any(id(p) in self.tied for p in layer.parameters(recurse=False)):
            # Tied weights have one draw, which `local` and `flipout` do not make.
            asked = make_estimator(options.get("estimator", "local"))
            options["estimator"] = asked if isinstance(asked, (Mean, Weight)) else Weight()
        twin: BayesLayer = TWINS[type(layer)].around(layer, **options)  # type: ignore[attr-defined]
        for name, q in twin.posteriors.items():
            assert isinstance(q, Posterior)
            twin.posteriors[name] = self.known.setdefault(id(q.mean), q)
            q.frozen_like_mean()
        take_place(twin, layer)
        return twin

    def _posterior(self, layer: nn.Module, name: str) -> Posterior:
        """The posterior of one parameter, the same for tied ones."""
        parameter = layer.get_parameter(name)
        if id(parameter) not in self.known:
            make = family(self.options.get("posterior", "std"))
            std, prior = self.options.get("initial_std", PAPER_STD), self.options.get("prior", "standard")
            self.known[id(parameter)] = make(parameter, std, prior, fan_in(parameter))
            self.known[id(parameter)].frozen_like_mean()
        return self.known[id(parameter)]
