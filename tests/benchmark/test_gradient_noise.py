from __future__ import annotations

import pytest
import torch
from benchmarks.gradient_noise import Noise


def test_the_noise_is_the_trace_of_the_covariance() -> None:
    vectors = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 6) + 100
    noise = Noise()
    for vector in vectors:
        noise.add(vector)
    assert noise.trace == pytest.approx(float(torch.cov(vectors.double().T).trace()), rel=1e-9)
