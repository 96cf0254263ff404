"""The split of uncertainty against direct formulas over all draws at once."""

import math

import numpy as np
import pytest
import torch

import dubito
from dubito.errors import NonFiniteError, OptionError, ShapeError
from dubito.heads import KendallGalHead
from dubito.prediction import Decomposition, Prediction

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FIELDS = ("probs", "aleatoric_per_class", "epistemic_per_class", "entropy", "mutual_information")
MATRICES = ("aleatoric_covariance", "epistemic_covariance")


def draws(samples=7, images=5, classes=4, sharpness=2.0, seed=0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(samples, images, classes, dtype=torch.float64, generator=generator)).softmax(2)


def direct_matrices(probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both (N, C, C) matrices by their definition, one image and one draw at a time."""
    mean = probs.mean(0)
    aleatoric, epistemic = torch.zeros(2, *mean.shape, mean.shape[1], dtype=probs.dtype)
    for p in probs:
        for n in range(len(mean)):
            aleatoric[n] += (torch.diag(p[n]) - torch.outer(p[n], p[n])) / len(probs)
            epistemic[n] += torch.outer(p[n] - mean[n], p[n] - mean[n]) / len(probs)
    return aleatoric, epistemic


@pytest.mark.parametrize("samples", [1, 2, 50])
def test_split_is_kwons_by_definition(samples):
    probs = draws(samples)
    aleatoric, epistemic = direct_matrices(probs)
    split = dubito.decompose(probs, covariance=True)
    exact = {"rtol": 0, "atol": 1e-14}
    torch.testing.assert_close(split.aleatoric_covariance, aleatoric, **exact)
    torch.testing.assert_close(split.epistemic_covariance, epistemic, **exact)
    torch.testing.assert_close(split.aleatoric_per_class, aleatoric.diagonal(dim1=1, dim2=2), **exact)
    torch.testing.assert_close(split.epistemic_per_class, epistemic.diagonal(dim1=1, dim2=2), **exact)
    torch.testing.assert_close(split.aleatoric, aleatoric.diagonal(dim1=1, dim2=2).mean(1), **exact)
    torch.testing.assert_close(split.epistemic, epistemic.diagonal(dim1=1, dim2=2).mean(1), **exact)


@pytest.mark.parametrize("sharpness", [0.01, 1.0, 30.0])
def test_the_two_parts_sum_to_the_covariance_of_a_label(sharpness):
    probs = draws(30, sharpness=sharpness)
    split = dubito.decompose(probs, covariance=True)
    mean = probs.mean(0)
    total = torch.diag_embed(mean) - mean[:, :, None] * mean[:, None, :]
    exact = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(split.aleatoric_covariance + split.epistemic_covariance, total, **exact)
    torch.testing.assert_close(split.aleatoric_per_class + split.epistemic_per_class, mean * (1 - mean), **exact)


def test_mean_label_and_confidence_are_those_of_the_mean_probabilities():
    probs = draws()
    split = dubito.decompose(probs)
    mean = probs.mean(0)
    torch.testing.assert_close(split.probs, mean)
    assert split.label.tolist() == [row.index(max(row)) for row in mean.tolist()]
    assert split.confidence.tolist() == pytest.approx([max(row) for row in mean.tolist()], rel=1e-14)
    assert (len(split), split.samples) == (5, 7)


def test_entropy_splits_into_expected_entropy_and_mutual_information():
    probs = draws(40)
    split = dubito.decompose(probs)
    entropy = torch.distributions.Categorical(probs=probs.mean(0)).entropy()
    expected_entropy = torch.distributions.Categorical(probs=probs).entropy().mean(0)
    torch.testing.assert_close(split.entropy, entropy)
    torch.testing.assert_close(split.mutual_information, entropy - expected_entropy)
    assert (split.mutual_information > 0).all()


def test_certain_draws_that_disagree_are_all_epistemic():
    probs = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=torch.float64)
    split = dubito.decompose(probs)
    assert (split.aleatoric.item(), split.epistemic.item()) == (0.0, 0.25)
    assert split.mutual_information.item() == split.entropy.item() == pytest.approx(math.log(2), rel=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("samples", [1, 3, 1000])
def test_identical_draws_have_exactly_no_epistemic_uncertainty(samples, dtype):
    one = draws(1, classes=10).to(dtype)
    split = dubito.decompose(one.expand(samples, -1, -1), covariance=True)
    assert split.epistemic_per_class.abs().max() == 0
    assert split.epistemic_covariance.abs().max() == 0
    assert split.mutual_information.max() < 1e-6
    streamed = Decomposition()
    for _ in range(samples):
        streamed.update(one)
    assert streamed.compute().epistemic_per_class.abs().max() == 0


@pytest.mark.parametrize("blocks", [[1] * 12, [12], [5, 7], [1, 2, 3, 6], [11, 1]])
@pytest.mark.parametrize("head", ["softplus", "softmax", "kendall_gal"])
def test_streaming_in_blocks_equals_one_go(head, blocks):
    outputs = torch.randn(12, 5, 8, dtype=torch.float64)
    whole, split = (dubito.heads.get_head(head).split(covariance=True) for _ in range(2))
    whole.update(outputs)
    for part in outputs.split(blocks):
        split.update(part)
    assert split.compute().samples == whole.compute().samples == 12
    for field in FIELDS + MATRICES:
        expected = getattr(whole.compute(), field)
        torch.testing.assert_close(getattr(split.compute(), field), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("head", ["softplus", "softmax"])
def test_a_head_splits_the_draws_of_its_probabilities(head):
    head, outputs = dubito.heads.get_head(head), torch.randn(9, 5, 4, dtype=torch.float64)
    split = head.split(covariance=True)
    split.update(outputs)
    probs = torch.stack([head.probs(draw) for draw in outputs])
    expected = dubito.decompose(probs, covariance=True)
    for field in FIELDS + MATRICES:
        torch.testing.assert_close(getattr(split.compute(), field), getattr(expected, field), rtol=1e-12, atol=1e-15)


def test_streaming_is_stable_where_a_difference_of_sums_is_not():
    """Draws of 1/2 +- 1e-6 in single precision: the variance 1e-12 is below the rounding of the mean square 0.25."""
    probs = torch.tensor([[0.5 + 1e-6, 0.5 - 1e-6], [0.5 - 1e-6, 0.5 + 1e-6]], dtype=torch.float32)
    split = Decomposition()
    for index in range(1000):
        split.update(probs[index % 2].reshape(1, 1, 2))
    actual = (probs[0, 0].double() - probs[1, 0].double()).item() ** 2 / 4
    assert split.compute().epistemic.item() == pytest.approx(actual, rel=0.05)


def test_kendall_gal_split_is_mean_of_variances_and_variance_of_means():
    head, outputs = KendallGalHead(), torch.randn(9, 5, 8, dtype=torch.float64)
    split = head.split(covariance=True)
    split.update(outputs)
    found = split.compute()
    means, variances = outputs[:, :, :4], torch.log1p(torch.exp(outputs[:, :, 4:]))
    torch.testing.assert_close(found.aleatoric_per_class, variances.mean(0))
    torch.testing.assert_close(found.epistemic_per_class, means.var(0, correction=0))
    torch.testing.assert_close(found.aleatoric_covariance, torch.diag_embed(variances.mean(0)))
    centred = means - means.mean(0)
    torch.testing.assert_close(found.epistemic_covariance, torch.einsum("tnc,tnd->ncd", centred, centred) / 9)
    by_probs = dubito.decompose(torch.stack([head.probs(draw) for draw in outputs]))
    for field in ("probs", "entropy", "mutual_information"):
        torch.testing.assert_close(getattr(found, field), getattr(by_probs, field))


def test_plug_in_epistemic_of_independent_draws_is_too_small_by_one_over_their_number():
    """The mean over many splits of T draws is (1 - 1/T) times the variance, in standard errors."""
    for samples in (2, 4, 10):
        probs = draws(samples, images=20_000, classes=3)
        values = dubito.decompose(probs).epistemic_per_class[:, 0]
        variance = draws(1, images=400_000, classes=3, seed=1)[0, :, 0].var()
        error = values.std() / math.sqrt(len(values))
        assert abs(values.mean() - (1 - 1 / samples) * variance) < 5 * error


def test_dense_draws_are_split_at_every_pixel():
    probs = draws(6, images=2 * 3 * 3).reshape(6, 2, 3, 3, 4).permute(0, 1, 4, 2, 3)
    split = dubito.decompose(probs)
    flat = dubito.decompose(draws(6, images=2 * 3 * 3))
    for field in FIELDS:
        expected = getattr(flat, field).reshape(2, 3, 3, -1).movedim(-1, 1)
        torch.testing.assert_close(getattr(split, field).reshape(expected.shape), expected)
    assert split.aleatoric.shape == (2, 3, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_draws_are_accumulated_in_single_precision(dtype):
    probs = draws(200).to(dtype)
    split, exact = dubito.decompose(probs), dubito.decompose(probs.double() / probs.double().sum(2, keepdim=True))
    assert split.probs.dtype == torch.float32
    torch.testing.assert_close(split.epistemic.double(), exact.epistemic, rtol=0.02, atol=1e-6)


def test_prediction_can_be_indexed_looped_over_and_joined():
    split = dubito.decompose(draws(), covariance=True)
    assert [part.label.item() for part in split] == split.label.tolist()
    assert torch.equal(split[-1].probs, split.probs[-1:])
    mask = split.confidence > split.confidence.median()
    assert torch.equal(split[mask].epistemic, split.epistemic[mask])
    joined = Prediction.cat([split[:2], split[2:]])
    for field in FIELDS + MATRICES:
        assert torch.equal(getattr(joined, field), getattr(split, field))
    with pytest.raises(IndexError):
        split[5]
    assert split.to(torch.float32).probs.dtype == torch.float32


@pytest.mark.parametrize(
    "probs",
    [torch.full((5, 4), 0.25), torch.zeros(0, 5, 4), torch.zeros(3, 5, 0), torch.ones(3, 5, 1, dtype=torch.long)],
)
def test_draws_without_the_three_axes_are_refused(probs):
    shape = ", ".join(map(str, probs.shape))
    with pytest.raises(
        ShapeError, match=rf"probs has shape \({shape}\) and type .*, but must be floating point of shape"
    ):
        dubito.decompose(probs)


def test_outputs_that_are_no_probabilities_are_refused():
    with pytest.raises(ShapeError, match="sums over its class axis 2 that differ from 1 by up to 2"):
        dubito.decompose(torch.ones(2, 2, 3))
    with pytest.raises(ShapeError, match="or negative entries"):
        dubito.decompose(torch.tensor([[[1.5, -0.5]]]))
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        dubito.decompose(torch.tensor([[[math.nan, 0.5]]]))


def test_covariance_of_dense_draws_is_refused():
    with pytest.raises(ShapeError, match=r"shape \(2, 1, 2, 1, 1\), but covariance=True needs \(T, N, C\)"):
        dubito.decompose(torch.full((2, 1, 2, 1, 1), 0.5), covariance=True)


def test_no_draws_have_no_split():
    with pytest.raises(OptionError, match="There are no draws yet, but a decomposition needs at least 1"):
        Decomposition().compute()


@pytest.mark.parametrize("number", [3, -2, np.int64(3), torch.tensor(3), torch.tensor(-2)])
def test_one_number_of_any_kind_keeps_the_axis_of_the_images(number):
    prediction = dubito.decompose(draws())
    torch.testing.assert_close(prediction[number].probs, prediction.probs[3:4])
    assert prediction[number].epistemic.shape == (1,)
