"""The routes by which draws are made: each draws from the distribution that it promises, and the cheapest is taken."""

import math
import threading

import pytest
import torch
from torch import nn

import dubito
import dubito.layers
from dubito.errors import OptionError
from dubito.estimators import Mean
from dubito.prediction.draws import MANY, _WeightsOfOneDraw


def network(estimator="local", **options) -> nn.Sequential:
    torch.manual_seed(0)
    options = {"estimator": estimator, "initial_std": 0.2, "dtype": torch.float64, **options}
    model = nn.Sequential(
        dubito.BayesConv2d(1, 3, 3, padding=1, **options),
        nn.Softplus(),
        nn.Flatten(),
        dubito.BayesLinear(3 * 16, 4, **options),
    )
    return dubito.attach_head(model, "softplus")


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def passes(model: nn.Module) -> list[int]:
    """Sizes of the batches that the model is called with, as they come."""
    sizes: list[int] = []
    model.register_forward_hook(lambda module, inputs, output: sizes.append(len(inputs[0])))
    return sizes


@pytest.mark.parametrize(("count", "sizes"), [(MANY, [MANY] * 6), (3, [18])])
def test_automatic_route_draws_weights_for_many_images_and_stacks_few(count, sizes):
    model = network()
    seen = passes(model)
    assert dubito.predict(model, images(count), samples=6).samples == 6
    assert seen == sizes


@pytest.mark.parametrize("options", [{"estimator": "local"}, {"estimator": "flipout"}, {"route": "loop"}], ids=str)
def test_what_is_asked_for_is_not_replaced(options):
    model = network()
    seen = passes(model)
    dubito.predict(model, images(3), samples=4, **options)
    assert seen == [3] * 4


def test_other_estimators_than_local_are_looped_over():
    model = network("flipout")
    seen = passes(model)
    dubito.predict(model, images(MANY), samples=4)
    assert seen == [MANY] * 4


def test_the_first_batch_decides_for_all():
    model = network()
    seen = passes(model)
    dubito.predict(model, images(MANY + 1), samples=2, batch_size=MANY)
    assert seen == [MANY, MANY, 1, 1]


def test_stacks_are_no_larger_than_a_batch():
    model = network()
    seen = passes(model)
    assert dubito.predict(model, images(3), samples=7, batch_size=8).samples == 7
    assert seen == [6, 6, 6, 3]


def moments(model, x, draws, **options):
    """Mean and variance of each probability over independent predictions of two draws, with their standard errors."""
    means, squares = [], []
    generator = seeded(5)
    for _ in range(draws):
        prediction = dubito.predict(model, x, samples=2, generator=generator, **options)
        means.append(prediction.probs)
        squares.append(prediction.epistemic_per_class + prediction.probs.square())  # mean of p^2 over the two
    means, squares = torch.stack(means), torch.stack(squares)
    errors = (means.std(0) / math.sqrt(draws), squares.std(0) / math.sqrt(draws))
    return means.mean(0), squares.mean(0), *errors


@pytest.mark.parametrize("route", ["weights", "stacked"])
def test_routes_draw_from_the_distribution_of_their_estimator(route):
    """First and second moment of every probability against the loop, within 4.5 standard errors of the difference."""
    model = network()
    x = images(3)
    found = moments(model, x, 1500, route=route)
    expected = moments(model, x, 1500, route="loop", estimator="weight" if route == "weights" else "local")
    for value, reference, error, other in zip(found[:2], expected[:2], found[2:], expected[2:], strict=True):
        assert ((value - reference).abs() <= 4.5 * (error.square() + other.square()).sqrt()).all()


def test_pairs_of_weight_draws_are_mirror_images():
    layer = dubito.attach_head(dubito.BayesLinear(5, 3, initial_std=0.3, dtype=torch.float64), "softmax")
    outputs = []
    layer.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    x = torch.randn(4, 5, dtype=torch.float64)
    dubito.predict(layer, x, samples=5, route="weights")
    mean = layer.eval()(x)
    outputs.pop()
    assert len(outputs) == 5
    for first, second in ((0, 1), (2, 3)):
        torch.testing.assert_close((outputs[first] + outputs[second]) / 2, mean)
    assert (outputs[0] - outputs[2]).abs().max() > 1e-3
    assert (outputs[4] - mean).abs().max() > 1e-3


def on_tiny_maps() -> nn.Sequential:
    """Convolutions whose maps have four positions, and more weights than torch draws by itself."""
    torch.manual_seed(0)
    options = {"initial_std": 0.2, "dtype": torch.float64}
    model = nn.Sequential(
        dubito.BayesConv2d(1, 64, 3, stride=2, padding=1, **options),
        nn.Softplus(),
        dubito.BayesConv2d(64, 64, 3, padding=1, **options),
        nn.Flatten(),
        dubito.BayesLinear(64 * 4, 3, **options),
    )
    return dubito.attach_head(model, "softplus")


