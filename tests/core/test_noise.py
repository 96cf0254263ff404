"""The noise of all layers: its distribution, and the generator against one written with Python's whole numbers."""

import math

import pytest
import torch
from scipy import special, stats

from dubito.noise import BLOCK, SMALLEST, standard_normal_like

MASK = 2**64 - 1
SIZES = {torch.float32: (32, 24, 2), torch.float64: (64, 53, 1)}
"""Bits of a whole number, bits of it that are used, and how many there are in 64."""


def splitmix(counter: int) -> int:
    """SplitMix64 as its authors publish it."""
    z = counter & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def expected(start: int, place: int, dtype: torch.dtype) -> float:
    """The number at a place of the noise."""
    width, bits, in_64 = SIZES[dtype]
    counter, part = divmod(place, in_64)
    number = splitmix(start + counter * 0x9E3779B97F4A7C15) >> (width * part) & (2**width - 1)
    signed = number - 2**width if number >= 2 ** (width - 1) else number
    return math.sqrt(2) * special.erfinv(((signed >> width - bits) + 0.5) / 2 ** (bits - 1))


def test_the_reference_has_the_published_first_outputs_of_seed_1234567():
    golden = 0x9E3779B97F4A7C15
    assert [splitmix(1234567 + golden * k) for k in (1, 2)] == [6457827717110365317, 3203168211198807973]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_every_number_is_the_normal_quantile_of_a_scrambled_counter(dtype, tolerance):
    """At the ends, around the ends of blocks, and of odd lengths."""
    for count in (3 * BLOCK + 5, 2 * BLOCK):
        torch.manual_seed(3)
        noise = standard_normal_like(torch.empty(count, dtype=dtype))
        torch.manual_seed(3)
        start = int(torch.randint(-(2**63), 2**63 - 1, ()))
        for block in range(-(-count // BLOCK) + 1):
            for place in range(max(0, block * BLOCK - 3), min(count, block * BLOCK + 3)):
                assert noise[place].item() == pytest.approx(expected(start, place, dtype), rel=tolerance, abs=1e-7)


@pytest.mark.parametrize("count", [SMALLEST - 1, SMALLEST, 20 * SMALLEST + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_is_standard_normal_and_independent(count, dtype):
    """A Kolmogorov-Smirnov test, moments, and correlations of neighbours, of blocks and of calls; 4 standard errors."""
    torch.manual_seed(0)
    noise, following = (standard_normal_like(torch.empty(count, dtype=dtype)).double() for _ in range(2))
    assert stats.kstest(noise.numpy(), "norm").pvalue > 0.01
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(noise.pow(power).mean().item() - mean) < 4 * math.sqrt(variance / count)
    for lag in (1, 2, 3, 64, BLOCK - 1, BLOCK, 2 * BLOCK, count // 2):
        if lag < count - 1000:
            error = 1 / math.sqrt(count - lag)
            assert abs((noise[:-lag] * noise[lag:]).mean().item()) < 4 * error
            assert abs((noise[:-lag].square() * noise[lag:].square()).mean().item() - 1) < 4 * math.sqrt(8) * error
    assert abs((noise * following).mean().item()) < 4 / math.sqrt(count)


def test_tails_are_as_heavy_as_they_should_be():
    """Of 20 million numbers about 1,266 lie beyond 4; the tolerance is 4 standard errors."""
    torch.manual_seed(0)
    count = 20_000_000
    expected = 2 * stats.norm.sf(4) * count
    found = int((standard_normal_like(torch.empty(count)).abs() > 4).sum())
    assert abs(found - expected) < 4 * math.sqrt(expected)


def test_noise_is_always_finite():
    """The smallest and the largest number that a counter can give are finite quantiles."""
    for dtype, (_, bits, _) in SIZES.items():
        ends = torch.tensor([2.0**-bits, 1 - 2.0**-bits, 2.0**-bits - 1], dtype=dtype)
        assert ends.erfinv().isfinite().all()
        assert ends.abs().max() < 1


def test_noise_depends_on_the_seed_and_not_on_the_threads():
    before = torch.get_num_threads()
    like = torch.empty(3 * SMALLEST)
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


def test_half_precision_and_other_devices_get_torch_s_own():
    for like in (torch.empty(SMALLEST, dtype=torch.bfloat16), torch.empty(SMALLEST, device="meta")):
        noise = standard_normal_like(like)
        assert (noise.dtype, noise.device) == (like.dtype, like.device)
