from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.data.image_folder import read_image_folder


def pixels(height: int = 6, width: int = 5, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


def test_sub_folders_are_classes_in_alphabetical_order(tmp_path: Path) -> None:
    for seed, name in enumerate(("dog/1.png", "cat/2.PNG", "cat/1.bmp")):
        save(tmp_path / name, pixels(seed=seed))
    (tmp_path / "cat/notes.txt").write_text("not an image")
    (tmp_path / "cat/.hidden.png").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    dataset = read_image_folder(tmp_path)
    assert dataset.classes == ("cat", "dog")
    assert dataset.labels.tolist() == [0, 0, 1]
    expected = np.stack([pixels(seed=seed) for seed in (2, 1, 0)]).transpose(0, 3, 1, 2)
    assert torch.equal(dataset.inputs, torch.from_numpy(expected) / 255)


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    save(tmp_path / "b.png", pixels(channels=1, seed=1))
    save(tmp_path / "a.png", pixels(channels=1, seed=2))
    dataset = read_image_folder(tmp_path)
    assert dataset.labels is None
    assert dataset.shape == (1, 6, 5)
    assert torch.equal(dataset.inputs[0, 0], torch.from_numpy(pixels(channels=1, seed=2)) / 255)


def test_grey_images_become_colour_beside_colour_ones(tmp_path: Path) -> None:
    save(tmp_path / "a.png", pixels(channels=1))
    save(tmp_path / "b.png", pixels())
    dataset = read_image_folder(tmp_path)
    assert dataset.shape == (3, 6, 5)
    grey = torch.from_numpy(pixels(channels=1)) / 255
    assert torch.equal(dataset.inputs[0], grey.expand(3, 6, 5))


@pytest.mark.parametrize(("mode", "channels"), [("1", 1), ("LA", 1), ("P", 3), ("RGBA", 3), ("CMYK", 3)])
def test_other_modes_become_grey_or_colour(tmp_path: Path, mode: str, channels: int) -> None:
    name = "a.tif" if mode == "CMYK" else "a.png"
    Image.fromarray(pixels()).convert(mode).save(tmp_path / name)
    assert read_image_folder(tmp_path).shape == (channels, 6, 5)


def test_transparency_of_a_palette_is_left_out_without_warning(tmp_path: Path) -> None:
    image = Image.fromarray(pixels()).convert("P")
    image.save(tmp_path / "a.png", transparency=bytes(range(256)))
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    assert torch.equal(read_image_folder(tmp_path).inputs[0], torch.from_numpy(expected.copy()) / 255)


def test_content_counts_not_the_suffix(tmp_path: Path) -> None:
    Image.fromarray(pixels()).save(tmp_path / "a.jpg", format="PNG")
    assert torch.equal(read_image_folder(tmp_path).inputs[0].permute(1, 2, 0), torch.from_numpy(pixels()) / 255)


def test_a_split_is_a_sub_folder(tmp_path: Path) -> None:
    save(tmp_path / "train/cat/a.png", pixels())
    save(tmp_path / "test/cat/a.png", pixels(seed=1))
    assert len(read_image_folder(tmp_path, split="test")) == 1
    with pytest.raises(InvalidFile, match=r"test: Expected images in this class, found none\. .*pass split="):
        read_image_folder(tmp_path)
    with pytest.raises(InvalidFile, match="val, folder: Expected a folder of images, found none"):
        read_image_folder(tmp_path, split="val")


@pytest.mark.parametrize(("size", "shape"), [(8, (3, 8, 8)), ((4, 7), (3, 4, 7))])
def test_size_resizes_all(tmp_path: Path, size, shape: tuple[int, ...]) -> None:
    save(tmp_path / "a.png", pixels(6, 5))
    save(tmp_path / "b.png", np.full((9, 9, 3), 51, np.uint8))
    dataset = read_image_folder(tmp_path, size=size)
    assert dataset.shape == shape
    assert torch.equal(dataset.inputs[1], torch.full(shape, 51.0) / 255), "a constant image stays constant"


def test_unequal_sizes_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.png", pixels(6, 5))
    save(tmp_path / "b.png", pixels(5, 6))
    with pytest.raises(InvalidFile, match=r"b\.png, the image: Expected 6 x 5 pixels as in a\.png, found 5 x 6.*size="):
        read_image_folder(tmp_path)
    with pytest.raises(InvalidInput, match="size=0 >= 1"):
        read_image_folder(tmp_path, size=0)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    good = save(tmp_path / "a.png", pixels(40, 40)).read_bytes()
    bad = tmp_path / "b.png"
    for damaged in (b"", b"text", good[:-200], good[:40] + b"\xff" * 40 + good[80:]):
        bad.write_bytes(damaged)
        with pytest.raises(InvalidFile, match=r"b\.png, the image: Expected a readable image"):
            read_image_folder(tmp_path)


def test_deep_images_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((3, 3), np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(InvalidFile, match="Expected eight bits a channel, found mode I;16"):
        read_image_folder(tmp_path)


def test_an_image_that_claims_billions_of_pixels_is_refused(tmp_path: Path, monkeypatch) -> None:
    save(tmp_path / "a.png", pixels(20, 20))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 300)
    with pytest.raises(InvalidFile, match="decompression bomb"):
        read_image_folder(tmp_path)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("nothing here")
    with pytest.raises(InvalidFile, match=r"folder: Expected images \(\.bmp.*found none"):
        read_image_folder(tmp_path)


def test_images_beside_class_folders_are_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.png", pixels())
    save(tmp_path / "cat/b.png", pixels())
    with pytest.raises(InvalidFile, match=r"a\.png: Expected images either here or in sub-folders"):
        read_image_folder(tmp_path)
