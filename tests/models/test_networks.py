"""The three tables against the paper's appendix, their twins, and the initialisation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import dubito
from dubito.errors import OptionError, ShapeError
from dubito.layers import BayesLayer
from dubito.models import ARCHITECTURES, Inference, Plan, build, names, register, registry
from dubito.models.architecture import Convolution, FullyConnected, MaxPooling
from dubito.models.initialization import HIDDEN_SPREAD, initialize, synthetic_images

# The appendix, line by line: layer type, kernel, width, stride, padding, and the input shape that follows from the
# strides. Three of its own shapes are impossible (see dubito.models.architecture): AlexNet's from the first pool on,
# LeNet's second convolution with 1 channel, and the widths of the last layers.
APPENDIX = {
    "lenet5": [
        ("convolution", 5, 6, 1, 0, (1, 32, 32)),
        ("max-pooling", 2, None, 2, 0, (6, 28, 28)),
        ("convolution", 5, 16, 1, 0, (6, 14, 14)),
        ("max-pooling", 2, None, 2, 0, (16, 10, 10)),
        ("fully-connected", None, 120, None, None, (400,)),
        ("fully-connected", None, 84, None, None, (120,)),
        ("fully-connected", None, 10, None, None, (84,)),
    ],
    "alexnet": [
        ("convolution", 11, 64, 4, 5, (3, 32, 32)),
        ("max-pooling", 2, None, 2, 0, (64, 8, 8)),
        ("convolution", 5, 192, 1, 2, (64, 4, 4)),
        ("max-pooling", 2, None, 2, 0, (192, 4, 4)),
        ("convolution", 3, 384, 1, 1, (192, 2, 2)),
        ("convolution", 3, 256, 1, 1, (384, 2, 2)),
        ("convolution", 3, 128, 1, 1, (256, 2, 2)),
        ("max-pooling", 2, None, 2, 0, (128, 2, 2)),
        ("fully-connected", None, 10, None, None, (128,)),
    ],
    "vgg16": [
        ("convolution", 3, 64, 1, 1, (3, 32, 32)),
        ("convolution", 3, 64, 1, 1, (64, 32, 32)),
        ("max-pooling", 2, None, 2, 0, (64, 32, 32)),
        ("convolution", 3, 128, 1, 1, (64, 16, 16)),
        ("convolution", 3, 128, 1, 1, (128, 16, 16)),
        ("max-pooling", 2, None, 2, 0, (128, 16, 16)),
        ("convolution", 3, 256, 1, 1, (128, 8, 8)),
        ("convolution", 3, 256, 1, 1, (256, 8, 8)),
        ("convolution", 3, 256, 1, 1, (256, 8, 8)),
        ("max-pooling", 2, None, 2, 0, (256, 8, 8)),
        ("convolution", 3, 512, 1, 1, (256, 4, 4)),
        ("convolution", 3, 512, 1, 1, (512, 4, 4)),
        ("convolution", 3, 512, 1, 1, (512, 4, 4)),
        ("max-pooling", 2, None, 2, 0, (512, 4, 4)),
        ("convolution", 3, 512, 1, 1, (512, 2, 2)),
        ("convolution", 3, 512, 1, 1, (512, 2, 2)),
        ("convolution", 3, 512, 1, 1, (512, 2, 2)),
        ("max-pooling", 2, None, 2, 0, (512, 2, 2)),
        ("fully-connected", None, 10, None, None, (512,)),
    ],
}
CHANNELS = {"lenet5": 1, "alexnet": 3, "vgg16": 3}
SMALLEST = {"lenet5": 16, "alexnet": 29, "vgg16": 32}
every_table = pytest.mark.parametrize("name", list(ARCHITECTURES))
every_model = pytest.mark.parametrize("name", names())
every_inference = pytest.mark.parametrize("inference", ["vi", "frequentist", "dropout"])


@every_table
def test_the_table_is_the_appendix(name: str) -> None:
    kinds = {Convolution: "convolution", MaxPooling: "max-pooling", FullyConnected: "fully-connected"}
    rows = []
    for shape in ARCHITECTURES[name].shapes(CHANNELS[name], 10):
        row = shape.row
        kernel, stride = getattr(row, "kernel", None), getattr(row, "stride", None)
        padding = getattr(row, "padding", 0 if isinstance(row, MaxPooling) else None)
        width = None if isinstance(row, MaxPooling) else (row.width or 10)
        rows.append((kinds[type(row)], kernel, width, stride, padding, shape.input))
    assert rows == APPENDIX[name]


@every_table
@every_inference
@pytest.mark.parametrize("size", [32, 50])
def test_the_network_has_the_shapes_of_its_table(name: str, inference: str, size: int) -> None:
    """Each layer, run for real, turns the table's input shape into its output shape."""
    with torch.device("meta"):
        network = build(name, 10, CHANNELS[name], inference, size)
        x = torch.empty(2, CHANNELS[name], size, size)
    shapes = iter(ARCHITECTURES[name].shapes(CHANNELS[name], 10, size))
    for layer in network:
        before = tuple(x.shape[1:])
        x = layer(x)
        if isinstance(layer, (BayesLayer, nn.Conv2d, nn.Linear, nn.MaxPool2d)):
            shape = next(shapes)
            assert (before, tuple(x.shape[1:])) == (shape.input, shape.output)
    assert next(shapes, None) is None


