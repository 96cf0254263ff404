"""Any parameter of any network can be drawn: what has no Bayesian twin, and what nobody calls."""

import collections
import functools
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dubito
from dubito.convert import deep_copy
from dubito.estimators import Weight
from dubito.layers import BayesLayer, DrawnParameter, draw_parameter
from dubito.variational.families import StdPosterior
from dubito.variational.posterior import drawn, one_pass, posteriors

STD = 0.05


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x):
        return self.attention(x, x[..., : self.attention.kdim], x[..., : self.attention.vdim])[0].mean(1)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x).mean(1)


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.recurrent = kind(8, 5, batch_first=True, **options)

    def forward(self, x):
        return self.recurrent(x)[0].mean(1)


class Words(nn.Module):
    """An embedding whose weight the decoder shares, for sequences of whole numbers."""

    def __init__(self, tied):
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(8, 6), nn.Linear(6, 8, bias=False)
        if tied:
            self.decoder.weight = self.embedding.weight

    def forward(self, x):
        return self.decoder(self.embedding(x.argmax(-1)).mean(1))


class SamePadding(nn.Conv2d):
    """A convolution that pads by itself, as EfficientNets have them."""

    def forward(self, x):
        sizes = zip(x.shape[-2:], self.weight.shape[-2:], self.stride, strict=True)
        missing = [max((-(-size // stride) - 1) * stride + kernel - size, 0) for size, kernel, stride in sizes]
        x = F.pad(x, [missing[1] // 2, missing[1] - missing[1] // 2, missing[0] // 2, missing[0] - missing[0] // 2])
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.linear = SamePadding(1, 4, 3, stride=2), nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(self.convolution(x.unsqueeze(1)).relu().mean((2, 3)))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        return F.linear(x.mean(1), self.layer.weight) + self.layer.bias


class Slotted:
    """An object without a dictionary."""

    __slots__ = ("layer", "unset")

    def __init__(self, layer):
        self.layer = layer

    def __call__(self, x):
        return self.layer(x)


class Holder(nn.Module):
    """Calls a layer through something else than an attribute of its own."""

    def __init__(self, how):
        super().__init__()
        self.layer = layer = nn.Linear(8, 3)
        self.held = {
            "method": lambda: layer.forward,
            "partial": lambda: functools.partial(layer),
            "partial method": lambda: functools.partial(layer.forward),
            "closure": lambda: lambda x: layer(x),
            "closure of a list": lambda parts=[layer]: lambda x: parts[0](x),
            "default": lambda: lambda x, layer=layer: layer(x),
            "object": lambda: types.SimpleNamespace(layer=layer),
            "slots": lambda: Slotted(layer),
            "deque": lambda: collections.deque([layer]),
        }[how]()

    def forward(self, x):
        held = self.held.layer if isinstance(self.held, types.SimpleNamespace) else self.held
        held = held[0] if isinstance(held, collections.deque) else held
        return held(x.mean(1))


def patched(how):
    """A layer whose forward was changed on the instance alone."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    layer, old = network[1], network[1].forward
    if how == "method":
        layer.forward = types.MethodType(lambda self, x: 3 * F.linear(x, self.weight, self.bias), layer)
    else:
        layer.forward = lambda x: 3 * old(x)
    return network


class TiedLinear(nn.Module):
    """Two layers that share a weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x.mean(1)))


NETWORKS = {
    "attention": Attention,
    "attention of other sizes": lambda: Attention(kdim=4, vdim=6, add_bias_kv=True),
    "encoder": Encoder,
    "LSTM": lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "LSTM with projections": lambda: Recurrent(nn.LSTM, proj_size=3),
    "GRU": lambda: Recurrent(nn.GRU),
    "embedding": lambda: Words(tied=False),
    "tied embedding": lambda: Words(tied=True),
    "tied linear layers": TiedLinear,
    "subclass": Padded,
    "reader": Reader,
    "patched method": lambda: patched("method"),
    "patched closure": lambda: patched("closure"),
    **{
        f"held by {how}": functools.partial(Holder, how)
        for how in (
            *("method", "partial", "partial method", "closure", "closure of a list", "default"),
            *("object", "slots", "deque"),
        )
    },
}
everywhere = pytest.mark.parametrize("name", NETWORKS)


def images() -> torch.Tensor:
    return torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(0))


def plain_and_bayesian(name: str, **options) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    return network, dubito.to_bayesian(network, head="softmax", **{"initial_std": STD, **options})


def filled(name: str, weights: dict[str, torch.Tensor]) -> nn.Module:
    """A fresh plain network with these weights."""
    network = NETWORKS[name]()
    network.load_state_dict(weights)
    return network.eval()


@everywhere
def test_every_parameter_has_one_posterior_centred_on_it(name):
    network, model = plain_and_bayesian(name)
    parameters, found = list(network.parameters()), [q.mean for q in posteriors(model).values()]
    linear = [p for n, p in network.named_parameters() if "norm" not in n]
    assert len(found) == len(linear)
    assert sum(q.numel() for q in found) == sum(p.numel() for p in linear)
    assert len(list(model.parameters())) == len(parameters) + len(linear)  # and a spread for each
    rows = dubito.summary(model).rows
    assert sum(row.weights for row in rows) == sum(p.numel() for p in parameters)
    assert all(row.bayesian for row in rows if "Norm" not in row.kind)


@everywhere
def test_evaluation_is_the_plain_network_in_every_mode_of_autograd(name):
    network, model = plain_and_bayesian(name)
    network.eval(), model.eval()
    torch.testing.assert_close(model(images()), network(images()))
    with torch.no_grad():  # where attention takes a fast path of its own
        torch.testing.assert_close(model(images()), network(images()))
    with torch.inference_mode():
        torch.testing.assert_close(model(images()), network(images()))


@everywhere
def test_training_computes_with_the_weights_of_its_pass(name):
    """The output is that of the plain network with the drawn weights, all of them."""
    network, model = plain_and_bayesian(name, estimator="weight")
    with one_pass():
        output = model(images())
        back = dubito.to_deterministic(model)
        with torch.no_grad():
            means = {id(q.mean): drawn(q) for q in posteriors(model).values()}
    named = dict(zip(names_of(back), posteriors_by_name(model), strict=True))
    state = {key: means[id(named[key].mean)] if key in named else value for key, value in back.state_dict().items()}
    torch.testing.assert_close(filled(name, state)(images()), output, rtol=1e-4, atol=1e-5)
    assert not torch.equal(model(images()), output)
    assert network.training


def names_of(network: nn.Module) -> list[str]:
    return [n for n, _ in network.named_parameters(remove_duplicate=False) if "norm" not in n]


def posteriors_by_name(model: nn.Module) -> list:
    """The posterior of each parameter, tied ones repeated, in the order of the plain network's parameters."""
    plain, slots = dubito.convert.deterministic.plain_network(model)
    where = {part: name for name, part in plain.named_modules()}
    by_name = {f"{where[module]}.{name}".lstrip("."): q for module, name, q in slots}
    dubito.convert.deterministic.fill(slots, {q: nn.Parameter(q.mean.detach()) for q in by_name.values()})
    return [by_name[name] for name in names_of(plain)]


@everywhere
def test_each_parameter_alone_makes_epistemic_uncertainty(name):
    """Were one of them not drawn, its uncertainty would be 0."""
    _, model = plain_and_bayesian(name)
    assert bool((dubito.predict(model, images(), samples=4).epistemic > 0).all())
    for chosen in posteriors(model):
        alone = deep_copy(model)
        for other, q in posteriors(alone).items():
            q.set_std(0.2 if other == chosen else 1e-12)
        assert float(dubito.predict(alone, images(), samples=4).epistemic.max()) > 1e-9, chosen


@everywhere
def test_a_predictors_draws_are_those_of_its_plain_networks(name):
    _, model = plain_and_bayesian(name)
    predictor = dubito.Predictor(model, samples=4)
    draws = predictor.draws(images())
    for probs, network in zip(draws, predictor.networks(), strict=True):
        logits = filled(name, network.state_dict())(images())
        torch.testing.assert_close(logits.softmax(1), probs, rtol=1e-4, atol=1e-6)
    assert torch.pdist(draws.flatten(1)).min() > 0


@everywhere
def test_going_back_gives_the_network_that_was(name):
    network, model = plain_and_bayesian(name)
    back = dubito.to_deterministic(model)
    assert [type(part) for part in back.modules()][1:] == [type(part) for part in network.modules()][1:]
    assert back.state_dict().keys() == network.state_dict().keys()
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in back.state_dict().items())
    torch.testing.assert_close(back.eval()(images()), network.eval()(images()), rtol=0, atol=0)
    assert len(list(back.parameters())) == len(list(network.parameters()))  # tied ones stay tied
    once = dubito.to_deterministic(model, draw=True, generator=torch.Generator().manual_seed(1)).eval()
    again = dubito.to_deterministic(model, draw=True, generator=torch.Generator().manual_seed(1)).eval()
    assert torch.equal(once(images()), again(images()))
    assert not torch.equal(once(images()), back(images()))


@everywhere
def test_state_dict_and_copies_carry_everything(name):
    network, model = plain_and_bayesian(name, prior=0.3)
    torch.manual_seed(5)
    other = dubito.to_bayesian(NETWORKS[name](), head="softmax", initial_std=0.2)
    other.load_state_dict(model.state_dict())
    expected = dubito.predict(model, images(), samples=4)
    for same in (other, deep_copy(model), deep_copy(model).double().float()):
        assert torch.equal(dubito.kl_divergence(same), dubito.kl_divergence(model))
        torch.testing.assert_close(dubito.predict(same, images(), samples=4).probs, expected.probs)
    copied = deep_copy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(1.0)
    torch.testing.assert_close(dubito.predict(model, images(), samples=4).probs, expected.probs, rtol=0, atol=0)
    again = dubito.to_bayesian(model, initial_std=0.5)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert torch.equal(dubito.kl_divergence(again), dubito.kl_divergence(model))
    assert [type(part).__name__ for part in network.modules()] == [type(p).__name__ for p in NETWORKS[name]().modules()]


@everywhere
def test_a_step_of_training_reaches_every_posterior(name):
    _, model = plain_and_bayesian(name)
    terms = dubito.ELBO(100)(model, images(), torch.arange(3))
    terms.loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@everywhere
@pytest.mark.parametrize("family", ["alpha", "low_rank"])
def test_other_families_are_drawn_too(name, family):
    _, model = plain_and_bayesian(name, posterior=family)
    assert not torch.equal(model(images()), model(images()))
    assert bool((dubito.predict(model, images(), samples=4).epistemic > 0).all())
    assert {q.name for q in posteriors(model).values()} == {family}


@pytest.mark.parametrize("name", ["tied embedding", "tied linear layers"])
def test_tied_weights_have_one_posterior_one_draw_a_pass_and_count_once(name):
    network, model = plain_and_bayesian(name, estimator="local")
    (q,) = posteriors(model).values()
    normal = torch.distributions.Normal(q.mean, q.std)
    expected = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0)).sum()
    torch.testing.assert_close(dubito.kl_divergence(model), expected)
    with one_pass():
        output, weight = model(images()), drawn(q)
    torch.testing.assert_close(filled(name, dict.fromkeys(network.state_dict(), weight))(images()), output)


