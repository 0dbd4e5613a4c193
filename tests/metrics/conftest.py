"""Random AlexNet weights in a file: the arithmetic of LPIPS does not depend on training."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

SHAPES = {0: (64, 3, 11, 11), 3: (192, 64, 5, 5), 6: (384, 192, 3, 3), 8: (256, 384, 3, 3), 10: (256, 256, 3, 3)}


@pytest.fixture(scope="session")
def random_weights() -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(5)
    weights = {}
    for index, shape in SHAPES.items():
        fan_in = shape[1] * shape[2] * shape[3]
        weights[f"features.{index}.weight"] = torch.randn(shape, generator=rng) * (2 / fan_in) ** 0.5
        weights[f"features.{index}.bias"] = 0.1 * torch.randn(shape[:1], generator=rng)
    return weights


@pytest.fixture(scope="session")
def random_backbone(random_weights: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    save_file(random_weights, path)
    return path


@pytest.fixture
def data_folder() -> Path:
    folder = os.environ.get("RECONRISK_DATA")
    if not folder:
        pytest.skip("RECONRISK_DATA is not set: it names the folder with the reference data")
    return Path(folder)
