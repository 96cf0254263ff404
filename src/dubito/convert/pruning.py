"""Pruning by signal-to-noise: weights whose posterior hardly differs from zero become exactly zero.

A weight's signal-to-noise ratio is |mu| / sigma (Graves 2011, Blundell et al. 2015). A pruned weight has mean 0 and a
standard deviation that underflows to 0, in both parameterisations and every dtype, so it is exactly zero in every draw.
Its KL is that of a point and large: pruning comes after training, not before.

On disk a pruned tensor is a bit for each weight and the values of those that are left: see :func:`pack`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dubito.convert.copying import deep_copy
from dubito.errors import OptionError, ShapeError
from dubito.layers import BayesLayer, BayesLinear, estimator
from dubito.limits import file_limits, variable
from dubito.variational.families import FAMILIES
from dubito.variational.posterior import Posterior, posteriors

KEPT = ".kept"
"""What the name of a packed weight's bits ends with."""

ModuleType = TypeVar("ModuleType", bound=nn.Module)


def prune(module: ModuleType, sparsity: float, *, inputs: Tensor | None = None, inplace: bool = False) -> ModuleType:
    """A copy of a Bayesian network in which this share of all weights, those with the smallest |mu| / sigma, is zero.

    The threshold is one for the whole network. Weights without a posterior do not change. Biases change only if
    `inputs` are given: activations such as softplus are positive, so even weights that say little about an image add
    a constant to the output, and the biases have to replace it.

    Args:
        module: a network with Bayesian layers.
        sparsity: the share of their weights that become zero, from 0 to below 1; weights that are zero already count.
        inputs: a batch of training images; biases are then corrected so that the mean output of each layer on it stays.
        inplace: change `module` itself instead of a copy.

    >>> import dubito
    >>> network = prune(dubito.BayesLinear(10, 10), 0.9)
    >>> int((network.weight_mean != 0).sum()), int((network.weight_std > 0).sum())
    (10, 10)
    """
    if not 0 <= sparsity < 1:
        raise OptionError(f"sparsity is {sparsity}, but must be a share of the weights: at least 0 and below 1.")
    if inputs is not None and inputs.dim() < 2:
        raise ShapeError(f"inputs has shape {tuple(inputs.shape)}, but must be a batch: (N, ...).")
    network = module if inplace else deep_copy(module)
    original = deep_copy(module) if inplace and inputs is not None else module
    posteriors = _posteriors(network)
    ratios = torch.cat([signal_to_noise(q).flatten().cpu() for q in posteriors])
    gone = torch.zeros(len(ratios), dtype=torch.bool)
    gone[ratios.argsort(stable=True)[: round(sparsity * len(ratios))]] = True
    with torch.no_grad():
        for q, part in zip(posteriors, gone.split([q.mean.numel() for q in posteriors]), strict=True):
            where = part.view(q.mean.shape).to(q.mean.device)
            q.erase(where)
    if inputs is not None:
        _keep_mean_outputs(network, original, inputs)
    return network


@torch.no_grad()
def _keep_mean_outputs(pruned: nn.Module, original: nn.Module, inputs: Tensor) -> None:
    """Give the biases of `pruned` what its layers' mean outputs lack, one layer after the other."""
    wanted: dict[str, Tensor] = {}

    def remember(name: str) -> Any:
        def hook(layer: BayesLayer, given: Any, output: Tensor) -> None:
            wanted.setdefault(name, _channel_means(layer, output))

        return hook

    def correct(name: str) -> Any:
        def hook(layer: BayesLayer, given: Any, output: Tensor) -> Tensor | None:
            if layer.bias_mean is None or name not in wanted:
                return None
            lack = wanted.pop(name) - _channel_means(layer, output)  # once, at the first call
            std = layer.bias_std
            layer.bias_mean.add_(lack)
            if std is not None:  # some families tie it to the mean
                layer.posteriors["bias"].set_std(std)  # type: ignore[operator]
            return output + (lack if isinstance(layer, BayesLinear) else lack.view(-1, *(1,) * (output.dim() - 2)))

        return hook

    for network, hook in ((original, remember), (pruned, correct)):
        layers = [(name, part) for name, part in network.named_modules() if isinstance(part, BayesLayer)]
        handles = [part.register_forward_hook(hook(name)) for name, part in layers]
        modes = [(part, part.training) for part in network.modules()]
        try:
            with estimator(network, "mean"):
                network.eval()(inputs)
        finally:
            for handle in handles:
                handle.remove()
            for part, mode in modes:
                part.training = mode


def _channel_means(layer: nn.Module, output: Tensor) -> Tensor:
    return (
        output.flatten(0, -2).mean(0) if isinstance(layer, BayesLinear) else output.transpose(0, 1).flatten(1).mean(1)
    )


def signal_to_noise(posterior: Posterior) -> Tensor:
    """Log of |mu| / sigma of each weight; minus infinity for a mean of 0.

    >>> from dubito.variational.families import StdPosterior
    >>> signal_to_noise(StdPosterior(nn.Parameter(torch.tensor([0.0, 2.0])), std=2.0))
    tensor([-inf, 0.])
    """
    return posterior.mean.detach().to(posterior.log_std.dtype).abs().log() - posterior.log_std.detach()


