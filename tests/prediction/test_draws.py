"""Draws have the posterior's distribution, come in antithetic pairs, and are the same however they are computed."""

import math

import pytest
import torch
from torch import nn

import dubito
from dubito.layers.parameter import draw_parameter
from dubito.prediction import draws as module
from dubito.prediction.weights import DrawnWeights
from dubito.variational.families import StdPosterior
from dubito.variational.posterior import posteriors
from dubito.variational.unused import looked_at

DOUBLE = torch.float64
BUDGETS = pytest.mark.parametrize("memory", [0, 1 << 30], ids=["made again", "kept"])


def linear(**options) -> dubito.BayesLinear:
    """A layer whose weights have standard deviations of their own, as outputs of a regression."""
    torch.manual_seed(0)
    layer = dubito.BayesLinear(6, 4, dtype=DOUBLE, **options)
    with torch.no_grad():
        layer.posteriors["weight"].set_std(0.1 + torch.rand(4, 6, dtype=DOUBLE))
        layer.posteriors["bias"].set_std(0.1 + torch.rand(4, dtype=DOUBLE))
    return dubito.attach_head(layer, "gaussian")


def network(**options) -> nn.Sequential:
    torch.manual_seed(0)
    options = {"initial_std": 0.2, "dtype": DOUBLE, **options}
    model = nn.Sequential(
        dubito.BayesConv2d(1, 3, 3, padding=1, **options),
        nn.Softplus(),
        nn.Flatten(),
        dubito.BayesLinear(3 * 16, 4, **options),
    )
    return dubito.attach_head(model, "softplus")


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 1, 4, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))


# The distribution.


@BUDGETS
@pytest.mark.parametrize("posterior", ["std", "alpha"])
def test_drawn_weights_have_the_mean_and_variance_of_the_posterior(posterior, memory):
    """Every single weight, in standard errors; the mean of pairs is exact."""
    layer, samples = linear(posterior=posterior), 4000
    found = list(posteriors(layer).values())
    drawn = list(DrawnWeights(found, samples, 0, memory))
    for q in found:
        weights = torch.stack([weights[q] for weights in drawn])
        deviation = weights - q.mean.detach()
        torch.testing.assert_close(deviation.mean(0), torch.zeros_like(q.mean.detach()), rtol=0, atol=1e-12)
        error = math.sqrt(2 / (samples / 2)) * q.variance
        assert ((deviation.square().mean(0) - q.variance).abs() < 5 * error).all()
        kurtosis = (deviation / q.std.detach()).pow(4).mean()
        assert abs(kurtosis - 3) < 5 * math.sqrt(96 / (samples / 2 * q.mean.numel()))


@pytest.mark.parametrize("count", [5, 20], ids=["few", "many"])
def test_outputs_of_a_linear_layer_have_the_analytic_covariance(count):
    """Cov(f(x), f(y)) = sum_i x_i y_i sigma_i^2 + sigma_b^2 between images, as all images share the weights."""
    layer, samples = linear(), 4000
    x = torch.randn(count, 6, dtype=DOUBLE)
    outputs = dubito.Predictor(layer, samples).draws(x)
    deviation = outputs - layer.eval()(x).detach()
    found = torch.einsum("tnc,tmc->cnm", deviation, deviation) / samples
    variance, offset = layer.weight_std.detach().square(), layer.bias_std.detach().square()
    expected = torch.einsum("ni,ci,mi->cnm", x, variance, x) + offset.view(-1, 1, 1)
    scale = expected.diagonal(dim1=1, dim2=2).sqrt()
    error = scale.unsqueeze(2) * scale.unsqueeze(1) * math.sqrt(2 / (samples / 2))
    assert ((found - expected).abs() < 5 * error).all()
    between = torch.einsum("tnc,tnd->ncd", deviation, deviation) / samples  # outputs have weights of their own
    off_diagonal = between - torch.diag_embed(between.diagonal(dim1=1, dim2=2))
    scale = scale.T
    error = scale.unsqueeze(2) * scale.unsqueeze(1) / math.sqrt(samples / 2)
    assert (off_diagonal.abs() < 5 * error).all()


