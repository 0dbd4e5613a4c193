"""``reconrisk tradeoff``: one call from names to table, picture and JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from reconrisk.cli.app import app
from reconrisk.cli.tradeoff import read_families
from reconrisk.core.errors import InvalidInput
from reconrisk.core.storage.serialization import from_json
from reconrisk.defenses.registry import DEFENSES
from reconrisk.studies.tradeoff.result import TradeoffResult

_SMALL = ["--records", "80", "--public", "8", "--steps", "2", "--repeat", "1", "--trials", "1", "--attacks", "analytic"]


def _run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["tradeoff", "--data", "digits", *_SMALL, *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_one_call_writes_table_picture_and_json_and_goes_on(tmp_path: Path) -> None:
    options = ["--model", "logistic", "--defense", "gaussian_noise:0.01,1", "--defense", "optimal_noise:1"]
    text = _run(*options, "--out", str(tmp_path / "out"))
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"tradeoff.json", "tradeoff.png", "tradeoff.html", "runs"}
    result = from_json((tmp_path / "out" / "tradeoff.json").read_text())
    assert isinstance(result, TradeoffResult)
    assert result.families == ("gaussian_noise", "optimal_noise")
    assert [row.strength for row in result.rows_for("aware")] == [None, 0.01, 1.0, 1.0]
    assert "gaussian_noise is at least as good as optimal_noise" in text
    runs = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").iterdir()}
    again = _run(*options, "--json", "--out", str(tmp_path / "out"))
    assert from_json(next(line for line in again.splitlines() if line.startswith("{"))) == result
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").iterdir()} == runs


def test_every_defense_by_name_has_a_strength() -> None:
    others = {"optimal_pruning_and_noise": "share=0.5", "clip_and_noise": "clip_norm=1", "dp_sgd_noise": "clip_norm=1"}
    for name in set(DEFENSES) - {"sign"}:
        settings = f"({others[name]})" if name in others else ""
        strength = "3" if name == "quantise" else "0.5"
        (found,) = read_families([f"{name}{settings}:{strength}"]).values()
        assert list(found) == [float(strength)]


def test_the_setting_can_be_named() -> None:
    (found,) = read_families(["optimal_noise:noise_norm=0.1,1"]).values()
    assert [str(defense) for defense in found.values()] == [
        f"optimal_noise(noise_norm={norm:g})" for norm in (0.1, 1.0)
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gaussian_noise", "name:strengths"),
        ("gaussian_noise:", "name:strengths"),
        ("gaussian_noise:much", "Write the strengths as numbers"),
        ("gausian_noise:0.1", "Did you mean gaussian_noise"),
        ("gaussian_noise:size=0.1", "size=0.1 to be left out"),
        ("prune:1.5", "share=1.5"),
        ("sign:1", "defense='sign' to have a strength. Name the setting"),
    ],
)
def test_bad_families_are_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        read_families([text])


def test_a_family_is_stated_once() -> None:
    with pytest.raises(InvalidInput, match="to appear once"):
        read_families(["prune:0.5", "prune:0.6"])


def test_more_public_records_than_there_are_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="public=5000 < 1797"):
        _run("--model", "logistic", "--defense", "prune:0.5", "--out", str(tmp_path), "--public", "5000")
