"""MC dropout and ensembles: the same prediction as that of all their draws at once."""

import pytest
import torch
from torch import nn

import dubito
from dubito.errors import OptionError
from dubito.prediction import pool

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def with_dropout(p=0.5) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Dropout(p), nn.Linear(32, 3)).eval()
    return dubito.attach_head(model, "softmax")


def probs_of(members):
    return torch.stack([torch.softmax(member(X), 1) for member in members]).detach()


def test_mc_dropout_draws_and_the_model_itself_does_not():
    model = with_dropout()
    assert bool((dubito.predict(dubito.mc_dropout(model), X).epistemic > 0).all())
    assert bool((dubito.predict(model, X).epistemic == 0).all())
    assert not hasattr(model, "draws_dropout")
    assert not model[2].training


def test_mc_dropout_has_the_moments_of_dropped_units():
    """One linear layer behind dropout: the drawn outputs have mean f and variance sum (w x)^2 p / (1 - p)."""
    network = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 2, bias=False))
    layer, samples = network[1], 2000
    prediction = dubito.predict(dubito.mc_dropout(network, head="gaussian"), X, samples=samples)
    expected = (X**2 @ layer.weight.square().T * 0.3 / 0.7).detach()
    assert bool(((prediction.mean - layer(X)).abs() < 5 * (expected / samples).sqrt()).all())
    # The fourth moment of a sum of four two-valued terms is below that of a Gaussian: var(s^2) < 2 sigma^4 / n.
    error = expected * (2 / samples) ** 0.5
    assert bool(((prediction.epistemic - expected).abs() < 6 * error).all())


def test_mc_dropout_shares_its_weights():
    model = with_dropout()
    assert dubito.mc_dropout(model, head="softmax")[0].weight is model[0].weight


@pytest.mark.parametrize("model", [nn.Linear(4, 3), with_dropout(0.0)])
def test_mc_dropout_needs_dropout(model):
    with pytest.raises(OptionError, match="no dropout layer that drops anything"):
        dubito.mc_dropout(model)


def test_ensemble_of_plain_networks_is_the_split_of_its_members():
    torch.manual_seed(0)
    members = [nn.Linear(4, 3) for _ in range(5)]
    prediction = dubito.predict(dubito.ensemble(members, head="softmax"), X, covariance=True)
    expected = dubito.decompose(probs_of(members), covariance=True)
    for name in ("probs", "aleatoric_per_class", "epistemic_per_class", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(prediction, name), getattr(expected, name), msg=name)
    torch.testing.assert_close(prediction.epistemic_covariance, expected.epistemic_covariance)
    torch.testing.assert_close(prediction.aleatoric_covariance, expected.aleatoric_covariance)
    assert prediction.samples == 5


def test_every_member_counts_alike_however_many_draws_it_has():
    torch.manual_seed(0)
    plain, bayesian = nn.Linear(4, 3), dubito.BayesLinear(4, 3, initial_std=0.5)
    prediction = dubito.predict(dubito.ensemble([plain, bayesian], head="softmax"), X, samples=100)
    assert prediction.samples == 51  # the draws are shared out: 50 for each, of which a plain network has one
    own = dubito.predict(bayesian, X, samples=4000, head="softmax")
    expected = (probs_of([plain])[0] + own.probs) / 2
    deviation = own.epistemic_per_class.sqrt() / 50**0.5
    assert bool(((prediction.probs - expected).abs() < 6 * deviation).all())
    total = prediction.aleatoric_per_class + prediction.epistemic_per_class
    torch.testing.assert_close(total, prediction.probs * (1 - prediction.probs))


def test_members_may_have_heads_of_their_own():
    torch.manual_seed(0)
    members = [dubito.attach_head(nn.Linear(4, 3), head) for head in ("softmax", "softplus")]
    expected = torch.stack([torch.softmax(members[0](X), 1), dubito.softplus_normalize(members[1](X))]).mean(0)
    model = dubito.ensemble(members)
    torch.testing.assert_close(dubito.predict(model, X).probs, expected)
    torch.testing.assert_close(model(X).exp(), expected)