def sparsity(module: nn.Module) -> float:
    """The share of the weights of Bayesian layers that are exactly zero in every draw.

    >>> import dubito
    >>> sparsity(prune(dubito.BayesLinear(10, 10), 0.25))
    0.25
    """
    posteriors = _posteriors(module)
    return sum(int(_is_gone(q).sum()) for q in posteriors) / sum(q.mean.numel() for q in posteriors)


def weights_left(module: nn.Module) -> int:
    """How many weights of Bayesian layers are not exactly zero."""
    return sum(int((~_is_gone(q)).sum()) for q in _posteriors(module))


def _is_gone(posterior: Posterior) -> Tensor:
    return (posterior.mean == 0) & (posterior.std == 0)


def _posteriors(module: nn.Module) -> list[Posterior]:
    """The posterior of every weight that is no vector; tied ones once."""
    found = [q for q in posteriors(module).values() if q.mean.dim() > 1]
    if not found:
        raise OptionError(
            f"The network ({type(module).__name__}) has no Bayesian layers, but |mu| / sigma needs a posterior: train "
            "one with inference vi, or convert it with to_bayesian and fine-tune."
        )
    return found


def pack(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, list[int]]]:
    """Tensors of a state dict without the weights that are gone, and the shapes of those that were packed.

    In place of the parameters of a posterior are the values that are left, in order, and ``POSTERIOR.kept``, a bit
    for each weight, eight to a byte. What has no pruned weights stays as it is.
    """
    packed, shapes = dict(tensors), {}
    for erased in _erased_values():
        for key in [key for key in tensors if key.endswith(".mean")]:
            name = key.removesuffix(".mean")
            if any(f"{name}.{part}" not in tensors for part in erased):
                continue
            mean = tensors[key]
            gone = torch.ones_like(mean, dtype=torch.bool)
            for part, value in erased.items():
                gone &= tensors[f"{name}.{part}"] == value
            if bool(gone.any()):
                packed |= {f"{name}.{part}": tensors[f"{name}.{part}"][~gone] for part in erased}
                packed[name + KEPT] = _to_bits(~gone)
                shapes[name] = list(mean.shape)
    return packed, shapes


def unpack(tensors: Mapping[str, Tensor], shapes: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors that :func:`pack` packed.

    >>> state = {"q.mean": torch.tensor([0.0, 1.0]), "q.rho": torch.tensor([-1e3, 0.5])}
    >>> all(torch.equal(tensor, state[name]) for name, tensor in unpack(*pack(state)).items())
    True
    """
    whole = dict(tensors)
    _require_bounded(tensors, shapes)
    for name, shape in shapes.items():
        size = torch.Size(shape)
        kept = _from_bits(whole.pop(name + KEPT), size.numel()).view(size)
        for erased in _erased_values():
            if any(f"{name}.{part}" not in whole for part in erased):
                continue
            for part, value in erased.items():
                left = whole[f"{name}.{part}"]
                if left.numel() != int(kept.sum()):
                    raise ValueError(f"{name}.{part} has {left.numel()} values for {int(kept.sum())} weights")
                whole[f"{name}.{part}"] = torch.full(size, value, dtype=left.dtype).masked_scatter_(kept, left)
            break
    return whole


def _require_bounded(tensors: Mapping[str, Tensor], shapes: Mapping[str, Any]) -> None:
    """A ValueError if the shapes are none, or more memory than may be unpacked from these tensors."""
    if not isinstance(shapes, Mapping):
        raise ValueError(f"its pruned weights are a {type(shapes).__name__}")
    total, widest = 0, max((tensor.element_size() for tensor in tensors.values()), default=0)
    for name, shape in shapes.items():
        bits = tensors[name + KEPT]
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"the shape of {name} makes no sense")
        count = math.prod(shape)
        if bits.dtype is not torch.uint8 or bits.shape != (-(-count // 8),):
            raise ValueError(f"{name}{KEPT} is {bits.dtype} {tuple(bits.shape)} for {count} weights")
        total += 2 * count * widest  # two values a weight
    most = file_limits().unpacked(sum(tensor.nbytes for tensor in tensors.values()))
    if total > most:
        raise ValueError(
            f"its pruned weights unpack to {total} bytes, but {most} are allowed, see {variable('max_unpacked_bytes')}"
        )


def _erased_values() -> list[dict[str, float]]:
    """The values of erased weights, for families with independent weights."""
    return [kind.erased for kind in FAMILIES.values() if kind.independent]


def _to_bits(kept: Tensor) -> Tensor:
    flat = torch.nn.functional.pad(kept.flatten().to(torch.uint8), (0, -kept.numel() % 8)).view(-1, 8)
    return (flat << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def _from_bits(bits: Tensor, count: int) -> Tensor:
    return ((bits.unsqueeze(1) >> torch.arange(8, dtype=torch.uint8)) & 1).bool().flatten()[:count]