@pytest.mark.parametrize("model", [network, on_tiny_maps], ids=["maps", "tiny maps"])
@pytest.mark.parametrize("size", [7, MANY, 2 * MANY])
def test_weight_draws_do_not_depend_on_how_images_are_grouped(model, size):
    model, x = model(), images(2 * MANY + 5)
    whole = dubito.predict(model, x, samples=3, route="weights", generator=seeded(2))
    parts = dubito.predict(model, x, samples=3, route="weights", generator=seeded(2), batch_size=size)
    torch.testing.assert_close(parts.probs, whole.probs)
    torch.testing.assert_close(parts.epistemic, whole.epistemic)


def test_weights_are_drawn_in_the_layout_that_suits_their_maps():
    """With the channels last where maps are tiny; the draws themselves have the posterior's moments."""
    model = on_tiny_maps()
    drawn = {}
    with torch.no_grad(), dubito.layers.posteriors_kept(model):
        weights = _WeightsOfOneDraw([model[0], model[2], model[4]])
        with dubito.estimator(model, weights):
            for seed in range(3):
                weights.renew(seed)
                model(images(MANY))
                plus = {key: pair[0].clone() for key, pair in weights.weights.items()}
                weights.mirror()
                model(images(MANY))
                drawn[seed] = plus, {key: pair[0].clone() for key, pair in weights.weights.items()}
    assert [drawn[0][0][id(layer)].is_contiguous() for layer in (model[0], model[2])] == [True, False]
    assert drawn[0][0][id(model[2])].is_contiguous(memory_format=torch.channels_last)
    for layer in (model[0], model[2], model[4]):
        for plus, minus in drawn.values():
            torch.testing.assert_close((plus[id(layer)] + minus[id(layer)]) / 2, layer.weight_mean.detach())
        noise = torch.stack([plus[id(layer)] - layer.weight_mean.detach() for plus, _ in drawn.values()]) / 0.2
        assert abs(noise.mean()) < 4 / math.sqrt(noise.numel())
        assert abs(noise.square().mean() - 1) < 4 * math.sqrt(2 / noise.numel())
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert abs((noise[one] * noise[other]).mean()) < 4 / math.sqrt(noise[0].numel())


def test_copies_of_an_image_vary_although_the_first_layer_convolves_it_once():
    model = network()
    first = []
    model[0].register_forward_hook(lambda module, inputs, output: first.append(output))
    dubito.predict(model, images(1), samples=50)
    (stack,) = first
    assert len(stack) == 50
    assert len({tuple(row.flatten().tolist()) for row in stack}) == 50
    # each with the analytic moments of the layer's output, in standard errors
    mean = model[0].eval()(images(1))
    with dubito.estimator(model, "local"):
        many = model[0](images(1).expand(4000, -1, -1, -1))
    error = many.std(0) / math.sqrt(50)
    assert ((stack.mean(0) - mean[0]).abs() <= 5 * error).all()


def test_layer_called_twice_has_the_same_weights_within_a_draw():
    layer = dubito.BayesLinear(3, 3, initial_std=0.5, dtype=torch.float64)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x) - self.layer(x)

    model = dubito.attach_head(Twice(), "softmax")
    x = torch.randn(4, 3, dtype=torch.float64)
    assert dubito.predict(model, x, route="weights").epistemic.max() < 1e-20
    assert dubito.predict(model, x, route="loop", estimator="weight").epistemic.max() > 1e-4


def test_dropout_in_the_network_is_drawn_anew_within_a_pair():
    model = network(initial_std=1e-9)
    model.insert(2, nn.Dropout(0.5))
    prediction = dubito.predict(model, images(MANY), samples=8, dropout=True, route="weights")
    assert (prediction.epistemic > 1e-4).all()


def test_network_without_bayesian_layers_has_no_weights_to_draw():
    model = dubito.attach_head(nn.Linear(3, 2), "softmax")
    assert dubito.predict(model, torch.randn(2, 3), route="weights").epistemic.tolist() == [0, 0]


def test_stacking_is_for_local_only():
    with pytest.raises(OptionError, match="not all that the network draws is drawn by local"):
        dubito.predict(network("weight"), images(2), route="stacked")


def test_dropout_beside_local_layers_is_not_stacked():
    model = network()
    model.insert(2, nn.Dropout(0.5))
    seen = passes(model)
    dubito.predict(model, images(2), samples=3, dropout=True)
    assert seen == [2, 2, 2]


def test_unknown_route_lists_the_valid_ones():
    with pytest.raises(OptionError, match="route is 'fast', but must be one of 'auto', 'loop', 'stacked', 'weights'"):
        dubito.predict(network(), images(2), route="fast")


def test_moments_need_no_draws():
    model = network()
    state = torch.get_rng_state()
    by_moments = dubito.predict(model, images(5), method="moments")
    assert torch.equal(state, torch.get_rng_state())
    by_draws = dubito.predict(model, images(5), samples=4000, generator=seeded())
    assert (by_moments.probs - by_draws.probs).abs().max() < 0.02
    assert (by_moments.epistemic / by_draws.epistemic - 1).abs().max() < 0.2