@every_table
def test_the_twins_have_the_same_weights_and_bayesian_ones_twice(name: str) -> None:
    with torch.device("meta"):
        counts = {
            i: sum(p.numel() for p in build(name, 7, 3, i).parameters()) for i in ("vi", "frequentist", "dropout")
        }
    expected = sum(shape.weights for shape in ARCHITECTURES[name].shapes(3, 7))
    assert counts == {"vi": 2 * expected, "frequentist": expected, "dropout": expected}


@every_table
def test_images_that_are_too_small_are_refused_with_the_smallest_size(name: str) -> None:
    least = SMALLEST[name]
    with torch.device("meta"):
        assert build(name, 4, image_size=least)(torch.empty(1, 3, least, least)).shape == (1, 4)
    for size in (1, least - 1):
        with pytest.raises(OptionError, match=rf"image_size is {size}, but {name} needs at least {least} pixels"):
            build(name, image_size=size)


@every_model
@every_inference
def test_every_network_of_the_registry_runs_forward_and_backward(name: str, inference: str) -> None:
    torch.manual_seed(0)
    network = build(name, num_classes=3, inference=inference)
    terms = dubito.ELBO(num_data=2)(network, torch.randn(2, 3, 32, 32), torch.tensor([0, 2]))
    terms.loss.backward()
    assert terms.loss.isfinite()
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.fixture
def mine() -> Iterator[str]:
    """A network of plain torch layers in the registry."""

    @register("mine")
    def build_mine(plan: Plan) -> nn.Module:
        inputs = plan.in_channels * plan.image_size**2
        hidden = nn.Dropout(plan.dropout) if plan.inference is Inference.DROPOUT else nn.ReLU()
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), hidden, nn.Linear(8, plan.num_outputs))

    yield "mine"
    del registry._ENTRIES["mine"]


def test_a_registered_plain_network_gets_its_twins_and_its_head(mine: str) -> None:
    assert names()[-1] == mine
    torch.manual_seed(0)
    images = torch.randn(5, 1, 6, 6)
    for inference in ("vi", "frequentist", "dropout"):
        network = build(mine, 4, 1, inference, 6, head="kendall_gal")
        bayesian = [layer for layer in network.modules() if isinstance(layer, BayesLayer)]
        assert len(bayesian) == (2 if inference == "vi" else 0)
        prediction = dubito.Predictor(network, samples=4)(images)
        assert prediction.probs.shape == (5, 4)
        assert bool((prediction.epistemic > 0).any()) == (inference != "frequentist")
    prior = build(mine, 4, 1, "vi", 6, prior=0.5, initial_std=0.2)[1]
    torch.testing.assert_close(prior.weight_std, torch.full((8, 36), 0.2))


