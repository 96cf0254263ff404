"""Any network, saved and loaded, is the same network: its predictions, its KL, how it draws and how it would train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import dubito
from dubito.convert.pruning import sparsity
from dubito.errors import OptionError, RunError
from dubito.estimators import Weight
from dubito.evaluation.decisions import decide
from dubito.heads import GaussianHead, KendallGalHead, SoftplusHead, resolve_head
from dubito.layers import drawing_modules
from dubito.runs.attached import data_of
from dubito.runs.run import Run
from dubito.variational.posterior import posteriors
from dubito.variational.prior import EmpiricalPrior, FanInPrior, GaussianPrior, Prior, ScaleMixturePrior


class Small(nn.Module):
    """A network with a convolution, normalisation, attention, and dropout."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(self.convolution(x)).flatten(2).transpose(1, 2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.last(self.dropout(mixed.mean(1)))


IMAGES = torch.linspace(-1, 1, 2 * 25).view(2, 1, 5, 5)


def drawn_everywhere(network: nn.Module) -> nn.Module:
    """The network with weights, deviations and statistics that no fresh instance has."""
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.add_(0.01 * (number + 1))
        for name, buffer in network.named_buffers():
            if "running" in name:
                buffer.add_(0.1)
    return network.eval()


def require_same(one: nn.Module, other: nn.Module, images: Tensor = IMAGES) -> None:
    state = other.state_dict()
    assert list(one.state_dict()) == list(state)
    for name, tensor in one.state_dict().items():
        assert tensor.dtype == state[name].dtype, name
        assert torch.equal(tensor, state[name]), name
    assert [p.requires_grad for p in one.parameters()] == [p.requires_grad for p in other.parameters()]
    assert [part.estimator for part in drawing_modules(one)] == [part.estimator for part in drawing_modules(other)]
    assert resolve_head(one) == resolve_head(other)
    found = [dubito.predict(network, images, samples=4, seed=3) for network in (one, other)]
    assert all(torch.equal(getattr(found[0], name), getattr(found[1], name)) for name in ("aleatoric", "epistemic"))
    if posteriors(one):
        kls = []
        for network in (one, other):
            torch.manual_seed(0)
            kls.append(dubito.kl_divergence(network).item())
        assert kls[0] == kls[1]


@pytest.mark.parametrize("posterior", ["std", "alpha", "low_rank"])
@pytest.mark.parametrize(
    "prior",
    [
        *("standard", "fan_in", "learned", "mixture", "log_uniform", "empirical", 0.3),
        *(GaussianPrior(0.1, 0.5), FanInPrior(2.0), EmpiricalPrior(0.2), ScaleMixturePrior(0.25, 1.0, 0.1)),
    ],
    ids=str,
)
def test_families_and_priors_come_back_in_a_plain_instance(posterior: str, prior: Any, tmp_path: Path) -> None:
    network = drawn_everywhere(
        dubito.to_bayesian(Small(), head="softmax", posterior=posterior, prior=prior, initial_std=0.05)
    )
    again = dubito.load(dubito.save(network, tmp_path / "saved"), into=Small())
    require_same(network, again)
    assert not again.training
    for network_ in (network, again):  # what resetting does belongs to the posterior too
        for q in posteriors(network_).values():
            q.bind_prior()
    torch.manual_seed(1)
    first = dubito.kl_divergence(network).item()
    torch.manual_seed(1)
    assert dubito.kl_divergence(again).item() == first


@pytest.mark.parametrize("estimator", ["local", "weight", "flipout", "mean", Weight(draws=2, antithetic=True)], ids=str)
def test_estimators_and_a_part_of_a_network_come_back(estimator: Any, tmp_path: Path) -> None:
    network = dubito.to_bayesian(Small(), head="softplus", only="last", estimator=estimator, bayesian_bias=False)
    again = dubito.load(dubito.save(drawn_everywhere(network), tmp_path / "saved"), into=Small())
    require_same(network, again)
    assert set(posteriors(again)) == {"last.posteriors.weight"}


