"""Answers that are errors: a status and one sentence."""

from __future__ import annotations

import json

from pydantic import BaseModel

from dubito.errors import DubitoError

REFUSALS: dict[int, str] = {
    400: "The body cannot be read, the address holds options, or the Host header is not this server's.",
    401: "The key is missing or wrong.",
    403: "The request came from a page of another website.",
    408: "The body came too slowly.",
    413: "The body is too large, or it has too many images or pixels.",
    415: "The body is neither multipart/form-data nor JSON.",
    422: "An option is not valid, or an image cannot be decoded.",
    503: "The server is busy or stopping; Retry-After says in how many seconds to try again.",
}
"""What the statuses of refused predictions mean."""


class Refusal(BaseModel):
    """The JSON body of a refusal."""

    error: str


class RefusedError(DubitoError):
    """A refused request: the HTTP `status`, and a sentence that says why."""

    def __init__(self, status: int, sentence: str, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Extra headers of the answer."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    def answer(self) -> tuple[dict[str, str], bytes]:
        """All headers and the body."""
        content = json.dumps({"error": str(self)}).encode()
        return {"Content-Type": "application/json", "Content-Length": str(len(content)), **self.headers}, content


def busy(sentence: str, retry_after: float = 1) -> RefusedError:
    """The refusal of a request that may be made again later."""
    return RefusedError(503, sentence, max(1, min(60, round(retry_after))))
