"""Generators of GANs from local folders, and those that are shipped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from reconrisk.core.errors import InvalidFile
from reconrisk.core.storage.files import write_whole
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.priors.load.folders import prior_folder, range_in
from reconrisk.priors.network import put_on
from reconrisk.priors.train.training_state import check_sides

KIND = "reconrisk convolutional generator"
HALVINGS = 2
_CONFIG, _WEIGHTS = "config.json", "generator.safetensors"
_REMEDY = "Pass a folder that rr.priors.train_gan wrote, or wrap other networks with rr.priors.generator."


def gan(
    path_or_name: str | Path,
    *,
    data_range: tuple[float, float] | None = None,
    device: str | torch.device | None = None,
) -> GeneratorPrior:
    r"""The generator of a name, or in a folder that :func:`train_gan` wrote, in single precision.

    .. math:: x = g_4(g_3(g_2(g_1(z)))), \qquad z \sim N(0, I)

    ``data_range`` is that of the records; if none is given, the one that the folder says it was trained on, else
    (0, 1). ``device`` is where the network is put. The blocks are those of an ``nn.Sequential``, so that an attack can
    enter between them.

    Assumes: a shipped name is one of ``rr.priors.SHIPPED_GAN``, whose cards say what they were trained on.
    Guarantee: nothing is downloaded; weights that do not fit the settings beside them are refused.
    Edge cases: a name wins over a folder of that name; pass a ``Path``, or ``./mnist``, to mean the folder.
    Reference: `Goodfellow et al. (2014) <https://arxiv.org/abs/1406.2661>`_.

    >>> gan("no/such/folder")
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidFile: no/such/folder, folder: There is none. Nothing is downloaded: pass a local one.
    """
    folder = prior_folder(path_or_name, "gan")
    shape, latent_size, channels = _stated(folder / _CONFIG)
    with torch.random.fork_rng(devices=[]):  # weights that are drawn here are replaced
        network = new_generator(shape, latent_size, channels)
    weights = folder / _WEIGHTS
    if not weights.is_file():
        raise InvalidFile(weights, "file", "There is no such file.", _REMEDY)
    try:
        network.load_state_dict(load_file(weights))
    except (RuntimeError, SafetensorError, ValueError) as error:
        first = str(error).strip().splitlines()[-1].strip().rstrip(".")
        raise InvalidFile(weights, "weights", f"They do not fit {_CONFIG}: {first}.", _REMEDY) from error
    name, ends = folder.resolve().name, range_in(folder) if data_range is None else data_range
    return GeneratorPrior(name, shape, latent_size, put_on(network.requires_grad_(False).eval(), device), ends)


def new_generator(shape: tuple[int, ...], latent_size: int, channels: int) -> nn.Sequential:
    """Four blocks from latent values to pictures of ``shape``, whose sides double twice.

    Values are normalised by statistics of the batch in training, and by those of the training afterwards, so that a
    record does not depend on the others of its batch. Statistics of each record alone would take its brightness away.
    """
    check_sides(shape, HALVINGS, "Pad the pictures.")
    if check_whole("channels", channels) % 2:
        raise invalid_input("channels", channels, "to be even")
    colours, height, width = shape[0], shape[1] // 4, shape[2] // 4
    wide, half = 2 * channels, channels // 2
    return nn.Sequential(
        nn.Sequential(
            nn.Linear(check_whole("latent_size", latent_size), wide * height * width),
            nn.Unflatten(1, (wide, height, width)),
            nn.BatchNorm2d(wide),
            nn.ReLU(),
        ),
        _doubled(wide, channels),
        _doubled(channels, half),
        nn.Sequential(nn.Conv2d(half, colours, 3, padding=1), nn.Tanh()),
    )


def save_generator(network: nn.Sequential, folder: Path, *, shape: tuple[int, ...], latent: int, channels: int) -> None:
    """Write a generator in half precision, and the settings that :func:`new_generator` makes it of."""
    stated = {"kind": KIND, "shape": list(shape), "latent_size": latent, "channels": channels}
    values = network.state_dict().items()
    halves = {name: (value.half() if value.is_floating_point() else value).contiguous() for name, value in values}
    text = json.dumps(stated, indent=2) + "\n"
    write_whole(folder / _WEIGHTS, lambda path: save_file(halves, path))
    write_whole(folder / _CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def _doubled(entering: int, leaving: int) -> nn.Sequential:
    """A block that doubles both sides: four times the channels, each of which becomes a quarter of the pixels."""
    wide = nn.Conv2d(entering, 4 * leaving, 3, padding=1)
    return nn.Sequential(wide, nn.PixelShuffle(2), nn.BatchNorm2d(leaving), nn.ReLU())


def _stated(path: Path) -> tuple[tuple[int, ...], int, int]:
    """Shape, size of the latent values and channels, as the settings of a generator state them."""
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", _REMEDY)
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidFile(path, "syntax", f"It cannot be read: {error}.", _REMEDY) from error
    if not isinstance(found, Mapping) or found.get("kind") != KIND:
        named = found.get("kind", found.get("_class_name")) if isinstance(found, Mapping) else None
        raise InvalidFile(path, "kind", f"It is {named or 'of no stated kind'}, not a {KIND}.", _REMEDY)
    shape, sizes = found.get("shape"), [found.get("latent_size"), found.get("channels")]
    values = [*(shape if isinstance(shape, list) else []), *sizes]
    if len(values) != 5 or not all(isinstance(each, int) and each > 0 for each in values):
        raise InvalidFile(path, "shape", "It does not state shape, latent_size and channels.", _REMEDY)
    return tuple(values[:3]), values[3], values[4]
