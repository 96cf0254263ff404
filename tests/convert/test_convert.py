"""Conversion of any network: what it keeps, what it shares, what it leaves alone."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import dubito
from dubito.errors import NonFiniteError, OptionError
from dubito.estimators import Weight
from dubito.heads import SoftplusHead, resolve_head
from dubito.layers import TWINS
from dubito.variational.prior import GaussianPrior
from layer_zoo import ARGUMENTS, KINDS, make_input

OPTIONS = {
    "Linear": {"in_features": 3, "out_features": 4},
    "Conv1d": {
        "in_channels": 4,
        "out_channels": 6,
        "kernel_size": 3,
        "stride": 2,
        "padding": 2,
        "dilation": 2,
        "groups": 2,
    },
    "Conv2d": {
        "in_channels": 2,
        "out_channels": 4,
        "kernel_size": (3, 2),
        "padding": (1, 1),
        "padding_mode": "reflect",
    },
    "Conv3d": {"in_channels": 1, "out_channels": 2, "kernel_size": 2, "padding": "same", "padding_mode": "circular"},
    "ConvTranspose1d": {
        "in_channels": 2,
        "out_channels": 4,
        "kernel_size": 3,
        "stride": 3,
        "output_padding": 2,
        "groups": 2,
    },
    "ConvTranspose2d": {"in_channels": 2, "out_channels": 2, "kernel_size": 2, "dilation": 2, "padding": 1},
    "ConvTranspose3d": {
        "in_channels": 1,
        "out_channels": 2,
        "kernel_size": (1, 2, 1),
        "stride": 2,
        "output_padding": 1,
    },
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_root_layer_keeps_its_weights_options_and_dtype(kind, dtype, bias):
    torch.manual_seed(0)
    layer = getattr(nn, kind)(**OPTIONS[kind], bias=bias, dtype=dtype)
    twin = dubito.to_bayesian(layer, initial_std=1e-8)
    assert type(twin) is getattr(dubito, f"Bayes{kind}")
    assert torch.equal(twin.weight_mean, layer.weight)
    assert (twin.bias_mean is None) if not bias else torch.equal(twin.bias_mean, layer.bias)
    assert {t.dtype for t in (*twin.parameters(), *twin.buffers())} == {dtype}
    x = make_input(kind, dtype=dtype)
    torch.testing.assert_close(twin(x), layer(x), rtol=1e-5, atol=1e-5)


class Network(nn.Module):
    """Nested, with a shared layer under three names, a missing child, a buffer and layers of other kinds."""

    def __init__(self):
        super().__init__()
        shared = nn.Linear(8, 8)
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Sequential(nn.Conv2d(8, 8, 3))
        )
        self.first, self.second = shared, shared
        self.deeper = nn.ModuleDict({"again": shared, "list": nn.ModuleList([nn.Linear(8, 3)])})
        self.nothing = None
        self.register_module("missing", None)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x):
        x = self.features(x).mean((2, 3)) * self.scale
        return self.deeper["list"][0](self.deeper["again"](self.second(self.first(x))))


def test_nested_network_computes_the_same_at_its_mean():
    torch.manual_seed(0)
    network = Network().eval()
    x = torch.randn(4, 1, 6, 6)
    torch.testing.assert_close(dubito.to_bayesian(network)(x), network(x), rtol=0, atol=0)


def test_every_layer_is_converted_and_shared_ones_stay_shared():
    converted = dubito.to_bayesian(Network())
    assert not [m for m in converted.modules() if type(m) in (nn.Linear, nn.Conv2d)]
    assert sum(isinstance(m, dubito.BayesLayer) for m in converted.modules()) == 4
    assert converted.first is converted.second is converted.deeper["again"]


def test_layer_twice_in_one_sequence_stays_one_layer():
    layer = nn.Linear(4, 4)
    converted = dubito.to_bayesian(nn.Sequential(layer, nn.ReLU(), layer))
    assert isinstance(converted[2], dubito.BayesLinear)
    assert converted[0] is converted[2]
    assert torch.equal(dubito.kl_divergence(converted), converted[0].kl_divergence())


def test_tied_weights_have_one_posterior_and_are_counted_once():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    network[1].weight = network[0].weight
    converted = dubito.to_bayesian(network)
    assert converted[0].weight_mean is converted[1].weight_mean
    assert converted[0].posteriors["weight"] is converted[1].posteriors["weight"]
    assert len(list(converted.parameters())) == 2
    assert torch.equal(dubito.kl_divergence(converted), converted[0].kl_divergence())


def test_original_is_untouched_and_shares_nothing():
    torch.manual_seed(0)
    network = Network()
    state, modules = copy.deepcopy(network.state_dict()), [type(m) for m in network.modules()]
    converted = dubito.to_bayesian(network)
    with torch.no_grad():
        for tensor in (*converted.parameters(), *converted.buffers()):
            tensor.fill_(7)
    assert [type(m) for m in network.modules()] == modules
    assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())


def test_second_conversion_changes_nothing():
    torch.manual_seed(0)
    once = dubito.to_bayesian(Network(), prior=0.3, initial_std=0.2, posterior="alpha")
    twice = dubito.to_bayesian(once, prior=5.0, initial_std=0.001)
    assert [type(m) for m in twice.modules()] == [type(m) for m in once.modules()]
    assert twice.state_dict().keys() == once.state_dict().keys()
    assert all(torch.equal(value, once.state_dict()[key]) for key, value in twice.state_dict().items())


def test_modes_of_all_modules_are_kept():
    network = Network()
    network.features.eval()
    converted = dubito.to_bayesian(network)
    modes = {name: part.training for name, part in network.named_modules()}
    assert {name: part.training for name, part in converted.named_modules() if name in modes} == modes
    inside = [part.training for part in converted.features.modules()]
    assert not any(inside)


def test_frozen_weights_stay_frozen():
    layer = nn.Linear(2, 2)
    layer.weight.requires_grad_(False)
    assert [p.requires_grad for p in (dubito.to_bayesian(layer).weight_mean, dubito.to_bayesian(layer).bias_mean)] == [
        False,
        True,
    ]


def test_options_go_to_every_layer():
    options = {"estimator": Weight(draws=2), "posterior": "alpha", "prior": GaussianPrior(0.1, 0.4)}
    converted = dubito.to_bayesian(Network(), **options, initial_std=0.03, bayesian_bias=False)
    for layer in converted.modules():
        if isinstance(layer, dubito.BayesLayer):
            assert layer.estimator == Weight(draws=2)
            assert layer.bias_std is None
            assert layer.posteriors["weight"].prior.std.item() == pytest.approx(0.4)
            torch.testing.assert_close(layer.weight_std, torch.full_like(layer.weight_mean, 0.03))


def test_empirical_prior_of_a_pretrained_network_costs_only_its_spread():
    torch.manual_seed(0)
    network = nn.Linear(4, 4, dtype=torch.float64)
    converted = dubito.to_bayesian(network, prior=dubito.variational.prior.EmpiricalPrior(0.1), initial_std=0.1)
    assert converted.kl_divergence().item() == pytest.approx(0, abs=1e-12)


def test_head_becomes_the_copys_own():
    network = nn.Linear(4, 4)
    assert resolve_head(dubito.to_bayesian(network, head="softplus")) == SoftplusHead()
    assert not hasattr(network, "probability_head")


def test_network_with_nan_weights_is_refused_by_name():
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        network[1].bias[0] = math.inf
    with pytest.raises(NonFiniteError, match=r"cannot be made Bayesian: NaN or infinite values in 1\.bias"):
        dubito.to_bayesian(network)


def test_unknown_options_are_refused():
    with pytest.raises(OptionError, match="estimator is 'none', but must be one of"):
        dubito.to_bayesian(nn.Linear(2, 2), estimator="none")


def test_every_kind_of_layer_has_a_twin():
    assert set(ARGUMENTS) == {kind.__name__ for kind in TWINS}


def test_global_random_state_is_left_alone():
    network = Network()
    torch.manual_seed(3)
    expected = torch.randn(2)
    torch.manual_seed(3)
    dubito.to_bayesian(network)
    assert torch.equal(torch.randn(2), expected)


@pytest.mark.parametrize(
    ("only", "names"),
    [
        ("features", ["features.0", "features.2.0"]),
        ("features.2*", ["features.2.0"]),
        ("*.0", ["features.0", "features.2.0", "deeper.list.0"]),
        ("deeper.again", ["first"]),  # a shared layer is picked by any of its names
        (nn.Conv2d, ["features.0", "features.2.0"]),
        (nn.ModuleList, ["deeper.list.0"]),
        (["features.0", nn.Linear], ["features.0", "first", "deeper.list.0"]),
        (lambda name, layer: getattr(layer, "out_features", 0) == 3, ["deeper.list.0"]),
    ],
)
def test_only_picks_layers_by_name_type_or_function(only, names):
    converted = dubito.to_bayesian(Network(), only=only)
    assert [name for name, m in converted.named_modules() if isinstance(m, dubito.BayesLayer)] == names


def test_last_layer_is_the_last_of_those_picked():
    converted = dubito.to_bayesian(Network(), last_layer=True)
    assert [n for n, m in converted.named_modules() if isinstance(m, dubito.BayesLayer)] == ["deeper.list.0"]
    converted = dubito.to_bayesian(Network(), only="features", last_layer=True)
    assert [n for n, m in converted.named_modules() if isinstance(m, dubito.BayesLayer)] == ["features.2.0"]
    again = dubito.to_bayesian(converted, only="features", last_layer=True)
    assert [type(m) for m in again.modules()] == [type(m) for m in converted.modules()]


@pytest.mark.parametrize(
    ("only", "sentence"),
    [
        ("classifier", r"only=classifier picks no layer that can be made Bayesian among features\.0, features\.2\.0"),
        (nn.BatchNorm2d, r"features\.1 \(BatchNorm2d\): normalisation layers are converted only if"),
        (lambda name, layer: False, r"only=<lambda> picks no layer"),
        ([], "has no layer that can be made Bayesian"),
        (3, "only has 3, but must be a pattern of names, a type, or a function"),
    ],
)
def test_a_choice_that_picks_nothing_says_what_there_is(only, sentence):
    with pytest.raises(OptionError, match=sentence):
        dubito.to_bayesian(Network(), only=only)


def test_a_network_without_anything_to_convert_names_what_stands_in_the_way():
    network = nn.Sequential(nn.ReLU(), nn.Sequential(nn.BatchNorm1d(4)))
    with pytest.raises(
        OptionError,
        match=r"Sequential\) has no layer .*: 1\.0 \(BatchNorm1d\): normalisation layers",
    ):
        dubito.to_bayesian(network)


def test_inplace_changes_the_network_itself_and_leaves_it_whole_after_an_error():
    network = Network()
    weight = network.first.weight
    with pytest.raises(OptionError):
        dubito.to_bayesian(network, inplace=True, estimator="none")
    assert type(network.first) is nn.Linear
    assert dubito.to_bayesian(network, inplace=True) is network
    assert network.first.weight_mean is weight


@pytest.mark.parametrize("inplace", [True, False])
def test_hooks_survive_both_ways(inplace):
    network = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    calls = []
    network[0].register_forward_pre_hook(lambda m, args: calls.append("before"))
    network[0].register_forward_hook(lambda m, args, kwargs, out: calls.append("after"), with_kwargs=True)
    handle = network[0].register_full_backward_hook(lambda m, i, o: calls.append("backward"))
    converted = dubito.to_bayesian(network, inplace=inplace)
    x = torch.ones(1, 3, requires_grad=True)
    converted(x).sum().backward()
    assert calls == ["before", "after", "backward"]
    back = dubito.to_deterministic(converted, inplace=inplace)
    back(x).sum().backward()
    assert calls == ["before", "after", "backward"] * 2
    handle.remove()
    back(x).sum().backward()
    assert calls[6:] == (["before", "after"] if inplace else ["before", "after", "backward"])


def test_frozen_weights_have_frozen_standard_deviations():
    layer = nn.Linear(2, 2)
    layer.weight.requires_grad_(False)
    converted = dubito.to_bayesian(layer)
    assert [q.rho.requires_grad for q in converted.posteriors.values()] == [False, True]
    back = dubito.to_deterministic(converted, draw=True)
    assert (back.weight.requires_grad, back.bias.requires_grad) == (False, True)


@pytest.mark.parametrize("kind", KINDS)
def test_going_back_gives_the_layer_that_was(kind):
    torch.manual_seed(0)
    layer = getattr(nn, kind)(**OPTIONS[kind], dtype=torch.float64).eval()
    back = dubito.to_deterministic(dubito.to_bayesian(layer))
    assert type(back) is type(layer)
    assert back.extra_repr() == layer.extra_repr()
    assert not back.training
    x = make_input(kind)
    assert torch.equal(back(x), layer(x))


def test_going_back_keeps_a_network_whole():
    torch.manual_seed(0)
    network = Network().eval()
    converted = dubito.to_bayesian(network, head="softplus")
    back = dubito.to_deterministic(converted)
    assert [type(m) for m in back.modules()] == [type(m) for m in network.modules()]
    assert all(torch.equal(value, network.state_dict()[key]) for key, value in back.state_dict().items())
    assert back.first is back.deeper["again"]
    assert resolve_head(back) == SoftplusHead()
    assert isinstance(converted.first, dubito.BayesLinear)


@pytest.mark.parametrize("family", ["std", "alpha"])
def test_a_drawn_network_has_the_moments_of_the_posterior(family):
    torch.manual_seed(0)
    layer = dubito.to_bayesian(nn.Linear(200, 200), initial_std=0.5, posterior=family)
    drawn = dubito.to_deterministic(layer, draw=True, generator=torch.Generator().manual_seed(0))
    again = dubito.to_deterministic(layer, draw=True, generator=torch.Generator().manual_seed(0))
    assert torch.equal(drawn.weight, again.weight)
    standardized = (drawn.weight - layer.weight_mean) / 0.5
    count = standardized.numel()
    assert abs(standardized.mean().item()) < 5 / math.sqrt(count)
    assert abs(standardized.var().item() - 1) < 5 * math.sqrt(2 / count)


def test_tied_weights_are_drawn_once():
    network = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    network[1].weight = network[0].weight
    drawn = dubito.to_deterministic(dubito.to_bayesian(network), draw=True)
    assert drawn[0].weight is drawn[1].weight


class Computed(nn.Module):
    """A network with a layer whose weight torch computes anew for each call."""

    def __init__(self, change):
        super().__init__()
        self.first, self.second = change(nn.Linear(3, 3)), nn.Linear(3, 2)

    def forward(self, x):
        return self.second(self.first(x))


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "change",
    [
        nn.utils.parametrizations.weight_norm,
        nn.utils.parametrizations.spectral_norm,
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        lambda layer: prune.l1_unstructured(layer, "bias", 0.5),
    ],
)
def test_computed_weights_are_left_alone_and_the_reason_is_given(change):
    torch.manual_seed(0)
    network = Computed(change).eval()
    x = torch.randn(4, 3)
    network(x)
    converted = dubito.to_bayesian(network)
    assert not isinstance(converted.first, dubito.BayesLayer)
    torch.testing.assert_close(converted(x), network(x))
    reasons = {row.name: row.reason for row in dubito.summary(converted).rows}
    assert "computed" in reasons["first"]


def test_a_pruned_layer_made_permanent_is_converted():
    layer = prune.l1_unstructured(nn.Linear(4, 4), "weight", 0.5)
    prune.remove(layer, "weight")
    assert int((dubito.to_bayesian(layer).weight_mean == 0).sum()) == 8


def test_a_lazy_layer_is_converted_once_it_has_weights():
    network = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2))
    assert "no weights yet" in dubito.summary(dubito.to_bayesian(network)).rows[0].reason
    network(torch.ones(1, 4))
    assert isinstance(dubito.to_bayesian(network)[0], dubito.BayesLinear)


def test_complex_weights_are_left_alone():
    converted = dubito.to_bayesian(nn.Sequential(nn.Linear(2, 2, dtype=torch.complex64), nn.Linear(2, 2)))
    assert "torch.complex64" in dubito.summary(converted).rows[0].reason


def test_layers_kept_a_second_time_are_replaced_there_too():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
            self.parts = [self.first, nn.ReLU()]
            self.named = {"last": (self.second,)}

        def forward(self, x):
            for part in self.parts:
                x = part(x)
            return self.named["last"][0](x)

    network = Listed()
    twin = dubito.to_bayesian(network)
    assert twin.parts[0] is twin.first
    assert twin.named["last"][0] is twin.second
    assert network.parts[0] is network.first
    back = dubito.to_deterministic(twin)
    x = torch.randn(2, 4)
    torch.testing.assert_close(back(x), network(x))


def test_weights_stay_tied_when_the_layers_are_converted_one_after_the_other():
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    network[1].weight = network[0].weight
    half = dubito.to_bayesian(network, only="0", initial_std=0.2)
    whole = dubito.to_bayesian(half, only="1")
    assert whole[0].weight_mean is whole[1].weight_mean
    assert whole[0].posteriors["weight"] is whole[1].posteriors["weight"]
    assert whole[0].posteriors["bias"] is not whole[1].posteriors["bias"]
    torch.testing.assert_close(whole[1].weight_std, torch.full((3, 3), 0.2))
    other = dubito.to_bayesian(half, only="1", posterior="alpha")  # the family that is there stays
    assert other[0].posteriors["weight"] is other[1].posteriors["weight"]


class Frozen(dict):
    def update(self, *_, **__):
        raise TypeError("frozen")


def test_dictionaries_of_a_network_may_be_frozen_and_hold_themselves():
    network = nn.Sequential(nn.Linear(2, 2))
    kept = {"layer": network[0], "pair": (network[0], 1)}
    kept["self"] = [kept]
    network.config, network.kept = Frozen(a=1), kept
    bayesian = dubito.to_bayesian(network)
    assert bayesian.config == {"a": 1}
    assert bayesian.kept["layer"] is bayesian[0]
    assert bayesian.kept["pair"] == (bayesian[0], 1)
    assert bayesian.kept["self"][0] is bayesian.kept


class Caching(nn.Module):
    """Keeps what it has computed, as some networks do with position biases."""

    def __init__(self):
        super().__init__()
        self.layer, self.table, self.cache = nn.Linear(3, 3), nn.Parameter(torch.ones(3)), {}

    def forward(self, x):
        self.cache["bias"] = [2 * self.table]
        return self.layer(x) + self.cache["bias"][0]


@pytest.mark.parametrize("change", [dubito.to_bayesian, dubito.to_deterministic, lambda n: dubito.prune(n, 0.5)])
def test_networks_that_keep_computed_tensors_are_copied(change):
    network = Caching() if change is dubito.to_bayesian else dubito.to_bayesian(Caching())
    network(torch.ones(1, 3))
    copied = change(network)
    torch.testing.assert_close(copied.cache["bias"][0], torch.full((3,), 2.0))
    assert not copied.cache["bias"][0].requires_grad
    assert network.cache["bias"][0].requires_grad  # the original is as it was
    copied(torch.ones(1, 3)).sum().backward()


def test_parameters_of_which_torch_cannot_tell_whether_they_are_finite_are_left_alone():
    network = nn.Sequential(nn.Linear(3, 3))
    network.scale = nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn), requires_grad=False)
    assert isinstance(dubito.to_bayesian(network)[0], dubito.BayesLinear)
    network.table = nn.Parameter(torch.eye(3).to_sparse(), requires_grad=False)  # which torch cannot copy
    assert isinstance(dubito.to_bayesian(network, inplace=True)[0], dubito.BayesLinear)
