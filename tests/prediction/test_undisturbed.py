"""A predictor disturbs nobody, and nobody disturbs it: models, random numbers, threads, memory and modes."""

import gc
import threading
import weakref

import numpy as np
import prediction_networks as networks
import pytest
import torch
from prediction_networks import CASES, FIELDS
from torch import nn

import dubito
from dubito.prediction import draws as module
from dubito.variational.posterior import one_pass

DOUBLE = torch.float64
METHODS = ("weights", "local", "moments", "mean")
REFUSED = (RuntimeError, ValueError, AssertionError, dubito.errors.DubitoError)
every_case = pytest.mark.parametrize(("name", "method"), CASES)


def fresh(name: str) -> nn.Module:
    """A network of its own in a mixed state, with hooks and gradients."""
    torch.manual_seed(0)
    model = networks.NETWORKS[name]().double().train()
    parts = [part for part in model.modules() if not list(part.children())]
    parts[-1].eval()
    next(model.parameters()).requires_grad_(False)
    parts[0].register_forward_hook(lambda *event: None)
    parts[0].register_forward_pre_hook(lambda *event: None)
    return model


def state_of(model: nn.Module) -> dict[str, object]:
    """All that a prediction could have changed."""
    parts = dict(model.named_modules())
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    return {
        "modes": {name: part.training for name, part in parts.items()},
        "hooks": {name: [list(getattr(part, kind)) for kind in hooks] for name, part in parts.items()},
        "types": {name: type(part) for name, part in parts.items()},
        "attributes": {name: sorted(vars(part)) for name, part in parts.items()},
        "forced": {name: getattr(part, "forced_estimator", None) for name, part in parts.items()},
        "parameters": {name: (id(p), p.requires_grad, p._version) for name, p in model.named_parameters()},
        "buffers": {name: (id(b), b._version) for name, b in model.named_buffers()},
        "values": {name: value.detach().clone().flatten().tolist() for name, value in model.state_dict().items()},
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),
        "gradients": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
    }


@every_case
def test_model_and_random_numbers_stay_as_they_are(name, method):
    model, x = fresh(name), networks.images(name)[:20]
    before, images = state_of(model), x.clone()
    dubito.predict(model, x, 2, method)
    predictor = dubito.Predictor(model, 2, method)
    for count in (3, 20):
        predictor(x[:count])
        predictor.draws(x[:count])
    assert state_of(model) == before
    assert torch.equal(x, images)


@every_case
def test_model_and_random_numbers_stay_as_they_are_when_it_fails(name, method):
    model, x = fresh(name), networks.images(name)[:20]
    before = state_of(model)
    predictor = dubito.Predictor(model, 2, method)
    for wrong in (x.repeat(1, 2, 1, 1), x.float(), torch.full_like(x, torch.nan), x[:2].repeat(1, 2, 1, 1)):
        with pytest.raises(REFUSED):
            dubito.predict(model, wrong, 2, method)
        with pytest.raises(REFUSED):
            predictor(wrong)
    assert state_of(model) == before
    found, expected = predictor(x), dubito.predict(model, x, 2, method)  # and the predictor still works
    torch.testing.assert_close(found.probs, expected.probs)


