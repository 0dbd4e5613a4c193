"""Weights of AlexNet from every kind of file, from torchvision, and from files that are something else."""

from __future__ import annotations

import pickle
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from reconrisk.core.errors import InvalidFile, MissingExtra
from reconrisk.metrics.lpips import CHANNELS, alexnet_features, read_alexnet, torchvision_alexnet

Weights = dict[str, torch.Tensor]


def write(path: Path, weights: Weights) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in weights.items()})
    elif path.suffix == ".safetensors":
        save_file(weights, path)
    else:
        torch.save(weights, path)
    return path


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.pth", "a.pt", "A.NPZ"])
def test_every_format_gives_the_same_weights(name: str, random_weights: Weights, tmp_path: Path) -> None:
    if name == "A.NPZ":  # NumPy would append a suffix of its own
        write(tmp_path / "a.npz", random_weights).rename(tmp_path / name)
    else:
        write(tmp_path / name, random_weights)
    convolutions = read_alexnet(tmp_path / name)
    assert len(convolutions) == 5
    for index, convolution in zip((0, 3, 6, 8, 10), convolutions, strict=True):
        assert torch.equal(convolution.weight, random_weights[f"features.{index}.weight"])
        assert torch.equal(convolution.bias, random_weights[f"features.{index}.bias"])


def test_other_keys_and_precisions_are_accepted(random_weights: Weights, tmp_path: Path) -> None:
    whole = {name: value.double() for name, value in random_weights.items()}
    whole["classifier.6.bias"] = torch.zeros(1000)
    convolutions = read_alexnet(str(write(tmp_path / "whole.pth", whole)))
    assert convolutions[0].weight.dtype == torch.float32
    assert torch.equal(convolutions[4].bias, random_weights["features.10.bias"])


def test_activations_have_the_shapes_of_the_network(random_backbone: Path) -> None:
    # By the arithmetic of strides for 64 pixels: (64 + 4 - 11) // 4 + 1 = 15, pooled to 7, pooled to 3.
    features = alexnet_features(read_alexnet(random_backbone), torch.rand(2, 3, 64, 64))
    assert [tuple(each.shape) for each in features] == [
        (2, channels, side, side) for channels, side in zip(CHANNELS, (15, 7, 3, 3, 3), strict=True)
    ]
    assert all((each >= 0).all() for each in features)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pth"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"\x80\x02}q\x00.", b"PK\x03\x04 broken"])
def test_broken_files_are_named(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(content)
    with pytest.raises(
        InvalidFile, match=r"(whole file|key features.0.weight): .*Pass the AlexNet weights of torchvision"
    ) as caught:
        read_alexnet(path)
    assert caught.value.path == path


@pytest.mark.parametrize("name", ["cut.npz", "cut.safetensors", "cut.pth"])
def test_truncated_files_are_refused(name: str, random_weights: Weights, tmp_path: Path) -> None:
    path = write(tmp_path / name, random_weights)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InvalidFile, match=r"whole file: It cannot be read as \."):
        read_alexnet(path)


def test_damaged_bytes_inside_an_archive_are_refused(random_weights: Weights, tmp_path: Path) -> None:
    path = tmp_path / "damaged.npz"
    np.savez_compressed(path, **{name: value.numpy() for name, value in random_weights.items()})
    content = bytearray(path.read_bytes())
    content[2000:2100] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(InvalidFile, match=r"whole file: It cannot be read as \.npz"):
        read_alexnet(path)


def test_code_in_a_file_is_never_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str, ...]]:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "bomb.pth").write_bytes(pickle.dumps({"features.0.weight": Bomb()}, protocol=2))
    torch.save({"features.0.weight": Bomb()}, tmp_path / "zipped.pth")
    np.savez(tmp_path / "bomb.npz", **{"features.0.weight": np.array([Bomb()], dtype=object)})
    for name in ("bomb.pth", "zipped.pth", "bomb.npz"):
        with pytest.raises(InvalidFile, match="whole file: It cannot be read as"):
            read_alexnet(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"absent.npz, file: There is no such file. Pass the AlexNet weights"):
        read_alexnet(tmp_path / "absent.npz")
    with pytest.raises(InvalidFile, match=r"file: There is no such file."):
        read_alexnet(tmp_path)


def test_a_foreign_suffix_is_named(tmp_path: Path) -> None:
    (tmp_path / "weights.onnx").write_bytes(b"")
    with pytest.raises(InvalidFile, match=r"whole file: It cannot be read as .onnx"):
        read_alexnet(tmp_path / "weights.onnx")


def test_weights_of_another_network_are_named_by_key(random_weights: Weights, tmp_path: Path) -> None:
    without = {name: value for name, value in random_weights.items() if name != "features.6.bias"}
    with pytest.raises(InvalidFile, match=r"key features.6.bias: There is no such tensor."):
        read_alexnet(write(tmp_path / "a.npz", without))
    other = random_weights | {"features.3.weight": torch.zeros(64, 64, 3, 3)}
    with pytest.raises(
        InvalidFile, match=r"key features.3.weight: Its shape is \(64, 64, 3, 3\), expected \(192, 64, 5"
    ):
        read_alexnet(write(tmp_path / "b.npz", other))
    spoilt = random_weights | {"features.0.bias": torch.full((64,), torch.nan)}
    with pytest.raises(InvalidFile, match=r"key features.0.bias: It holds NaN or infinities."):
        read_alexnet(write(tmp_path / "c.npz", spoilt))


def test_a_file_that_holds_no_names_is_refused(tmp_path: Path) -> None:
    torch.save([torch.zeros(3)], tmp_path / "list.pth")
    with pytest.raises(InvalidFile, match=r"whole file: It does not map names to tensors."):
        read_alexnet(tmp_path / "list.pth")
    with zipfile.ZipFile(tmp_path / "empty.npz", "w"):
        pass
    with pytest.raises(InvalidFile, match=r"key features.0.weight: There is no such tensor."):
        read_alexnet(tmp_path / "empty.npz")


def test_torchvision_is_asked_for_its_first_imagenet_weights(
    random_weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def alexnet(weights: str) -> types.SimpleNamespace:
        asked.append(weights)
        return types.SimpleNamespace(state_dict=lambda: random_weights)

    models = types.ModuleType("torchvision.models")
    models.alexnet = alexnet
    models.AlexNet_Weights = types.SimpleNamespace(IMAGENET1K_V1="first")
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    assert torch.equal(torchvision_alexnet()[2].weight, random_weights["features.6.weight"])
    assert asked == ["first"]


def test_without_file_and_torchvision_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.delitem(sys.modules, "torchvision.models", raising=False)
    with pytest.raises(MissingExtra, match=r"LPIPS without a weight file \(backbone=FILE\) needs torchvision. Install"):
        torchvision_alexnet()
