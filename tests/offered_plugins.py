"""A stand-in for an installed distribution: metadata with entry points, and a module, in a folder of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def offer_plugins(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    entry_points: Mapping[str, Mapping[str, str]],
    source: str = "",
    *,
    distribution: str = "stand-in",
    module: str = "stand_in_plugin",
) -> None:
    """Write what pip would: entry points by group, and the module that they name; both end with the test."""
    metadata = folder / f"{distribution.replace('-', '_')}-1.5.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in points.items())
        for group, points in entry_points.items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    (folder / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, module, None)  # so that the module of this test is gone after it
    del sys.modules[module]
