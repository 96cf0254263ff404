"""The largest requests that the server accepts, and how long it waits."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dubito.errors import OptionError


@dataclass(frozen=True)
class Limits:
    """The largest requests that the server accepts, and how long it waits, in seconds.

    Attributes:
        max_images: images of a request, and points of a curve over noise or rotation.
        max_samples: draws of a request.
        max_draws: images times draws of a request.
        max_body_bytes: bytes of a request's body.
        max_pixels: pixels of all images of a request together, by their headers; and of all that are decoded at once.
        max_upload_bytes: bytes of all bodies in memory together, from their first byte until they are decoded.
        max_kept_bytes: bytes of drawn weights that are kept for requests with other draws than the server's own.
        max_batch: images that share a forward pass.
        max_wait: how long a batch waits for requests that are on their way.
        max_queue: images that wait for the network.
        max_requests: requests in work: those that have arrived and whose answers their clients have not taken.
        max_connections: connections that are open, with a request in work or without.
        client_share: the part of these requests and connections that one address may have.
        body_timeout: time for a request to arrive, with its body.
        idle_timeout: time that a connection may stay open between two requests.
        request_timeout: time to answer a request.
        write_timeout: time for a client to take its answer.
        shutdown_timeout: time to finish the accepted requests before the server ends.
    """

    max_images: int = 64
    max_samples: int = 1000
    max_draws: int = 20_000
    max_body_bytes: int = 16_000_000
    max_pixels: int = 25_000_000
    max_upload_bytes: int = 128_000_000
    max_kept_bytes: int = 256_000_000
    max_batch: int = 64
    max_wait: float = 0.005
    max_queue: int = 256
    max_requests: int = 256
    max_connections: int = 512
    client_share: float = 0.5
    body_timeout: float = 15.0
    idle_timeout: float = 15.0
    request_timeout: float = 60.0
    write_timeout: float = 20.0
    shutdown_timeout: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "max_wait" else 1 if isinstance(field.default, int) else 0.05
            most = 1 if field.name == "client_share" else float("inf")
            if not (least <= value <= most and value < float("inf")):
                bounds = f"at least {least:g}" if most > 1 else f"{least:g} to {most:g}"
                raise OptionError(f"{field.name} is {value}, but must be {bounds}.")

    def of_client(self, most: int) -> int:
        """How many of `most` requests or connections one address may have.

        >>> Limits(client_share=0.25).of_client(10)
        2
        """
        return max(1, int(most * self.client_share))
