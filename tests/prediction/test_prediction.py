"""Prediction: what it averages, what it leaves alone, and how it is reproduced."""

import copy
import math

import numpy as np
import pytest
import torch
from layer_zoo import SAMPLING, Recorder
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import dubito
from dubito.errors import DubitoWarning, HeadError, NonFiniteError, OptionError, ShapeError
from dubito.estimators import Weight
from dubito.heads import KendallGalHead

FIELDS = ("probs", "aleatoric_per_class", "epistemic_per_class", "entropy", "mutual_information")


def network(estimator="weight", head="softplus", outputs=3, **options) -> nn.Sequential:
    torch.manual_seed(0)
    options = {"estimator": estimator, "initial_std": 0.3, "dtype": torch.float64, **options}
    model = nn.Sequential(
        dubito.BayesConv2d(1, 4, 3, padding=1, **options),
        nn.BatchNorm2d(4, dtype=torch.float64),
        nn.Softplus(),
        nn.Dropout(0.5),
        nn.Flatten(),
        dubito.BayesLinear(4 * 16, outputs, **options),
    )
    return dubito.attach_head(model, head)


def images(count=6, seed=1) -> torch.Tensor:
    return torch.randn(count, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def seeded(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def assert_same(first, second, **tolerance) -> None:
    for field in FIELDS:
        torch.testing.assert_close(getattr(first, field), getattr(second, field), **tolerance)


@pytest.mark.parametrize("head", ["softplus", "softmax"])
@pytest.mark.parametrize("estimator", SAMPLING)
def test_probabilities_are_the_mean_of_the_drawn_ones_and_uncertainty_is_theirs(estimator, head):
    model = network(estimator, head)
    logits = []
    model.register_forward_hook(lambda module, inputs, output: logits.append(output))
    prediction = dubito.predict(model, images(), samples=9, covariance=True)
    raw = torch.cat(logits).unflatten(0, (-1, 6))
    draws = raw.softmax(2) if head == "softmax" else dubito.softplus_normalize(raw)
    assert len(draws) == prediction.samples == 9
    expected = dubito.decompose(draws, covariance=True)
    assert_same(prediction, expected, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(prediction.epistemic_covariance, expected.epistemic_covariance)
    of_mean_logits = dubito.decompose((raw.mean(0, keepdim=True)).softmax(2)).probs
    assert (prediction.probs - of_mean_logits).abs().max() > 1e-3


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("estimator", [*SAMPLING, Weight(draws=2), Weight(draws=2, antithetic=True)])
def test_every_estimator_has_epistemic_uncertainty_also_for_copies_of_one_image(estimator, training):
    model = network(estimator).train(training)
    prediction = dubito.predict(model, images(1).expand(6, 1, 4, 4), samples=10)
    assert (prediction.epistemic > 1e-4).all()
    assert (prediction.mutual_information > 1e-4).all()


def test_asked_estimator_replaces_the_layers_own_for_this_prediction_only():
    model = network("local")
    assert dubito.predict(model, images(), estimator="mean").epistemic.max() == 0
    assert dubito.predict(model, images(), estimator="flipout").epistemic.min() > 0
    assert model[0].active_estimator() == model[0].estimator


def test_epistemic_uncertainty_vanishes_with_sigma_and_grows_with_it():
    values = [
        dubito.predict(network(initial_std=s), images(), samples=50).epistemic.mean().item() for s in (1e-6, 0.01, 0.3)
    ]
    assert values[0] < 1e-10 < values[1] < values[2]


@pytest.mark.parametrize("outcome", ["success", "exception"])
def test_modes_buffers_estimators_and_random_state_are_left_as_they_were(outcome):
    model = network().train()
    model[1].eval()  # a mixed state is a state too
    model[5].eval()
    modes = [module.training for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    random_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    if outcome == "exception":
        handle = model[5].register_forward_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            dubito.predict(model, images())
        handle.remove()
    else:
        dubito.predict(model, images(), samples=3, dropout=True, estimator="flipout")
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert [m.forced_estimator for m in model.modules() if isinstance(m, dubito.BayesLayer)] == [None, None]
    assert torch.is_grad_enabled()


def test_normalisation_uses_its_running_statistics_also_in_training_mode():
    model = network().train()
    assert_same(
        dubito.predict(model, images(), generator=seeded()), dubito.predict(model.eval(), images(), generator=seeded())
    )


@pytest.mark.parametrize("estimator", SAMPLING)
def test_same_generator_gives_the_same_prediction_and_moves_on(estimator):
    model = network(estimator)
    first, second = seeded(), seeded()
    one, same = (dubito.predict(model, images(), generator=g) for g in (first, second))
    assert_same(one, same, rtol=0, atol=0)
    following = dubito.predict(model, images(), generator=first)
    assert not torch.equal(following.probs, one.probs)
    assert_same(following, dubito.predict(model, images(), generator=second), rtol=0, atol=0)


def test_global_seed_decides_without_a_generator():
    model = network()
    torch.manual_seed(5)
    first = dubito.predict(model, images())
    torch.manual_seed(5)
    assert_same(first, dubito.predict(model, images()), rtol=0, atol=0)
    torch.manual_seed(6)
    assert not torch.equal(dubito.predict(model, images()).probs, first.probs)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 11, 100])
@pytest.mark.parametrize(("head", "outputs"), [("softplus", 3), ("softmax", 3), ("kendall_gal", 6)])
def test_batch_size_does_not_change_a_prediction_with_weight_draws(head, outputs, batch_size):
    model = network("weight", head, outputs)
    whole = dubito.predict(model, images(11), samples=4, generator=seeded())
    parts = dubito.predict(model, images(11), samples=4, generator=seeded(), batch_size=batch_size)
    assert_same(parts, whole, rtol=1e-10, atol=1e-12)


def test_uneven_batches_of_an_iterable_give_the_same_prediction_with_weight_draws():
    model = network("weight")
    whole = dubito.predict(model, images(11), generator=seeded())
    assert_same(dubito.predict(model, images(11).split([4, 1, 6]), generator=seeded()), whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_noise_of_other_estimators_is_fresh_in_every_batch(estimator):
    """Two batches of the same image: equal noise would give them equal draws."""
    prediction = dubito.predict(network(estimator), images(1).expand(2, 1, 4, 4), samples=3, batch_size=1)
    assert (prediction.probs[0] - prediction.probs[1]).abs().max() > 1e-6


class Stream(IterableDataset):
    def __iter__(self):
        return iter(images(7))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: list(x.split(3)),
        lambda x: (part for part in x.split(3)),
        lambda x: DataLoader(TensorDataset(x, torch.arange(7)), batch_size=3),
        lambda x: DataLoader(Stream(), batch_size=3),
        lambda x: [(part, "label", 3) for part in x.split(3)],
        lambda x: [[part] for part in x.split(3)],
        lambda x: [x[:3], x[3:3], x[3:]],
    ],
    ids=["list", "generator", "loader", "stream", "tuples", "lists", "with an empty batch"],
)
@pytest.mark.parametrize("progress", [True, False])
def test_any_iterable_of_batches_is_as_good_as_a_tensor(make, progress):
    model = network("weight")
    expected = dubito.predict(model, images(7), generator=seeded())
    prediction = dubito.predict(model, make(images(7)), generator=seeded(), progress=progress)
    assert_same(prediction, expected, rtol=1e-10, atol=1e-12)


def test_progress_bar_is_shown_on_request_only(capsys):
    dubito.predict(network(), images(), samples=2, batch_size=2)
    assert capsys.readouterr().out == ""
    dubito.predict(network(), images(), samples=2, batch_size=2, progress=True)
    shown = capsys.readouterr().out
    assert "Predicting" in shown
    assert "3/3" in shown


def test_frequentist_network_has_exactly_no_epistemic_uncertainty():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Dropout(0.5), nn.Linear(4, 3)).double()
    prediction = dubito.predict(model, images(), head="softmax", covariance=True)
    assert prediction.epistemic_per_class.abs().max() == 0
    assert prediction.epistemic_covariance.abs().max() == 0
    assert prediction.mutual_information.max() < 1e-12
    torch.testing.assert_close(prediction.probs, model.eval()(images()).softmax(1))