@pytest.mark.parametrize("head", [SoftplusHead(beta=2.0), GaussianHead(std=0.3), KendallGalHead(samples=4), "softmax"])
def test_heads_come_back_with_their_options(head: Any, tmp_path: Path) -> None:
    network = dubito.to_bayesian(Small(4), head=head)
    require_same(network.eval(), dubito.load(dubito.save(network, tmp_path / "saved"), into=Small(4)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_come_back(dtype: torch.dtype, tmp_path: Path) -> None:
    network = drawn_everywhere(dubito.to_bayesian(nn.Sequential(nn.Flatten(), nn.Linear(25, 3)), head="softmax"))
    network = network.to(dtype)
    again = dubito.load(dubito.save(network, tmp_path / "saved"), into=nn.Sequential(nn.Flatten(), nn.Linear(25, 3)))
    require_same(network, again, IMAGES.to(dtype))


@pytest.mark.parametrize("posterior", ["std", "alpha", "low_rank"])
def test_pruned_networks_come_back_from_a_smaller_file(posterior: str, tmp_path: Path) -> None:
    whole = dubito.to_bayesian(nn.Sequential(nn.Flatten(), nn.Linear(25, 200)), head="softmax", posterior=posterior)
    pruned = dubito.prune(whole, 0.9).eval()
    folders = [dubito.save(network, tmp_path / name) for network, name in ((whole, "whole"), (pruned, "pruned"))]
    again = dubito.load(folders[1], into=nn.Sequential(nn.Flatten(), nn.Linear(25, 200)))
    require_same(pruned, again)
    assert sparsity(again) == 0.9
    sizes = [(folder / "network.safetensors").stat().st_size for folder in folders]
    assert posterior == "low_rank" or sizes[1] < sizes[0] / 4


def test_plain_networks_and_mc_dropout_come_back(tmp_path: Path) -> None:
    plain = dubito.attach_head(drawn_everywhere(Small()), "softmax")
    require_same(plain, dubito.load(dubito.save(plain, tmp_path / "plain"), into=Small()))
    masked = dubito.mc_dropout(plain)
    again = dubito.load(dubito.save(masked, tmp_path / "masked"), into=Small())
    require_same(masked, again)
    assert bool((dubito.predict(again, IMAGES, samples=8).epistemic > 0).all())


def test_frozen_parameters_stay_frozen(tmp_path: Path) -> None:
    network = dubito.to_bayesian(Small(), head="softmax")
    network.convolution.requires_grad_(False)
    again = dubito.load(dubito.save(network, tmp_path / "saved"), into=Small())
    require_same(network.eval(), again)
    assert not any(p.requires_grad for p in again.convolution.parameters())


def tied() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(25, 25), nn.ReLU(), nn.Linear(25, 25))
    network[3].weight = network[1].weight
    return network


@pytest.mark.parametrize("bayesian", [True, False])
def test_tied_weights_stay_tied_and_are_stored_once(bayesian: bool, tmp_path: Path) -> None:
    network = dubito.to_bayesian(tied(), head="softmax") if bayesian else dubito.attach_head(tied(), "softmax")
    again = dubito.load(dubito.save(drawn_everywhere(network), tmp_path / "saved"), into=tied().half())
    require_same(network, again)
    weights = [layer.weight_mean if bayesian else layer.weight for layer in (again[1], again[3])]
    assert weights[0] is weights[1]
    stored = load_file(tmp_path / "saved" / "network.safetensors")
    assert sum(tensor.shape == (25, 25) for tensor in stored.values()) == (2 if bayesian else 1)


def test_shared_layers_and_single_layers_come_back(tmp_path: Path) -> None:
    def shared() -> nn.Module:
        layer = nn.Linear(25, 25)
        return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer)

    network = dubito.to_bayesian(shared(), head="softmax").eval()
    again = dubito.load(dubito.save(network, tmp_path / "shared"), into=shared())
    require_same(network, again)
    assert again[1] is again[3]
    layer = dubito.to_bayesian(nn.Linear(4, 3), head="softmax").eval()
    again = dubito.load(dubito.save(layer, tmp_path / "layer"), into=nn.Linear(4, 3))
    require_same(layer, again, torch.ones(2, 4))


def test_a_converted_instance_is_filled_as_it_is(tmp_path: Path) -> None:
    network = drawn_everywhere(dubito.to_bayesian(Small(), head="softmax"))
    instance = dubito.to_bayesian(Small(), prior="mixture", estimator="weight")
    again = dubito.load(dubito.save(network, tmp_path / "saved"), into=instance)
    assert again is instance
    require_same(network, again)


