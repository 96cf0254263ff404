"""An optimiser that moves some parameters by its own rule, and leaves the rest to another one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer


class JointOptimizer(Optimizer, ABC):
    """Two optimisers in one, with one state and one list of groups: the first group is its own."""

    _others: Optimizer | None = None

    def _adopt(self, others: Optimizer) -> None:
        """Let this optimiser take its steps in the same call."""
        others.state = self.state
        self.param_groups += others.param_groups
        self._others = others

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of an optimiser for the same network."""
        super().load_state_dict(state_dict)
        if self._others is not None:
            self._others.state, self._others.param_groups = self.state, self.param_groups[1:]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move its own parameters, and then the others."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._move_own()
        if self._others is not None:
            self._others.step()
        return loss

    @abstractmethod
    def _move_own(self) -> None:
        """A step of its own parameters, without gradients being recorded."""
