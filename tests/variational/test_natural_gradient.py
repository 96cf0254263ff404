"""Natural gradients against posteriors and Hessians that are known, and against the published update written out."""

from __future__ import annotations

import copy
import json
import math
import multiprocessing
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubito
from dubito.errors import NonFiniteError, OptionError
from dubito.estimators import Estimator, Flipout, Local, Weight
from dubito.training.optimizer_state import pack_state, restore_state
from dubito.variational.posterior import posteriors
from dubito.variational.prior import GaussianPrior, Prior

NOISE = 0.5
"""Standard deviation of the targets of the linear regression."""


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def regression(count: int = 200, inputs: int = 4) -> tuple[Tensor, Tensor]:
    """Inputs that depend on each other, and noisy targets."""
    torch.manual_seed(0)
    x = torch.randn(count, inputs) @ (torch.eye(inputs) + 0.3)
    return x, x @ torch.randn(inputs) + NOISE * torch.randn(count)


def squared(layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean negative log-likelihood of the targets, without its constant."""
    loss: Tensor = (layer(x)[:, 0] - y).square().mean() / (2 * NOISE**2)
    return loss


def exact(x: Tensor, y: Tensor, mean: Tensor, std: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Mean and standard deviations of the mean-field Gaussian with the least NLL + temperature * KL."""
    precision = x.T @ x / NOISE**2 / temperature + torch.diag(std.expand_as(mean) ** -2)
    centre = torch.linalg.solve(precision, x.T @ y / NOISE**2 / temperature + mean / std**2)
    return centre, precision.diagonal().rsqrt()


def fitted(layer: nn.Module, x: Tensor, y: Tensor, temperature: float = 1.0) -> None:
    """Train on all data in every step, with a learning rate that falls to 0 and ever longer means of the Hessian.

    Every example is there 16 times, each with noise of its own: the mean loss is the same, and less noisy.
    """
    torch.manual_seed(1)
    steps, tiled = 1000, (x.repeat(16, 1), y.repeat(16))
    optimizer = dubito.NaturalGradient(layer, 0.3, len(x), temperature=temperature)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for step in range(steps):
        optimizer.param_groups[0]["hessian_rate"] = 2 / (20 + step)
        optimizer.zero_grad()
        squared(layer, *tiled).backward()
        optimizer.step()
        schedule.step()


PRIORS: dict[str, tuple[Prior | float, Tensor, Tensor]] = {
    "zero mean": (0.3, torch.zeros(4, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)),
    "any mean and scale": (
        GaussianPrior(torch.tensor([[1.0, -1.0, 0.0, 2.0]]), torch.tensor([[0.1, 0.2, 0.5, 1.0]])),
        torch.tensor([1.0, -1.0, 0.0, 2.0], dtype=torch.float64),
        torch.tensor([0.1, 0.2, 0.5, 1.0], dtype=torch.float64),
    ),
}


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_it_finds_the_conjugate_posterior_to_two_percent(name: str, temperature: float) -> None:
    prior, prior_mean, prior_std = PRIORS[name]
    x, y = regression()
    layer = dubito.BayesLinear(4, 1, bias=False, estimator="local", prior=prior, initial_std=0.02)
    fitted(layer, x, y, temperature=temperature)
    mean, std = exact(x, y, prior_mean, prior_std, temperature)
    torch.testing.assert_close(layer.weight_std[0].detach(), std, rtol=0.02, atol=0)
    torch.testing.assert_close(layer.weight_mean[0].detach(), mean, rtol=0.02, atol=0.02 * float(std.min()))


def test_a_learned_prior_keeps_the_scale_that_fits_its_weights() -> None:
    x, y = regression()
    layer = dubito.BayesLinear(4, 1, bias=False, estimator="local", prior="learned", initial_std=0.02)
    fitted(layer, x, y)
    scale = torch.tensor(1.0)
    for _ in range(100):
        mean, std = exact(x, y, torch.zeros(4), scale)
        scale = (mean.square() + std.square()).mean().sqrt()
    torch.testing.assert_close(layer.weight_std[0].detach(), std, rtol=0.02, atol=0)
    torch.testing.assert_close(layer.weight_mean[0].detach(), mean, rtol=0.02, atol=0)


class TwoLayers(nn.Module):
    """A small classifier whose Hessian can be written down."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.first = dubito.BayesLinear(3, 4, estimator=estimator, initial_std=0.2)
        self.second = dubito.BayesLinear(4, 3, estimator=estimator, initial_std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


def curvature(network: nn.Module) -> Tensor:
    """h' of every weight: dL/dsigma / sigma."""
    found = [q.rho.grad / torch.sigmoid(q.rho) / q.std for q in posteriors(network).values()]
    return torch.cat([part.detach().flatten() for part in found])


def estimates(estimator: Estimator, draws: int, images: int = 32) -> Tensor:
    """h' in many draws of a minibatch."""
    network = small_network(estimator)
    x, y = small_batch(images)
    found = []
    for _ in range(draws):
        network.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        found.append(curvature(network))
    return torch.stack(found)


def small_network(estimator: Estimator) -> TwoLayers:
    torch.manual_seed(0)
    return TwoLayers(estimator)


def small_batch(images: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(images, 3, generator=generator)
    return x, torch.randint(3, (images,), generator=generator)


def exact_curvature(draws: int) -> Tensor:
    """The diagonal of the exact Hessian at many draws of the weights."""
    network = small_network(Weight())
    x, y = small_batch()
    found = list(posteriors(network).values())
    shapes = [q.mean.shape for q in found]
    means = torch.cat([q.mean.detach().flatten() for q in found])

    def loss(weights: Tensor) -> Tensor:
        parts = weights.split([shape.numel() for shape in shapes])
        w, b, v, c = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        return nn.functional.cross_entropy(torch.tanh(x @ w.T + b) @ v.T + c, y)

    drawn = means + 0.2 * torch.randn(draws, len(means))
    hessians = torch.func.vmap(torch.func.hessian(loss), chunk_size=100)(drawn)
    return hessians.diagonal(dim1=1, dim2=2)


@pytest.fixture(scope="module")
def hessian() -> tuple[Tensor, Tensor]:
    """The mean over the posterior, and its squared standard error."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(11)
    found = exact_curvature(2000)
    torch.set_default_dtype(before)
    return found.mean(0), found.var(0) / len(found)


ESTIMATORS: dict[str, Estimator] = {
    "weight": Weight(),
    "antithetic": Weight(4, antithetic=True),
    "flipout": Flipout(),
    "local": Local(),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_standard_deviations_gradient_estimates_the_hessians_diagonal(
    name: str, hessian: tuple[Tensor, Tensor]
) -> None:
    """33 weights, so 5 standard errors are exceeded once in 50,000 times."""
    found = estimates(ESTIMATORS[name], 1500)
    error = (found.var(0) / len(found) + hessian[1]).sqrt()
    assert float(((found.mean(0) - hessian[0]) / error).abs().max()) < 5


def test_local_estimates_the_hessian_with_far_less_noise() -> None:
    noise = {name: float(estimates(ESTIMATORS[name], 400, 256).var(0).sum()) for name in ("weight", "local")}
    assert noise["weight"] > 10 * noise["local"]


class Published:
    """The published update, with h and all, written out for one layer without a bias."""

    def __init__(self, layer: dubito.BayesLinear, lr: float, num_data: int, temperature: float, rate: float) -> None:
        self.mean, std = layer.weight_mean.detach().clone(), layer.weight_std.detach()
        self.prior_mean, prior_std = 0.5, 0.8
        self.delta = temperature / (num_data * prior_std**2)
        self.h = temperature / (num_data * std**2) - self.delta
        self.h0 = self.h.clone()
        self.momentum = torch.zeros_like(self.mean)
        self.steps = 0
        self.lr, self.num_data, self.temperature, self.rate = lr, num_data, temperature, rate

    @property
    def std(self) -> Tensor:
        return (self.temperature / (self.num_data * (self.h + self.delta))).sqrt()

    def step(self, gradient: Callable[[Tensor], Tensor], noise: Tensor) -> None:
        self.steps += 1
        g = gradient(self.mean + self.std * noise)
        hessian = g * noise / self.std
        change = hessian - self.h
        self.h = self.h + self.rate * change + self.rate**2 * change**2 / (2 * (self.h + self.delta))
        self.momentum = 0.9 * self.momentum + 0.1 * g
        direction = self.momentum / (1 - 0.9**self.steps) + self.delta * (self.mean - self.prior_mean)
        self.mean = self.mean - self.lr * (self.h0 + self.delta) * direction / (self.h + self.delta)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_every_step_is_the_published_one(temperature: float) -> None:
    x, y = regression(40, 3)
    prior = GaussianPrior(0.5, 0.8)
    layer = dubito.BayesLinear(3, 1, bias=False, estimator="weight", prior=prior, initial_std=0.1)
    reference = Published(layer, 0.1, 40, temperature, 0.05)
    optimizer = dubito.NaturalGradient(layer, 0.1, 40, temperature=temperature, hessian_rate=0.05)
    for step in range(30):
        torch.manual_seed(step)
        noise = layer.posteriors["weight"].fresh_noise().view(1, 3)
        reference.step(lambda w: (w @ x.T - y) @ x / len(y) / NOISE**2, noise)
        torch.manual_seed(step)
        optimizer.zero_grad()
        squared(layer, x, y).backward()
        optimizer.step()
        torch.testing.assert_close(layer.weight_mean.detach(), reference.mean, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(layer.weight_std.detach(), reference.std, rtol=1e-10, atol=0)


def test_a_given_hessian_sets_the_standard_deviations_of_the_layers() -> None:
    layer = dubito.BayesLinear(3, 2, prior=0.5)
    dubito.NaturalGradient(layer, 0.1, 1000, temperature=0.5, hessian=0.2)
    expected = math.sqrt(0.5 / (1000 * (0.2 + 0.5 / (1000 * 0.5**2))))
    torch.testing.assert_close(layer.weight_std, torch.full((2, 3), expected))
    assert layer.bias_std is not None
    torch.testing.assert_close(layer.bias_std, torch.full((2,), expected))


def partly() -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(
        dubito.BayesLinear(3, 4, estimator="weight", bayesian_bias=False), nn.BatchNorm1d(4), nn.Linear(4, 2)
    )
    return network.append(dubito.BayesLinear(2, 3, estimator="local", prior=1.0))


def steps(network: nn.Module, optimizer: torch.optim.Optimizer, count: int, first: int = 0) -> None:
    x, y = small_batch()
    for step in range(first, first + count):
        torch.manual_seed(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("make", [None, lambda parameters: torch.optim.AdamW(parameters, 0.01)])
def test_what_has_no_posterior_takes_a_step_of_its_own(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None,
) -> None:
    network = partly()
    optimizer = dubito.NaturalGradient(network, 0.1, 100, others=make)
    own = {id(p) for q in posteriors(network).values() for p in q.parameters()}
    twins = {name: copy.deepcopy(p) for name, p in network.named_parameters() if id(p) not in own}
    assert sorted(twins) == ["0.point_bias", "1.bias", "1.weight", "2.bias", "2.weight"]
    plain = torch.optim.SGD(twins.values(), 0.1, 0.9, 0.9) if make is None else make(list(twins.values()))
    for step in range(4):
        steps(network, optimizer, 1, step)
        for name, twin in twins.items():
            twin.grad = network.get_parameter(name).grad
        plain.step()
    for name, twin in twins.items():
        assert torch.equal(twin, network.get_parameter(name))


def test_frozen_posteriors_and_parameters_stay_as_they_are() -> None:
    network = partly()
    for parameter in [*network[0].parameters(), *network[2].parameters()]:
        parameter.requires_grad_(False)
    before = copy.deepcopy(network.state_dict())
    steps(network, dubito.NaturalGradient(network, 0.1, 100), 3)
    same = {name for name, value in network.state_dict().items() if torch.equal(value, before[name])}
    assert {name.split(".")[0] for name in same if "prior" not in name} == {"0", "2"}


def test_a_network_without_any_other_parameter_needs_no_other_optimiser() -> None:
    network = dubito.BayesLinear(3, 3)
    optimizer = dubito.NaturalGradient(network, 0.1, 100)
    assert len(optimizer.param_groups) == 1
    steps(network, optimizer, 2)


@pytest.mark.parametrize("make", [None, lambda parameters: torch.optim.AdamW(parameters, 0.01)])
def test_a_restored_optimiser_goes_on_bit_for_bit(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None,
) -> None:
    network = partly()
    optimizer = dubito.NaturalGradient(network, 0.1, 100, hessian_rate=0.1, others=make)
    steps(network, optimizer, 3)
    tensors, notes = pack_state(optimizer, network)
    again = copy.deepcopy(network)
    other = dubito.NaturalGradient(again, 0.1, 100, hessian_rate=0.1, others=make)
    stored = {name: tensor.clone() for name, tensor in tensors.items()}
    restore_state(other, again, stored, json.loads(json.dumps(notes)))
    for which, its in ((network, optimizer), (again, other)):
        for group in its.param_groups:
            group["lr"] = 0.05
        steps(which, its, 3, first=3)
    for name, value in network.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_micro_batches_add_up_to_one_step_of_their_mean() -> None:
    x, y = small_batch()
    one, many = small_network(Weight()), small_network(Weight())
    gradients = []
    for part in range(4):
        torch.manual_seed(part)
        (nn.functional.cross_entropy(many(x[part::4]), y[part::4]) / 4).backward()
        torch.manual_seed(part)
        loss = nn.functional.cross_entropy(one(x[part::4]), y[part::4])
        gradients.append(torch.autograd.grad(loss, list(one.parameters())))
    for parameter, parts in zip(one.parameters(), zip(*gradients, strict=True), strict=True):
        parameter.grad = torch.stack(parts).mean(0)
    for network in (one, many):
        dubito.NaturalGradient(network, 0.1, 100, hessian_rate=0.1).step()
    for first, second in zip(one.parameters(), many.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-14)


def test_a_step_of_clipped_gradients_is_that_of_shorter_ones() -> None:
    clipped, shorter = small_network(Weight()), small_network(Weight())
    for network in (clipped, shorter):
        torch.manual_seed(0)
        nn.functional.cross_entropy(network(small_batch()[0]), small_batch()[1]).backward()
    norm = float(nn.utils.clip_grad_norm_(clipped.parameters(), 1e-3))
    assert norm > 0.1
    for parameter in shorter.parameters():
        assert parameter.grad is not None
        parameter.grad *= 1e-3 / norm
    for network in (clipped, shorter):
        dubito.NaturalGradient(network, 0.1, 100, hessian_rate=0.1).step()
    for first, second in zip(clipped.parameters(), shorter.parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-9)


def test_autocast_changes_a_step_by_rounding_only() -> None:
    torch.set_default_dtype(torch.float32)
    x, y = (tensor.float() if tensor.is_floating_point() else tensor for tensor in small_batch())
    moved = []
    for enabled in (False, True):
        network = small_network(Weight())
        before = network.second.weight_mean.detach().clone()
        optimizer = dubito.NaturalGradient(network, 0.1, 100)
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        moved.append(network.second.weight_mean.detach() - before)
    torch.testing.assert_close(moved[0], moved[1], rtol=0.05, atol=0.05 * float(moved[0].abs().max()))


def test_pruned_weights_stay_zero_in_every_draw() -> None:
    layer = dubito.BayesLinear(3, 3, estimator="weight")
    where = torch.zeros(3, 3, dtype=torch.bool)
    where[1] = True
    layer.posteriors["weight"].erase(where)
    optimizer = dubito.NaturalGradient(layer, 0.1, 100, hessian_rate=0.1)
    steps(layer, optimizer, 20)
    assert float(layer.posteriors["weight"].draw()[1].abs().max()) < 1e-30
    assert all(bool(parameter.isfinite().all()) for parameter in layer.parameters())


def test_posteriors_that_the_loss_does_not_reach_stay_as_they_are() -> None:
    network = small_network(Weight())
    before = copy.deepcopy(network.second.state_dict())
    network.first(small_batch()[0]).square().mean().backward()
    dubito.NaturalGradient(network, 0.1, 100).step()
    assert all(torch.equal(value, before[name]) for name, value in network.second.state_dict().items())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dubito.BayesLinear(2, 2, posterior="alpha"), "family 'alpha', but the natural gradient needs 'std'"),
        (lambda: dubito.BayesLinear(2, 2, posterior="low_rank"), "family 'low_rank'"),
        (lambda: dubito.BayesLinear(2, 2, prior="mixture"), "ScaleMixturePrior, but the natural gradient needs a Gau"),
        (lambda: dubito.BayesLinear(2, 2, prior="log_uniform"), "LogUniformPrior"),
        (lambda: nn.Linear(2, 2), "no posterior to train"),
        (lambda: dubito.BayesLinear(2, 2).half(), "torch.float16, but the natural gradient needs float32"),
    ],
)
def test_networks_that_it_cannot_train_are_refused_in_a_sentence(make: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        dubito.NaturalGradient(make(), 0.1, 100)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0.0}, "lr is 0.0, but"),
        ({"lr": math.nan}, "lr is nan"),
        ({"num_data": 0}, "num_data is 0"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"hessian": -1.0}, "hessian is -1.0"),
        ({"momentum": 1.0}, "momentum is 1.0, but must be at least 0 and below 1"),
        ({"hessian_rate": 0.0}, "hessian_rate is 0.0, but must be above 0 and at most 1"),
        ({"steps": 0}, "steps is 0, but"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        dubito.NaturalGradient(dubito.BayesLinear(2, 2), **{"lr": 0.1, "num_data": 100, **options})  # type: ignore[arg-type]


def test_a_network_that_was_not_drawn_is_refused() -> None:
    network = small_network(Weight()).eval()
    x, y = small_batch()
    nn.functional.cross_entropy(network(x), y).backward()
    with pytest.raises(OptionError, match=r"the network was not drawn: use the estimator weight, .* model.train\(\)"):
        dubito.NaturalGradient(network, 0.1, 100).step()


def test_a_gradient_that_is_not_finite_is_refused_before_anything_changes() -> None:
    network = partly()
    optimizer = dubito.NaturalGradient(network, 0.1, 100)
    steps(network, optimizer, 2)
    before = copy.deepcopy((dict(network.named_parameters()), optimizer.state_dict()))
    network[0].weight_mean.grad[0, 0] = math.inf
    with pytest.raises(NonFiniteError, match=r"skipped and nothing was changed; lower the learning rate"):
        optimizer.step()
    for name, parameter in network.named_parameters():
        assert torch.equal(parameter, before[0][name])
    assert str(optimizer.state_dict()) == str(before[1])


def test_the_documents_example_runs() -> None:
    torch.set_default_dtype(torch.float32)
    text = (Path(__file__).parents[2] / "docs/explanation/natural-gradient.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, "docs/explanation/natural-gradient.md", "exec"), names)
    assert all(bool(parameter.isfinite().all()) for parameter in names["model"].parameters())  # type: ignore[attr-defined]


def _one_of_two(rank: int, port: int, answers: Any) -> None:
    """A step of one of two processes, each with half of the images and noise of its own."""
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", world_size=2, rank=rank)
    model, (x, y) = _distributed_network(), regression(20)
    optimizer = dubito.NaturalGradient(model, lr=0.1, num_data=20)
    shared = nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(rank)
    squared(shared, x[rank::2], y[rank::2]).backward()
    optimizer.step()
    answers.put((rank, [parameter.tolist() for parameter in model.parameters()]))
    torch.distributed.destroy_process_group()


def _distributed_network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        dubito.BayesLinear(4, 3, estimator="weight", initial_std=0.3), nn.LayerNorm(3), nn.Linear(3, 1)
    )


def test_two_processes_draw_apart_and_take_one_step_of_their_joined_gradient() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    processes = [context.Process(target=_one_of_two, args=(rank, port, answers)) for rank in range(2)]
    for process in processes:
        process.start()
    found = dict(answers.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()

    model, (x, y) = _distributed_network(), regression(20)
    optimizer = dubito.NaturalGradient(model, lr=0.1, num_data=20)
    sums = []
    for rank in range(2):  # two micro-batches, each under the noise of its process
        torch.manual_seed(rank)
        (squared(model, x[rank::2], y[rank::2]) / 2).backward()
        sums.append(model[0].posteriors["weight"].rho.grad.clone())
    assert not torch.allclose(sums[1], 2 * sums[0])
    optimizer.step()
    for rank in range(2):
        for ours, theirs in zip(found[rank], model.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(ours), theirs.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("prior", [0.3, GaussianPrior(torch.linspace(-1, 1, 24).view(4, 6), torch.full((4, 6), 0.2))])
def test_moving_large_tensors_in_pieces_changes_nothing(monkeypatch: pytest.MonkeyPatch, prior: Prior | float) -> None:
    whole = nn.Sequential(
        dubito.BayesLinear(6, 4, bias=False, prior=prior, estimator="weight"),
        dubito.BayesLinear(4, 1, estimator="weight"),
    )
    pieces = copy.deepcopy(whole)
    x, y = regression(count=32, inputs=6)
    for network, at_once in ((whole, 1 << 17), (pieces, 5)):
        monkeypatch.setattr("dubito.variational.natural_gradient.AT_ONCE", at_once)
        optimizer = dubito.NaturalGradient(network, 0.1, len(x), hessian_rate=0.05)
        torch.manual_seed(5)
        for _ in range(3):
            optimizer.zero_grad()
            squared(network, x, y).backward()
            optimizer.step()
    for (name, one), other in zip(whole.named_parameters(), pieces.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0, msg=name)