@pytest.mark.parametrize("inference", ["vi", "frequentist", "dropout"])
def test_networks_of_the_registry_come_back_by_load_alone(inference: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"posterior": "alpha", "prior": GaussianPrior(0.0, 0.2)} if inference == "vi" else {}
    network = dubito.models.build("lenet5", 4, 1, inference, 32, head=SoftplusHead(2.0), **options).eval()
    with torch.no_grad():
        next(iter(network.parameters())).add_(0.1)
    before = torch.random.get_rng_state()
    again = dubito.load(dubito.save(network, tmp_path / "saved"))
    assert torch.equal(before, torch.random.get_rng_state())
    assert type(again) is type(network)
    require_same(network, again, torch.linspace(-1, 1, 1024).view(1, 1, 32, 32))


def test_a_network_of_the_registry_that_was_converted_and_pruned_comes_back(tmp_path: Path) -> None:
    plain = dubito.models.build("lenet5", 4, 1, "frequentist")
    network = dubito.prune(dubito.to_bayesian(plain, last_layer=True, prior="empirical"), 0.5).eval()
    again = dubito.load(dubito.save(network, tmp_path / "saved"))
    require_same(network, again, torch.ones(1, 1, 32, 32))


def test_ensembles_come_back_member_by_member(tmp_path: Path) -> None:
    built = dubito.models.build("lenet5", 3, 1, image_size=32).eval()
    own = dubito.attach_head(nn.Sequential(nn.Flatten(), nn.Linear(1024, 3)), "softmax").eval()
    inner = dubito.ensemble([own, dubito.to_bayesian(own).eval()])
    network = dubito.ensemble([built, inner])
    folder = dubito.save(network, tmp_path / "saved", class_names=["a", "b", "c"], size=32, channels=1)

    def instance() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(1024, 3))

    again = dubito.load(folder, into=[None, [instance(), instance()]])  # type: ignore[list-item]
    images = torch.linspace(-1, 1, 2048).view(2, 1, 32, 32)
    assert torch.equal(dubito.predict(network, images).probs, dubito.predict(again, images).probs)
    assert data_of(again) is not None
    with pytest.raises(RunError, match="ensemble of 2 networks, so give as many instances"):
        dubito.load(folder, into=instance())
    with pytest.raises(RunError, match=r"give an instance, load\(folder, into="):
        dubito.load(folder)


def test_a_network_given_a_head_by_its_ensemble_comes_back(tmp_path: Path) -> None:
    network = dubito.ensemble([nn.Linear(4, 3), nn.Linear(4, 3)], head="softplus")
    again = dubito.load(dubito.save(network, tmp_path / "saved"), into=[nn.Linear(4, 3), nn.Linear(4, 3)])
    assert torch.equal(network(torch.ones(1, 4)), again(torch.ones(1, 4)))


def test_what_the_images_are_like_comes_back(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"class_names": ["kätze", "dog", "x"], "size": 5, "mean": [0.5], "std": [0.2]}
    folder = dubito.save(dubito.attach_head(Small(), "softmax"), tmp_path / "saved", **fields)
    again = dubito.load(folder, into=Small())
    found = data_of(again)
    assert found is not None
    assert (found.class_names, found.size, found.mean, found.std, found.channels) == (
        *(("kätze", "dog", "x"), 5, (0.5,), (0.2,)),
        1,
    )
    dubito.save(again, tmp_path / "second")
    assert data_of(dubito.load(tmp_path / "second", into=Small())) == found


def test_networks_of_runs_carry_their_description_and_can_be_saved(digits_run: Path, tmp_path: Path) -> None:
    network = dubito.load(digits_run)
    again = dubito.load(dubito.save(network, tmp_path / "saved"))
    assert data_of(again) == Run.open(digits_run).data
    require_same(network, again, torch.ones(1, 1, 32, 32))
    found = dubito.Predictor(tmp_path / "saved", samples=2)(torch.ones(1, 1, 32, 32))
    assert torch.equal(found.probs, dubito.Predictor(network, samples=2)(torch.ones(1, 1, 32, 32)).probs)


class OwnPrior(Prior):
    """A prior that dubito does not know."""

    def log_prob(self, weights: Tensor) -> Tensor:
        """Flat."""
        return weights.sum() * 0


def test_parts_that_dubito_does_not_know_must_be_in_the_instance(tmp_path: Path) -> None:
    network = dubito.to_bayesian(nn.Sequential(nn.Linear(4, 3)), head="softmax", prior=OwnPrior()).eval()
    folder = dubito.save(network, tmp_path / "saved")
    with pytest.raises(RunError, match="prior OwnPrior, which dubito does not know"):
        dubito.load(folder, into=nn.Sequential(nn.Linear(4, 3)))
    instance = dubito.to_bayesian(nn.Sequential(nn.Linear(4, 3)), prior=OwnPrior())
    require_same(network, dubito.load(folder, into=instance), torch.ones(1, 4))


