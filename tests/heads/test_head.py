"""Heads: probabilities against references, and their numerics at the ends of every dtype."""

import math
import warnings

import pytest
import torch
from scipy import integrate, stats
from torch import nn

import dubito
from dubito.errors import DubitoWarning, HeadError, OptionError, ShapeError
from dubito.heads import (
    GaussianHead,
    KendallGalHead,
    SoftmaxHead,
    SoftplusHead,
    categorical_log_likelihood,
    get_head,
    resolve_head,
)

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CLASSIFICATION = {"softplus": SoftplusHead(), "softmax": SoftmaxHead(), "kendall_gal": KendallGalHead()}
EXTREMES = {
    "spread": [1e4, -1e4, 0.0, 1.0],
    "all very negative": [-1e4, -1e4, -9e3, -1e4],
    "all very large": [1e4, 1e4, 9e3, 1e4],
    "one very large": [0.0, 0.0, 0.0, 1e4],
    "middle": [12.0, -12.0, 25.0, -25.0],
    "equal": [-1e4] * 4,
    "zero": [0.0] * 4,
}


def normalized_softplus(logits: list[float]) -> list[float]:
    """By definition, in double precision: exact where softplus does not underflow."""
    values = [math.log1p(math.exp(x)) if x < 30 else x + math.log1p(math.exp(-x)) for x in logits]
    return [value / math.fsum(values) for value in values]


@pytest.mark.parametrize(
    "logits", [[0.0, 0.0], [1.0, -2.0, 3.0], [-30.0, -31.0, -29.0], [20.0, 40.0, -5.0], [600.0, -600.0]]
)
def test_softplus_normalization_is_its_definition(logits):
    x = torch.tensor(logits, dtype=torch.float64)
    expected = normalized_softplus(logits)
    assert dubito.softplus_normalize(x).tolist() == pytest.approx(expected, rel=1e-12, abs=1e-300)
    assert dubito.log_softplus_normalize(x).tolist() == pytest.approx(
        [math.log(p) for p in expected], rel=1e-12, abs=1e-15
    )


def test_very_negative_logits_are_normalized_as_their_exponentials():
    x = torch.tensor([-1e4, -1e4 + math.log(3)], dtype=torch.float64)
    assert dubito.softplus_normalize(x).tolist() == pytest.approx([0.25, 0.75], rel=1e-9)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2])
def test_normalization_goes_over_the_asked_axis(dim):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    raw = torch.log1p(torch.exp(x))
    torch.testing.assert_close(dubito.softplus_normalize(x, dim), raw / raw.sum(dim, keepdim=True))
    torch.testing.assert_close(dubito.log_softplus_normalize(x, dim), (raw / raw.sum(dim, keepdim=True)).log())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("logits", EXTREMES.values(), ids=EXTREMES.keys())
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_values_and_gradients_are_finite_at_extreme_logits(name, logits, dtype):
    torch.manual_seed(0)
    head = CLASSIFICATION[name]
    x = torch.tensor([logits, logits[::-1]], dtype=dtype, requires_grad=True)
    for method in (head.log_probs, head.probs):
        for index in range(method(x).shape[1]):
            x.grad = None
            values = method(x)
            values[:, index].sum().backward()
            assert values.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
            assert values.isfinite().all()
            assert x.grad.isfinite().all()
    assert head.log_probs(x).max() <= 1e-6
    assert head.probs(x).double().sum(1).tolist() == pytest.approx([1.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CLASSIFICATION)
def test_half_precision_outputs_are_computed_in_single_precision(name, dtype):
    """Nothing is rounded to half precision on the way: neither probabilities, nor the likelihood, nor the split."""
    head = CLASSIFICATION[name]
    x = (4 * torch.randn(3, 50, 10)).to(dtype)
    targets = torch.zeros(50, dtype=torch.long)
    found, expected = head.probs(x[0]), head.probs(x[0].float())
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    torch.manual_seed(0)
    found = head.log_likelihood(x[0], targets)
    torch.manual_seed(0)
    assert found.dtype == torch.float32
    assert torch.equal(found, head.log_likelihood(x[0].float(), targets))
    half, single = head.split(), head.split()
    half.update(x)
    single.update(x.float())
    for field in ("probs", "aleatoric_per_class", "epistemic_per_class", "entropy", "mutual_information"):
        value = getattr(half.compute(), field)
        assert value.dtype == torch.float32
        assert torch.equal(value, getattr(single.compute(), field))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["softplus", "softmax"])
