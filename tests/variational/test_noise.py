"""The noise of all layers and predictions: torch's own for short vectors, made in parts for long ones."""

import math

import pytest
import torch
from scipy import stats

from dubito.noise import PART, standard_normal, standard_normal_like

CPU = torch.device("cpu")


@pytest.mark.parametrize("count", [PART - 1, PART + 1, 5 * PART])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_standard_normal_and_independent(count, dtype):
    """A Kolmogorov-Smirnov test, moments, and correlations of neighbours, of parts and of calls; 4 standard errors."""
    torch.manual_seed(0)
    noise, following = (standard_normal_like(torch.empty(count, dtype=dtype)).double() for _ in range(2))
    assert stats.kstest(noise.numpy(), "norm").pvalue > 0.01
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(noise.pow(power).mean().item() - mean) < 4 * math.sqrt(variance / count)
    for lag in (1, 2, 3, 64, PART - 1, PART, 2 * PART, count // 2):
        if lag < count - 1000:
            error = 1 / math.sqrt(count - lag)
            assert abs((noise[:-lag] * noise[lag:]).mean().item()) < 4 * error
            assert abs((noise[:-lag].square() * noise[lag:].square()).mean().item() - 1) < 4 * math.sqrt(8) * error
    assert abs((noise * following).mean().item()) < 4 / math.sqrt(count)


def test_short_noise_is_torchs():
    found = standard_normal(PART, torch.float32, CPU, torch.Generator().manual_seed(1))
    assert torch.equal(found, torch.randn(PART, generator=torch.Generator().manual_seed(1)))


def test_every_part_of_long_noise_is_torchs_with_a_seed_of_its_own():
    found = standard_normal(2 * PART + 5, torch.float32, CPU, torch.Generator().manual_seed(1))
    seeds = torch.randint(2**62, (3,), generator=torch.Generator().manual_seed(1)).tolist()
    for part, seed in zip(found.split(PART), seeds, strict=True):
        assert torch.equal(part, torch.randn(len(part), generator=torch.Generator().manual_seed(seed)))


def test_noise_like_a_tensor_has_its_shape_dtype_and_device():
    like = torch.empty(64, 64, 8, 8, dtype=torch.float64)
    noise = standard_normal_like(like, torch.Generator().manual_seed(1))
    assert (noise.shape, noise.dtype, noise.device) == (like.shape, like.dtype, like.device)
    flat = standard_normal(like.numel(), like.dtype, like.device, torch.Generator().manual_seed(1))
    assert torch.equal(noise.view(-1), flat)


def test_noise_depends_on_the_seed_and_not_on_the_threads():
    before = torch.get_num_threads()
    like = torch.empty(3 * PART)
    drawn = []
    try:
        for threads, seed in ((1, 0), (2, 0), (2, 1)):
            torch.set_num_threads(threads)
            torch.manual_seed(seed)
            drawn.append(standard_normal_like(like))
        following = standard_normal_like(like)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[1], drawn[2])
    assert not torch.equal(drawn[2], following)


def test_noise_can_be_made_in_inference_mode_and_is_an_ordinary_tensor():
    with torch.inference_mode():
        noise = standard_normal(2 * PART, torch.float32, CPU)
    assert not noise.is_inference()


def test_half_precision_and_other_devices_get_noise_of_their_kind():
    for like in (torch.empty(2 * PART, dtype=torch.bfloat16), torch.empty(2 * PART, device="meta")):
        noise = standard_normal_like(like)
        assert (noise.dtype, noise.device) == (like.dtype, like.device)