@every_case
def test_a_predictor_is_frozen(name, method):
    """Later steps, modes and prunings of the model do not reach it."""
    model, x = networks.NETWORKS[name]().double(), networks.images(name)[:20]
    predictor = dubito.Predictor(model, 2, method)
    expected = {field: getattr(predictor(x), field).clone() for field in FIELDS}
    few = predictor(x[:3]).probs.clone()
    late = dubito.Predictor(model, 2, method)  # that predicts for the first time only after the changes
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(1.0)
    model.train()
    for chosen in (predictor, late):
        found = chosen(x)
        for field in FIELDS:
            torch.testing.assert_close(getattr(found, field), expected[field], rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(chosen(x[:3]).probs, few, rtol=1e-10, atol=1e-13)
    assert (dubito.predict(model, x, 2, method).probs - expected["probs"]).abs().max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_a_model_can_learn_after_a_prediction(method):
    model, x = networks.NETWORKS["residual"]().double(), networks.images("residual")[:8]
    dubito.predict(model, x, 2, method)
    dubito.Predictor(model, 2, method)(x)
    dubito.ELBO(100)(model.train(), x, torch.zeros(8, dtype=torch.long)).loss.backward()
    assert all(p.requires_grad and p.grad is not None for p in model.parameters())


class Waiting(nn.Module):
    """Stops inside the network until the test lets it go on."""

    inside, go_on = threading.Event(), threading.Event()

    def forward(self, x):
        if threading.current_thread() is not threading.main_thread():
            Waiting.inside.set()
            assert Waiting.go_on.wait(20)
        return x


@pytest.mark.parametrize("count", [3, 20], ids=["few", "many"])
@pytest.mark.parametrize("method", METHODS)
def test_while_a_predictor_runs_in_another_thread(method, count):
    """Here the model in evaluation mode is the mean, and random numbers are those that the seed gives."""
    Waiting.inside.clear()
    Waiting.go_on.clear()
    network = networks.Residual().double()
    model = dubito.to_bayesian(nn.Sequential(network, Waiting()), head="softmax", initial_std=0.3).eval()
    x = networks.images("residual")[:count]
    with torch.no_grad():
        mean = network.eval()(x)
    expected = torch.randn(6, generator=torch.Generator().manual_seed(5))
    torch.manual_seed(5)
    results = []

    def run() -> None:
        results.append(dubito.predict(model, x, 4, method))
        results.append(dubito.Predictor(model, 4, method)(x))

    thread = threading.Thread(target=run)
    thread.start()
    assert Waiting.inside.wait(20)
    before = torch.randn(3)
    with torch.no_grad():
        torch.testing.assert_close(model(x), mean)
    again = dubito.predict(model, x, 4, method)
    assert torch.is_grad_enabled()
    assert model(x).requires_grad
    Waiting.go_on.set()
    thread.join()
    assert torch.equal(torch.cat([before, torch.randn(3)]), expected)
    with torch.no_grad():
        torch.testing.assert_close(model(x), mean)
    for found in results:
        torch.testing.assert_close(found.probs, again.probs)


@pytest.mark.parametrize("count", [3, 20], ids=["few", "many"])
@pytest.mark.parametrize(("name", "method"), CASES)
def test_inside_a_pass_of_training(name, method, count):
    """A prediction in the middle of a training step draws its own weights, and leaves those of the step alone."""
    model, x = networks.model(name), networks.images(name)[:count]
    layer = dubito.BayesLinear(4, 3, initial_std=0.3).train()
    predictor = dubito.Predictor(model, 2, method)
    with one_pass():
        drawn = layer.weight
        found = predictor(x)
        assert torch.equal(layer.weight, drawn)
    torch.testing.assert_close(found.probs, dubito.Predictor(model, 2, method)(x).probs)
    torch.testing.assert_close(found.epistemic, predictor(x).epistemic)


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("count", [3, 20], ids=["few", "many"])
@pytest.mark.parametrize("method", METHODS)
def test_images_stay_as_they_are_and_every_draw_gets_them(method, count, inference):
    layers = nn.ReLU(inplace=True), dubito.BayesLinear(4, 3, initial_std=1e-6), nn.ReLU(inplace=True)
    model = dubito.attach_head(nn.Sequential(*layers).eval(), "softmax")
    x = torch.randn(count, 4)
    layer = model[1]
    expected = torch.softmax((x.relu() @ layer.weight_mean.T + layer.bias_mean).relu(), 1)
    with torch.inference_mode(inference):
        given = x.clone()
        found = dubito.predict(model, given, 20, method)
        assert torch.equal(given, x)
    torch.testing.assert_close(found.probs, expected, rtol=1e-4, atol=1e-4)
    assert found.epistemic.max() < 1e-8


@pytest.mark.parametrize("count", [3, 20], ids=["few", "many"])
@pytest.mark.parametrize("method", ["weights", "moments", "mean"])
def test_a_predictor_that_nobody_needs_is_gone_at_once(method, count):
    """Its drawn weights may be large: they must not wait for the garbage collector."""
    model, x = networks.model("residual"), networks.images("residual")[:count]
    gc.collect()
    gc.disable()
    try:
        predictor = dubito.Predictor(model, 4, method)
        predictor(x)
        drawn = predictor._draws
        kept = [weakref.ref(drawn)]
        if isinstance(drawn, module.WeightDraws):
            kept += [weakref.ref(weights) for weights in drawn.weights.stacked.values()]
        del predictor, drawn
        assert [reference() for reference in kept] == [None] * len(kept)
    finally:
        gc.enable()