def test_half_precision_outputs_have_the_probabilities_of_double_precision(name, dtype):
    x = (4 * torch.randn(50, 10)).to(dtype)
    head = CLASSIFICATION[name]
    torch.testing.assert_close(head.log_probs(x).double(), head.log_probs(x.double()), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(head.probs(x).double(), head.probs(x.double()), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_normalising_functions_round_once_and_keep_the_dtype(dtype):
    x = (4 * torch.randn(50, 10)).to(dtype)
    for function in (dubito.softplus_normalize, dubito.log_softplus_normalize):
        assert function(x).dtype == dtype
        assert torch.equal(function(x), function(x.float()).to(dtype))


@pytest.mark.parametrize("name", ["softplus", "softmax"])
def test_gradients_agree_with_finite_differences(name):
    torch.manual_seed(0)
    x = (5 * torch.randn(4, 3, dtype=torch.float64)).requires_grad_()
    head = CLASSIFICATION[name]
    assert torch.autograd.gradcheck(head.log_probs, x)
    assert torch.autograd.gradcheck(head.probs, x)


@pytest.mark.parametrize("beta", [0.25, 3.0])
def test_beta_of_the_softplus_head_is_that_of_torchs_softplus(beta):
    x = torch.randn(5, 4, dtype=torch.float64)
    values = nn.functional.softplus(x, beta)
    expected = values / values.sum(1, keepdim=True)
    torch.testing.assert_close(SoftplusHead(beta).probs(x), expected)
    torch.testing.assert_close(SoftplusHead(beta).log_probs(x), expected.log())


@pytest.mark.parametrize(
    ("head", "classifies", "unit", "outputs"),
    [
        (SoftplusHead(), True, "probability", 7),
        (SoftmaxHead(), True, "probability", 7),
        (KendallGalHead(), True, "logit", 14),
        (GaussianHead(), False, "output", 7),
    ],
)
def test_heads_say_what_they_are(head, classifies, unit, outputs):
    assert (head.classifies, head.unit, head.num_outputs(7)) == (classifies, unit, outputs)
    assert get_head(head.name) == head


def test_a_head_without_classes_has_no_probabilities():
    with pytest.raises(OptionError, match="The gaussian head has no class probabilities"):
        GaussianHead().probs(torch.zeros(2, 3))


def test_softmax_head_is_the_softmax():
    x = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    exponentials = [math.exp(v) for v in x[0].tolist()]
    assert SoftmaxHead().probs(x)[0].tolist() == pytest.approx([e / sum(exponentials) for e in exponentials], rel=1e-14)


def by_quadrature(means, variances):
    """With two classes p_1 = E sigmoid(d), d ~ N(m_1 - m_2, v_1 + v_2): its mean and its second moment."""
    centre, spread = means[0] - means[1], math.sqrt(sum(variances))
    difference = stats.norm(centre, spread)
    sigmoid = lambda d: 1 / (1 + math.exp(-d))  # noqa: E731
    ends = centre - 10 * spread, centre + 10 * spread
    return [integrate.quad(lambda d, k=k: difference.pdf(d) * sigmoid(d) ** k, *ends)[0] for k in (1, 2)]


TWO_CLASSES = [
    ([0.7, -0.4], [1.5, 0.6]),
    ([0.0, 0.0], [1.0, 1.0]),
    ([3.0, -1.0], [0.1, 4.0]),
    ([-2.0, 2.0], [1e-6, 1e-6]),
    ([0.5, 0.0], [9.0, 9.0]),
]


def kendall_gal_outputs(means, variances) -> torch.Tensor:
    return torch.tensor([means + [math.log(math.expm1(v)) for v in variances]], dtype=torch.float64)


@pytest.mark.parametrize(("means", "variances"), TWO_CLASSES)
def test_kendall_gal_probabilities_agree_with_quadrature_for_two_classes(means, variances):
    expected, _ = by_quadrature(means, variances)
    probs = KendallGalHead().probs(kendall_gal_outputs(means, variances))
    assert probs[0].tolist() == pytest.approx([expected, 1 - expected], abs=1e-3)


def test_kendall_gal_training_likelihood_agrees_with_quadrature_in_standard_errors():
    (means, variances), samples = TWO_CLASSES[0], 100_000
    expected, second = by_quadrature(means, variances)
    standard_error = math.sqrt((second - expected**2) / samples)
    found = KendallGalHead(samples=samples).log_probs(kendall_gal_outputs(means, variances)).exp()
    assert found[0].tolist() == pytest.approx([expected, 1 - expected], abs=5 * standard_error)


def test_kendall_gal_predicts_the_same_every_time_and_uses_no_random_numbers():
    outputs = torch.randn(5, 8, dtype=torch.float64)
    state = torch.get_rng_state()
    assert torch.equal(KendallGalHead().probs(outputs), KendallGalHead(3).probs(outputs))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kendall_gal_finds_no_mutual_information_in_a_point_estimate(dtype):
    """Also if the same outputs come as several draws: all share the points of the integral."""
    outputs = 3 * torch.randn(1, 40, 20, dtype=dtype)
    split = KendallGalHead().split()
    split.update(outputs)
    assert split.compute().mutual_information.abs().max() == 0
    assert split.compute().epistemic_per_class.abs().max() == 0
    split.update(outputs.expand(6, -1, -1))
    assert split.compute().mutual_information.max() < 20 * torch.finfo(dtype).eps
    assert split.compute().epistemic_per_class.abs().max() == 0


def test_kendall_gal_moments_are_the_halves_of_the_outputs():
    outputs = torch.tensor([[1.0, -2.0, 0.0, 5.0]], dtype=torch.float64)
    mean, variance = KendallGalHead().logit_moments(outputs)
    assert mean.tolist() == [[1.0, -2.0]]
    assert variance[0].tolist() == pytest.approx([math.log(2), math.log1p(math.exp(5))], rel=1e-14)
    assert KendallGalHead().num_outputs(10) == 20
    assert SoftplusHead().num_outputs(10) == 10


def test_kendall_gal_without_variance_is_the_softmax():
    outputs = torch.tensor([[1.0, -2.0, -1e3, -1e3]], dtype=torch.float64)
    torch.testing.assert_close(KendallGalHead(3).probs(outputs), torch.softmax(outputs[:, :2], 1))


def test_gaussian_head_is_the_normal_density():
    torch.manual_seed(0)
    outputs, targets = torch.randn(2, 5, 3, dtype=torch.float64)
    expected = torch.distributions.Normal(outputs, 0.3).log_prob(targets).sum(1)
    torch.testing.assert_close(GaussianHead(0.3).log_likelihood(outputs, targets), expected, rtol=1e-6, atol=1e-6)


def test_gaussian_head_does_not_overflow_in_half_precision():
    outputs, targets = torch.full((1, 2), 300.0).half(), torch.full((1, 2), -300.0).half()
    expected = 2 * stats.norm(300, 1).logpdf(-300)
    assert GaussianHead(1.0).log_likelihood(outputs, targets).item() == pytest.approx(expected, rel=1e-6)


def test_class_numbers_and_class_probabilities_give_the_cross_entropy():
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 2])
    soft = torch.rand(6, 4, dtype=torch.float64).softmax(1)
    for targets in (labels, labels.to(torch.uint8), soft):
        reference = nn.functional.cross_entropy(logits, targets if targets is soft else labels, reduction="none")
        torch.testing.assert_close(SoftmaxHead().log_likelihood(logits, targets), -reference)


