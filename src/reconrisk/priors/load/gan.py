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
from reconrisk.core.storage.files import write_atomically
from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.priors.load.folders import find_prior_folder, trained_data_range
from reconrisk.priors.network import move_to_device
from reconrisk.priors.train.training_state import check_sides

KIND = "reconrisk convolutional generator"
"""Kind of network in the settings file of a generator."""

HALVINGS = 2
"""Number of times that the generator doubles the sides of a picture."""

_CONFIG, _WEIGHTS = "config.json", "generator.safetensors"
_REMEDY = "Pass a folder that rr.priors.train_gan wrote, or wrap other networks with rr.priors.generator."


def gan(
    path_or_name: str | Path,
    *,
    data_range: tuple[float, float] | None = None,
    device: str | torch.device | None = None,
) -> GeneratorPrior:
    r"""Load a shipped generator by name, or one from a folder that :func:`train_gan` wrote, in single precision.

    .. math:: x = g_4(g_3(g_2(g_1(z)))), \qquad z \sim N(0, I)

    Here :math:`g_1` to :math:`g_4` are the four blocks of the generator and z its latent values.

    The blocks are the layers of an ``nn.Sequential``, so an attack such as :func:`reconrisk.attacks.gifd` can optimise
    the features between two blocks.

    Args:
        path_or_name: Folder, or one of ``rr.priors.SHIPPED_GAN``.
        data_range: Range of the values of records, by default the one that the folder was trained on, else (0, 1).
        device: Device of the network, by default the CPU.

    Returns:
        The prior.

    Raises:
        InvalidFile: If the folder does not exist, or its weights do not fit its settings.

    Assumes: the cards of shipped priors describe their training data.
    Guarantee: nothing is downloaded; weights that do not fit the settings in the folder are refused.
    Edge cases: a name has precedence over a folder of that name; pass a ``Path``, or ``./mnist``, for the folder.
    Reference: `Goodfellow et al. (2014) <https://arxiv.org/abs/1406.2661>`_.

    >>> gan("./x")
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidFile: ./x, folder: There is no such folder. Nothing is downloaded: pass a local folder.
    """
    folder = find_prior_folder(path_or_name, "gan")
    shape, latent_size, channels = _read_config(folder / _CONFIG)
    with torch.random.fork_rng(devices=[]):  # the drawn weights are replaced below
        network = new_generator(shape, latent_size, channels)
    weights = folder / _WEIGHTS
    if not weights.is_file():
        raise InvalidFile(weights, "file", "There is no such file.", _REMEDY)
    try:
        network.load_state_dict(load_file(weights))
    except (RuntimeError, SafetensorError, ValueError) as error:
        first = str(error).strip().splitlines()[-1].strip().rstrip(".")
        raise InvalidFile(weights, "weights", f"They do not fit {_CONFIG}: {first}.", _REMEDY) from error
    name, ends = folder.resolve().name, trained_data_range(folder) if data_range is None else data_range
    return GeneratorPrior(name, shape, latent_size, move_to_device(network.requires_grad_(False).eval(), device), ends)


def new_generator(shape: tuple[int, ...], latent_size: int, channels: int) -> nn.Sequential:
    """Build an untrained generator: four blocks from latent values to pictures, whose sides double twice.

    Batch statistics normalise values in training, and running statistics afterwards, so that a record does not depend
    on the others of its batch. Statistics of each record alone would remove its brightness.

    Args:
        shape: Shape (channels, height, width) of a picture, with sides divisible by 4.
        latent_size: Number of latent values.
        channels: Channels at half the resolution, an even number.

    Returns:
        The network.

    Raises:
        InvalidInput: If the sides are not divisible by 4 or ``channels`` is odd.
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
        _upsampling_block(wide, channels),
        _upsampling_block(channels, half),
        nn.Sequential(nn.Conv2d(half, colours, 3, padding=1), nn.Tanh()),
    )


def save_generator(network: nn.Sequential, folder: Path, *, shape: tuple[int, ...], latent: int, channels: int) -> None:
    """Write a generator in half precision, with the settings that :func:`new_generator` needs to build it.

    Args:
        network: The generator.
        folder: Folder to write to.
        shape: Shape of a picture.
        latent: Number of latent values.
        channels: Channels at half the resolution.
    """
    stated = {"kind": KIND, "shape": list(shape), "latent_size": latent, "channels": channels}
    values = network.state_dict().items()
    # integer buffers, such as the count of batch norm, keep their type
    halves = {name: (value.half() if value.is_floating_point() else value).contiguous() for name, value in values}
    text = json.dumps(stated, indent=2) + "\n"
    write_atomically(folder / _WEIGHTS, lambda path: save_file(halves, path))
    write_atomically(folder / _CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def _upsampling_block(entering: int, leaving: int) -> nn.Sequential:
    """Block that doubles both sides: each of four times the channels becomes a quarter of the pixels."""
    wide = nn.Conv2d(entering, 4 * leaving, 3, padding=1)
    return nn.Sequential(wide, nn.PixelShuffle(2), nn.BatchNorm2d(leaving), nn.ReLU())


def _read_config(path: Path) -> tuple[tuple[int, ...], int, int]:
    """Read shape, number of latent values and channels from the settings of a generator."""
    if not path.is_file():
        raise InvalidFile(path, "file", "There is no such file.", _REMEDY)
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidFile(path, "syntax", f"It cannot be read: {error}.", _REMEDY) from error
    if not isinstance(found, Mapping) or found.get("kind") != KIND:
        named = found.get("kind", found.get("_class_name")) if isinstance(found, Mapping) else None
        raise InvalidFile(path, "kind", f"It is {named or 'of unknown kind'}, not a {KIND}.", _REMEDY)
    shape, sizes = found.get("shape"), [found.get("latent_size"), found.get("channels")]
    values = [*(shape if isinstance(shape, list) else []), *sizes]
    if len(values) != 5 or not all(isinstance(each, int) and each > 0 for each in values):
        raise InvalidFile(path, "shape", "It does not state shape, latent_size and channels.", _REMEDY)
    return tuple(values[:3]), values[3], values[4]