# ---- what does not fit ---------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return dubito.save(dubito.to_bayesian(Small(), head="softmax"), tmp_path / "saved")


def test_what_does_not_fit_is_named(saved: Path) -> None:
    with pytest.raises(RunError, match=r"\(Small\) cannot be loaded: dubito cannot build a network of this class"):
        dubito.load(saved)
    with pytest.raises(RunError, match=r"last.posteriors.weight.mean was saved with shape \(3, 4\), but has \(7, 4\)"):
        dubito.load(saved, into=Small(7))
    with pytest.raises(RunError, match="has no module 'convolution'"):
        dubito.load(saved, into=nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(RunError, match="is of the family 'std', but that of the instance is 'alpha'"):
        dubito.load(saved, into=dubito.to_bayesian(Small(), posterior="alpha"))
    with pytest.raises(RunError, match=r"norm.parametrizations.weight.0.posterior of the instance is a posterior"):
        dubito.load(saved, into=dubito.to_bayesian(Small(), only="norm.weight"))
    larger = Small()
    larger.more = nn.Linear(1, 1)
    with pytest.raises(RunError, match=r"the folder lacks more.weight, more.bias"):
        dubito.load(saved, into=larger)
    with pytest.raises(RunError, match="is a single network, so give one instance"):
        dubito.load(saved, into=[Small()])


def test_folders_that_are_no_network_are_refused_in_a_sentence(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=r"is neither a run .* nor a saved network"):
        dubito.load(tmp_path / "empty")
    with pytest.raises(RunError, match="There is no run folder"):
        dubito.load(tmp_path / "nowhere")
    with pytest.raises(OptionError, match="is not a saved network"):
        dubito.load(tmp_path / "empty", into=Small())
    with pytest.raises(RunError, match="not empty; choose another folder, or give overwrite=True"):
        dubito.save(Small(), saved)
    assert dubito.save(Small(), saved, overwrite=True) == saved
    assert not posteriors(dubito.load(saved, into=Small()))


def test_state_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"a": object()}

        def set_extra_state(self, state: Any) -> None: ...

    with pytest.raises(OptionError, match="_extra_state of the network is a dict, but only tensors can be saved"):
        dubito.save(Odd(2, 2), tmp_path / "saved")
    with pytest.raises(OptionError, match="has no values yet"):
        dubito.save(nn.LazyLinear(2), tmp_path / "lazy")


# ---- folders of strangers ------------------------------------------------------------------------------------------


def changed(folder: Path, *path: str, to: Any) -> None:
    file = folder / "network.json"
    content = json.loads(file.read_text())
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("structure",), None),
        (("structure", "drawing"), {"last": 3}),
        (("structure", "posteriors"), {"last.posteriors.weight": {"family": "os.system"}}),
        (("structure", "heads"), {"": {"name": "softmax", "surprise": 1}}),
        (("structure", "heads"), {"": {"name": "softplus", "beta": -1}}),
        (("structure", "passes"), ["nowhere"]),
        (("tensors", "tied"), {"last.bias": "nowhere"}),
        (("tensors", "pruned"), {"last.posteriors.weight": [10**9, 10**9]}),
        (("data",), {"size": "large"}),
        (("built_as",), {"name": "lenet5", "surprise": 1}),
        (("built_as",), {"name": "lenet5", "num_classes": 10**12}),
        (("built_as",), {"name": 3}),
        (("version",), 99),
        (("format",), "pickle"),
    ],
)
def test_every_damage_ends_in_one_sentence(path: tuple[str, ...], value: Any, tmp_path: Path) -> None:
    folder = dubito.save(dubito.models.build("lenet5", 3, 1), tmp_path / "saved")
    changed(folder, *path, to=value)
    with pytest.raises(RunError) as caught:
        dubito.load(folder)
    assert str(folder) in str(caught.value)