def test_tied_layers_of_which_one_is_converted_share_the_mean():
    network = Words(tied=True)
    model = dubito.to_bayesian(network, only="embedding", initial_std=STD)
    (q,) = posteriors(model).values()
    assert model.decoder.weight is q.mean
    assert bool(dubito.predict(model, images(), head="softmax").epistemic.min() > 0)
    whole = dubito.to_bayesian(model)
    assert list(posteriors(whole).values()) == [whole.decoder.posteriors["weight"]]


def test_normalisation_is_drawn_where_only_names_its_parameters():
    torch.manual_seed(0)
    network = nn.Sequential()
    network.bn, network.flatten, network.fc = nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(32, 3)
    model = dubito.to_bayesian(network, only="bn.weight", head="softmax", initial_std=STD)
    (q,) = posteriors(model).values()
    assert torch.equal(q.mean, network.bn.weight)
    assert isinstance(model.bn, nn.BatchNorm1d)
    assert type(model.fc) is nn.Linear
    assert isinstance(model.bn.bias, nn.Parameter)
    assert not torch.equal(model(images()), model(images()))
    assert bool((dubito.predict(model, images()).epistemic > 0).all())
    both = dubito.to_bayesian(network, only=["bn.weight", "fc", "*.bias"], initial_std=STD)
    assert len(posteriors(both)) == 4
    assert type(dubito.to_deterministic(model).bn) is nn.BatchNorm1d