def test_dense_targets_are_summed_over_the_pixels():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randint(3, (2, 4, 5))
    reference = nn.functional.cross_entropy(logits, labels, reduction="none").sum((1, 2))
    torch.testing.assert_close(SoftmaxHead().log_likelihood(logits, labels), -reference)
    soft = nn.functional.one_hot(labels, 3).permute(0, 3, 1, 2).double()
    torch.testing.assert_close(SoftmaxHead().log_likelihood(logits, soft), -reference)


def test_sum_over_many_pixels_does_not_overflow_in_half_precision():
    log_probs = torch.full((1, 2, 400, 400), -1.0, dtype=torch.float16)
    labels = torch.zeros(1, 400, 400, dtype=torch.long)
    assert categorical_log_likelihood(log_probs, labels).item() == -160_000


@pytest.mark.parametrize("logits", [torch.tensor(1.0), torch.zeros(3, 0), torch.zeros(0)])
def test_logits_without_a_class_axis_are_refused(logits):
    for normalize in (dubito.softplus_normalize, dubito.log_softplus_normalize):
        with pytest.raises(ShapeError, match=r"The logits have shape \(.*\), but need a class axis -1"):
            normalize(logits)
    for head in CLASSIFICATION.values():
        with pytest.raises(ShapeError, match=r"have shape \(.*\), but (need a|the kendall_gal head needs)"):
            head.probs(logits)


