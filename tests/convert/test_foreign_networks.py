"""Networks that were not written here: Hugging Face's, from configurations without downloads, timm's, torchvision's."""

import pytest
import torch
from torch import nn

import dubito
from dubito.layers import TWINS

CLASSES = 4
CONFIGS = {
    "ResNet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    "ConvNext": {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "MobileNetV1": {"depth_multiplier": 0.25, "min_depth": 4, "classifier_dropout_prob": 0.0},
    "MobileNetV2": {"depth_multiplier": 0.25, "min_depth": 4},
    "ViT": {
        "image_size": 32,
        "patch_size": 16,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    },
}


def hugging_face(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{name}Config")(**CONFIGS[name], num_labels=CLASSES)
    torch.manual_seed(0)
    return dubito.Logits(getattr(transformers, f"{name}ForImageClassification")(config))


def timm(name: str) -> nn.Module:
    torch.manual_seed(0)
    return pytest.importorskip("timm").create_model(name, num_classes=CLASSES)


def torchvision(name: str) -> nn.Module:
    torch.manual_seed(0)
    return getattr(pytest.importorskip("torchvision").models, name)(num_classes=CLASSES)


NETWORKS = [
    *((hugging_face, name) for name in CONFIGS),
    *((timm, name) for name in ("resnet10t", "efficientnet_lite0")),
    *((torchvision, name) for name in ("resnet18", "mobilenet_v3_small")),
]
images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
labels = torch.arange(6) % CLASSES
everywhere = pytest.mark.parametrize(("make", "name"), NETWORKS, ids=lambda value: getattr(value, "__name__", value))


@everywhere
def test_convert_train_a_step_and_predict(make, name):
    network = make(name)
    model = dubito.to_bayesian(network, head="softmax", prior="empirical")
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(images), network.eval()(images))
    assert not [m for m in model.modules() if type(m) in TWINS]

    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    before = {key: value.clone() for key, value in model.named_parameters()}
    terms = dubito.ELBO(num_data=600)(model, images, labels)
    terms.loss.backward()
    optimizer.step()
    assert bool(terms.loss.isfinite())
    changed = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    assert {key for key in before if key.endswith((".mean", ".rho"))} <= changed

    buffers = {key: value.clone() for key, value in model.named_buffers()}
    prediction = dubito.predict(model, images, samples=5)
    assert prediction.probs.shape == (6, CLASSES)
    assert bool((prediction.epistemic > 0).all())
    total = prediction.aleatoric_per_class + prediction.epistemic_per_class
    torch.testing.assert_close(total, prediction.probs * (1 - prediction.probs))
    assert all(torch.equal(value, buffers[key]) for key, value in model.named_buffers())


@everywhere
def test_last_layer_is_the_classifier_and_going_back_changes_nothing(make, name):
    network = make(name).eval()
    model = dubito.to_bayesian(network, last_layer=True)
    (last,) = [part for part in model.modules() if isinstance(part, dubito.BayesLayer)]
    assert last.out_features == CLASSES
    back = dubito.to_deterministic(dubito.to_bayesian(network))
    assert [type(part) for part in back.modules()] == [type(part) for part in network.modules()]
    with torch.no_grad():
        assert torch.equal(back(images), network(images))


def test_conv1d_of_transformers_is_drawn():
    """It keeps its weight transposed, so that torch has no twin for it."""
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    network = dubito.to_bayesian(nn.Sequential(conv1d(4, 3), nn.Linear(4, 2)), head="softmax", initial_std=0.1)
    assert [row.bayesian for row in dubito.summary(network).rows] == [True, True]
    x = torch.randn(2, 3)
    assert not torch.equal(network(x), network(x))
    assert bool((dubito.predict(network, x).epistemic > 0).all())