def test_one_parameter_of_many_can_be_named():
    model = dubito.to_bayesian(Attention(), only="attention.in_proj_weight", initial_std=STD)
    assert [q.mean.shape for q in posteriors(model).values()] == [(24, 8)]
    model = dubito.to_bayesian(Recurrent(nn.LSTM), only="*.weight_hh_l0", initial_std=STD)
    assert [q.mean.shape for q in posteriors(model).values()] == [(20, 5)]
    assert bool((dubito.predict(model, images(), head="softmax").epistemic > 0).all())


def test_a_layer_that_is_held_elsewhere_stays_itself_and_others_become_twins():
    model = dubito.to_bayesian(nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.Unflatten(1, (1, 8)), Holder("object")))
    assert isinstance(model[1], BayesLayer)
    assert isinstance(model[3].layer, nn.Linear)
    assert model[3].held.layer is model[3].layer


def test_copies_leave_the_functions_of_the_original_alone():
    network = Holder("closure")
    before = network.held
    model = dubito.to_bayesian(network)
    assert network.held is before
    assert network.held.__closure__[0].cell_contents is network.layer
    assert model.held.__closure__[0].cell_contents is model.layer
    assert model.held.__name__ == before.__name__


def test_functions_that_hold_themselves_or_nothing_yet_are_copied():
    network = Holder("closure")

    def again(x, depth=1):
        return again(x, depth - 1) if depth else network.layer(x)

    def empty():
        return later

    network.held, network.empty = again, empty
    if network is None:
        later = 1
    model = dubito.to_bayesian(network, initial_std=STD)
    assert not torch.equal(model(images()), model(images()))


