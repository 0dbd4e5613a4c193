"""Pairwise errors by matrix products against direct differences, within the stated rounding."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from reconrisk.metrics.records import pairwise_mse, rounding_error

law = settings(deadline=None, derandomize=True, max_examples=60)


@law
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(1, 300),
    st.sampled_from([0.0, 1.0, 1e6]),
    st.sampled_from([1e-6, 1.0, 1e9]),
)
def test_agrees_with_scipy_within_the_stated_rounding(
    seed: int, lefts: int, rights: int, width: int, offset: float, scale: float
) -> None:
    rng = torch.Generator().manual_seed(seed)
    left, right = (
        scale * (offset + torch.randn(count, width, generator=rng, dtype=torch.float64)) for count in (lefts, rights)
    )
    right = torch.cat([right, left])  # copies, where the terms cancel entirely
    measured, slack = pairwise_mse(left, right), rounding_error(left, right)
    expected = cdist(left, right, "sqeuclidean") / width
    assert (measured >= 0).all()
    # Differences have an error of their own, relative to the result.
    assert (np.abs(measured.numpy() - expected) <= slack.numpy()[:, None] + 1e-13 * expected).all()


def test_a_common_offset_does_not_cost_digits() -> None:
    right = 1e8 + torch.arange(4.0, dtype=torch.float64).reshape(4, 1).expand(4, 50)
    expected = (torch.arange(4.0)[:, None] - torch.arange(4.0)).double().square()
    torch.testing.assert_close(pairwise_mse(right, right), expected, rtol=0, atol=1e-12)


def test_bytes_and_images_are_read_as_numbers() -> None:
    left = torch.tensor([[[[0, 255]]]], dtype=torch.uint8)
    right = torch.tensor([[[[255, 0]]], [[[0, 255]]]], dtype=torch.uint8)
    assert pairwise_mse(left, right).tolist() == [[255.0**2, 0.0]]


def test_overflow_is_far_away_and_not_undefined() -> None:
    left = torch.tensor([[1e200, 1e200], [0.0, 0.0]], dtype=torch.float64)
    right = torch.tensor([[1.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    assert pairwise_mse(left, right).tolist() == [[math.inf, math.inf], [1.0, 4.0]]
    # Here the product overflows as well, and infinity minus infinity is no number.
    assert pairwise_mse(left, left * 1e-20).tolist() == [[math.inf, math.inf]] * 2
