"""Micro-batching: concurrent requests share forward passes.

A thread takes the request that waits longest, together with all others that ask for the same method, number of draws
and seed. A predictor is a pure function of the image, so an image gets the same answer alone and in company.

The queue is bounded: a request that finds it full is refused at once, rather than answered too late.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from torch import Tensor

from dubito.prediction import Prediction
from dubito.serving.limits import Limits
from dubito.serving.refusal import busy


@dataclass(frozen=True, eq=False)
class Predicted:
    """The prediction of some images, and (T, N, C) draws of their probabilities if they were asked for."""

    prediction: Prediction
    draws: Tensor | None = None

    def part(self, start: int, stop: int) -> Predicted:
        """The same for a range of the images."""
        return Predicted(self.prediction[start:stop], None if self.draws is None else self.draws[:, start:stop])


@dataclass(eq=False)
class Job:
    """Images (N, C, H, W), as the network takes them, that wait for their prediction until the deadline."""

    images: Tensor
    method: str
    samples: int
    deadline: float
    seed: int = 0
    draws: bool = False
    future: Future[Predicted] = field(default_factory=Future)

    def may_join(self, other: Job) -> bool:
        """Whether one predictor can answer both."""
        return (self.method, self.samples, self.seed) == (other.method, other.samples, other.seed)


class Batcher:
    """Predicts jobs in a thread of its own, several at once where it can.

    Args:
        predict: makes the prediction of jobs that may be joined, in their order.
        limits: of batches and of the queue.
        arriving: how many more requests are on their way; while there are any, a batch waits up to `max_wait`.
        observe: is told the number of requests and of images, and the seconds, of every batch.
    """

    def __init__(
        self,
        predict: Callable[[Sequence[Job]], Predicted],
        limits: Limits,
        arriving: Callable[[], int] = lambda: 0,
        observe: Callable[[int, int, float], None] = lambda requests, images, seconds: None,
    ) -> None:
        self._predict = predict
        self._limits = limits
        self._arriving = arriving
        self._observe = observe
        self._queue: deque[Job] = deque()
        self._running: list[Job] = []
        self._change = threading.Condition()
        self._closed = False
        self._seconds_per_image = 0.01
        self.waiting = 0
        """Images in the queue."""
        self._thread = threading.Thread(target=self._work, name="dubito-batches", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[Predicted]:
        """Put a job into the queue, or refuse it if the queue is full."""
        count = len(job.images)
        with self._change:
            if self._closed:
                raise busy("The server is stopping and takes no more requests.")
            self.require_room(count)
            self._queue.append(job)
            self.waiting += count
            self._change.notify()
        return job.future

    def require_room(self, count: int = 1) -> None:
        """Refuse a request if the queue has no room for so many images; an empty queue takes any request."""
        if self.waiting and self.waiting + count > self._limits.max_queue:
            raise busy(
                f"The server is busy: {self.waiting} images are waiting, and at most {self._limits.max_queue} "
                "can; try again later.",
                self.waiting * self._seconds_per_image,
            )

    def close(self, finish: bool = True) -> None:
        """Take no more jobs and end the thread; without `finish` those that wait or run are given up."""
        with self._change:
            self._closed = True
            if not finish:
                self._queue.clear()
                for job in self._running:
                    job.deadline = 0.0
            self._change.notify()
        self._thread.join()

    def _work(self) -> None:
        while jobs := self._next_batch():
            alive = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            late = [job for job in alive if time.monotonic() > job.deadline]
            for job in late:
                job.future.set_exception(busy("The server is busy: the request waited too long; try again later."))
            if ready := [job for job in alive if job not in late]:
                self._answer(ready)

    def _next_batch(self) -> list[Job]:
        """The oldest job and those that may join it; nothing if the thread is to end."""
        with self._change:
            while not self._queue:
                if self._closed:
                    return []
                self._change.wait()
            batch = [self._queue.popleft()]
            until = time.monotonic() + self._limits.max_wait
            while True:
                full = self._join(batch)
                left = until - time.monotonic()
                if full or left <= 0 or self._closed or not self._arriving():
                    break
                self._change.wait(left)
            self.waiting -= sum(len(job.images) for job in batch)
            self._running = batch
            return batch

    def _join(self, batch: list[Job]) -> bool:
        """Move the jobs that may join from the queue into the batch; returns whether the batch is full."""
        room = self._limits.max_batch - sum(len(job.images) for job in batch)
        for job in list(self._queue):
            if room <= 0:
                break
            if batch[0].may_join(job) and len(job.images) <= room:
                self._queue.remove(job)
                batch.append(job)
                room -= len(job.images)
        return room <= 0

    def _answer(self, jobs: Sequence[Job]) -> None:
        began = time.monotonic()
        try:
            predicted = self._predict(jobs)
        except Exception as error:
            for job in jobs:
                job.future.set_exception(error)
            return
        seconds = time.monotonic() - began
        images = len(predicted.prediction)
        self._seconds_per_image += (seconds / images - self._seconds_per_image) / 8
        self._observe(len(jobs), images, seconds)
        start = 0
        for job in jobs:
            stop = start + len(job.images)
            if not job.future.done():
                job.future.set_result(predicted.part(start, stop))
            start = stop