def test_stream_of_batches_is_read_once():
    torch.manual_seed(0)
    model = dubito.ensemble([nn.Linear(4, 3) for _ in range(3)], head="softmax")
    stream = ((part, None) for part in X.split(4))
    torch.testing.assert_close(dubito.predict(model, stream).probs, dubito.predict(model, X).probs)


def test_prediction_is_reproducible_and_leaves_the_random_state_alone():
    torch.manual_seed(0)
    model = dubito.ensemble([dubito.BayesLinear(4, 3), dubito.BayesLinear(4, 3)], head="softmax")
    torch.manual_seed(1)
    first, second = dubito.predict(model, X), dubito.predict(model, X)
    assert torch.equal(first.epistemic, second.epistemic)
    expected = torch.Generator().manual_seed(1)
    assert torch.equal(torch.randn(3), torch.randn(3, generator=expected))


def test_two_members_of_the_same_posterior_do_not_draw_the_same():
    torch.manual_seed(0)
    layer = dubito.BayesLinear(4, 3, initial_std=0.5)
    prediction = dubito.predict(dubito.ensemble([layer, layer], head="softmax"), X, samples=1)
    assert bool((prediction.epistemic > 0).all())


@pytest.mark.parametrize("members", [[], [dubito.attach_head(nn.Linear(4, 6), "kendall_gal")]])
def test_ensembles_that_make_no_sense_are_refused(members):
    with pytest.raises(OptionError, match=r"no members|Member 0 of the ensemble \(Linear\) has the kendall_gal head"):
        dubito.ensemble(members)


def test_pool_weighs_by_draws_unless_told():
    draws = torch.softmax(torch.randn(7, 2, 3, generator=torch.Generator().manual_seed(0)), 2)
    whole = dubito.decompose(draws)
    parts = [dubito.decompose(draws[:5]), dubito.decompose(draws[5:])]
    torch.testing.assert_close(pool(parts).epistemic_per_class, whole.epistemic_per_class)
    torch.testing.assert_close(pool(parts, [1, 1]).probs, (parts[0].probs + parts[1].probs) / 2)


def test_batches_of_a_stream_share_the_draws_of_each_member():
    members = [dubito.BayesLinear(4, 3, initial_std=0.5) for _ in range(2)]
    whole = X[:1].repeat(74, 1)
    batches = (whole[:64], whole[64:])
    predictor = dubito.Predictor(dubito.ensemble(members, head="softmax"), 20)
    prediction = predictor(batch for batch in batches)
    torch.testing.assert_close(prediction.epistemic, prediction.epistemic[:1].expand(74))
    torch.testing.assert_close(predictor(whole).probs, prediction.probs)


def test_members_draw_from_seeds_of_their_own():
    """Twice the same posterior: with the same noise the members would be the same, draw by draw."""
    layer = dubito.BayesLinear(4, 3, initial_std=0.5, dtype=torch.float64)
    x, samples = X.double(), 400
    predictor = dubito.Predictor(dubito.ensemble([layer, layer], head="softmax"), 2 * samples)
    first, second = predictor.draws(x).split(samples)
    alone = dubito.Predictor(layer, samples, head="softmax").draws(x)
    for one, other in ((first, second), (first, alone), (second, alone)):
        one, other = ((part - part.mean(0))[::2] for part in (one, other))  # one of each antithetic pair
        correlation = (one * other).mean(0) / (one.square().mean(0) * other.square().mean(0)).sqrt()
        assert correlation.abs().max() < 5 / (samples / 2) ** 0.5


@pytest.mark.parametrize(("samples", "each"), [(1, 1), (3, 1), (4, 2), (10, 4)])
def test_draws_are_shared_out_over_the_members_and_rounded_up(samples, each):
    members = [dubito.BayesLinear(4, 3) for _ in range(3)]
    predictor = dubito.Predictor(dubito.ensemble(members, head="softmax"), samples)
    assert [member.samples for member in predictor.members] == [each] * 3
    assert predictor(X).samples == 3 * each


