"""The noise of all draws: torch's own, from the generator that is given."""

import pytest
import torch

from dubito.noise import standard_normal

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_noise_is_torchs_from_the_given_generator(dtype):
    found = standard_normal(100_000, dtype, CPU, torch.Generator().manual_seed(1))
    assert torch.equal(found, torch.randn(100_000, dtype=dtype, generator=torch.Generator().manual_seed(1)))
    assert not torch.equal(found, standard_normal(100_000, dtype, CPU, torch.Generator().manual_seed(2)))


def test_a_generator_leaves_the_global_random_state_alone():
    before = torch.get_rng_state()
    standard_normal(100, torch.float32, CPU, torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_has_the_dtype_and_device_asked_for():
    noise = standard_normal(5, torch.float64, torch.device("meta"))
    assert (noise.dtype, noise.device.type) == (torch.float64, "meta")
