"""What an informed adversary rebuilt: targets, estimates and nearest known records, and the numbers as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import save_file

from reconrisk.core.storage.files import write_whole
from reconrisk.core.storage.serialization import to_json
from reconrisk.reports.leakage import is_image, write_text
from reconrisk.reports.rebuild import Row, write_grid

if TYPE_CHECKING:
    from reconrisk.studies.informed.result import RebuiltInformed

_NAMES = ("target", "rebuilt", "nearest known")


def write_informed(folder: str | Path, rebuilt: RebuiltInformed) -> list[Path]:
    """Write ``informed.json``, the report, ``informed.safetensors``, the estimates, and for images ``informed.png``.

    The picture has a row for each target: the target, what was rebuilt, and the nearest record that was known before.

    Guarantee: each file appears whole or not at all, for its owner alone, since what is rebuilt is private too. Missing
    folders are made; nothing is written elsewhere.
    Edge cases: records that are not images (1 or 3 channels x height x width) get no picture.
    """
    folder, report = Path(folder), rebuilt.report
    records = np.asarray([target.record for target in report.targets])
    arrays = {"estimates": rebuilt.estimates.contiguous().numpy(), "records": records}
    written = [
        write_text(folder / "informed.json", to_json(report, indent=2) + "\n"),
        write_whole(folder / "informed.safetensors", lambda path: save_file(arrays, path), secret=True),
    ]
    if not is_image(report.shape):
        return written
    shown = (rebuilt.targets, rebuilt.estimates, rebuilt.neighbours)
    pictures = zip(*(values.float().numpy() for values in shown), strict=True)
    captions = [f"{target.record} ({target.label[:12]})  mse {target.mse:.3g}" for target in report.targets]
    rows: list[Row] = list(zip(captions, pictures, strict=True))
    low, high = report.data_range
    title = f"{report.attack.split(',')[0]} on {report.data}, {report.accounts[0].status.ending.value}"
    return [*written, write_grid(folder / "informed.png", _NAMES, rows, title=title, data_range=(low, high))]
