"""What no draw touches is computed once, and that changes no number."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dubito
from dubito.prediction import draws as module

DOUBLE = torch.float64
DRAWS = 10


@pytest.fixture(autouse=True)
def no_first_look(monkeypatch):
    """Calls are counted here, and the first look at a network is a call of its own."""
    monkeypatch.setattr("dubito.prediction.predictor.posteriors", lambda model: {})


class Counted(nn.Linear):
    """A layer that counts its calls over all of its copies."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, dtype=DOUBLE)
        self.calls = Calls()

    def forward(self, x):
        self.calls.count += 1
        return super().forward(x)


class Calls:
    count = 0

    def __deepcopy__(self, memo):
        return self


class Composed(nn.Module):
    """Two counted layers, something between them, something after them, and a drawn layer."""

    def __init__(self, between, after) -> None:
        super().__init__()
        self.first, self.second = Counted(4, 5), Counted(5, 5)
        self.between, self.after = between, after
        self.last = dubito.BayesLinear(5, 3, initial_std=0.3, dtype=DOUBLE)

    def forward(self, x):
        return self.last(self.after(self.second(self.between(self.first(x)))))


def plus_one_in_place(h):
    h += 1
    return h.mul_(0.5)


def with_shortcut(h):
    out = F.relu(h)
    out += h
    return out


BETWEEN = {
    "nothing": lambda h: h,
    "a module": nn.Tanh(),
    "a function": F.softplus,
    "several functions": lambda h: (F.softplus(h) * 2 + 1).transpose(0, 1).contiguous().transpose(0, 1),
    "a view": lambda h: h.view(h.shape[0], -1),
    "a module in place": nn.ReLU(inplace=True),
    "a function in place": lambda h: F.relu(h, inplace=True),
    "arithmetic in place": plus_one_in_place,
    "a shortcut": with_shortcut,
    "dropout at rest": nn.Dropout(0.5),
    "dropout at rest in place": nn.Dropout(0.5, inplace=True),
    "the identity": nn.Identity(),
}
CHANGED_WITHOUT_NOTICE = ("a function in place", "arithmetic in place")
COUNT = {"few": 3, "many": 20}


def composed(between="nothing", after="nothing") -> Composed:
    torch.manual_seed(0)
    return dubito.attach_head(Composed(BETWEEN[between], BETWEEN[after]), "softmax")


def without_remembering(model, x, samples=DRAWS):
    """The same draws by plain networks."""
    networks = dubito.Predictor(model, samples).networks()
    return torch.stack([network(x.clone()).softmax(1) for network in networks]).detach()


@pytest.mark.parametrize("count", COUNT.values(), ids=COUNT.keys())
@pytest.mark.parametrize("after", BETWEEN)
@pytest.mark.parametrize("between", BETWEEN)
def test_layers_before_the_first_drawn_one_run_once(between, after, count):
    """Once more at most where a function of the network itself changes their output in place: that shows only then."""
    model, x = composed(between, after), torch.randn(count, 4, dtype=DOUBLE)
    predictor = dubito.Predictor(model, DRAWS)
    layers = model.first, model.second
    for _ in range(2):  # nothing is left over from one call to the next
        for layer in layers:
            layer.calls.count = 0
        found = predictor.draws(x)
        most = 2 if count > module.FEW_IMAGES and {between, after} & set(CHANGED_WITHOUT_NOTICE) else 1
        assert all(1 <= layer.calls.count <= most for layer in layers)
        torch.testing.assert_close(found, without_remembering(model, x), rtol=1e-11, atol=1e-13)
        x = x + 1


def test_every_batch_is_computed():
    model, x = composed(), torch.randn(60, 4, dtype=DOUBLE)
    predictor = dubito.Predictor(model, DRAWS, batch_size=20)
    model.first.calls.count = 0
    predictor(x)
    assert model.first.calls.count == 3


def test_mc_dropout_computes_once_what_comes_before_it():
    first, second = Counted(4, 16), Counted(16, 3)
    model = dubito.mc_dropout(nn.Sequential(first, nn.ReLU(inplace=True), nn.Dropout(0.5), second), head="softmax")
    predictor, x = dubito.Predictor(model, DRAWS), torch.randn(20, 4, dtype=DOUBLE)
    found = predictor.draws(x)
    assert (first.calls.count, second.calls.count) == (1, DRAWS)
    plain = torch.stack([network(x).softmax(1) for network in predictor.networks(x[:1])]).detach()
    torch.testing.assert_close(found, plain)


