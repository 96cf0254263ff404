"""Networks that return more than logits."""

from collections import namedtuple

import pytest
import torch
from torch import nn

import dubito
from dubito.errors import ShapeError
from dubito.heads import SoftmaxHead, resolve_head


class Returns(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.layer, self.wrap = nn.Linear(3, 2), wrap

    def forward(self, x):
        return self.wrap(self.layer(x))


Output = namedtuple("Output", ["loss", "logits"])
WRAPS = {
    "tensor": lambda t: t,
    "attribute": lambda t: Output(None, t),
    "dict": lambda t: {"loss": None, "logits": t},
    "torchvision": lambda t: {"out": t, "aux": -t},
    "tuple": lambda t: (t, None),
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_logits_are_found(wrap):
    torch.manual_seed(0)
    model = Returns(wrap)
    x = torch.randn(4, 3)
    assert torch.equal(dubito.Logits(model)(x), model.layer(x))
    prediction = dubito.predict(dubito.to_bayesian(dubito.Logits(model), head="softmax", initial_std=0.3), x)
    assert bool((prediction.epistemic > 0).all())


def test_a_head_of_the_model_is_kept():
    model = dubito.to_bayesian(Returns(WRAPS["dict"]), head="softmax")
    assert resolve_head(dubito.Logits(model)) == SoftmaxHead()
    assert resolve_head(dubito.Logits(Returns(WRAPS["dict"]), head="softmax")) == SoftmaxHead()


def test_output_without_logits_is_refused():
    with pytest.raises(ShapeError, match="Returns returned dict, which has no logits"):
        dubito.Logits(Returns(lambda t: {"hidden": t}))(torch.ones(1, 3))


def test_moments_pass_through():
    torch.manual_seed(0)
    layer = dubito.BayesLinear(4, 3, initial_std=0.3)
    x = torch.randn(5, 4)
    expected = dubito.predict(layer, x, head="softmax", method="moments")
    found = dubito.predict(dubito.Logits(layer, head="softmax"), x, method="moments")
    torch.testing.assert_close(found.epistemic, expected.epistemic)
