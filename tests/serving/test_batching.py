"""Concurrent requests share forward passes, and nobody's answer suffers."""

from __future__ import annotations

import asyncio
import threading
import time

import httpx
import pytest
import torch

import dubito
from dubito.prediction import decompose
from dubito.runs.run import Run
from dubito.serving.batching import Batcher, Job, Predicted
from dubito.serving.limits import Limits
from dubito.serving.model import Predictors, ServedModel
from dubito.serving.refusal import RefusedError
from dubito.variational.posterior import posteriors


def job(value: float = 0.0, count: int = 1, samples: int = 1, **options) -> Job:
    return Job(torch.full((count, 1), value), "weights", samples, time.monotonic() + 600, **options)


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


def test_only_requests_for_the_same_predictor_share_a_batch(network) -> None:
    batcher = occupied(network)
    jobs = [job(), job(samples=2), job(), job(seed=1), job(samples=2), job(samples=2, seed=1), job(seed=1)]
    futures = [batcher.submit(one) for one in jobs]
    network.go.set()
    for future in futures:
        future.result(20)
    expected = [[0, 2], [1, 4], [3, 6], [5]]
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
    with pytest.raises(RefusedError, match="busy: 3 images are waiting") as refused:
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


def test_closing_without_finishing_gives_up_what_waits_and_what_runs(network) -> None:
    batcher = occupied(network)
    waiting = batcher.submit(job(samples=2))
    closing = threading.Thread(target=batcher.close, args=(False,))
    closing.start()
    (running,) = network.batches[0]
    while running.deadline:
        time.sleep(0.001)
    network.go.set()
    closing.join(20)
    assert not closing.is_alive()
    assert not waiting.done()
    assert len(network.batches) == 1


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
    late = batcher.submit(Job(torch.zeros(1, 1), "weights", 1, time.monotonic() - 1))
    given_up = batcher.submit(job(samples=2))
    assert given_up.cancel()
    network.go.set()
    with pytest.raises(RefusedError, match="waited too long"):
        late.result(20)
    batcher.close()
    assert len(network.batches) == 1


def test_a_lone_request_does_not_wait_for_company(network) -> None:
    network.go.set()
    batcher = Batcher(network, Limits(max_wait=1e6), arriving=lambda: 0)
    batcher.submit(job()).result(60)
    batcher.close()


def test_a_request_waits_for_those_on_their_way(network) -> None:
    network.go.set()
    batcher = Batcher(network, Limits(max_wait=1e6, max_batch=2), arriving=lambda: 1)
    first = batcher.submit(job())
    batcher.submit(job()).result(60)
    first.result(60)
    assert [len(batch) for batch in network.batches] == [2]
    batcher.close()


@pytest.fixture(scope="module")
def model(served_run) -> ServedModel:
    return ServedModel(Run.open(served_run))


