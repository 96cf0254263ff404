"""Dropout that is drawn with the weights: masks that follow from a seed and are the same for every image."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from dubito.errors import OptionError


def drawn_dropout(model: nn.Module, asked: bool | None = None) -> list[_DropoutNd]:
    """The dropout layers that a prediction draws: all, none, or those of the parts that are MC dropout."""
    parts = list(model.modules()) if asked is None else [model] if asked else []
    roots = [part for part in parts if asked or getattr(part, "draws_dropout", False)]
    found = [module for root in roots for module in root.modules() if isinstance(module, _DropoutNd)]
    return list(dict.fromkeys(module for module in found if module.p > 0))


class Masks:
    """Where the masks of a network's dropout layers come from: one generator for all, in the order of the calls."""

    def __init__(self) -> None:
        self.generator = torch.Generator("cpu")

    def begin_draw(self, seed: int) -> None:
        """From here on the masks are those of this seed."""
        self.generator.manual_seed(seed)

    def fix(self, network: nn.Module, example: Tensor, seed: int) -> None:
        """Let the dropout layers of a network keep the masks of this seed, which are made for an example."""
        masked = [part for part in network.modules() if isinstance(part, MaskedDropout)]
        self.begin_draw(seed)
        for part in masked:
            part.fix = True
        with torch.no_grad():
            network(example.clone())
        for part in masked:
            part.fix = False

    def drawn_by(self, layer: _DropoutNd) -> MaskedDropout:
        """What takes the place of a dropout layer."""
        channels = isinstance(layer, (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d))
        if not channels and type(layer) is not nn.Dropout:
            raise OptionError(
                f"{type(layer).__name__} cannot be drawn: MC dropout takes nn.Dropout, nn.Dropout1d, 2d and 3d."
            )
        return MaskedDropout(self, layer.p, channels)


class MaskedDropout(nn.Module):
    """Dropout in every mode, with a mask that all images share.

    While `fix` is set, the masks of its calls are kept; afterwards they are used in the same order, again and again.
    """

    def __init__(self, masks: Masks, probability: float, whole_channels: bool) -> None:
        super().__init__()
        self.probability, self.whole_channels, self.fix = probability, whole_channels, False
        self._masks = masks
        self._fixed = self._calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Zeros with that probability, and the others larger."""
        if self._fixed and not self.fix:
            return x * self._next_fixed()
        mask = self._fresh(x)
        if self.fix:
            self.register_buffer(f"mask{self._fixed}", mask)
            self._fixed += 1
        return x * mask

    def _next_fixed(self) -> Tensor:
        number = self._calls
        if self._fixed > 1:
            self._calls = (self._calls + 1) % self._fixed
        return self.get_buffer(f"mask{number}")

    def _fresh(self, x: Tensor) -> Tensor:
        shape = (1, x.shape[1], *(1,) * (x.dim() - 2)) if self.whole_channels else (1, *x.shape[1:])
        uniform = torch.rand(shape, generator=self._masks.generator, device="cpu", dtype=torch.float32)
        return (uniform >= self.probability).to(x.device, x.dtype) / (1 - self.probability)
