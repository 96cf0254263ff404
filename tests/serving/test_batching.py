"""Concurrent requests share forward passes, and nobody's answer suffers."""

from __future__ import annotations

import asyncio
import threading
import time

import httpx
import pytest
import torch

from dubito.prediction import decompose
from dubito.runs.run import Run
from dubito.serving.batching import Batcher, Job, Predicted
from dubito.serving.limits import Limits
from dubito.serving.model import ServedModel
from dubito.serving.refusal import RefusedError


def job(value: float = 0.0, count: int = 1, samples: int = 1, **options) -> Job:
    return Job(torch.full((count, 1), value), "sample", samples, time.monotonic() + 30, **options)


class Network:
    """Gives each image its own value as a probability; waits where it is told to, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[Job]] = []
        self.go = threading.Event()
        self.busy = threading.Event()

    def __call__(self, jobs) -> Predicted:
        self.batches.append(list(jobs))
        self.busy.set()
        assert self.go.wait(20)
        images = torch.cat([job.images for job in jobs])
        return Predicted(decompose(torch.cat([images, 1 - images], 1).unsqueeze(0)))


@pytest.fixture
def network():
    return Network()


def occupied(network: Network, **limits) -> Batcher:
    """A batcher whose network is at work on a first job."""
    batcher = Batcher(network, Limits(**limits))
    batcher.submit(job())
    assert network.busy.wait(20)
    return batcher


def test_what_waits_is_predicted_at_once_and_everyone_gets_their_own(network) -> None:
    batcher = occupied(network)
    futures = [batcher.submit(job(value, count)) for value, count in ((0.1, 1), (0.2, 3), (0.3, 2))]
    network.go.set()
    for future, value, count in zip(futures, (0.1, 0.2, 0.3), (1, 3, 2), strict=True):
        probs = future.result(20).prediction.probs
        assert probs.shape == (count, 2)
        torch.testing.assert_close(probs[:, 0], torch.full((count,), value))
    assert [len(batch) for batch in network.batches] == [1, 3]
    batcher.close()


def test_only_alike_requests_share_a_batch_and_those_with_a_seed_none(network) -> None:
    batcher = occupied(network)
    jobs = [job(), job(samples=2), job(), job(seed=1), job(samples=2), job(seed=1)]
    futures = [batcher.submit(one) for one in jobs]
    network.go.set()
    for future in futures:
        future.result(20)
    expected = [[0, 2], [1, 4], [3], [5]]
    assert [[jobs.index(one) for one in batch] for batch in network.batches[1:]] == expected
    batcher.close()


def test_a_batch_has_at_most_the_images_it_may(network) -> None:
    batcher = occupied(network, max_batch=4)
    futures = [batcher.submit(job(count=count)) for count in (3, 2, 1, 6)]
    network.go.set()
    for future in futures:
        future.result(20)
    assert [sum(len(one.images) for one in batch) for batch in network.batches[1:]] == [4, 2, 6]
    batcher.close()


def test_a_full_queue_refuses_and_takes_again_when_it_has_room(network) -> None:
    batcher = occupied(network, max_queue=3)
    waiting = [batcher.submit(job(count=2)), batcher.submit(job())]
    with pytest.raises(RefusedError, match="busy: 3 images wait") as refused:
        batcher.submit(job())
    assert refused.value.status == 503
    assert refused.value.retry_after >= 1
    network.go.set()
    for future in waiting:
        future.result(20)
    batcher.submit(job(count=50)).result(20)  # an empty queue has room for any request
    batcher.close()


def test_closing_answers_what_waits_and_takes_no_more(network) -> None:
    batcher = occupied(network)
    waiting = [batcher.submit(job(samples=samples)) for samples in (1, 2, 3)]
    closing = threading.Thread(target=batcher.close)
    closing.start()
    network.go.set()
    closing.join(20)
    assert all(future.done() and future.exception() is None for future in waiting)
    with pytest.raises(RefusedError, match="stopping"):
        batcher.submit(job())


def test_an_error_reaches_the_callers_and_the_thread_lives_on() -> None:
    calls = []

    def predict(jobs) -> Predicted:
        calls.append(jobs)
        if len(calls) == 1:
            raise ValueError("once")
        return Predicted(decompose(torch.full((1, 1, 2), 0.5)))

    batcher = Batcher(predict, Limits())
    with pytest.raises(ValueError, match="once"):
        batcher.submit(job()).result(20)
    assert len(batcher.submit(job()).result(20).prediction) == 1
    batcher.close()


def test_what_waited_too_long_or_was_given_up_is_not_predicted(network) -> None:
    batcher = occupied(network)
    late = batcher.submit(Job(torch.zeros(1, 1), "sample", 1, time.monotonic() - 1))
    given_up = batcher.submit(job(samples=2))
    assert given_up.cancel()
    network.go.set()
    with pytest.raises(RefusedError, match="waited too long"):
        late.result(20)
    batcher.close()
    assert len(network.batches) == 1


def test_a_lone_request_does_not_wait_for_company(network) -> None:
    network.go.set()
    batcher = Batcher(network, Limits(max_wait=5), arriving=lambda: 0)
    began = time.monotonic()
    batcher.submit(job()).result(20)
    assert time.monotonic() - began < 2
    batcher.close()


def test_a_request_waits_for_those_on_their_way(network) -> None:
    network.go.set()
    batcher = Batcher(network, Limits(max_wait=10, max_batch=2), arriving=lambda: 1)
    first = batcher.submit(job())
    time.sleep(0.1)
    assert not first.done()
    batcher.submit(job()).result(5)
    first.result(5)
    assert [len(batch) for batch in network.batches] == [2]
    batcher.close()


@pytest.fixture(scope="module")
def model(digits_run) -> ServedModel:
    return ServedModel(Run.open(digits_run))


def test_an_image_among_others_has_the_same_distribution_as_alone(model) -> None:
    """Means of 30 x 5 draws, alone and as the last of 6 images, differ by less than 5 standard errors."""
    generator = torch.Generator().manual_seed(0)
    image, others = torch.randn(1, 1, 32, 32, generator=generator), torch.randn(5, 1, 32, 32, generator=generator)
    model._generator.manual_seed(1)
    until = time.monotonic() + 60

    def probs(*images: torch.Tensor) -> torch.Tensor:
        jobs = [Job(one, "sample", 5, until) for one in images]
        return torch.stack([model.predict(jobs).prediction.probs[-1] for _ in range(30)]).double()

    alone, among = probs(image), probs(others, image)
    error = ((alone.var(0) + among.var(0)) / 30).sqrt()
    assert bool(((alone.mean(0) - among.mean(0)).abs() < 5 * error).all())


def test_large_batches_draw_as_small_ones_do(model) -> None:
    """Epistemic uncertainty of 16 draws: its mean over 40 predictions, alone and among 40 images, agrees."""
    image = torch.randn(1, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    model._generator.manual_seed(2)
    until = time.monotonic() + 60
    alone = torch.cat([model.predict([Job(image, "sample", 16, until)]).prediction.epistemic for _ in range(40)])
    among = model.predict([Job(image.repeat(40, 1, 1, 1), "sample", 16, until)]).prediction.epistemic
    error = ((alone.var() + among.var()) / 40).sqrt()
    assert float((alone.mean() - among.mean()).abs()) < 5 * float(error)
    assert len(among.unique()) == 40  # copies of one image are drawn independently


def test_draws_of_an_image_do_not_repeat_from_batch_to_batch(model) -> None:
    image = torch.zeros(1, 1, 32, 32)
    found = [model.predict([Job(image, "sample", 2, time.monotonic() + 9)]).prediction.probs for _ in range(2)]
    assert not torch.equal(*found)


def test_draws_are_those_of_the_prediction(model) -> None:
    until = time.monotonic() + 9
    images = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    jobs = [Job(images[:1], "sample", 6, until), Job(images[1:], "sample", 6, until, draws=True)]
    predicted = model.predict(jobs).part(1, 2)
    assert predicted.draws.shape == (6, 1, 10)
    torch.testing.assert_close(predicted.draws.mean(0), predicted.prediction.probs)


def test_a_prediction_past_its_deadline_is_broken_off(model) -> None:
    with pytest.raises(RefusedError, match="too long"):
        model.predict([Job(torch.zeros(1, 1, 32, 32), "sample", 1000, time.monotonic() - 1)])
    assert not model.network._forward_hooks


def test_concurrent_callers_share_forward_passes(server, digit_images) -> None:
    names = ("dubito_batch_requests_count", "dubito_batch_requests_sum")
    before = [server.metric(name) for name in names]

    async def ask() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=40)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False, limits=limits) as client:
            files = [{"images": ("a.png", digit_images[number % 8])} for number in range(40)]
            data = {"samples": "40", "method": "sample"}
            return await asyncio.gather(*(client.post("/predict", files=file, data=data) for file in files))

    responses = asyncio.run(ask())
    assert [response.status_code for response in responses] == [200] * 40
    batches, requests = (server.metric(name) - old for name, old in zip(names, before, strict=True))
    assert requests == 40
    assert batches <= 20
    by_image: dict[int, set[str]] = {}
    for number, response in enumerate(responses):
        by_image.setdefault(number % 8, set()).add(response.json()["predictions"][0]["label"])
    alone = [server.predict(digit_images[number], samples=40).json()["predictions"][0]["label"] for number in range(8)]
    assert sum(alone[number] in labels for number, labels in by_image.items()) >= 7
