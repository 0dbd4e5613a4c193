from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from reconrisk.core.errors import InvalidFile
from reconrisk.models import lenet, load_weights, mlp


def fresh(seed: int) -> nn.Sequential:
    return lenet((1, 8, 8), 3, rng=torch.Generator().manual_seed(seed))


def write(path: Path, tensors: object) -> Path:
    if path.suffix == ".safetensors":
        assert isinstance(tensors, dict)
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


def changed(**changes: Tensor | None) -> dict[str, Tensor]:
    merged = {**fresh(1).state_dict(), **{name.replace("__", "."): value for name, value in changes.items()}}
    return {name: value for name, value in merged.items() if value is not None}


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pth"])
def test_round_trip(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, fresh(1).state_dict())
    loaded = load_weights(fresh(2), path).state_dict()
    assert all(torch.equal(value, loaded[key]) for key, value in fresh(1).state_dict().items())


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pth"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fc__0__bias": None}, r"key 'fc.0.bias': is missing"),
        ({"extra": torch.zeros(1)}, r"key 'extra': is not in the model"),
        ({"fc__0__bias": torch.zeros(4)}, r"key 'fc.0.bias': has shape \(4,\) where the model has \(3,\)"),
        ({"fc__0__bias": torch.tensor([0.0, float("nan"), 0.0])}, r"key 'fc.0.bias': has values that are not finite"),
    ],
)
def test_files_that_do_not_fit_are_refused_and_leave_the_model(
    tmp_path: Path, name: str, changes: dict[str, Tensor | None], message: str
) -> None:
    path, model = write(tmp_path / name, changed(**changes)), fresh(2)
    with pytest.raises(InvalidFile, match=f"{name}, {message}"):
        load_weights(model, path)
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in fresh(2).state_dict().items())


@pytest.mark.parametrize("name", ["weights.safetensors", "weights.pth"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"PK\x03\x04 half an archive"])
def test_files_of_another_kind_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidFile, match=f"{name}, whole file: It cannot be read"):
        load_weights(fresh(0), path)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "weights.pth", fresh(1).state_dict())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidFile, match="cannot be read"):
        load_weights(fresh(0), path)


def test_a_whole_module_is_refused_without_running_its_code(tmp_path: Path) -> None:
    path = write(tmp_path / "weights.pth", mlp(2, (2,), 2))
    with pytest.raises(InvalidFile, match="cannot be read"):
        load_weights(fresh(0), path)


@pytest.mark.parametrize("content", [torch.zeros(3), [1, 2], {"epoch": 3}])
def test_contents_that_are_no_tensors_by_name_are_refused(tmp_path: Path, content: object) -> None:
    path = write(tmp_path / "weights.pth", content)
    with pytest.raises(InvalidFile, match="does not map names to tensors"):
        load_weights(fresh(0), path)


def test_old_files_lack_the_counters_of_batch_norm(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm2d(2))
    stored = {name: value + 1 for name, value in model.state_dict().items() if "num_batches" not in name}
    loaded = load_weights(nn.Sequential(nn.BatchNorm2d(2)), write(tmp_path / "old.pth", stored))
    assert torch.equal(loaded[0].running_mean, torch.ones(2))


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"nowhere.*no such file"):
        load_weights(fresh(0), tmp_path / "nowhere.pth")
