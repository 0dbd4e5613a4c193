"""Untrained priors for images (1, 8, 8): folders to read, and a package that ships them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reconrisk.priors.load import bundled as shipped
from reconrisk.priors.load import folders
from reconrisk.priors.load.diffusers import import_diffusers
from reconrisk.priors.load.gan import new_generator, save_generator

SHAPE = (1, 8, 8)


def write_gan(folder: Path, seed: int = 0) -> Path:
    """A generator with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        save_generator(new_generator(SHAPE, 4, 8), folder, shape=SHAPE, latent=4, channels=8)
    return folder


def write_diffusion(folder: Path, seed: int = 0) -> Path:
    """A diffusion with random weights; needs the extra."""
    kinds = import_diffusers("this test")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = kinds.UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            block_out_channels=(8, 8),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D"),
            norm_num_groups=4,
        )
    network.save_pretrained(folder / "unet")
    kinds.DDPMScheduler(num_train_timesteps=600).save_pretrained(folder / "scheduler")
    return folder


def ship(monkeypatch: pytest.MonkeyPatch, bundled: Path, *, diffusion: bool = True) -> None:
    """Have the package ship a prior ``tiny`` of each kind."""
    write_gan(bundled / "gan" / "tiny")
    (bundled / "diffusion" / "tiny").mkdir(parents=True)
    if diffusion:
        write_diffusion(bundled / "diffusion" / "tiny")
    monkeypatch.setattr(folders, "BUNDLED", bundled)
    monkeypatch.setattr(shipped, "SHIPPED_DIFFUSION", ("tiny",))
    monkeypatch.setattr(shipped, "SHIPPED_GAN", ("tiny",))
