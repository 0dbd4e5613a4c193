"""Files of ``rr.rebuild_informed``: estimates, and pictures of targets, estimates and nearest known records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file

from reconrisk.core.storage.files import write_atomically
from reconrisk.core.validation import invalid_input
from reconrisk.reports.rebuild import Row, write_grid

if TYPE_CHECKING:
    from reconrisk.studies.informed.result import RebuiltInformed

_NAMES = ("target", "rebuilt", "nearest known")


def write_estimates(rebuilt: RebuiltInformed, path: Path) -> Path:
    """Write the estimates and the row numbers of their targets as safetensors.

    Args:
        rebuilt: Result of ``rr.rebuild_informed``.
        path: The file.

    Returns:
        The path.

    Guarantee: the file is written completely or not at all. Only its owner can read it, since estimates are private.
    """
    records = np.asarray([target.record for target in rebuilt.report.targets])
    arrays = {"estimates": rebuilt.estimates.contiguous().numpy(), "records": records}
    return write_atomically(path, lambda temporary: save_file(arrays, temporary), secret=True)


def write_pictures(rebuilt: RebuiltInformed, path: Path) -> Path:
    """Draw a row for each target as PNG: the target, its reconstruction, and the nearest known record.

    Args:
        rebuilt: Result of ``rr.rebuild_informed``.
        path: The file.

    Returns:
        The path.

    Raises:
        InvalidInput: If the records are not images (1 or 3 channels x height x width).

    Guarantee: the file is written completely or not at all. Only its owner can read it, since estimates are private.
    """
    report = rebuilt.report
    if not report.is_image:
        raise invalid_input(
            "path", str(path), "to be a format for records that are not images", "Save .safetensors instead."
        )
    shown = (rebuilt.targets, rebuilt.estimates, rebuilt.neighbours)
    pictures = zip(*(values.float().numpy() for values in shown), strict=True)
    captions = [f"{target.record} ({target.label[:12]})  mse {target.mse:.3g}" for target in report.targets]
    rows: list[Row] = list(zip(captions, pictures, strict=True))
    low, high = report.data_range
    title = f"{report.attack.split(',')[0]} on {report.data}, {report.accounts[0].status.ending.value}"
    return write_grid(path, _NAMES, rows, title=title, data_range=(low, high))
