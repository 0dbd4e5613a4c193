"""Cells are found again by the same settings and by no other, and a damaged file is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.serialization import to_json
from reconrisk.studies.tradeoff.result import AttackScore, TradeoffCell
from reconrisk.studies.tradeoff.store import CellStore

_CELL = TradeoffCell(
    "a",
    1.0,
    0,
    training_loss=0.1,
    test_loss=float("inf"),
    test_accuracy=None,
    diverged=False,
    utility_1=1.0,
    utility_2=0.0,
    fisher_trace=float("inf"),
    mse_bound=0.0,
    scores=(AttackScore("aware", "analytic", False, 0.0, float("inf")),),
    seconds=1.0,
)


def test_cells_come_back(tmp_path: Path) -> None:
    store = CellStore(tmp_path / "new" / "runs")
    assert store.find("f" * 12) is None
    store.add("f" * 12, _CELL)
    assert store.find("f" * 12) == _CELL
    assert [path.name for path in (tmp_path / "new" / "runs").iterdir()] == ["cell-v2-ffffffffffff.json"]
    assert CellStore(None).find("f" * 12) is None
    CellStore(None).add("f" * 12, _CELL)


@pytest.mark.parametrize("text", ["", "{", '{"kind": "Gaussian", "noise_multiplier": 1.0}', to_json(_CELL)[:-20]])
def test_damaged_files_are_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "cell-v2-ffffffffffff.json").write_text(text)
    with pytest.raises(InvalidFile, match="Delete the file"):
        CellStore(tmp_path).find("f" * 12)


def test_cells_of_another_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cell-0123456789ab.json").write_text(to_json(_CELL))
    with pytest.raises(InvalidFile, match="written by another version of reconrisk"):
        CellStore(tmp_path)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="to be a folder"):
        CellStore(tmp_path / "file")
