"""Drawn weights: the draws of all posteriors of a network, fixed by a seed.

Draws come in antithetic pairs mu + sigma eps, mu - sigma eps: half the noise to make, and mean probabilities whose
errors cancel to first order. Every pair has a seed of its own, so that draw number t is the same however many there
are, and the same in every process. They are kept in memory while they fit a budget, and made
again from their seeds otherwise.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from dubito.softplus import at_least_single
from dubito.variational.posterior import Posterior, standard_normal

Weights = dict[Posterior, Tensor]
Made = TypeVar("Made")
FEW_BYTES = 1 << 20
"""Of the noise of a pair; to start threads would take longer than to make it."""
ALIGNMENT = 16
"""Numbers that the place of a tensor is a multiple of."""


def seeds_of(seed: int, count: int) -> list[int]:
    """`count` seeds that follow from one; more of them start with the same.

    >>> seeds_of(0, 3)[:2] == seeds_of(0, 2)
    True
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randint(2**62, (count,), generator=generator, device="cpu").tolist()


class DrawnWeights:
    """`samples` draws of these posteriors as they are now.

    Args:
        posteriors: what is drawn.
        samples: how many draws.
        seed: fixes them.
        memory: bytes that may be kept.

    Attributes:
        stacked: all draws (T, ...) of each posterior, if they are kept.
    """

    def __init__(self, posteriors: Sequence[Posterior], samples: int, seed: int, memory: int) -> None:
        self.samples = samples
        self._seeds = seeds_of(seed, -(-samples // 2))
        kinds: dict[tuple[torch.dtype, torch.device], list[Posterior]] = {}
        for q in posteriors:
            if q.independent:
                kinds.setdefault((q.mean.dtype, q.mean.device), []).append(q)
        self._groups = [_Group.of(group) for group in kinds.values()]
        # A posterior with dependent weights draws by itself; a copy stays as it is now.
        self._others = {q: copy.deepcopy(q).requires_grad_(False) for q in posteriors if not q.independent}
        size = sum(group.mean.numel() * group.dtype.itemsize for group in self._groups)
        size += sum(q.mean.numel() * q.mean.dtype.itemsize for q in self._others)
        self.bytes_per_draw = size
        self.stacked: Weights | None = self._keep() if 0 < size * samples <= memory else None

    @classmethod
    def at_mean(cls, posteriors: Sequence[Posterior]) -> DrawnWeights:
        """One draw, which is the posterior mean."""
        drawn = cls(posteriors, 1, 0, 0)
        drawn.stacked = {q: q.mean.detach().clone().unsqueeze(0) for q in posteriors}
        return drawn

    def first_pair(self) -> DrawnWeights:
        """The first two draws of seed 0 of the same posteriors, kept in memory."""
        pair = copy.copy(self)
        pair.samples, pair._seeds = 2, seeds_of(0, 1)
        pair.stacked = pair._keep()
        return pair

    def __iter__(self) -> Iterator[Weights]:
        """The weights of one draw after the other."""
        if self.stacked is None:
            yield from self._made()
        else:
            for number in range(self.samples):
                yield {q: weights[number] for q, weights in self.stacked.items()}

    @torch.no_grad()
    def _keep(self) -> Weights:
        flats = [group.empty(self.samples) for group in self._groups]
        kept = {q: q.mean.detach().new_empty(self.samples, *q.mean.shape) for q in self._others}
        for number, sign, noises, own in self._signed_noise():
            for group, flat, noise in zip(self._groups, flats, noises, strict=True):
                group.draw(noise, sign, flat[number])
            for q, noise in own.items():
                kept[q][number] = self._others[q].draw(sign * noise)
        for group, flat in zip(self._groups, flats, strict=True):
            kept |= group.parts(flat)
        return kept

    @torch.no_grad()
    def _made(self) -> Iterator[Weights]:
        for _, sign, noises, own in self._signed_noise():
            weights = {q: self._others[q].draw(sign * noise) for q, noise in own.items()}
            for group, noise in zip(self._groups, noises, strict=True):
                row = group.empty(1)
                group.draw(noise, sign, row[0])
                weights |= {q: part.squeeze(0) for q, part in group.parts(row).items()}
            yield weights

    def _signed_noise(self) -> Iterator[tuple[int, int, list[Tensor], Weights]]:
        """For each draw its number, its sign, and the noise of the groups and of the other posteriors."""
        make = map if self.bytes_per_draw <= FEW_BYTES else _several_at_once
        for pair, (noises, own) in enumerate(make(self._pair_noise, self._seeds)):
            yield 2 * pair, 1, noises, own
            if 2 * pair + 1 < self.samples:
                yield 2 * pair + 1, -1, noises, own

    def _pair_noise(self, seed: int) -> tuple[list[Tensor], Weights]:
        """The noise that both draws of a pair have."""
        with torch.no_grad():  # a thread begins with gradients
            generator = torch.Generator("cpu").manual_seed(seed)
            noises = [group.noise(generator) for group in self._groups]
            return noises, {q: frozen.fresh_noise(generator) for q, frozen in self._others.items()}


def _several_at_once(make: Callable[[int], Made], seeds: list[int]) -> Iterator[Made]:
    """What is made from each seed, in their order. Torch makes random numbers on one core: each thread takes a seed."""
    threads = min(torch.get_num_threads(), len(seeds))
    if threads < 2:
        yield from map(make, seeds)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting = deque(pool.submit(make, seed) for seed in seeds[:threads])
        for seed in (*seeds[threads:], *[None] * threads):
            made = waiting.popleft().result()
            if seed is not None:
                waiting.append(pool.submit(make, seed))
            yield made


@dataclass(frozen=True)
class _Group:
    """Posteriors of independent weights of one type, end to end: a draw is one operation, however many there are."""

    posteriors: list[Posterior]
    mean: Tensor
    std: Tensor
    starts: list[int]
    dtype: torch.dtype

    @classmethod
    @torch.no_grad()
    def of(cls, posteriors: list[Posterior]) -> _Group:
        starts, total = [], 0
        for q in posteriors:
            starts.append(total)
            total += -(-q.mean.numel() // ALIGNMENT) * ALIGNMENT
        like = at_least_single(posteriors[0].mean)
        mean, std = (torch.zeros(total, dtype=like.dtype, device=like.device) for _ in range(2))
        for q, start in zip(posteriors, starts, strict=True):
            place = slice(start, start + q.mean.numel())
            mean[place] = q.mean.flatten()
            std[place] = (q.std if q.mean.dtype is like.dtype else q.variance.sqrt()).flatten()
        return cls(posteriors, mean, std, starts, posteriors[0].mean.dtype)

    def noise(self, generator: torch.Generator) -> Tensor:
        """Standard normal numbers, the same on every device."""
        return standard_normal(self.mean.numel(), self.mean.dtype, self.mean.device, generator)

    def draw(self, noise: Tensor, sign: int, out: Tensor) -> None:
        """mu + sign * sigma * noise, into `out`."""
        if out.dtype is self.mean.dtype:
            torch.addcmul(self.mean, self.std, noise, value=sign, out=out)
        else:
            out.copy_(torch.addcmul(self.mean, self.std, noise, value=sign))

    def empty(self, samples: int) -> Tensor:
        """Place for so many draws."""
        return torch.empty(samples, self.mean.numel(), dtype=self.dtype, device=self.mean.device)

    def parts(self, rows: Tensor) -> Weights:
        """The weights (T, ...) of each posterior in rows of draws."""
        return {
            q: rows[:, start : start + q.mean.numel()].view(len(rows), *q.mean.shape)
            for q, start in zip(self.posteriors, self.starts, strict=True)
        }
