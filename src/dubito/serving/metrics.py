"""The metrics of /metrics, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Measures:
    """Counters of one server."""

    def __init__(self) -> None:
        disable_created_metrics()  # extra series with the time at which each counter was made
        self.registry = CollectorRegistry()
        options: Any = {"registry": self.registry}
        self.requests = Counter("dubito_requests", "Requests, by path and status.", ["path", "status"], **options)
        self.latency = Histogram(
            "dubito_request_seconds", "Until the answer, by path.", ["path"], buckets=_SECONDS, **options
        )
        self.images = Counter("dubito_images", "Images predicted.", **options)
        self.batch_images = Histogram("dubito_batch_images", "Images of a batch.", buckets=_SIZES, **options)
        self.batch_requests = Histogram(
            "dubito_batch_requests", "Requests that share a batch.", buckets=_SIZES, **options
        )
        self.batch_seconds = Histogram(
            "dubito_batch_seconds", "Forward passes of a batch.", buckets=_SECONDS, **options
        )
        self.queue = Gauge("dubito_queue_images", "Images that wait for the network.", **options)
        self.in_work = Gauge("dubito_requests_in_work", "Predictions that were accepted and not answered.", **options)

    def watch(self, queue: Callable[[], float], in_work: Callable[[], float]) -> None:
        """Set the functions that give the current queue length and number of requests."""
        self.queue.set_function(queue)
        self.in_work.set_function(in_work)

    def observe_batch(self, requests: int, images: int, seconds: float) -> None:
        """A batch has been predicted."""
        self.images.inc(images)
        self.batch_images.observe(images)
        self.batch_requests.observe(requests)
        self.batch_seconds.observe(seconds)

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """A request has been answered."""
        self.requests.labels(path, str(status)).inc()
        self.latency.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Everything, for Prometheus."""
        return generate_latest(self.registry)
