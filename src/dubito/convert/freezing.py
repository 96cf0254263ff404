"""Parameters that do not learn, by patterns of names, and batch norm that keeps its statistics."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from dubito.convert.candidates import places
from dubito.errors import OptionError


def patterns_of(text: str) -> list[str]:
    """The patterns in a text, which commas separate.

    >>> patterns_of("conv1, layer1.*")
    ['conv1', 'layer1.*']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def freeze_parameters(network: nn.Module, patterns: Sequence[str]) -> None:
    """Let the parameters that any of these patterns picks learn no more.

    A pattern is compared with the names of modules, of which it takes all that is inside, and with those of parameters.
    Batch norm that it takes is marked, so that :func:`hold_statistics` finds it.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    >>> freeze_parameters(network, ["0", "1"])
    >>> [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    ['2.weight', '2.bias']
    """
    for pattern in patterns:
        found = False
        for name, parameter in network.named_parameters(remove_duplicate=False):
            if any(fnmatchcase(place, pattern) for place in places(name)):
                parameter.requires_grad_(False)
                found = True
        for name, part in network.named_modules():
            if any(fnmatchcase(place, pattern) for place in places(name)) and _has_statistics(part):
                part.keeps_statistics = True
                found = True
        if not found:
            known = ", ".join(name for name, _ in network.named_children())
            raise OptionError(
                f"freeze is {pattern!r}, which is not the name of a module or parameter of the network "
                f"({known}): give patterns such as 'conv1' or 'layer1.*', separated by commas."
            )


def hold_statistics(network: nn.Module) -> None:
    """Put frozen batch norm into evaluation mode: it normalises by the statistics that it has, and keeps them.

    Call it after ``network.train()``.
    """
    for part in network.modules():
        if getattr(part, "keeps_statistics", False):
            part.eval()


def _has_statistics(module: nn.Module) -> bool:
    return getattr(module, "running_mean", None) is not None