def test_integer_logits_are_refused():
    with pytest.raises(ShapeError, match=r"The logits are torch.int64, but must be floating point"):
        dubito.softplus_normalize(torch.tensor([1, 2]))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            torch.zeros(3, dtype=torch.long),
            r"shape \(3,\) and type torch.int64, but must be class numbers of shape \(2,\)",
        ),
        (torch.zeros(2), r"shape \(2,\) and type torch.float32, but must be class numbers of shape \(2,\)"),
        (torch.zeros(2, 5), r"shape \(2, 5\).*class probabilities of shape \(2, 4\)"),
        (torch.tensor([0, 4]), r"go from 0 to 4, but the network has 4 classes, so they must lie in 0 \.\.\. 3"),
        (torch.tensor([-1, 0]), "go from -1 to 0, but the network has 4 classes"),
    ],
)
def test_wrong_targets_are_refused_with_what_was_expected(targets, message):
    with pytest.raises(ShapeError, match=message):
        SoftplusHead().log_likelihood(torch.zeros(2, 4), targets)


def test_gaussian_head_refuses_targets_of_another_shape():
    with pytest.raises(ShapeError, match=r"The targets have shape \(2,\), but must have that of the outputs, \(2, 1\)"):
        GaussianHead().log_likelihood(torch.zeros(2, 1), torch.zeros(2))


def test_odd_number_of_outputs_is_no_kendall_gal_head():
    with pytest.raises(ShapeError, match=r"shape \(1, 3\), but the kendall_gal head needs 2K channels"):
        KendallGalHead().probs(torch.zeros(1, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: KendallGalHead(0),
        lambda: GaussianHead(0.0),
        lambda: GaussianHead(math.nan),
        lambda: SoftplusHead(0.0),
        lambda: SoftplusHead(math.inf),
    ],
)
def test_impossible_heads_are_refused(make):
    with pytest.raises(OptionError, match=r"Head got (samples|std|beta)="):
        make()


@pytest.mark.parametrize("given", ["sigmoid", 3, ["softplus"]])
def test_unknown_head_lists_the_valid_ones(given):
    with pytest.raises(
        OptionError, match=r"head is .*, but must be one of 'softplus', 'softmax', 'kendall_gal', 'gaussian'"
    ):
        get_head(given)


def test_head_belongs_to_the_model_and_is_found_again():
    model = dubito.attach_head(nn.Linear(2, 2), "softmax")
    assert resolve_head(model) == SoftmaxHead()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_head(model, "softmax") == SoftmaxHead()


def test_model_without_a_head_is_asked_for_one():
    with pytest.raises(HeadError, match=r"The model \(Linear\) has no head, so.*'softplus'"):
        resolve_head(nn.Linear(2, 2))


def test_another_head_than_the_models_own_warns():
    model = dubito.attach_head(nn.Linear(2, 2), "softmax")
    with pytest.warns(DubitoWarning, match="own head is 'softmax', but 'softplus' was asked for"):
        assert resolve_head(model, "softplus") == SoftplusHead()


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_a_single_class_is_refused(name):
    head = CLASSIFICATION[name]
    outputs = torch.zeros(8, head.num_outputs(1))
    with pytest.raises(ShapeError, match=r"two for a yes or no|at least 2 classes"):
        head.probs(outputs)
    with pytest.raises(ShapeError, match=r"two for a yes or no|at least 2 classes"):
        head.log_likelihood(outputs, torch.zeros(8, dtype=torch.long))