def test_draws_of_members_are_repeated_until_all_have_as_many():
    plain, bayesian = nn.Linear(4, 3), dubito.BayesLinear(4, 3, initial_std=0.5)
    both = dubito.ensemble([plain, bayesian], head="softmax")
    for method, samples in (("weights", 6), ("local", 6), ("moments", 64), ("mean", 1)):
        predictor = dubito.Predictor(both, 12, method)
        draws, prediction = predictor.draws(X), predictor(X)
        assert predictor.samples == prediction.samples == 1 + samples
        assert draws.shape == (2 * samples, 6, 3)
        torch.testing.assert_close(draws[:samples], probs_of([plain]).expand(samples, -1, -1))
        split = dubito.decompose(draws)
        torch.testing.assert_close(prediction.probs, split.probs)
        torch.testing.assert_close(prediction.epistemic, split.epistemic)
        torch.testing.assert_close(prediction.mutual_information, split.mutual_information, rtol=1e-4, atol=1e-6)


def test_networks_of_an_ensemble_are_those_of_its_members():
    members = [nn.Linear(4, 3), dubito.BayesLinear(4, 3, initial_std=0.5)]
    predictor = dubito.Predictor(dubito.ensemble(members, head="softmax"), 8)
    networks = predictor.networks()
    assert [type(network) for network in networks] == [nn.Linear] * 5
    draws = predictor.draws(X)
    torch.testing.assert_close(probs_of(networks), torch.cat([draws[:1], draws[4:]]))


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_dropout_that_has_no_mask_is_refused(kind):
    model = nn.Sequential(nn.Linear(4, 8), kind(0.5), nn.Linear(8, 3))
    with pytest.raises(OptionError, match=f"{kind.__name__} cannot be drawn: MC dropout takes"):
        dubito.predict(model, X, head="softmax", dropout=True)
    assert dubito.predict(model, X, head="softmax").epistemic.max() == 0


@pytest.mark.parametrize(("kind", "axes"), [(nn.Dropout1d, 1), (nn.Dropout2d, 2), (nn.Dropout3d, 3)])
def test_dropout_of_channels_drops_them_whole(kind, axes):
    model = nn.Sequential(kind(0.5), nn.Flatten())
    x = torch.ones(3, 8, *(2,) * axes)
    networks = dubito.Predictor(model, 20, head="softmax", dropout=True).networks(x[:1])
    outputs = torch.stack([network(x) for network in networks]).view(20, 3, 8, -1)
    assert set(outputs.unique().tolist()) == {0.0, 2.0}
    torch.testing.assert_close(outputs, outputs[:, :1, :, :1].expand_as(outputs))
    # 160 channels, each kept with probability 1/2: five standard errors of the share
    assert abs((outputs[:, 0, :, 0] > 0).float().mean() - 0.5) < 5 * 0.5 / 160**0.5


def test_networks_with_masks_reproduce_the_draws_also_if_a_layer_drops_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second, self.dropout = nn.Linear(4, 16), nn.Linear(16, 3), nn.Dropout(0.5)

        def forward(self, x):
            return self.second(self.dropout(self.first(self.dropout(x))))

    for model in (with_dropout(), Twice()):
        predictor = dubito.Predictor(dubito.mc_dropout(dubito.attach_head(model, "softmax")), 5)
        with pytest.raises(OptionError, match="need an example image"):
            predictor.networks()
        networks = predictor.networks(X[:1])
        draws = predictor.draws(X)
        for _ in range(2):  # the masks stay
            assert torch.equal(probs_of(networks), draws)
        assert len({tuple(draw.flatten().tolist()) for draw in draws}) > 1


def test_masks_do_not_depend_on_the_default_dtype():
    predictor = dubito.Predictor(dubito.mc_dropout(with_dropout()), 6)
    expected = predictor.draws(X)
    torch.set_default_dtype(torch.float64)
    assert torch.equal(predictor.draws(X), expected)


