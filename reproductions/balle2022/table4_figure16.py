"""Table IV and Figure 16 of balle2022: the width of the released model, and its second layer alone.

The paper has 10,000 fixed records and 59,000 shadow models; sizes here are those of Table II's reproduction.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from reproductions.balle2022.table2 import LARGE, QUICK, attacked, finding
from reproductions.frame import Finding, Scale, need_data, reproduce

PAPER: dict[tuple[int, tuple[str, ...] | None], str] = {
    (1, None): "0.0079",
    (10, None): "0.0089",
    (100, None): "0.0079",
    (100, ("layers.2",)): "0.0124",
}
"""Width of the hidden layer, layers that are read: MSE."""


def run(scale: Scale) -> Sequence[Finding]:
    """Mean squared error by the width of the hidden layer; the widest only at the paper's scale."""
    need_data()
    sizes = QUICK if scale == "small" else LARGE
    findings = []
    for (hidden, parameters), paper in PAPER.items():
        width = min(hidden, 30) if scale == "small" else hidden
        setting = replace(sizes, hidden=width, parameters=parameters)
        what = f"hidden {width}{', second layer alone' if parameters else ''}"
        findings.append(finding(what, f"{paper} (hidden {hidden})", attacked(setting), setting))
    return findings


if __name__ == "__main__":
    sys.exit(reproduce(run))