def test_inplace_conversion_keeps_what_holds_a_layer():
    network = Holder("closure")
    expected = network.eval()(images())
    model = dubito.to_bayesian(network, inplace=True, initial_std=STD)
    assert model is network
    torch.testing.assert_close(model(images()), expected)
    assert not torch.equal(model.train()(images()), model(images()))
    assert torch.equal(dubito.to_deterministic(model, inplace=True).eval()(images()), expected)


def test_bayesian_layers_that_functions_hold_are_drawn_by_predictors():
    class Native(nn.Module):
        def __init__(self, how):
            super().__init__()
            self.layer = layer = dubito.BayesLinear(8, 3, initial_std=STD)
            self.held = {"method": layer.forward, "closure": lambda x: layer(x), "partial": functools.partial(layer)}[
                how
            ]

        def forward(self, x):
            return self.held(x.mean(1))

    for how in ("method", "closure", "partial"):
        network = Native(how)
        assert bool((dubito.predict(network, images(), head="softmax").epistemic > 0).all()), how
        torch.testing.assert_close(dubito.to_deterministic(network)(images()), network.eval()(images()))


def test_a_drawn_parameter_follows_mode_estimator_and_pass():
    embedding = nn.Embedding(5, 3)
    weight = embedding.weight
    draw_parameter(embedding, "weight", StdPosterior(weight, 0.3))
    assert not torch.equal(embedding.weight, embedding.weight)
    with one_pass():
        assert embedding.weight is embedding.weight
    with dubito.estimator(embedding, "mean"):
        assert embedding.weight is weight
    embedding.eval()
    assert embedding.weight is weight
    with dubito.estimator(embedding, Weight()):
        assert not torch.equal(embedding.weight, embedding.weight)
    with dubito.estimator(embedding, "local"):  # which has nothing to say about a parameter that is read
        assert not torch.equal(embedding.weight, embedding.weight)
    assert list(dict(embedding.named_parameters())) == [
        "parametrizations.weight.0.posterior.mean",
        "parametrizations.weight.0.posterior.rho",
    ]
    assert isinstance(embedding.parametrizations.weight[0], DrawnParameter)


def test_gradients_of_a_drawn_parameter_are_those_of_the_reparameterised_weights():
    torch.manual_seed(0)
    layer = Padded().convolution.double()
    q = StdPosterior(layer.weight, 0.3)
    draw_parameter(layer, "weight", q)
    x = torch.randn(2, 1, 4, 8, dtype=torch.float64)
    torch.manual_seed(1)
    with one_pass():  # for the layer reads its weight twice
        found = torch.autograd.grad(layer(x).square().sum(), (q.mean, q.rho))
    torch.manual_seed(1)
    noise = torch.randn(36, dtype=torch.float64).view(4, 1, 3, 3)
    plain = SamePadding(1, 4, 3, stride=2).double()
    weight = q.mean + F.softplus(q.rho) * noise
    output = torch.func.functional_call(plain, {"weight": weight, "bias": layer.bias}, (x,))
    torch.testing.assert_close(found, torch.autograd.grad(output.square().sum(), (q.mean, q.rho)))