def test_low_rank_draws_have_the_covariance_of_their_posterior():
    layer = dubito.BayesLinear(3, 2, dtype=DOUBLE, posterior="low_rank", initial_std=0.3)
    q, samples = layer.posteriors["weight"], 6000
    weights = torch.stack([drawn[q] for drawn in DrawnWeights([q], samples, 0, 0)])
    deviation = weights - q.mean.detach()
    torch.testing.assert_close(deviation.mean(0), torch.zeros(2, 3, dtype=DOUBLE), rtol=0, atol=1e-12)
    error = math.sqrt(2 / (samples / 2)) * q.variance
    assert ((deviation.square().mean(0) - q.variance).abs() < 5 * error).all()


@BUDGETS
@pytest.mark.parametrize("count", [3, 20], ids=["few", "many"])
def test_pairs_of_draws_are_mirror_images(count, memory):
    layer, x = linear(), torch.randn(count, 6, dtype=DOUBLE)
    outputs = dubito.Predictor(layer, 5, memory=memory).draws(x)
    mean = layer.eval()(x).detach()
    assert len(outputs) == 5
    for first, second in ((0, 1), (2, 3)):
        torch.testing.assert_close((outputs[first] + outputs[second]) / 2, mean, rtol=1e-12, atol=1e-13)
    assert (outputs[0] - outputs[2]).abs().max() > 1e-3
    assert (outputs[4] - mean).abs().max() > 1e-3


