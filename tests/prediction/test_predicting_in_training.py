"""A model is trained in one thread while another one predicts on it: both end as if they were alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import dubito

ESTIMATORS = ("local", "weight", "flipout", "mean")
METHODS = ("weights", "local", "moments", "mean")
LABELS = torch.arange(8) % 3


class Stop(nn.Module):
    """Does something in the middle of the passes of one thread."""

    act: Callable[[], object] | None = None
    thread: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        if Stop.act is not None and threading.get_ident() == Stop.thread:
            act, Stop.act = Stop.act, None
            act()
        return x


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    Stop.act = Stop.thread = None


def network(estimator: str) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), Stop()
    plain = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    return dubito.to_bayesian(plain, estimator=estimator, head="softmax", initial_std=0.1).train()


class Training:
    """A training of a few images, step by step."""

    def __init__(self, estimator: str) -> None:
        self.model = network(estimator)
        self.loss = dubito.ELBO(100)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.x = torch.randn(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))

    def step(self, between: Callable[[], object] = lambda: None) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(self.model, self.x, LABELS).loss
        between()
        loss.backward()
        between()
        self.optimizer.step()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_step_does_not_notice_predictions_of_another_thread(estimator: str, method: str) -> None:
    """They happen in the middle of its forward pass, before its backward pass and before the step of its optimizer."""
    alone = Training(estimator)
    torch.manual_seed(2)
    for _ in range(2):
        alone.step()

    watched = Training(estimator)
    earlier = dubito.Predictor(watched.model, 2, method)
    expected, found = earlier(watched.x), []

    def predict() -> None:
        assert torch.equal(earlier(watched.x).probs, expected.probs)
        found.append(dubito.predict(watched.model, watched.x, 2, method).probs)
        found.append(dubito.Predictor(watched.model, 2, method)(watched.x[:2]).probs)

    with ThreadPoolExecutor(1) as pool:
        torch.manual_seed(2)
        for _ in range(2):
            Stop.thread, Stop.act = threading.get_ident(), lambda: pool.submit(predict).result(20)
            watched.step(lambda: pool.submit(predict).result(20))
    assert len(found) == 12
    assert all(bool(probs.isfinite().all()) for probs in found)
    for name, value in watched.model.state_dict().items():
        assert torch.equal(value, alone.model.state_dict()[name]), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_steps_of_another_thread_in_the_middle_of_a_prediction(estimator: str, method: str) -> None:
    """A predictor does not notice them; `predict` has no copy of the model, but ends in probabilities."""
    training = Training(estimator)
    earlier = dubito.Predictor(training.model, 2, method)
    expected = earlier(training.x).probs
    with ThreadPoolExecutor(1) as pool:

        def interrupted(predict: Callable[[], dubito.Prediction]) -> Tensor:
            Stop.thread, Stop.act = threading.get_ident(), lambda: pool.submit(training.step).result(20)
            probs = predict().probs
            assert Stop.act is None
            return probs

        assert torch.equal(interrupted(lambda: earlier(training.x)), expected)
        found = interrupted(lambda: dubito.predict(training.model, training.x, 2, method))
    torch.testing.assert_close(found.sum(1), torch.ones(8))
    assert (dubito.predict(training.model, training.x, 2, method).probs - expected).abs().max() > 1e-6


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_both_at_once(estimator: str) -> None:
    training = Training(estimator)
    earlier = dubito.Predictor(training.model, 2)
    expected, over = earlier(training.x).probs, threading.Event()

    def predict() -> int:
        count = 0
        while not over.is_set() or count == 0:
            assert torch.equal(earlier(training.x).probs, expected)
            assert bool(dubito.predict(training.model, training.x, 2).probs.isfinite().all())
            count += 1
        return count

    with ThreadPoolExecutor(1) as pool:
        predictions = pool.submit(predict)
        try:
            for _ in range(28):
                training.step()
        finally:
            over.set()
        assert predictions.result(60) > 0
