"""Target and estimate side by side, with their scores."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reconrisk.core.errors import InvalidInput

Picture = NDArray[np.float32]


def write_comparison(
    path: Path,
    pictures: Sequence[tuple[str, Picture]],
    *,
    title: str,
    scores: Mapping[str, float],
    data_range: tuple[float, float],
) -> Path:
    """Write ``pictures`` (caption, channels x height x width) in one row with a line of scores beneath, as PNG.

    Guarantee: the file appears whole or not at all; missing folders are made.
    """
    from matplotlib.figure import Figure  # slow import, needed only to draw

    figure = Figure(figsize=(2.6 * len(pictures) + 0.6, 3.6), layout="constrained")
    axes = figure.subplots(1, len(pictures), squeeze=False)[0]
    for axis, (caption, picture) in zip(axes, pictures, strict=True):
        axis.imshow(_displayable(picture, data_range), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(caption, fontsize=11)
        axis.set_axis_off()
    figure.suptitle(title, fontsize=12, fontweight="bold")
    figure.supxlabel("   ".join(f"{name} {value:.4g}" for name, value in scores.items()), fontsize=9)
    return save_figure(figure, path)


def save_figure(figure: Any, path: Path) -> Path:
    """Write a matplotlib figure to ``path`` at once: a crash leaves no half-written file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = path.suffix or ".png"
    handle, name = tempfile.mkstemp(suffix=suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        figure.savefig(temporary, dpi=150)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _displayable(picture: Picture, data_range: tuple[float, float]) -> Picture:
    if picture.ndim != 3 or picture.shape[0] not in (1, 3):
        raise InvalidInput(f"Expected a picture of 1 or 3 channels x height x width, its shape is {picture.shape}.")
    low, high = data_range
    scaled = np.clip((picture - low) / (high - low), 0, 1)
    return scaled[0] if picture.shape[0] == 1 else np.moveaxis(scaled, 0, -1)