@BUDGETS
@pytest.mark.parametrize("method", ["weights", "local"])
def test_more_draws_begin_with_the_same(method, memory):
    x = images(12)
    whole = dubito.Predictor(network(), 9, method, memory=memory).draws(x)
    for samples in (1, 2, 5, 8):
        some = dubito.Predictor(network(), samples, method, memory=memory).draws(x)
        torch.testing.assert_close(some, whole[:samples], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("memory", [0, 1 << 20])
@pytest.mark.parametrize("posterior", ["std", "low_rank"])
def test_draws_are_the_same_with_any_number_of_threads(posterior, memory):
    found = list(posteriors(dubito.BayesLinear(30, 20, posterior=posterior)).values())

    def drawn(threads):
        torch.set_num_threads(threads)
        return [torch.cat([w[q].flatten() for q in found]) for w in DrawnWeights(found, 9, 3, memory)]

    alone = drawn(1)
    assert len({tuple(draw.tolist()) for draw in alone}) == 9
    for threads in (2, 3, 8):
        assert all(torch.equal(a, b) for a, b in zip(alone, drawn(threads), strict=True))


def test_other_seeds_give_independent_draws():
    """The first draws of 400 seeds: each differs, and neighbouring seeds are uncorrelated."""
    layer, x = linear(), torch.ones(1, 6, dtype=DOUBLE)
    outputs = torch.stack([dubito.Predictor(layer, 1, seed=seed).draws(x)[0, 0] for seed in range(400)])
    assert len({tuple(row.tolist()) for row in outputs}) == 400
    mean = layer.eval()(x)[0].detach()
    variance = layer.weight_std.detach().square().sum(1) + layer.bias_std.detach().square()
    noise = (outputs - mean) / variance.sqrt()
    assert (noise.mean(0).abs() < 5 / math.sqrt(400)).all()
    assert ((noise.square().mean(0) - 1).abs() < 5 * math.sqrt(2 / 400)).all()
    assert ((noise[1:] * noise[:-1]).mean(0).abs() < 5 / math.sqrt(400)).all()


def test_many_weights_have_independent_standard_noise():
    """Enough of them for the kernel of the noise; layers and draws do not share any."""
    layers = [dubito.BayesLinear(300, 200, initial_std=0.5) for _ in range(2)]
    found = [layer.posteriors["weight"] for layer in layers]
    drawn = list(DrawnWeights(found, 3, 0, 0))
    noise = [((weights[q] - q.mean.detach()) / 0.5).double().flatten() for weights in drawn for q in found]
    size = noise[0].numel()
    for values in noise:
        assert abs(values.mean()) < 5 / math.sqrt(size)
        assert abs(values.square().mean() - 1) < 5 * math.sqrt(2 / size)
    for i, j in ((0, 1), (0, 4), (1, 4), (0, 5), (1, 5), (4, 5), (2, 4), (3, 5)):
        assert abs((noise[i] * noise[j]).mean()) < 5 / math.sqrt(size)


def test_local_draws_have_the_moments_of_their_outputs_and_share_their_noise():
    layer, samples = linear(), 2000
    x = torch.randn(3, 6, dtype=DOUBLE)
    outputs = dubito.Predictor(layer, samples, "local").draws(x)
    mean = layer.eval()(x).detach()
    std = (x.square() @ layer.weight_std.square().T + layer.bias_std.square()).sqrt().detach()
    noise = (outputs - mean) / std
    torch.testing.assert_close(noise[:, 1], noise[:, 0])
    torch.testing.assert_close(noise[:, 2], noise[:, 0])
    assert (noise[:, 0].mean(0).abs() < 5 / math.sqrt(samples)).all()
    assert ((noise[:, 0].square().mean(0) - 1).abs() < 5 * math.sqrt(2 / samples)).all()


def test_positions_of_a_convolution_share_their_weights():
    """A constant image, pooled: by draws of weights the mean has the variance of one position, by local a fraction."""
    layer = dubito.BayesConv2d(1, 2, 1, bias=False, initial_std=0.5, dtype=DOUBLE)
    model = dubito.attach_head(nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten()), "gaussian")
    x, samples = torch.ones(1, 1, 8, 8, dtype=DOUBLE), 1500
    by_weights = dubito.predict(model, x, samples).epistemic
    by_local = dubito.predict(model, x, samples, "local").epistemic
    assert ((by_weights - 0.25).abs() < 5 * 0.25 * math.sqrt(2 / (samples / 2))).all()
    assert ((by_local - 0.25 / 64).abs() < 5 * 0.25 / 64 * math.sqrt(2 / samples)).all()


def test_moments_agree_with_draws_of_a_small_network():
    model, x = network(), images(5)
    by_moments, by_draws = dubito.predict(model, x, method="moments"), dubito.predict(model, x, 1500, "local")
    assert (by_moments.probs - by_draws.probs).abs().max() < 0.02
    assert (by_moments.epistemic / by_draws.epistemic - 1).abs().max() < 0.2


# Posteriors that are read in several places.


class Difference(nn.Module):
    """Twice the same layer, or two layers with tied weights: their difference is 0 if they have the same draw."""

    def __init__(self, size: int, tied: bool) -> None:
        super().__init__()
        self.a = nn.Linear(size, size, bias=False)
        self.b = nn.Linear(size, size, bias=False) if tied else self.a
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.a(x) - self.b(x)


@BUDGETS
@pytest.mark.parametrize("count", [3, 40], ids=["few", "many"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "called twice"])
def test_a_posterior_has_one_draw_wherever_it_is_read(tied, count, memory):
    model = dubito.to_bayesian(Difference(20, tied).double(), head="gaussian", initial_std=0.5)
    x = torch.randn(count, 20, dtype=DOUBLE)
    assert dubito.Predictor(model, 6, memory=memory)(x).epistemic.abs().max() < 1e-24
    other = dubito.to_bayesian(Difference(20, False).double(), head="gaussian", initial_std=0.5)
    other.b = dubito.BayesLinear(20, 20, bias=False, initial_std=0.5, dtype=DOUBLE)
    assert dubito.Predictor(other, 6, memory=memory)(x).epistemic.min() > 1e-2