class Branches(nn.Module):
    """A drawn branch that runs first, and others that no draw touches but for their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn = dubito.BayesLinear(4, 4, initial_std=0.3, dtype=DOUBLE)
        self.shared = Counted(4, 3)
        self.a, self.b = nn.Sequential(self.shared, nn.Tanh()), nn.Sequential(self.shared, nn.ReLU())

    def forward(self, x):
        h = self.drawn(x)
        return self.a(h) + self.b(x) + self.shared(x * 2)


class Before(Branches):
    def forward(self, x):
        plain = self.b(x) + self.shared(x * 2)
        return plain + self.a(self.drawn(x))


class Weights(nn.Module):
    """A module that normalises the drawn weight before it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3, dtype=DOUBLE)
        self.norm = nn.LayerNorm(4, dtype=DOUBLE)

    def forward(self, x):
        return F.linear(self.norm(x), self.norm(self.layer.weight))


class State(nn.Module):
    """Every call leaves something behind, in a buffer and in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4, dtype=DOUBLE), dubito.BayesLinear(4, 3, initial_std=0.3, dtype=DOUBLE)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.features = None

    def forward(self, x):
        self.calls += 1
        self.features = self.first(x)
        return self.last(self.features)


class Container(nn.Module):
    """A drawn network below others, with dictionaries, tuples and options between its modules."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4, dtype=DOUBLE)

        def forward(self, x, *, scale=1.0):
            return {"out": self.layer(x) * scale, "in": x}

    def __init__(self) -> None:
        super().__init__()
        self.pair = self.Pair()
        self.inner = nn.Sequential(nn.Sequential(nn.Tanh(), dubito.BayesLinear(4, 3, initial_std=0.3, dtype=DOUBLE)))

    def forward(self, x):
        one, two = self.pair(x, scale=2.0), self.pair(x, scale=-1.0)
        return self.inner(one["out"] + two["out"] * two["in"])


@pytest.mark.parametrize("count", COUNT.values(), ids=COUNT.keys())
@pytest.mark.parametrize("kind", [Branches, Before, Weights, State, Container])
def test_remembering_changes_no_number(kind, count):
    torch.manual_seed(0)
    model = kind()
    if not any(isinstance(part, dubito.BayesLayer) for part in model.modules()):
        model = dubito.to_bayesian(model, only="layer", initial_std=0.3)
    model, x = dubito.attach_head(model, "softmax"), torch.randn(count, 4, dtype=DOUBLE)
    predictor = dubito.Predictor(model, 6)
    for _ in range(2):
        found = predictor.draws(x)
        torch.testing.assert_close(found, without_remembering(model, x, 6), rtol=1e-11, atol=1e-13)
        assert len({tuple(draw.flatten().tolist()) for draw in found}) == 6


def test_a_module_with_two_parents_is_computed_once_before_the_first_draw():
    shared = Counted(4, 4)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (
                nn.Sequential(shared, nn.Tanh(), dubito.BayesLinear(4, 3, initial_std=0.3, dtype=DOUBLE))
                for _ in range(2)
            )

        def forward(self, x):
            return self.a(x) + self.b(x * 2)

    model, x = dubito.attach_head(Two(), "softmax"), torch.randn(20, 4, dtype=DOUBLE)
    found = dubito.Predictor(model, DRAWS).draws(x)
    assert shared.calls.count == 1 + DRAWS  # once for a, and every time for b, which comes after a drawn layer
    torch.testing.assert_close(found, without_remembering(model, x), rtol=1e-11, atol=1e-13)


def test_nothing_is_remembered_of_a_call_that_failed():
    class Failing(nn.Module):
        fails = False

        def forward(self, x):
            if Failing.fails:
                raise ValueError("not now")
            return x

    model = composed()
    model.after = Failing()
    predictor, x = dubito.Predictor(model, DRAWS), torch.randn(20, 4, dtype=DOUBLE)
    expected = predictor.draws(x)
    Failing.fails = True
    with pytest.raises(ValueError, match="not now"):
        predictor(x + 1)
    Failing.fails = False
    assert torch.equal(predictor.draws(x), expected)
