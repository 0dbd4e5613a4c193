"""Cells are found again by the same settings and by no other, and a damaged file is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.storage.serialization import to_json
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
    assert sorted(path.name for path in (tmp_path / "new" / "runs").iterdir()) == [
        "cell-ffffffffffff.json",
        "store.json",
    ]
    assert CellStore(tmp_path / "new" / "runs").find("f" * 12) == _CELL
    assert CellStore(None).find("f" * 12) is None
    CellStore(None).add("f" * 12, _CELL)


@pytest.mark.parametrize("text", ["", "{", '{"kind": "gaussian", "noise_multiplier": 1.0}', to_json(_CELL)[:-20]])
def test_damaged_files_are_told(tmp_path: Path, text: str) -> None:
    CellStore(tmp_path).add("f" * 12, _CELL)
    (tmp_path / "cell-ffffffffffff.json").write_text(text)
    with pytest.raises(InvalidFile, match="Delete the file"):
        CellStore(tmp_path).find("f" * 12)


_OLD_CELL = """{"kind": "TradeoffCell", "family": "a", "strength": 1.0, "seed": 0, "training_loss": 0.1,
"test_loss": 0.1, "test_accuracy": null, "diverged": false, "utility_1": 1.0, "utility_2": 0.0, "fisher_trace": 1.0,
"mse_bound": 0.0,
"scores": [{"kind": "AttackScore", "attacker": "aware", "attack": "analytic", "is_guess": false, "mse": 0.0,
"psnr": "inf", "failures": 0}], "seconds": 1.0, "defense_gradients": null}
"""


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "cell-ffffffffffff.json",
            _OLD_CELL,
            "of version 1, written by an earlier reconrisk; this one reads version 2. Choose a new path.*Nothing was",
        ),
        ("store.json", '{"store": "tradeoff", "version": 3}', "of version 3, written by a later reconrisk.*Update"),
        ("store.json", "{}", "states no version"),
    ],
)
def test_a_folder_of_another_version_is_refused_and_not_touched(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidFile, match=message):
        CellStore(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: text}


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="to be a folder"):
        CellStore(tmp_path / "file")
