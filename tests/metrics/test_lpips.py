"""LPIPS against the network of torchmetrics, against the published photographs, and how images reach it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.functional.image import lpips as reference

from reconrisk.core.errors import InvalidInput
from reconrisk.metrics import lpips

Weights = dict[str, Tensor]


def random_pair(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=rng), torch.rand(shape, generator=rng)


@pytest.fixture
def oracle(random_weights: Weights, monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """The network of torchmetrics on the layers of torchvision's AlexNet, with our random weights in it."""
    layers = nn.Sequential(
        nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(kernel_size=3, stride=2),
        nn.Conv2d(64, 192, kernel_size=5, padding=2), nn.ReLU(), nn.MaxPool2d(kernel_size=3, stride=2),
        nn.Conv2d(192, 384, kernel_size=3, padding=1), nn.ReLU(),
        nn.Conv2d(384, 256, kernel_size=3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(kernel_size=3, stride=2),
    )  # fmt: skip
    layers.load_state_dict({name.removeprefix("features."): value for name, value in random_weights.items()})
    monkeypatch.setattr(reference, "_get_tv_model_features", lambda net, pretrained: layers)
    return reference._LPIPS(net="alex").double()


@pytest.mark.parametrize("shape", [(3, 3, 64, 64), (2, 3, 80, 100), (70, 3, 64, 64)])
def test_agrees_with_torchmetrics(shape: tuple[int, ...], oracle: nn.Module, random_backbone: Path) -> None:
    # Ours runs the network in float32, the oracle in float64.
    estimates, targets = random_pair(shape)
    expected = oracle(estimates.double(), targets.double(), normalize=True).flatten()
    torch.testing.assert_close(
        lpips(random_backbone, data_range=(0, 1))(estimates, targets), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("shape", "size"), [((28, 28), (64, 64)), ((63, 200), (64, 203)), ((100, 50), (128, 64))])
def test_small_images_are_enlarged_in_proportion(
    shape: tuple[int, int], size: tuple[int, int], oracle: nn.Module, random_backbone: Path
) -> None:
    estimates, targets = random_pair((2, 3, *shape))
    large = (functional.interpolate(each.double(), size, mode="bilinear") for each in (estimates, targets))
    expected = oracle(*large, normalize=True).flatten()
    torch.testing.assert_close(
        lpips(random_backbone, data_range=(0, 1))(estimates, targets), expected, rtol=1e-5, atol=1e-6
    )


def test_grey_images_are_repeated(random_backbone: Path) -> None:
    estimates, targets = random_pair((2, 1, 28, 28))
    metric = lpips(random_backbone, data_range=(0, 1))
    colour = metric(estimates.expand(-1, 3, -1, -1), targets.expand(-1, 3, -1, -1))
    assert torch.equal(metric(estimates, targets), colour)
    assert torch.equal(metric(estimates[:, 0], targets[:, 0]), colour)


@pytest.mark.parametrize("data_range", [(-1, 1), (0, 255), (-3.5, 0.5)])
def test_the_stated_range_is_mapped_to_the_networks(data_range: tuple[float, float], random_backbone: Path) -> None:
    estimates, targets = (each.double() for each in random_pair((2, 3, 32, 32)))
    low, high = data_range
    moved = [low + (high - low) * each for each in (estimates, targets)]
    expected = lpips(random_backbone, data_range=(0, 1))(estimates, targets)
    torch.testing.assert_close(lpips(random_backbone, data_range=data_range)(*moved), expected, rtol=1e-4, atol=1e-6)


def test_bytes_equal_their_floats(random_backbone: Path) -> None:
    estimates, targets = ((255 * each).round() for each in random_pair((2, 3, 32, 32)))
    metric = lpips(random_backbone, data_range=(0, 255))
    assert torch.equal(metric(estimates.byte(), targets.byte()), metric(estimates, targets))


def test_estimates_beyond_the_range_count_as_what_a_screen_shows(random_backbone: Path) -> None:
    estimates, targets = random_pair((2, 3, 32, 32))
    wild = 1e30 * (estimates - 0.5)
    metric = lpips(random_backbone, data_range=(0, 1))
    assert torch.equal(metric(wild, targets), metric(wild.clamp(0, 1), targets))


def test_identical_and_constant_images(random_backbone: Path) -> None:
    _, targets = random_pair((3, 3, 32, 32))
    metric = lpips(random_backbone, data_range=(0, 1))
    assert metric(targets, targets).tolist() == [0.0] * 3
    black, white = torch.zeros(1, 1, 32, 32), torch.ones(1, 1, 32, 32)
    assert float(metric(black, white)) > 0
    assert float(metric(white, white)) == 0


def test_settings_tell_weights_apart(random_weights: Weights, random_backbone: Path, tmp_path: Path) -> None:
    changed = random_weights | {"features.0.bias": random_weights["features.0.bias"] + 1}
    np.savez(tmp_path / "random.npz", **{name: value.numpy() for name, value in changed.items()})
    np.savez(tmp_path / "same.npz", **{name: value.numpy() for name, value in random_weights.items()})
    digests = [
        dict(lpips(path, data_range=(0, 1)).settings)["backbone"].split("#")[1]
        for path in (random_backbone, tmp_path / "same.npz", tmp_path / "random.npz")
    ]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 30), r"to be \(records, channels, height, width\). Use mse\(\) or ncc\(\) for records that"),
        ((2, 4, 32, 32), r"to have 1 or 3 channels. Pass grey or colour images"),
    ],
)
def test_records_that_are_no_pictures_are_refused(shape: tuple[int, ...], message: str, random_backbone: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        lpips(random_backbone, data_range=(0, 1))(*random_pair(shape))


def test_targets_outside_the_stated_range_are_refused(random_backbone: Path) -> None:
    _, targets = random_pair((1, 3, 32, 32))
    with pytest.raises(InvalidInput, match=r"targets within data_range=\(0.0, 1.0\)"):
        lpips(random_backbone, data_range=(0, 1))(255 * targets, 255 * targets)


def test_published_values_on_the_published_photographs(data_folder: Path) -> None:
    # 0.722 and 0.138 are the distances that github.com/richzhang/PerceptualSimilarity prints for its imgs/ex_*.png.
    weights = data_folder / "weights" / "alexnet_imagenet_features_fp32.npz"
    pictures = [data_folder / "lpips" / f"{name}.png" for name in ("ex_ref", "ex_p0", "ex_p1")]
    absent = [str(path) for path in (weights, *pictures) if not path.is_file()]
    if absent:
        pytest.skip(f"absent: {', '.join(absent)}")
    target, *estimates = (torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) for path in pictures)
    scores = lpips(weights, data_range=(0, 255))(torch.stack(estimates), torch.stack([target, target]))
    np.testing.assert_allclose(scores, [0.722, 0.138], atol=5e-4)
