"""The largest requests that the server accepts, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dubito.errors import OptionError

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """The largest requests that the server accepts, and how long it waits, in seconds.

    Attributes:
        max_images: images of a request, and points of a curve over noise or rotation.
        max_samples: draws of a request.
        max_draws: images times draws of a request.
        max_body_bytes: bytes of a request's body.
        max_pixels: pixels of all images of a request together, by their headers.
        max_batch: images that share a forward pass.
        max_wait: how long a batch waits for requests that are on their way.
        max_queue: images that wait for the network.
        max_requests: requests that are handled at once, which bounds their memory.
        body_timeout: time for a request to arrive, with its body.
        request_timeout: time to answer a request.
        shutdown_timeout: time to finish the accepted requests before the server ends.
    """

    max_images: int = 64
    max_samples: int = 1000
    max_draws: int = 20_000
    max_body_bytes: int = 16_000_000
    max_pixels: int = 25_000_000
    max_batch: int = 64
    max_wait: float = 0.005
    max_queue: int = 256
    max_requests: int = 256
    body_timeout: float = 15.0
    request_timeout: float = 60.0
    shutdown_timeout: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "max_wait" else 1 if isinstance(field.default, int) else 0.05
            if not least <= value < float("inf"):
                raise OptionError(f"{field.name} is {value}, but must be at least {least:g}.")

    @property
    def max_buffered_bytes(self) -> int:
        """Bytes of all bodies that are in memory at once."""
        return 16 * self.max_body_bytes