def answers(model: ServedModel, *images: torch.Tensor, method: str = "weights", **options) -> Predicted:
    """What the model says of jobs with these images."""
    until = time.monotonic() + 600
    return model.predict([Job(one, method, 4, until, **options) for one in images])


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(40, 1, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", ["weights", "local", "moments", "mean"])
def test_an_image_gets_the_same_answer_alone_in_company_and_from_another_server(
    model, served_run, images, method
) -> None:
    alone = answers(model, images[:1], method=method).prediction
    among = answers(model, images[1:7], images[:1], images[7:], method=method).prediction[6:7]
    elsewhere = answers(ServedModel(Run.open(served_run)), images[:1], method=method).prediction
    for other in (among, elsewhere):
        torch.testing.assert_close(other.probs, alone.probs, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(other.epistemic_per_class, alone.epistemic_per_class, rtol=1e-3, atol=1e-7)


def test_the_answer_is_that_of_a_predictor(model, images) -> None:
    expected = dubito.Predictor(model.run.load(), 4, seed=7)(images)
    torch.testing.assert_close(answers(model, images, seed=7).prediction.probs, expected.probs, rtol=1e-4, atol=1e-6)
    other = answers(model, images, seed=8).prediction
    assert not torch.allclose(other.probs, expected.probs, rtol=1e-3)


def test_parts_of_a_large_prediction_are_joined(model, images, monkeypatch) -> None:
    whole = answers(model, images, draws=True)
    monkeypatch.setattr("dubito.serving.model.PASSES", 30)  # 7 images of 4 draws at once
    parts = answers(model, images, draws=True)
    torch.testing.assert_close(parts.prediction.probs, whole.prediction.probs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parts.draws, whole.draws, rtol=1e-4, atol=1e-6)


def test_draws_are_those_of_the_prediction(model, images, monkeypatch) -> None:
    until = time.monotonic() + 600
    jobs = [Job(images[:1], "weights", 6, until), Job(images[1:2], "weights", 6, until, draws=True)]
    predicted = model.predict(jobs).part(1, 2)
    assert predicted.draws.shape == (6, 1, 10)
    torch.testing.assert_close(predicted.draws.mean(0), predicted.prediction.probs)
    monkeypatch.setattr("dubito.serving.model.MAX_DRAWS_SHOWN", 5)
    assert model.predict(jobs).draws.shape == (5, 2, 10)


def test_predictors_are_kept_but_not_without_bound(model) -> None:
    network = model.run.load()
    draw = sum(4 * posterior.mean.numel() for posterior in posteriors(network).values())
    kept = Predictors(network, most=3, most_bytes=20 * draw)
    own = kept("weights", 40)
    assert kept("mean", 1) is kept("mean", 9, 5)  # neither draws nor seed matter
    first = kept("weights", 1, seed=1)
    kept("weights", 1, seed=2)
    assert kept("weights", 1, seed=1) is first
    kept("weights", 1, seed=3)  # takes the place of the mean
    assert len(kept) == 4
    kept("weights", 11, seed=4)  # takes as much as 15 draws, so that one of 5 is kept beside it
    assert len(kept) == 3
    assert kept("weights", 40) is own
    kept.forget()
    assert len(kept) == 1
    assert kept("weights", 40) is own


def test_a_predictor_that_is_too_large_to_keep_makes_its_weights_again(model, images) -> None:
    network = model.run.load()
    draw = sum(4 * posterior.mean.numel() for posterior in posteriors(network).values())
    small, large = (Predictors(network, most_bytes=most * draw) for most in (5, 50))
    for kept in (small, large):
        kept("mean")
    parts = [kept("weights", 6, 1) for kept in (small, large)]
    assert [part.members[0]._draws.weights.stacked is None for part in parts] == [True, False]
    torch.testing.assert_close(parts[0](images).probs, parts[1](images).probs, rtol=1e-4, atol=1e-6)


def test_predictors_share_the_network_and_what_novelty_was_fitted_on(model) -> None:
    one, other = (model.predictors("weights", 3, seed) for seed in (1, 2))
    assert one.novelty is not None
    fitted = [predictor.novelty.score.tensors() for predictor in (one, other)]
    assert {key: tensor.data_ptr() for key, tensor in fitted[0].items()} == {
        key: tensor.data_ptr() for key, tensor in fitted[1].items()
    }


def test_a_prediction_past_its_deadline_is_broken_off(model, images) -> None:
    with pytest.raises(RefusedError, match="too long"):
        model.predict([Job(images, "weights", 1000, time.monotonic() - 1)])


def test_concurrent_callers_share_forward_passes(server, digit_images) -> None:
    names = ("dubito_batch_requests_count", "dubito_batch_requests_sum")
    before = [server.metric(name) for name in names]

    async def ask() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=40)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False, limits=limits) as client:
            files = [{"images": ("a.png", digit_images[number % 8])} for number in range(40)]
            data = {"samples": "40"}
            return await asyncio.gather(*(client.post("/predict", files=file, data=data) for file in files))

    responses = asyncio.run(ask())
    assert [response.status_code for response in responses] == [200] * 40
    batches, requests = (server.metric(name) - old for name, old in zip(names, before, strict=True))
    assert requests == 40
    assert batches <= 20
    for number in range(8):
        (alone,) = server.predict(digit_images[number], samples=40).json()["predictions"]
        for response in responses[number::8]:
            (answer,) = response.json()["predictions"]
            assert answer["label"] == alone["label"]
            assert answer["epistemic"] == pytest.approx(alone["epistemic"], rel=1e-3, abs=1e-7)