def test_masks_and_noise_of_local_draws_are_independent():
    """Units that are kept have the variance of all: E[b^2 | kept] = 1, in standard errors."""
    layer = dubito.BayesLinear(1, 64, bias=False, initial_std=1.0)
    nn.init.zeros_(layer.weight_mean)
    model = dubito.attach_head(nn.Sequential(layer, nn.Dropout(0.5)), dubito.heads.GaussianHead())
    outputs = dubito.Predictor(model, 500, "local", dropout=True).draws(torch.ones(1, 1)) / 2
    kept = outputs[outputs != 0]
    assert abs(kept.square().mean() - 1) < 5 * (2 / len(kept)) ** 0.5
    assert abs(kept.mean()) < 5 / len(kept) ** 0.5


def test_dropout_is_drawn_anew_within_an_antithetic_pair():
    model = nn.Sequential(nn.Dropout(0.5), dubito.BayesLinear(4, 3, initial_std=1e-9))
    draws = dubito.Predictor(model, 8, head="softmax", dropout=True).draws(X)
    assert ((draws[::2] - draws[1::2]).abs().amax((1, 2)) > 1e-3).any()


def test_rare_dropout_is_not_mistaken_for_none():
    model = nn.Sequential(nn.Dropout(0.002), nn.Linear(4, 3))
    epistemic = [dubito.predict(model, X, 400, head="softmax", dropout=True, seed=s).epistemic.max() for s in range(5)]
    assert min(epistemic) > 0


def test_a_prediction_refuses_the_head_that_the_ensemble_refuses():
    members = [nn.Linear(4, 6) for _ in range(2)]
    with pytest.raises(OptionError, match="has the kendall_gal head"):
        dubito.predict(dubito.ensemble(members, head="softmax"), X, head="kendall_gal")


def test_members_that_share_layers_draw_each_in_its_own_way():
    """A point estimate beside its own MC dropout: the mixture of the two has half the second's variance, and more."""
    network = with_dropout()
    drawing, x, samples = dubito.mc_dropout(network), torch.randn(5, 4), 1500

    def predicted(model):
        return dubito.predict(model, x, samples)

    fixed, drawn = predicted(network), predicted(drawing)
    between = ((fixed.probs - drawn.probs) / 2).square().mean(1)
    # The difference of two variances of n draws has a relative standard error of about sqrt(4 / n).
    tolerance = {"rtol": 5 * (4 / samples) ** 0.5, "atol": 1e-5}
    for members in ([network, drawing], [drawing, network]):
        found = predicted(dubito.ensemble(members)).epistemic
        torch.testing.assert_close(found, drawn.epistemic / 2 + between, **tolerance)
    assert not any(part.training for part in network.modules())


def test_an_ensemble_of_ensembles_is_that_of_all_members_with_their_own_heads():
    members, x = [nn.Linear(4, 3) for _ in range(4)], torch.randn(5, 4)
    flat = dubito.ensemble(members, head="softplus")
    nested = dubito.ensemble(
        [dubito.ensemble(members[:2], head="softplus"), dubito.ensemble(members[2:], head="softplus")]
    )
    expected, found = dubito.predict(flat, x), dubito.predict(nested, x)
    torch.testing.assert_close(found.probs, expected.probs)
    torch.testing.assert_close(found.epistemic, expected.epistemic)
    torch.testing.assert_close(nested(x), flat(x))
    other = dubito.predict(nested, x, head="softmax")
    torch.testing.assert_close(other.probs, dubito.predict(dubito.ensemble(members, head="softmax"), x).probs)


def test_mc_dropout_of_an_ensemble_and_inside_another_network_draws():
    network, x = with_dropout(), torch.randn(5, 4)

    def epistemic(model):
        return dubito.predict(model, x, 50).epistemic

    expected = epistemic(dubito.ensemble([dubito.mc_dropout(network)]))
    assert expected.min() > 0
    torch.testing.assert_close(epistemic(dubito.mc_dropout(dubito.ensemble([network]))), expected)
    wrapped = dubito.attach_head(nn.Sequential(nn.Dropout(0.9), dubito.mc_dropout(network)).eval(), "softmax")
    torch.testing.assert_close(epistemic(wrapped), epistemic(dubito.mc_dropout(network)))  # the other layer rests