def test_damaged_files_are_named(saved: Path) -> None:
    whole = (saved / "network.safetensors").read_bytes()
    (saved / "network.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError, match=r"network.safetensors is damaged"):
        dubito.load(saved, into=Small())
    (saved / "network.safetensors").unlink()
    with pytest.raises(RunError, match=r"has no network.safetensors, so it is not whole"):
        dubito.load(saved, into=Small())
    (saved / "network.json").write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        dubito.load(saved, into=Small())


def test_a_folder_cannot_have_a_function_run(tmp_path: Path) -> None:
    folder = dubito.save(dubito.models.build("lenet5", 3, 1), tmp_path / "saved")
    changed(folder, "built_as", "name", to="os:abort")
    with pytest.raises(RunError, match="runs the function os:abort, which builds its network: give --trust"):
        dubito.load(folder)


def test_a_tensor_more_is_no_secret(saved: Path) -> None:
    tensors = load_file(saved / "network.safetensors")
    save_file({**tensors, "secret": torch.ones(1)}, saved / "network.safetensors")
    with pytest.raises(RunError, match="the instance has no secret"):
        dubito.load(saved, into=Small())


def fitted_predictor(network: nn.Module, images: Tensor) -> dubito.Predictor:
    """A predictor with novelty, a rule for decisions and a temperature."""
    predictor = dubito.Predictor(network, 4, calibrated=1.7)
    predictor.fit_novelty(images[: len(images) // 2], images[len(images) // 2 :])
    predictor.rule = dubito.decisions.fit(predictor(images), torch.arange(len(images)) % 3, review=0.3)
    return predictor


def test_what_a_predictor_was_fitted_with_is_saved_with_its_network(tmp_path: Path) -> None:
    network = drawn_everywhere(dubito.models.build("lenet5", 3, 1, image_size=16))
    images = torch.randn(300, 1, 16, 16)
    fitted = fitted_predictor(network, images)
    folder = dubito.save(network, tmp_path / "saved", predictor=fitted)
    again, expected = dubito.Predictor(folder, 4, calibrated=True)(images[:9]), fitted(images[:9])
    assert set(expected.decision) == {"accept", "review"}
    assert list(again.decision) == list(expected.decision)
    assert torch.equal(again.novelty, expected.novelty)
    assert torch.equal(again.probs, expected.probs)
    assert not torch.equal(dubito.Predictor(folder, 4)(images[:9]).probs, expected.probs)
    assert dubito.Predictor(folder, 4, "mean")(images[:9]).decision is None  # the rule is for draws


def test_a_network_loaded_into_an_instance_has_what_was_fitted_too(tmp_path: Path) -> None:
    images = torch.randn(300, 1, 5, 5)
    network = drawn_everywhere(dubito.to_bayesian(Small(), head="softmax"))
    fitted = fitted_predictor(network, images)
    folder = dubito.save(network, tmp_path / "saved", predictor=fitted)
    again = dubito.Predictor(dubito.load(folder, into=Small()), 4)
    again.use_saved(folder)
    assert torch.equal(again(images[:5]).novelty, fitted(images[:5]).novelty)
    assert again.rule == fitted.rule


def test_a_network_that_is_saved_again_does_not_keep_what_was_fitted_before(tmp_path: Path) -> None:
    network = dubito.attach_head(nn.Sequential(nn.Flatten(), nn.Linear(25, 8), nn.ReLU(), nn.Linear(8, 3)), "softmax")
    folder = dubito.save(network, tmp_path / "saved", predictor=fitted_predictor(network, torch.randn(300, 1, 5, 5)))
    assert {file.name for file in folder.iterdir()} >= {"novelty.safetensors", "decision.json"}
    dubito.save(network, folder, overwrite=True)
    assert not {file.name for file in folder.iterdir()} & {"novelty.safetensors", "decision.json"}
    with pytest.raises(OptionError, match=r"calibrated is True, but .* was saved without a calibrated predictor"):
        dubito.Predictor(folder, calibrated=True)


def test_a_run_can_be_saved_with_its_novelty_rule_and_calibration(own_run: Path, tmp_path: Path) -> None:
    run = Run.open(own_run)
    decide(run, run.validation(), review=0.2)
    fitted = dubito.Predictor(run, calibrated=True)
    folder = dubito.save(run.load(), tmp_path / "saved", predictor=fitted)
    images = torch.randn(5, run.data.channels, run.data.size, run.data.size)
    again, expected = dubito.Predictor(folder, calibrated=True)(images), fitted(images)
    assert expected.novelty is not None
    assert torch.equal(again.novelty, expected.novelty)
    assert torch.equal(again.probs, expected.probs)
    assert list(again.reason) == list(expected.reason)
