"""What of a network is Bayesian, what is not, and why: a table to print."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import is_lazy

from dubito.convert.candidates import obstacle, own_parameters
from dubito.layers import DrawnParameter, drawn_parameters
from dubito.variational.posterior import Posterior
from dubito.variational.prior import Prior

WIDTH = 80


@dataclass(frozen=True)
class Row:
    """A module with weights of its own.

    Attributes:
        name: its place in the network; of a shared module the first one.
        kind: its type.
        weights: how many numbers it holds; a weight with a posterior counts once.
        bayesian: whether it has a posterior.
        reason: why not.
    """

    name: str
    kind: str
    weights: int
    bayesian: bool
    reason: str | None


@dataclass(frozen=True)
class Summary:
    """Every module with weights, in order; `str` makes a table of at most 80 columns."""

    rows: tuple[Row, ...]

    @property
    def layers(self) -> int:
        """How many layers are Bayesian."""
        return sum(row.bayesian for row in self.rows)

    @property
    def weights(self) -> int:
        """How many weights have a posterior, or belong to a layer that has one."""
        return sum(row.weights for row in self.rows if row.bayesian)

    def __str__(self) -> str:
        reasons = list(dict.fromkeys(row.reason for row in self.rows if row.reason))
        marks = [f"no ({reasons.index(row.reason) + 1})" if row.reason else "yes" for row in self.rows]
        cells = [("layer", "type", "weights", "Bayesian")]
        cells += [
            (row.name or "(root)", row.kind, f"{row.weights:,}", mark)
            for row, mark in zip(self.rows, marks, strict=True)
        ]
        sizes = [max(len(line[column]) for line in cells) for column in range(4)]
        sizes[1] = min(sizes[1], 24)
        sizes[0] = min(sizes[0], WIDTH - 6 - sum(sizes[1:]))
        lines = [
            f"{_fit(name, sizes[0])}  {_fit(kind, sizes[1])}  {weights:>{sizes[2]}}  {mark}".rstrip()
            for name, kind, weights, mark in cells
        ]
        total = sum(row.weights for row in self.rows)
        lines += ["", f"Bayesian: {self.layers} of {len(self.rows)} modules, {self.weights:,} of {total:,} weights."]
        return "\n".join(lines + [line for number, why in enumerate(reasons, 1) for line in _note(number, why)])


def summary(module: nn.Module) -> Summary:
    """Which modules of a network are Bayesian, which are not, and why; print it.

    >>> network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2))
    >>> import dubito
    >>> print(summary(dubito.to_bayesian(network, only=nn.Linear)))
    layer  type         weights  Bayesian
    0      Conv2d            80  no (1)
    1      BatchNorm2d       16  no (2)
    3      BayesLinear       18  yes
    <BLANKLINE>
    Bayesian: 1 of 3 modules, 18 of 114 weights.
    (1) not selected for conversion
    (2) normalisation layers are converted only if `only` names their parameters
    """
    rows: list[Row] = []
    counted: set[int] = set()
    for name, part in module.named_modules():
        if isinstance(part, (Posterior, Prior, DrawnParameter)):
            continue
        drawn = [q.mean for q, _ in drawn_parameters(part).values()]
        plain = [p for p in part.parameters(recurse=False) if id(p) not in {id(mean) for mean in drawn}]
        # Tied weights count where they first appear.
        own = [p for p in (*drawn, *plain) if id(p) not in counted]
        counted.update(map(id, own))
        if own or drawn or (obstacle(part) is None and own_parameters(part)):
            reason = None if drawn else obstacle(part) or "not selected for conversion"
            weights = sum(0 if is_lazy(parameter) else parameter.numel() for parameter in own)
            rows.append(Row(name, _kind(part), weights, bool(drawn), reason))
    return Summary(tuple(rows))


def _kind(module: nn.Module) -> str:
    """The name of its type, as it was before torch gave it computed parameters."""
    kind = type(module)
    return (kind.__bases__[0] if "parametrizations" in module._modules else kind).__name__


def _fit(text: str, width: int) -> str:
    """`text` in `width` columns; too long a one loses its middle."""
    if len(text) <= width:
        return text.ljust(width)
    kept = width - 3
    return f"{text[: kept // 3]}...{text[len(text) - (kept - kept // 3) :]}"


def _note(number: int, reason: str) -> list[str]:
    import textwrap

    return textwrap.wrap(f"({number}) {reason}", WIDTH, subsequent_indent="    ")
