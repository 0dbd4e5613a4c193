"""What an informed adversary rebuilt: targets, estimates and nearest known records, and the numbers as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file

from reconrisk.core.storage.files import write_whole
from reconrisk.core.validation import invalid_input
from reconrisk.reports.rebuild import Row, write_grid

if TYPE_CHECKING:
    from reconrisk.studies.informed.result import RebuiltInformed

_NAMES = ("target", "rebuilt", "nearest known")


def write_estimates(rebuilt: RebuiltInformed, path: Path) -> Path:
    """Write the estimates and the numbers of their targets as safetensors.

    Args:
        rebuilt: What an informed adversary rebuilt.
        path: The file.

    Returns:
        The path.

    Guarantee: the file appears whole or not at all, for its owner alone, since what is rebuilt is private too.
    """
    records = np.asarray([target.record for target in rebuilt.report.targets])
    arrays = {"estimates": rebuilt.estimates.contiguous().numpy(), "records": records}
    return write_whole(path, lambda temporary: save_file(arrays, temporary), secret=True)


def write_pictures(rebuilt: RebuiltInformed, path: Path) -> Path:
    """Write a row for each target as PNG: the target, what was rebuilt, and the nearest record that was known before.

    Args:
        rebuilt: What an informed adversary rebuilt.
        path: The file.

    Returns:
        The path.

    Raises:
        InvalidInput: If the records are no images (1 or 3 channels x height x width).

    Guarantee: the file appears whole or not at all, for its owner alone, since what is rebuilt is private too.
    """
    report = rebuilt.report
    if not report.is_image:
        raise invalid_input("path", str(path), "to be drawn", "The records are no images: save .safetensors instead.")
    shown = (rebuilt.targets, rebuilt.estimates, rebuilt.neighbours)
    pictures = zip(*(values.float().numpy() for values in shown), strict=True)
    captions = [f"{target.record} ({target.label[:12]})  mse {target.mse:.3g}" for target in report.targets]
    rows: list[Row] = list(zip(captions, pictures, strict=True))
    low, high = report.data_range
    title = f"{report.attack.split(',')[0]} on {report.data}, {report.accounts[0].status.ending.value}"
    return write_grid(path, _NAMES, rows, title=title, data_range=(low, high))
