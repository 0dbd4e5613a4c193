"""Reader for folders of images: one sub-folder per class, or all images in one place without labels."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import check_whole
from reconrisk.data.dataset import Dataset

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
# only formats that Pillow decodes itself: EPS, for example, would start Ghostscript
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_GREY = frozenset({"1", "L", "LA"})
_COLOUR = frozenset({"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"})

Pixels = npt.NDArray[np.uint8]


def read_image_folder(
    folder: str | Path, *, split: str | None = None, size: int | tuple[int, int] | None = None
) -> Dataset:
    """Read the images of a folder as N x C x H x W in [0, 1].

    Sub-folders are classes, in alphabetical order; images directly in the folder have no labels. Grey images stay grey
    unless a colour image is among them. Transparency is dropped. Files without an image suffix are skipped.

    Args:
        folder: Folder of images, or of one sub-folder per class.
        split: Sub-folder to read instead, such as ``"train"``; None for the folder itself.
        size: Side, or (height, width), to which images are resized by bilinear interpolation without keeping the aspect
            ratio. None if all images have the same size.

    Returns:
        The images, with labels if sub-folders are classes.

    Raises:
        InvalidInput: If ``size`` is not at least 1.
        InvalidFile: If there are no images, an image cannot be read, or sizes differ.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("L", (5, 4)).save(Path(folder) / "grey.png")
    ...     read_image_folder(folder).shape
    (1, 4, 5)
    """
    folder = Path(folder) if split is None else Path(folder) / split
    if not folder.is_dir():
        raise InvalidFile(folder, "folder", "Expected a folder of images, found none.", "Check path and split.")
    groups = _group_by_class(folder)
    height_width = None
    if size is not None:
        height, width = size if isinstance(size, tuple) else (size, size)
        height_width = check_whole("size", height), check_whole("size", width)
    paths = [path for group in groups.values() for path in group]
    images = [_read_pixels(path, height_width) for path in paths]
    _check_sizes(paths, images)
    if not all(image.ndim == 2 for image in images):  # mixed: grey images become colour images
        images = [image if image.ndim == 3 else np.repeat(image[:, :, None], 3, axis=2) for image in images]
    stacked = np.stack([image[None] if image.ndim == 2 else image.transpose(2, 0, 1) for image in images])
    inputs = torch.from_numpy(stacked.astype(np.float32)).div_(255)
    if list(groups) == [""]:
        return Dataset(folder.name, inputs, source=str(folder))
    # class i once for each of its images
    labels = torch.repeat_interleave(torch.tensor([len(group) for group in groups.values()]))
    return Dataset(folder.name, inputs, labels, classes=tuple(groups), source=str(folder))


def _list_images(folder: Path) -> list[Path]:
    """Return the image files directly in the folder, hidden ones left out."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file() and not path.name.startswith(".")
    )


def _group_by_class(folder: Path) -> dict[str, list[Path]]:
    """Return image files by class; a flat folder is one class with an empty name."""
    flat = _list_images(folder)
    children = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    classes = {child.name: _list_images(child) for child in children}
    if flat and any(classes.values()):
        raise InvalidFile(
            folder,
            flat[0].name,
            f"Expected images either here or in sub-folders, found them also in {children[0].name}.",
            "Move them so that sub-folders are classes, or load one sub-folder.",
        )
    if flat:
        return {"": flat}
    for name, group in classes.items():
        if not group:
            raise InvalidFile(
                folder,
                name,
                "Expected images in this class, found none.",
                "Remove the empty sub-folder; if it holds classes itself, pass split= or load it alone.",
            )
    if not classes:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise InvalidFile(folder, "folder", f"Expected images ({suffixes}), found none.", "Check the path.")
    return classes


def _read_pixels(path: Path, size: tuple[int, int] | None) -> Pixels:
    """Read one image as height x width, or height x width x 3."""
    try:
        with warnings.catch_warnings():
            # images too large for memory are refused instead of warned about
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=_FORMATS) as image:
                image.load()
                mode, converted = image.mode, None
                if mode in _GREY:
                    converted = image.convert("L")
                elif mode in _COLOUR:
                    # a palette with transparency as bytes converts to RGB only through RGBA without a warning
                    converted = (image.convert("RGBA") if mode == "P" else image).convert("RGB")
    # decoders raise many types on damaged bytes, SyntaxError and struct.error among them
    except Exception as error:
        raise InvalidFile(
            path, "the image", f"Expected a readable image: {error}.", "Remove it, or save it again as PNG."
        ) from error
    if converted is None:
        raise InvalidFile(
            path, "the image", f"Expected eight bits a channel, found mode {mode}.", "Save it as 8-bit PNG, or use npz."
        )
    if size is not None:
        # Pillow takes (width, height)
        converted = converted.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(converted)


def _check_sizes(paths: list[Path], images: list[Pixels]) -> None:
    """Raise InvalidFile at the first image with another size than the first one."""
    first = images[0].shape[:2]
    for path, image in zip(paths, images, strict=True):
        height, width = image.shape[:2]
        if (height, width) != first:
            raise InvalidFile(
                path,
                "the image",
                f"Expected {first[0]} x {first[1]} pixels as in {paths[0].name}, found {height} x {width}.",
                "Pass size= to resize all images; on the command line --size.",
            )
