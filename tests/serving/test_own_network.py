"""A network without a run is served as a run is."""

from __future__ import annotations

import io
import math
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import dubito
from dubito.errors import OptionError
from dubito.serving.batching import Job
from dubito.serving.model import ServedModel
from dubito.serving.server import _Server
from dubito.serving.validation import find_usual

SCRIPT = """
import torch, dubito
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Flatten(), dubito.BayesLinear(192, 2))
dubito.attach_head(network, "softplus")
dubito.attach_data(network, class_names=["cat", "dog"], size=8)
validation = [(torch.rand(30, 3, 8, 8), torch.arange(30) % 2)]
dubito.serve(network, port=0, samples=4, validation=validation)
"""


def network() -> nn.Module:
    torch.manual_seed(0)
    model = dubito.attach_head(nn.Sequential(nn.Flatten(), dubito.BayesLinear(192, 2)), "softplus")
    return dubito.attach_data(model, class_names=["cat", "dog"], size=8, mean=[0.5] * 3, std=[0.25] * 3)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.rand(15, 3, 8, 8, generator=generator), torch.arange(15) % 2) for _ in range(2)]


def test_answers_are_the_predictors() -> None:
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    served = ServedModel(model, samples=4)
    images = torch.rand(5, 3, 8, 8)
    found = served.predict([Job(served.prepare(images), "weights", 4, math.inf)]).prediction
    expected = dubito.Predictor(model, 4)((images - 0.5) / 0.25)
    torch.testing.assert_close(found.probs, expected.probs)
    torch.testing.assert_close(found.epistemic, expected.epistemic)
    described = served.describe()
    assert (described["name"], described["inference"], described["head"]) == ("Sequential", "vi", "softplus")
    assert described["class_names"] == ["cat", "dog"]
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training


def test_validation_batches_are_what_answers_are_compared_with() -> None:
    served = ServedModel(network(), samples=4)
    found = find_usual(served, batches())
    inputs = torch.cat([part for part, _ in batches()])
    expected = dubito.Predictor(network(), 4)(inputs)
    torch.testing.assert_close(found.record.prediction.aleatoric, expected.aleatoric)
    assert found.describe()["images"] == 30
    assert found.record.examples.shape[1:] == (3, 8, 8)
    assert found.percentile("aleatoric", float(expected.aleatoric.max()) + 1) == 1
    with pytest.raises(dubito.DubitoError, match="only if they are given"):
        find_usual(served)


def test_a_network_that_does_not_know_its_images_is_refused() -> None:
    with pytest.raises(OptionError, match="attach_data"):
        dubito.serve(nn.Flatten(), port=0)


def test_a_script_serves_its_network_and_stops_in_order() -> None:
    import httpx
    from PIL import Image

    command = [sys.executable, "-c", SCRIPT]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        place = re.fullmatch(r"Serving Sequential \(vi Sequential\) at (http://127\.0\.0\.1:\d+)\n", first)
        assert place, first + process.stdout.read()
        content = io.BytesIO()
        Image.new("RGB", (20, 20), "red").save(content, "PNG")
        with httpx.Client(base_url=place[1], timeout=60, trust_env=False) as client:
            answer = client.post("/predict", files={"images": ("red.png", content.getvalue())}).json()
            assert len(client.get("/model").json()["examples"]) > 0
        (prediction,) = answer["predictions"]
        assert prediction["label"] in ("cat", "dog")
        assert 0 <= prediction["percentile"]["aleatoric"] <= 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "all accepted requests have been answered" in process.stdout.read()
    finally:
        process.kill()
        process.wait()


def test_a_server_in_a_thread_leaves_signals_to_the_main_thread() -> None:
    server = object.__new__(_Server)

    def handlers_inside() -> list[object]:
        with server.capture_signals():
            return [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)]

    before = [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(handlers_inside).result() == before
    assert handlers_inside() == [server.handle_exit] * 2
    assert [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)] == before