def test_a_name_is_registered_once(mine: str) -> None:
    with pytest.raises(OptionError, match="There is a network 'mine' already"):
        register(mine)(lambda plan: nn.Identity())
    with pytest.raises(OptionError, match=r"model is 'mined', but must be one of .*'mine'; the nearest is 'mine'"):
        build("mined")


def test_dropout_follows_the_rows_that_the_table_names() -> None:
    network = build("alexnet", inference="dropout", dropout=0.3)
    names = [name for name, layer in network.named_children() if isinstance(layer, nn.Dropout)]
    assert names == ["dropout1", "dropout4", "dropout6"]
    order = list(dict(network.named_children()))
    assert order.index("dropout1") == order.index("convolution1") + 2
    assert order.index("dropout4") == order.index("pooling4") + 1
    assert {layer.p for layer in network if isinstance(layer, nn.Dropout)} == {0.3}
    assert not any(isinstance(layer, nn.Dropout) for layer in build("alexnet", inference="frequentist"))


@pytest.mark.parametrize(("activation", "kind"), [("softplus", nn.Softplus), ("relu", nn.ReLU)])
def test_the_nonlinearity_is_as_asked_and_absent_after_the_last_layer(activation: str, kind: type) -> None:
    network = build("lenet5", activation=activation)
    assert sum(isinstance(layer, kind) for layer in network) == 4
    assert isinstance(list(network)[-1], BayesLayer)


def test_the_head_is_part_of_the_network_and_decides_the_number_of_outputs() -> None:
    images = torch.randn(3, 1, 32, 32)
    network = build("lenet5", num_classes=5, in_channels=1, head="kendall_gal")
    assert network(images).shape == (3, 10)
    assert dubito.predict(network, images, samples=2).probs.shape == (3, 5)


def test_mc_dropout_draws_by_itself_and_its_frequentist_use_does_not() -> None:
    torch.manual_seed(0)
    network, images = build("lenet5", inference="dropout"), torch.randn(4, 3, 32, 32)
    assert (dubito.predict(network, images).epistemic > 0).all()
    assert (dubito.predict(network, images, dropout=False).epistemic == 0).all()


@every_inference
@pytest.mark.parametrize("name", ["lenet5", "alexnet", "vgg16"])
def test_images_stay_apart_through_every_layer(name: str, inference: str) -> None:
    """The spread across images is what default initialisation loses: 0.000 by layer 6 of a softplus VGG16."""
    torch.manual_seed(0)
    network = build(name, in_channels=3, inference=inference, dropout=0.02).eval()  # whose noise takes its share
    x = synthetic_images(16, 3, 32)
    with torch.no_grad():
        for layer in network:
            x = layer(x)
            if isinstance(layer, (BayesLayer, nn.Conv2d, nn.Linear)):
                assert x.std(0).mean() > 0.3


def test_initialisation_gives_each_channel_zero_mean_and_the_wanted_spread_on_its_batch() -> None:
    torch.manual_seed(0)
    network, images = build("lenet5", in_channels=3), torch.rand(64, 3, 32, 32)
    initialize(network, images)
    x = images
    with torch.no_grad(), dubito.estimator(network, "mean"):
        for layer in network:
            x = layer(x)
            if isinstance(layer, BayesLayer):
                axes = [axis for axis in range(x.dim()) if axis != 1]
                spread = 1.0 if layer is list(network)[-1] else HIDDEN_SPREAD
                torch.testing.assert_close(x.mean(axes), torch.zeros(x.shape[1]), atol=1e-3, rtol=0)
                torch.testing.assert_close(x.std(axes), torch.full((x.shape[1],), spread), atol=3e-3, rtol=0)


