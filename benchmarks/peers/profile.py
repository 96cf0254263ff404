"""Where the time goes: what torch's profiler records of an action, summed in a few groups.

Every operator counts with its self time, that is without what it calls, so nothing counts twice. One range is put
around each execution; its self time is what happens between operators. So the groups add up to the time of a profiled
execution, exactly. The profiler's own work, some microseconds for each operator, is part of that: the time of an
execution without it is given too.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import prod
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function

EXECUTIONS = 10
"""How often an action is executed with the profiler, and as often without."""


class Group(str, Enum):
    """What an operator works for."""

    PRODUCTS = "convolutions and matrix products"
    NOISE = "noise"
    WEIGHTS = "weights"
    OPTIMISER = "optimiser"
    ACTIVATIONS = "activations"
    REST = "the rest"


PATTERNS = {
    Group.PRODUCTS: r"(aten|mkldnn)::_?(\w*conv\w*|(mkldnn_)?linear\w*|matmul|(add|b|baddb|addb)?mm_?|(add)?mv_?)",
    Group.NOISE: r"aten::(normal|rand|bernoulli|uniform|erfinv)\w*",
    Group.OPTIMISER: r"Optimizer\..*|aten::_fused_adam\w*",
}
"""The names of what belongs to a group with all that it calls, such as copies into the layout of a convolution."""
BOOKKEEPING = re.compile(
    r"(?!aten::).*|aten::(\w*view\w*|\w*reshape\w*|empty\w*|as_strided_?|\w*split\w*|select|slice|narrow|\w*flatten"
    r"|expand\w*|t|transpose|permute|\w*squeeze_?|detach_?|alias|to|result_type|item|_local_scalar_dense|resize\w*)"
)
"""Names of what computes nothing: all ranges, and the operators that only make tensors or look at them differently."""


@dataclass(frozen=True)
class Profile:
    """Milliseconds of an execution by group, with the profiler, and of one without it."""

    groups: dict[str, float]
    wall: float


def profile(action: Callable[[], Any], network: nn.Module, executions: int = EXECUTIONS) -> Profile:
    """Of `executions` with the profiler the one in the middle by its time, and the median of as many without.

    >>> layer = nn.Linear(30, 20)
    >>> found = profile(lambda: layer(torch.ones(10, 30)), layer, executions=2)
    >>> max(found.groups, key=found.groups.get) in ("convolutions and matrix products", "the rest"), found.wall > 0
    (True, True)
    """
    walls, recorded = [], []
    for _ in range(executions):
        start = time.perf_counter()
        action()
        walls.append(time.perf_counter() - start)
        recorded.append(grouped(_events(action), network))
    middle = sorted(recorded, key=lambda sums: sum(sums.values()))[executions // 2]
    return Profile({group.value: middle[group] / 1e3 for group in Group}, 1e3 * statistics.median(walls))


def _events(action: Callable[[], Any]) -> Iterable[Any]:
    recording = torch.profiler.profile(activities=[ProfilerActivity.CPU], record_shapes=True)
    with recording, record_function("an execution"):
        action()
    return recording.events()


def grouped(events: Iterable[Any], network: nn.Module) -> dict[Group, float]:
    """The sums of the events' self times, in microseconds; the shapes of `network` tell weights from activations."""
    shapes = {shape for p in network.parameters() for shape in (tuple(p.shape), (p.numel(),))}
    sums = dict.fromkeys(Group, 0.0)
    for event in events:
        sums[_group_of(event, shapes)] += event.self_cpu_time_total
    return sums


def _group_of(event: Any, shapes: set[tuple[int, ...]]) -> Group:
    """The group of an event of the profiler, by its callers, its name and its largest input.

    `shapes` are those of the parameters, each also as one row. An input is weights if it has the shape of a parameter
    or, since KL and sums of gradients take other shapes, as many elements; but a matrix must have the shape itself, for
    there are often as many logits as weights of the last layer.
    """
    caller = event
    while caller is not None:
        named = _named(caller.name)
        if named is not None:
            return named
        caller = caller.cpu_parent
    if BOOKKEEPING.fullmatch(event.name):
        return Group.REST
    shape = max((tuple(shape) for shape in event.input_shapes), key=lambda shape: prod(shape), default=())
    if shape in shapes or (len(shape) != 2 and (prod(shape),) in shapes):
        return Group.WEIGHTS
    return Group.ACTIVATIONS


@cache
def _named(name: str) -> Group | None:
    return next((group for group, pattern in PATTERNS.items() if re.fullmatch(pattern, name)), None)
