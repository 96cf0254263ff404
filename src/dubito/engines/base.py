"""What every engine does: apply a function to many items.

Nothing here knows predictors. What is carried is a function from an item to a result, made once in each worker: chunks
of images to columns, batches to draws, cells of a grid to trained runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Make = Callable[[], Callable[[Item], Result]]
"""Makes the function that a worker applies, with all that it holds, such as a network's draws."""


class Engine(ABC):
    """Runs a function for many items.

    Attributes:
        name: what it is called on the command line.
    """

    name: ClassVar[str]

    @abstractmethod
    def map(self, make: Make[Item, Result], items: Iterable[Item], *, ahead: int = 1) -> Iterator[tuple[Item, Result]]:
        """Pairs of an item and its result, in the order in which they finish; each item once, even if workers die.

        Items are taken only as they are needed, so there may be more of them than fit into memory.

        Args:
            make: makes the function, once in each worker.
            items: the arguments of the function.
            ahead: items that wait at each busy worker, so that it is never idle; use 0 for items that take long.
        """
