"""Pruning: the weights with the smallest |mu| / sigma are exactly zero, in every draw and after every round trip."""

import pytest
import torch
from torch import nn

import dubito
from dubito.convert import pack, sparsity, unpack, weights_left
from dubito.errors import OptionError, ShapeError
from layer_zoo import FAMILIES, INDEPENDENT, KINDS, make_input, make_layer, randomize


def network(family="std", dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Softplus(), nn.Flatten(), nn.Linear(16, 10)).to(dtype)
    model = dubito.to_bayesian(model, posterior=family, head="softmax")
    return randomize(model)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_pruned_weights_are_exactly_zero_in_every_draw(family, dtype):
    layer = randomize(make_layer("Linear", dtype=dtype, posterior=family))
    pruned = dubito.prune(layer, 0.5)
    gone = pruned.weight_mean == 0
    assert int(gone.sum()) == 6
    for _ in range(5):
        weight = pruned.posteriors["weight"].draw()
        assert bool((weight[gone] == 0).all())
        assert bool((weight[~gone] != 0).all())
    assert bool((pruned.weight_std[gone] == 0).all())
    assert bool(pruned.kl_divergence().isfinite())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_weights_with_the_smallest_ratio_go_first_over_the_whole_network(family):
    model = network(family)
    ratios = torch.cat([(m.weight_mean / m.weight_std).abs().flatten() for m in (model[0], model[3])]).detach()
    pruned = dubito.prune(model, 0.3)
    gone = torch.cat([(m.weight_mean == 0).flatten() for m in (pruned[0], pruned[3])])
    assert int(gone.sum()) == round(0.3 * len(ratios))
    assert ratios[gone].max() < ratios[~gone].min()
    assert torch.equal(pruned[3].bias_mean, model[3].bias_mean)


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout", "mean"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_network_of_zeros_gives_its_bias_by_every_estimator(kind, estimator):
    layer = randomize(make_layer(kind, bayesian_bias=False))
    pruned = dubito.prune(layer, 0.999999)
    assert weights_left(pruned) == 0
    with dubito.estimator(pruned, estimator):
        output = pruned(make_input(kind))
    bias = layer.bias_mean if kind == "Linear" else layer.bias_mean.view(-1, *(1,) * (output.dim() - 2))
    torch.testing.assert_close(output, bias.expand_as(output), rtol=0, atol=1e-12)


def test_the_original_is_untouched_unless_inplace():
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    dubito.prune(model, 0.9)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert dubito.prune(model, 0.9, inplace=True) is model
    assert sparsity(model) == pytest.approx(0.9, abs=0.01)


def test_pruning_twice_is_pruning_once():
    model = network()
    once, again = dubito.prune(model, 0.8), dubito.prune(dubito.prune(model, 0.5), 0.8)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in once.state_dict().items())


def test_tied_weights_are_counted_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    pruned = dubito.prune(dubito.to_bayesian(model), 0.5)
    assert weights_left(pruned) == 8
    assert pruned[0].weight_mean is pruned[1].weight_mean


@pytest.mark.parametrize("inplace", [True, False])
def test_biases_make_up_for_the_mean_output_that_is_lost(inplace):
    model = network(dtype=torch.float64)
    x = torch.randn(32, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden, outputs = model[0].eval()(x).mean((0, 2, 3)), model.eval()(x).mean(0)
    lost = dubito.prune(model, 0.8).eval()
    kept = dubito.prune(model.train(), 0.8, inputs=x, inplace=inplace)
    assert kept.training
    kept.eval()
    torch.testing.assert_close(kept[0](x).mean((0, 2, 3)), hidden)
    torch.testing.assert_close(kept(x).mean(0), outputs)
    assert (lost(x).mean(0) - outputs).abs().max() > 0.1
    assert torch.equal(kept[0].weight_mean, lost[0].weight_mean)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.97])
def test_packing_keeps_every_bit_and_takes_less_room(family, share):
    state = dubito.prune(network(family), share).state_dict()
    packed, shapes = pack(state)
    back = unpack(packed, shapes)
    assert back.keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in back.items())
    room = sum(t.nbytes for t in packed.values()) / sum(t.nbytes for t in state.values())
    if share == 0:
        assert room == 1
    elif family in INDEPENDENT:
        assert room < 1.2 - share
    else:
        assert room < 1


def test_packed_weights_that_do_not_fit_are_refused():
    packed, shapes = pack(dubito.prune(network(), 0.5).state_dict())
    packed["3.posteriors.weight.mean"] = packed["3.posteriors.weight.mean"][1:]
    with pytest.raises(ValueError, match=r"3\.posteriors\.weight\.mean has"):
        unpack(packed, shapes)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_sparsity_that_is_no_share_is_refused(share):
    with pytest.raises(OptionError, match="must be a share of the weights"):
        dubito.prune(network(), share)


def test_a_network_without_posterior_is_refused():
    with pytest.raises(OptionError, match=r"The network \(Linear\) has no Bayesian layers"):
        dubito.prune(nn.Linear(2, 2), 0.5)


@pytest.mark.parametrize("family", FAMILIES)
def test_biases_that_make_up_for_pruned_weights_keep_their_spread(family):
    torch.manual_seed(0)
    layer = dubito.BayesLinear(100, 10, posterior=family)
    pruned = dubito.prune(nn.Sequential(layer), 0.5, inputs=torch.rand(64, 100))[0]
    assert bool((pruned.bias_mean != layer.bias_mean).all())
    torch.testing.assert_close(pruned.bias_std, layer.bias_std)


def test_drawn_kl_of_a_pruned_network_is_finite():
    pruned = dubito.prune(dubito.BayesLinear(10, 10), 0.5)
    assert bool(pruned.kl_divergence(samples=2).isfinite())


def test_inputs_that_are_no_batch_are_refused():
    with pytest.raises(ShapeError, match=r"\(4,\), but must be a batch"):
        dubito.prune(dubito.BayesLinear(4, 3), 0.5, inputs=torch.ones(4))