class Reading(nn.Module):
    """Modules that read a drawn weight without calling its layer, in the ways that people write."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 3), nn.LayerNorm(3)
        if how == "a list":
            self.reader = InList(self.layer)
        elif how == "a bound method":
            self.reader = Calling(self.layer.forward)
        else:
            self.reader = None

    def forward(self, x):
        if self.reader is None:
            return self.norm(nn.functional.linear(x, self.layer.weight, self.layer.bias))
        return self.norm(self.reader(x))


class InList(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.held = [layer]

    def forward(self, x):
        return nn.functional.linear(x, self.held[0].weight, self.held[0].bias)


class Calling(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("how", ["a list", "a bound method", "itself"])
def test_who_reads_a_weight_without_calling_its_layer_gets_the_draw(how):
    model = dubito.to_bayesian(Reading(how).double(), head="softmax", initial_std=0.3)
    predictor, x = dubito.Predictor(model, 6), torch.randn(20, 4, dtype=DOUBLE)
    found = predictor(x)
    assert (found.epistemic > 1e-5).all()
    torch.testing.assert_close(predictor(x[:3]).epistemic, found.epistemic[:3])
    torch.testing.assert_close(dubito.Predictor(model, 6, "weights", memory=0)(x).epistemic, found.epistemic)


@pytest.mark.parametrize("some", [("weight_ih_l0",), ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")])
def test_recurrent_layers_run_with_the_drawn_weights(some):
    torch.manual_seed(0)
    rnn = nn.LSTM(4, 5, batch_first=True, dtype=DOUBLE)
    plain = nn.LSTM(4, 5, batch_first=True, dtype=DOUBLE)
    plain.load_state_dict(rnn.state_dict())
    posterior = {name: StdPosterior(rnn.get_parameter(name), std=0.3) for name in some}
    for name, q in posterior.items():
        draw_parameter(rnn, name, q)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = rnn

        def forward(self, x):
            return self.rnn(x)[0][:, -1]

    predictor = dubito.Predictor(dubito.attach_head(Last(), "gaussian"), 4)
    for count in (3, 20, 3):
        x = torch.randn(count, 6, 4, dtype=DOUBLE)
        outputs = predictor.draws(x)
        for drawn, found in zip(DrawnWeights(list(posterior.values()), 4, 0, 0), outputs, strict=True):
            plain.load_state_dict({name: drawn[q] for name, q in posterior.items()}, strict=False)
            torch.testing.assert_close(found, plain(x)[0][:, -1].detach(), rtol=1e-10, atol=1e-12)


# How they are computed.


def by_loop(monkeypatch, model, x, samples=6, **options):
    monkeypatch.setattr(module, "FEW_IMAGES", 0)
    found = dubito.Predictor(model, samples, **options).draws(x)
    monkeypatch.undo()
    return found


class InPlace(nn.Module):
    """Changes what it is given, and what its layers gave."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = dubito.BayesLinear(4, 5, initial_std=0.3), dubito.BayesLinear(5, 3, initial_std=0.3)

    def forward(self, x):
        x -= 0.5
        h = self.layer(x.relu_())
        h[:, 0] = 0.0
        h += 1
        return self.last(h)


