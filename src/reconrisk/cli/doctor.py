"""``reconrisk doctor``: installed versions, data folders, and a self-check."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time

import typer

from reconrisk.core import VERSION

EXTRAS = {
    "dp": "opacus",
    "fl": "flwr",
    "diffusion": "diffusers",
    "lpips": "torchvision",
    "parquet": "pyarrow",
}

LARGEST_ERROR = 1e-5
"""Accepted error of the self-check: the inversion is exact up to float32 rounding."""


def doctor() -> None:
    """Check the installation: versions, extras, data folders, the noise, and an attack with a known answer."""
    import torch  # takes seconds to import

    from reconrisk.data import data_folders
    from reconrisk.studies.audit.demo import self_check

    _line("reconrisk", VERSION)
    _line("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    _line("torch", f"{torch.__version__}, {torch.get_num_threads()} threads, cuda {torch.cuda.is_available()}")
    for extra, package in EXTRAS.items():
        try:
            installed = f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            installed = f"not installed (pip install 'reconrisk[{extra}]')"
        _line(f"extra {extra}", installed)
    for folder in data_folders() or ("RECONRISK_DATA names no folder; the bundled data sets are available",):
        _line("data", str(folder))
    covered = _check_noise()
    begun = time.monotonic()
    error = self_check()
    good = error < LARGEST_ERROR
    verdict = "ok" if good else f"FAILED, allowed is {LARGEST_ERROR:.0e}: reinstall torch or report this"
    _line("self-check", f"linear layer inverted with error {error:.1e} in {time.monotonic() - begun:.2f} s: {verdict}")
    sys.exit(0 if good and covered else 1)


def _check_noise() -> bool:
    """Print if this machine meets the assumptions of the exactly rounded noise, and return the answer."""
    from reconrisk.releases import float_safe_noise as noise  # imports torch

    begun = time.monotonic()
    error, bits = noise.largest_function_error(), noise.count_random_bits()
    covered = error <= noise.ALLOWED_FUNCTION_ERROR and bits == noise.WORD_BITS
    allowed = f"{noise.ALLOWED_FUNCTION_ERROR:g} units and {noise.WORD_BITS} bits"
    verdict = (
        "ok"
        if covered
        else f"FAILED, allowed are {allowed}: the proof does not cover noise of this machine, so do not rely on "
        "guarantees of noise that it adds. Install another build of torch"
    )
    _line(
        "noise",
        f"log, sin and cos err by {error:.2f} units in the last place, {bits} random bits a word, in "
        f"{time.monotonic() - begun:.2f} s: {verdict}",
    )
    return covered


def _line(name: str, value: str) -> None:
    typer.echo(f"{name:<18} {value}")