@pytest.mark.parametrize("route", ["loop", "stacked", "weights"])
def test_layers_whose_estimator_is_the_mean_draw_in_no_route(route):
    """With one layer that draws among others that do not, epistemic uncertainty is that layer's alone."""
    torch.manual_seed(0)
    model = network()
    model[0].estimator = Mean()
    alone = network()
    alone.load_state_dict(model.state_dict())
    with torch.no_grad():
        alone[0].set_std(1e-12)
    x, options = images(40), {"samples": 400, "route": route, "generator": seeded()}
    found = dubito.predict(model, x, **options).epistemic
    expected = dubito.predict(alone, x, **{**options, "generator": seeded(1)}).epistemic
    # A variance of 400 draws has a relative standard error of about sqrt(2 / 400) = 7 %: six of them, of both.
    torch.testing.assert_close(found, expected, rtol=6 * 0.07 * 2**0.5, atol=0)


@pytest.mark.parametrize("route", ["loop", "weights"])
def test_the_mean_draws_nothing_in_any_route(route):
    assert dubito.predict(network(), images(40), estimator="mean", route=route).epistemic.max() == 0
    assert dubito.predict(network(estimator="mean"), images(40), route=route).epistemic.max() == 0


def test_an_estimator_in_force_is_that_of_a_prediction():
    model = network()
    with dubito.estimator(model, "mean"):
        assert dubito.predict(model, images(40)).epistemic.max() == 0
    assert dubito.predict(model, images(40)).epistemic.max() > 0


def test_predictions_in_threads_leave_the_network_as_it_was():
    """A second prediction starts while the first is in the network, and ends after it."""
    inside, started = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x):
            inside.set()
            started.wait(0.5)
            return x

    model = nn.Sequential(network(), Waiting())
    x = images(40)
    expected = model.eval()(x)
    state = torch.get_rng_state()
    found = []

    def predict(name: str) -> None:
        if name == "second":
            inside.wait(5)
            started.set()
        found.append(dubito.predict(model, x, samples=2, head="softmax", generator=seeded()).probs)

    threads = [threading.Thread(target=predict, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(*found)
    assert all(layer.forced_estimator is None for layer in model.modules() if isinstance(layer, dubito.BayesLayer))
    assert torch.equal(model(x), expected)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_default_device_is_not_where_seeds_are_made():
    model, x = network(), images(40)
    expected = dubito.predict(model, x, generator=seeded()).probs
    with torch.device("meta"):
        found = dubito.predict(model, x, generator=seeded()).probs
    assert torch.equal(found, expected)


class InPlace(nn.Module):
    """A network that changes what it is given."""

    def __init__(self):
        super().__init__()
        self.layer = dubito.BayesLinear(4, 3, initial_std=1e-6)

    def forward(self, x):
        x -= 0.5
        return self.layer(x.relu_())


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference_mode"])
@pytest.mark.parametrize("route", ["loop", "stacked", "weights"])
def test_a_network_that_works_in_place_gets_the_images_as_they_are_in_every_draw(route, inference):
    network = dubito.attach_head(InPlace().eval(), "softmax")
    x = torch.randn(6, 4)
    layer = network.layer
    expected = torch.softmax((x - 0.5).relu() @ layer.weight_mean.T + layer.bias_mean, 1)
    with torch.inference_mode(inference):
        given = x.clone()
        found = dubito.predict(network, given, 20, route=route)
        assert torch.equal(given, x)
        torch.testing.assert_close(found.probs, expected, rtol=1e-4, atol=1e-4)
        assert found.epistemic.max() < 1e-8


@pytest.mark.parametrize("size", [4, 200], ids=["small", "large"])
def test_layers_with_tied_weights_have_the_same_ones_within_a_draw(size):
    class Difference(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(size, size), nn.Linear(size, size)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.a(x) - self.b(x)

    network = dubito.to_bayesian(Difference(), head="softmax", initial_std=0.5)
    network.a.bias_rho.data.fill_(-40.0)
    network.b.bias_rho.data.fill_(-40.0)
    x = torch.randn(MANY, size)
    assert dubito.predict(network, x, 20, route="weights").epistemic.max() < 1e-9
    network.b.weight_rho = nn.Parameter(network.b.weight_rho.detach().clone())  # another posterior with the same means
    assert dubito.predict(network, x, 20, route="weights").epistemic.mean() > 1e-6


def test_the_noise_of_a_random_head_does_not_depend_on_how_images_are_grouped():
    network = dubito.attach_head(dubito.BayesLinear(8, 20, initial_std=0.3), "kendall_gal")
    x = torch.randn(256, 8)

    def probs(batch_size):
        generator = torch.Generator().manual_seed(3)
        return dubito.predict(network, x, 20, route="weights", generator=generator, batch_size=batch_size).probs

    torch.testing.assert_close(probs(256), probs(32), rtol=1e-5, atol=1e-6)


def test_moments_leave_the_images_as_they_are():
    layers = nn.ReLU(inplace=True), dubito.BayesLinear(4, 3)
    network = dubito.attach_head(nn.Sequential(*layers).eval(), "softmax")
    x = torch.randn(6, 4)
    given = x.clone()
    first = dubito.predict(network, given, method="moments")
    assert torch.equal(given, x)
    torch.testing.assert_close(dubito.predict(network, given, method="moments").probs, first.probs)
