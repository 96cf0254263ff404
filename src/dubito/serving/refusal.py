"""Answers that are errors: a status and one sentence."""

from __future__ import annotations

from dubito.errors import DubitoError

__all__ = ["RefusedError", "busy"]


class RefusedError(DubitoError):
    """A request that is not answered as it wished: `status`, and the sentence that says why."""

    def __init__(self, status: int, sentence: str, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's header says besides."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def busy(sentence: str, retry_after: float = 1) -> RefusedError:
    """The refusal of a request that may be made again later."""
    return RefusedError(503, sentence, max(1, min(60, round(retry_after))))