class Deciding(nn.Module):
    """Goes another way if an output is large: one that depends on the draw."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = dubito.BayesLinear(4, 5, initial_std=0.5), dubito.BayesLinear(5, 3, initial_std=0.3)

    def forward(self, x):
        h = self.layer(x)
        return self.last(h if h.detach().sum() > 0 else -2 * h)


class Asking(nn.Module):
    """Leaves torch on the way."""

    def __init__(self):
        super().__init__()
        self.layer = dubito.BayesLinear(4, 3, initial_std=0.5)

    def forward(self, x):
        return torch.from_numpy(self.layer(x).numpy() * 2)


@pytest.mark.parametrize("kind", [InPlace, Deciding, Asking])
def test_networks_that_no_batched_product_can_run_are_drawn_one_by_one(kind, monkeypatch):
    """`Deciding` looks at the sum over a batch, so it is asked for the same batch both ways."""
    torch.manual_seed(0)
    model = dubito.attach_head(kind(), "softmax").double()
    x = torch.randn(5, 4, dtype=DOUBLE)
    given = x.clone()
    found = dubito.Predictor(model, 6).draws(given)
    assert torch.equal(given, x)
    torch.testing.assert_close(found, by_loop(monkeypatch, model, x))
    assert len({tuple(draw.flatten().tolist()) for draw in found}) == 6
    plain = torch.stack([net(x.clone()).softmax(1) for net in dubito.Predictor(model, 6).networks()])
    torch.testing.assert_close(found, plain.detach())


@pytest.mark.parametrize("count", [1, module.FEW_IMAGES, module.FEW_IMAGES + 1])
def test_few_images_in_one_product_and_many_one_by_one_agree(count, monkeypatch):
    model = network()
    found = dubito.Predictor(model, 6).draws(images(count))
    torch.testing.assert_close(found, by_loop(monkeypatch, model, images(count)), rtol=1e-11, atol=1e-13)


def test_few_images_run_through_the_network_once():
    model = network()
    looked_at.add(model)
    shapes = []
    model[1].register_forward_hook(lambda part, inputs, output: shapes.append(tuple(inputs[0].shape)))
    predictor = dubito.Predictor(model, 6)
    predictor(images(3))
    assert shapes == [(3, 3, 4, 4)]  # the axis of the draws is hidden by vmap
    shapes.clear()
    predictor(images(40))
    assert shapes == [(40, 3, 4, 4)] * 6


def test_errors_of_a_network_are_its_own_also_for_few_images():
    with pytest.raises(RuntimeError, match=r"mat1 and mat2 shapes cannot be multiplied|same dtype|size mismatch"):
        dubito.predict(network(), torch.ones(2, 1, 9, 9, dtype=DOUBLE))


@pytest.mark.parametrize("count", [5, 20], ids=["few", "many"])
def test_networks_are_the_draws(count):
    predictor, x = dubito.Predictor(network(), 5), images(count)
    networks = predictor.networks()
    assert len(networks) == 5
    for plain, draw in zip(networks, predictor.draws(x), strict=True):
        assert not any(isinstance(part, dubito.BayesLayer) for part in plain.modules())
        assert not any(part.training for part in plain.modules())
        assert not any(p.requires_grad for p in plain.parameters())
        torch.testing.assert_close(dubito.softplus_normalize(plain(x)), draw, rtol=1e-12, atol=1e-14)
    state = networks[0].state_dict()
    with torch.no_grad():
        networks[1][0].weight.zero_()
    assert torch.equal(networks[0].state_dict()["0.weight"], state["0.weight"])
    torch.testing.assert_close(dubito.softplus_normalize(predictor.networks()[1](x)), predictor.draws(x)[1])


def test_the_network_of_the_mean_is_the_mean():
    model = network()
    (plain,) = dubito.Predictor(model, method="mean").networks()
    torch.testing.assert_close(plain(images(20)), model.eval()(images(20)).detach())


def test_network_without_posteriors_is_one_draw():
    model = dubito.attach_head(nn.Linear(3, 2), "softmax")
    for method in ("weights", "local", "moments", "mean"):
        predictor = dubito.Predictor(model, 10, method)
        prediction = predictor(torch.randn(20, 3))
        assert predictor.samples == prediction.samples == len(predictor.draws(torch.ones(1, 3))) == 1
        assert prediction.epistemic.max() == 0
        assert prediction.mutual_information.max() == 0
