"""Make the files of ``src/reconrisk/data/bundled`` from the originals in the folder ``RECONRISK_DATA``.

Run it as ``RECONRISK_DATA=<folder> python tools/make_bundled_data.py`` and put the printed checksums into
``LICENSES.md`` beside the files. The folder holds ``mnist/*-ubyte.gz`` and ``natural/kodak24.tar``.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from reconrisk.data.bundled_sets import CROP_NAMES
from reconrisk.data.idx import read_idx_array

BUNDLED = Path(__file__).parents[1] / "src/reconrisk/data/bundled"
SIDE = 64

# photograph, left, top and side of a square that shows one thing; a multiple of 64, so that pixels average exactly
CROPS = {
    "shutters": ("01.png", 150, 20, 256),
    "door latch": ("02.png", 130, 140, 256),
    "caps": ("03.png", 100, 60, 256),
    "woman in hat": ("04.png", 96, 130, 384),
    "motorcycles": ("05.png", 60, 130, 320),
    "fishing boat": ("06.png", 215, 100, 320),
    "hibiscus": ("07.png", 280, 120, 256),
    "timber houses": ("08.png", 300, 60, 320),
    "sails": ("09.png", 130, 150, 320),
    "barn": ("22.png", 190, 20, 320),
    "rafters": ("14.png", 60, 60, 320),
    "face paint": ("15.png", 300, 0, 384),
    "gilded statue": ("17.png", 40, 60, 384),
    "lighthouse": ("21.png", 270, 50, 256),
    "propeller aircraft": ("20.png", 30, 40, 384),
    "parrot": ("23.png", 340, 80, 384),
}


def balanced(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices of ``count`` records of each class, evenly spaced over the original order, in that order."""
    spaced = [np.flatnonzero(labels == label) for label in range(10)]
    return np.sort(np.concatenate([of[np.linspace(0, len(of) - 1, count).astype(int)] for of in spaced]))


def mnist_arrays(folder: Path) -> dict[str, np.ndarray]:
    """400 training and 100 test images of each digit, with labels."""
    arrays = {}
    for split, part, count in (("train", "train", 400), ("test", "t10k", 100)):
        labels = read_idx_array(folder / f"{part}-labels-idx1-ubyte.gz")
        chosen = balanced(labels, count)
        arrays[f"{split}_images"] = read_idx_array(folder / f"{part}-images-idx3-ubyte.gz")[chosen]
        arrays[f"{split}_labels"] = labels[chosen]
    return arrays


def crop_sheet(archive: Path) -> Image.Image:
    """The crops one below the other, in the order of their names."""
    sheet = Image.new("RGB", (SIDE, SIDE * len(CROPS)))
    with tarfile.open(archive) as photographs:
        for row, name in enumerate(CROP_NAMES):
            photograph, left, top, side = CROPS[name]
            with Image.open(io.BytesIO(photographs.extractfile(photograph).read())) as image:
                crop = image.crop((left, top, left + side, top + side)).reduce(side // SIDE)
            sheet.paste(crop, (0, SIDE * row))
    return sheet


def main() -> None:
    """Write the files and print their sizes and checksums."""
    originals = Path(os.environ["RECONRISK_DATA"])
    np.savez_compressed(BUNDLED / "mnist.npz", **mnist_arrays(originals / "mnist"))
    crop_sheet(originals / "natural/kodak24.tar").save(BUNDLED / "crops.png", optimize=True)
    for name in ("mnist.npz", "crops.png"):
        data = (BUNDLED / name).read_bytes()
        print(f"| {name} | {len(data)} | {hashlib.sha256(data).hexdigest()} |")  # noqa: T201 the result of a script


if __name__ == "__main__":
    main()
