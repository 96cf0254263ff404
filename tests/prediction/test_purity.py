"""A predictor is a pure function of image and seed: no number depends on batch, order, thread, memory or process."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import prediction_networks as networks
import pytest
import torch
from prediction_networks import CASES, FIELDS, SAMPLES, images, model, predictor, whole
from torch import nn

import dubito

every_case = pytest.mark.parametrize(("name", "method"), CASES)
ROUNDING = {"rtol": 1e-8, "atol": 1e-11}


def assert_same(found, expected, **tolerance) -> None:
    for field in FIELDS:
        torch.testing.assert_close(getattr(found, field), getattr(expected, field), **(tolerance or ROUNDING))


@every_case
@pytest.mark.parametrize("count", [1, 7])
def test_alone_or_among_few_or_many(name, method, count):
    for start in (0, 100, networks.COUNT - count):
        some = slice(start, start + count)
        assert_same(predictor(name, method)(images(name)[some]), whole(name, method)[some])


@every_case
def test_in_another_order(name, method):
    order = torch.randperm(60)
    assert_same(predictor(name, method)(images(name)[order]), whole(name, method)[order])


@every_case
def test_the_same_image_twice(name, method):
    assert_same(whole(name, method)[7], whole(name, method)[0])


@every_case
@pytest.mark.parametrize("batch_size", [3, 64])
def test_in_batches_of_another_size(name, method, batch_size):
    other = dubito.Predictor(model(name), SAMPLES, method, batch_size=batch_size)
    assert_same(other(images(name)[:70]), whole(name, method)[:70])
    uneven = images(name)[:70].split([4, 1, 60, 5])
    assert_same(other(uneven), whole(name, method)[:70])


@every_case
@pytest.mark.parametrize("count", [5, 40])
def test_with_draws_that_are_made_again(name, method, count):
    other = dubito.Predictor(model(name), SAMPLES, method, memory=0)
    assert_same(other(images(name)[:count]), whole(name, method)[:count])


@every_case
def test_in_a_predictor_made_again(name, method):
    other = dubito.Predictor(model(name).train(), SAMPLES, method)
    assert_same(other(images(name)[:40]), whole(name, method)[:40])
    assert_same(dubito.predict(model(name), images(name)[:40], SAMPLES, method), whole(name, method)[:40])


@every_case
def test_in_threads_at_once(name, method):
    """Both threads are in the network at the same time, one with few images and one with many."""
    shared, found, errors = predictor(name, method), {}, []
    barrier = threading.Barrier(2)

    def run(which: slice) -> None:
        try:
            barrier.wait(10)
            for _ in range(2):
                found[which.stop] = shared(images(name)[which])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(slice(0, count),)) for count in (5, 40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for count, prediction in found.items():
        assert_same(prediction, whole(name, method)[:count])


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """What another process predicts, with two threads."""
    folder = tmp_path_factory.mktemp("elsewhere")
    torch.save({name: model(name).state_dict() for name in networks.NETWORKS}, folder / "states.pt")
    command = [sys.executable, networks.__file__, str(folder / "states.pt"), str(folder / "found.pt")]
    paths = os.pathsep.join([str(Path(dubito.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    surroundings = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": paths}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "found.pt", weights_only=True)


@every_case
def test_in_another_process(name, method, elsewhere):
    for field, found in elsewhere[f"{name} {method}"].items():
        torch.testing.assert_close(found, getattr(whole(name, method), field)[:20], **ROUNDING)


@every_case
def test_with_another_layout_in_memory(name, method):
    x = images(name)[:20]
    strided = torch.empty(20, 1, x.shape[2], 2 * x.shape[3], dtype=x.dtype)[..., ::2]
    strided.copy_(x)
    assert not strided.is_contiguous()
    assert_same(predictor(name, method)(strided), whole(name, method)[:20])


@every_case
def test_uncertainty_is_what_the_method_promises(name, method):
    """So that no test above compares zeros: draws differ, and the mean alone has no epistemic uncertainty."""
    found = whole(name, method)
    if method == "mean" and name != "ensemble":
        assert found.epistemic.max() == 0
    else:
        assert (found.epistemic > 0).all()
        assert found.epistemic.mean() > 1e-5
    total = found.aleatoric_per_class + found.epistemic_per_class
    torch.testing.assert_close(total, found.probs * (1 - found.probs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["weights", "local"])
@pytest.mark.parametrize("name", ["residual", "dropout", "ensemble", "lstm"])
def test_another_seed_gives_other_draws(name, method):
    other = dubito.Predictor(model(name), SAMPLES, method, seed=1)(images(name)[:20])
    assert ((other.probs - whole(name, method).probs[:20]).abs().amax(1) > 1e-6).any()


@pytest.mark.parametrize("method", ["weights", "local"])
def test_single_precision_differs_by_its_rounding_only(method):
    network = networks.NETWORKS["residual"]()
    chosen, x = dubito.Predictor(network, 6, method), torch.randn(40, 1, 8, 8)
    found = chosen(x)
    for some in (slice(0, 1), slice(3, 10), slice(0, 30)):
        assert_same(chosen(x[some]), found[some], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_networks_differ_by_their_rounding_only(dtype):
    layers = dubito.BayesLinear(4, 8, initial_std=0.3), nn.ReLU(), dubito.BayesLinear(8, 3, initial_std=0.3)
    network = dubito.attach_head(nn.Sequential(*layers).to(dtype), "softplus")
    chosen, x = dubito.Predictor(network, 6), torch.randn(40, 4, dtype=dtype)
    found = chosen(x)
    assert found.probs.dtype == torch.float32
    assert_same(chosen(x[:3]), found[:3], rtol=0, atol=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize(("name", "method"), [("residual", m) for m in ("weights", "local", "moments", "mean")])
def test_in_every_mode_of_gradients(name, method, mode):
    with mode():
        made_inside = dubito.Predictor(model(name), SAMPLES, method)
        for chosen in (made_inside, predictor(name, method)):
            for count in (5, 20):
                found = chosen(images(name)[:count].clone())
                assert not found.probs.requires_grad
                assert_same(found, whole(name, method)[:count])
    assert_same(made_inside(images(name)[:5]), whole(name, method)[:5])


def test_the_default_device_and_dtype_are_not_asked():
    expected = whole("residual", "weights")[:20]
    with torch.device("meta"):
        assert_same(dubito.Predictor(model("residual"), SAMPLES)(images("residual")[:20]), expected)
    torch.set_default_dtype(torch.float16)
    assert_same(dubito.Predictor(model("residual"), SAMPLES)(images("residual")[:20]), expected)
