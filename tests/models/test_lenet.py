from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.models import judge_lenet, lenet, lenet5, parameter_count


def test_lenet_of_the_authors_code() -> None:
    """Three 5x5 convolutions with 12 filters and Linear(768, 100) for 3 x 32 x 32; 588 features for 1 x 28 x 28."""
    assert parameter_count(lenet()) == (75 + 1) * 12 + 2 * (300 + 1) * 12 + (768 + 1) * 100 == 85_036
    assert parameter_count(lenet((1, 28, 28), 10)) == (25 + 1) * 12 + 2 * (300 + 1) * 12 + (588 + 1) * 10 == 13_426
    assert list(lenet().state_dict()) == [
        f"{layer}.{kind}" for layer in ("body.0", "body.2", "body.4", "fc.0") for kind in ("weight", "bias")
    ]


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(1, 20), st.integers(1, 20), st.integers(2, 12))
def test_lenet_takes_any_size(channels: int, height: int, width: int, classes: int) -> None:
    model = lenet((channels, height, width), classes)
    assert model(torch.zeros(2, channels, height, width)).shape == (2, classes)


def test_wide_initialisation_is_uniform_in_weights_and_biases() -> None:
    values = torch.cat(
        [v.flatten() for v in lenet(initial_limit=0.5, rng=torch.Generator().manual_seed(0)).parameters()]
    )
    assert values.abs().max() <= 0.5
    # 85,036 draws of variance 1 / 12: standard error of the mean 0.001, of the variance 0.00026; 4 of those.
    assert abs(values.mean()) < 0.004
    assert values.var().item() == pytest.approx(1 / 12, abs=0.0011)
    biases = torch.cat([v for k, v in lenet(initial_limit=0.5).named_parameters() if k.endswith("bias")])
    assert biases.abs().max() > 0.25


@pytest.mark.parametrize("limit", [0.0, -0.5, float("nan"), float("inf")])
def test_a_limit_must_be_positive_and_finite(limit: float) -> None:
    with pytest.raises(InvalidInput, match="Expected initial_limit="):
        lenet(initial_limit=limit)


def test_lenet5_has_the_classic_layers() -> None:
    assert parameter_count(lenet5()) == 156 + 2_416 + 48_120 + 10_164 + 850 == 61_706


def test_a_judge_is_frozen_and_in_evaluation_mode(tmp_path: Path) -> None:
    trained = lenet5(rng=torch.Generator().manual_seed(0))
    torch.save(trained.state_dict(), tmp_path / "judge.pth")
    judge = judge_lenet(tmp_path / "judge.pth")
    assert not judge.training
    assert parameter_count(judge) == 0
    digits = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(judge(digits), trained(digits).detach())


def data_file(*parts: str) -> Path:
    folder = os.environ.get("RECONRISK_DATA")
    if not folder or not Path(folder, *parts).exists():
        pytest.skip(f"set RECONRISK_DATA to a folder with {'/'.join(parts)}")
    return Path(folder, *parts)


def idx(path: Path, header: int) -> Tensor:
    return torch.from_numpy(np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header).copy())


def test_the_public_judge_knows_99_percent_of_the_mnist_test_digits() -> None:
    """The file's authors state 0.991; 0.9907 with another resize."""
    judge = judge_lenet(data_file("weights", "mnist_lenet_csinva.pth"))
    digits = idx(data_file("mnist", "t10k-images-idx3-ubyte.gz"), 16).view(-1, 1, 28, 28).float() / 255
    labels = idx(data_file("mnist", "t10k-labels-idx1-ubyte.gz"), 8)
    assert (judge(digits).argmax(1) == labels).float().mean().item() == pytest.approx(0.991, abs=5e-4)