@pytest.mark.parametrize("kind", [nn.Dropout, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_dropout_layers_are_drawn_on_request(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), kind(0.5), nn.Linear(8, 3)).double()
    assert dubito.predict(model, images(), head="softmax", dropout=True).epistemic.min() > 0
    assert dubito.predict(model, images(), head="softmax", dropout=False).epistemic.max() == 0
    model.draws_dropout = True
    assert dubito.predict(model, images(), head="softmax").epistemic.min() > 0


def test_rare_dropout_is_not_mistaken_for_none():
    """Two equal masks in a row do not mean that nothing is drawn."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.002), nn.Linear(16, 3)).double()
    for seed in range(5):
        prediction = dubito.predict(model, images(1), 400, head="softmax", dropout=True, generator=seeded(seed))
        assert prediction.samples == 400
        assert prediction.epistemic.item() > 0


def test_network_with_a_random_source_of_its_own_is_drawn_every_time():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.random = np.random.default_rng(0)

        def forward(self, x):
            return x + torch.from_numpy(self.random.normal(size=x.shape))

    prediction = dubito.predict(Noisy(), torch.zeros(4, 3, dtype=torch.float64), samples=7, head="softmax")
    assert prediction.samples == 7
    assert prediction.epistemic.min() > 0


def test_kendall_gal_uncertainties_are_those_of_the_logits():
    model = network("weight", KendallGalHead(samples=50), outputs=6)
    outputs = []
    model.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    prediction = dubito.predict(model, images(), samples=8)
    mean, free = torch.stack(outputs).chunk(2, dim=2)
    torch.testing.assert_close(prediction.aleatoric_per_class, torch.log1p(torch.exp(free)).mean(0))
    torch.testing.assert_close(prediction.epistemic_per_class, mean.var(0, correction=0))
    assert prediction.probs.shape == (6, 3)
    assert prediction.probs.sum(1).tolist() == pytest.approx([1.0] * 6)


def test_dense_outputs_are_predicted_at_every_pixel():
    torch.manual_seed(0)
    model = dubito.BayesConv2d(1, 3, 3, padding=1, initial_std=0.5, dtype=torch.float64)
    prediction = dubito.predict(model, images(), head="softplus")
    assert prediction.epistemic.shape == prediction.label.shape == (6, 4, 4)
    assert (prediction.epistemic > 0).all()


def test_memory_grows_neither_with_draws_nor_with_images(monkeypatch):
    """Beyond what small outputs of several draws take, which are looked at together."""
    monkeypatch.setattr("dubito.prediction.TOGETHER", 2 * 4 * 3)
    model = network("weight")

    def largest(samples, count):
        with Recorder() as recorder:
            dubito.predict(model, images(count), samples=samples, batch_size=4)
        return recorder.largest

    inputs_and_outputs = max(400 * 16, 400 * 3)
    activations = 4 * 4 * 16 * 4
    assert largest(2, 8) == largest(30, 8)
    assert largest(2, 400) <= max(inputs_and_outputs, activations)


@pytest.mark.parametrize("route", ["loop", "weights", "stacked"])
@pytest.mark.parametrize("head", ["softplus", "softmax", "kendall_gal"])
def test_results_do_not_depend_on_how_many_draws_are_looked_at_together(monkeypatch, route, head):
    model, x, found = network("local", head, 6 if head == "kendall_gal" else 3), images(), []
    for limit in (0, 2 * x.shape[0] * 3, 1 << 16):
        monkeypatch.setattr("dubito.prediction.TOGETHER", limit)
        generator = torch.Generator().manual_seed(0)
        found.append(dubito.predict(model, x, 7, generator=generator, route=route))
    for other in found[1:]:
        assert other.samples == 7
        for name in ("probs", "aleatoric", "epistemic"):
            if head != "kendall_gal" or name != "probs":  # whose probabilities are drawn
                torch.testing.assert_close(getattr(other, name), getattr(found[0], name))


def test_converted_transformer_draws_although_torch_would_bypass_its_layers():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(layer, 2)
    model = dubito.to_bayesian(nn.Sequential(encoder, nn.Flatten()), initial_std=0.3)
    prediction = dubito.predict(model, torch.randn(3, 2, 8, dtype=torch.float64), head="softmax")
    assert (prediction.epistemic > 0).all()
    torch.testing.assert_close(
        model.eval()[0](torch.ones(1, 2, 8).double()), encoder.eval()(torch.ones(1, 2, 8).double())
    )


def test_model_without_a_head_is_asked_for_one():
    with pytest.raises(HeadError, match="has no head of its own"):
        dubito.predict(nn.Linear(2, 2), torch.zeros(1, 2))


def test_another_head_than_the_models_own_warns():
    with pytest.warns(DubitoWarning, match="own head is 'softplus', but 'softmax' was asked for"):
        dubito.predict(network(), images(), head="softmax")


def test_gaussian_head_has_no_classes_to_predict():
    with pytest.raises(OptionError, match="predict got the gaussian head, but gives class probabilities"):
        dubito.predict(nn.Linear(2, 2), torch.zeros(1, 2), head="gaussian")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples is 0, but a prediction needs at least 1"),
        ({"samples": -2}, "samples is -2, but"),
        ({"batch_size": 0}, "batch_size is 0, but must be at least 1"),
        ({"method": "guess"}, "method is 'guess', but must be one of 'sample'"),
        ({"estimator": "guess"}, "estimator is 'guess', but must be one of 'local'"),
        ({"head": "guess"}, "head is 'guess', but must be one of 'softplus'"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        dubito.predict(network(), images(), **options)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (torch.tensor(1.0), "The inputs hold a Tensor, but must be a tensor of images"),
        (None, "The inputs are None, but must be a tensor of images"),
        ([{"image": torch.zeros(1, 16)}], "The inputs hold a dict, but must be"),
        (np.zeros((2, 16)), "The inputs hold a ndarray, but must be"),
        ([], "There are no images to predict: the inputs are empty"),
        (torch.zeros(0, 16), "There are no images to predict"),
    ],
)
def test_inputs_that_hold_no_images_are_refused(inputs, message):
    with pytest.raises(ShapeError, match=message):
        dubito.predict(nn.Linear(16, 3), inputs, head="softmax")


def test_outputs_without_a_class_axis_are_refused_with_both_shapes():
    with pytest.raises(ShapeError, match=r"outputs of shape \(32,\) from inputs of shape \(2, 16\), but logits need"):
        dubito.predict(nn.Flatten(0), torch.zeros(2, 16), head="softmax")


def test_model_that_returns_no_tensor_is_refused():
    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(ShapeError, match="The model returned tuple, but predict needs a tensor of logits"):
        dubito.predict(Pair(), torch.zeros(2, 16), head="softmax")


def test_nan_parameters_are_named():
    model = network()
    with torch.no_grad():
        model[5].weight_mean[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match=r"outputs are not finite: NaN or infinite values in 5\.weight_mean"):
        dubito.predict(model, images())


def test_inputs_that_are_not_finite_are_told_as_such():
    with pytest.raises(NonFiniteError, match="The inputs hold NaN or infinite values"):
        dubito.predict(network(), torch.full_like(images(), math.nan))


def test_a_stack_of_copies_is_told_as_such():
    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = dubito.BayesLinear(4, 3)

        def forward(self, x):
            return self.layer(x).sum(1)

    with pytest.raises(ShapeError, match=r"from inputs of shape \(20, 4\) \(every image 10 times\)"):
        dubito.predict(Summed(), torch.ones(2, 4), samples=10, head="softmax", route="stacked")


def test_a_network_may_have_a_part_that_is_called_predictor():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.predictor = nn.Linear(4, 3)

        def forward(self, x):
            return self.predictor(x)

    network = dubito.to_bayesian(Named(), head="softmax", initial_std=1e-6)
    x = torch.randn(2, 4)
    expected = torch.softmax(x @ network.predictor.weight_mean.T + network.predictor.bias_mean, 1)
    torch.testing.assert_close(dubito.predict(network, x).probs, expected, rtol=1e-4, atol=1e-5)