def test_initialisation_reckons_with_the_noise_of_dropout() -> None:
    """On a batch of 4,096 other masks change a channel's spread by a few hundredths; without dropout it is far less."""
    torch.manual_seed(0)
    network, images = build("lenet5", 10, 1, "dropout", dropout=0.5), synthetic_images(4096, 1, 32)
    initialize(network, images)
    spreads = {}
    for mode in (True, False):
        x = images
        with torch.no_grad():
            for name, layer in network.train(mode).named_children():
                x = layer(x)
                if name == "linear6":
                    spreads[mode] = x.std(0)
    torch.testing.assert_close(spreads[True], torch.full((84,), HIDDEN_SPREAD), atol=0.25, rtol=0)
    assert spreads[False].max() < 0.8 * HIDDEN_SPREAD


@pytest.mark.parametrize("posterior", ["std", "alpha"])
def test_every_weight_starts_with_the_papers_standard_deviation(posterior: str) -> None:
    network = build("lenet5", posterior=posterior)
    for layer in network:
        if isinstance(layer, BayesLayer):
            expected = torch.full_like(layer.weight_std, 0.006737946999)  # exp(-10 / 2)
            torch.testing.assert_close(layer.weight_std, expected, rtol=1e-4, atol=0)


@every_inference
def test_a_few_steps_learn_a_batch(inference: str) -> None:
    torch.manual_seed(0)
    network = build("lenet5", in_channels=1, inference=inference, dropout=0.1)
    images, labels = synthetic_images(32, 1, 32), torch.arange(32) % 10
    objective = dubito.ELBO(num_data=10_000)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    before = objective(network.eval(), images, labels).nll.item()
    network.train()
    for _ in range(40):
        optimizer.zero_grad()
        objective(network, images, labels).loss.backward()
        optimizer.step()
    assert objective(network.eval(), images, labels).nll.item() < 0.3 * before


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "resnet"}, r"model is 'resnet', but must be one of 'lenet5', 'alexnet', 'vgg16'"),
        ({"inference": "mcmc"}, r"inference is 'mcmc', but must be one of 'vi', 'frequentist', 'dropout'"),
        ({"activation": "sine"}, r"activation is 'sine'"),
        ({"norm": "group"}, r"norm is 'group', but lenet5 cannot change it"),
        ({"head": "gaussian"}, r"this is a classifier"),
        ({"num_classes": 0}, r"num_classes is 0"),
        ({"dropout": 1.0}, r"dropout is 1.0"),
        ({"inference": "frequentist", "prior": "learned"}, r"prior only make sense with inference='vi'"),
    ],
)
def test_bad_options_get_one_sentence(options: dict, sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        build(**{"name": "lenet5", **options})


def test_images_of_another_size_are_told_what_is_wanted():
    with pytest.raises(ShapeError, match=r"\(2, 1, 28, 28\), but the network takes \(N, 1, 32, 32\): scale or pad"):
        build("lenet5", in_channels=1)(torch.zeros(2, 1, 28, 28))
    with pytest.raises(ShapeError, match=r"torch.uint8, but the network takes floats, normalised as in its training"):
        build("lenet5", in_channels=1)(torch.zeros(2, 1, 32, 32, dtype=torch.uint8))


def test_an_empirical_prior_is_centred_on_the_weights_that_training_starts_from():
    torch.manual_seed(0)
    network = build("lenet5", in_channels=1, prior="empirical")
    for _ in range(2):
        for layer in network:
            if isinstance(layer, BayesLayer):
                prior = layer.posteriors["weight"].prior
                assert torch.equal(prior.mean, layer.weight_mean)
                torch.testing.assert_close(prior.std, layer.weight_mean.square().mean().sqrt())
        initialize(network, torch.randn(32, 1, 32, 32))
