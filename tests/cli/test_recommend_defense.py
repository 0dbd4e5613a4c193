"""``reconrisk recommend-defense``: what it prints, writes and returns."""

import json

import pytest
from typer.testing import CliRunner

import reconrisk as rr
from reconrisk.cli.app import app
from reconrisk.core.errors import InvalidInput

MODULE = """
from torch import nn

def softmax():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
QUICK = ("--training-steps", "0", "--family", "gaussian_noise")


def run(*words):
    return CliRunner().invoke(app, ["recommend-defense", *words])


@pytest.fixture
def model(tmp_path, monkeypatch):
    (tmp_path / "models_of_a_test.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return ("--model", "models_of_a_test:softmax", "--data", "digits")


def test_a_defense_that_meets_the_target_is_printed_and_written(model, tmp_path):
    result = run(*model, "--accept", "psnr>=30: 25%", "--attacks", "analytic", *QUICK, "--out", "found.json")
    assert result.exit_code == 0, result.output
    assert "\n\nUse rr.defenses.gaussian_noise(" in result.output
    found = rr.from_json((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found.best == "gaussian_noise"
    assert str(found.accept[0]) == "psnr>=30: 25%"


def test_no_defense_that_meets_the_target_is_a_failure(model):
    result = run(*model, "--accept", "psnr>=30: 1%", "--evidence", "proved", *QUICK, "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)["best"] is None


def test_families_are_listed():
    result = run("--list")
    assert result.exit_code == 0
    assert "clip_and_optimal_noise" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data", "digits", "--mse-bound", "0.01"), "Expected --model"),
        (("--accept", "psnr>=20"), "Expected --accept 'psnr>=20' to be a goal and a share"),
        (("--accept", "psnr>=30: 5"), "percent sign"),
        ((), "Expected a target. Add --accept 'psnr>=20: 5%' or --mse-bound 0.01, for instance."),
        (("--accept", "psnr>=30: 5%", "--family", "pruning"), "Did you mean"),
    ],
)
def test_bad_input_is_refused(model, words, message):
    given = words if words[:1] == ("--data",) else (*model, *words)
    result = run(*given)
    assert result.exit_code != 0
    assert isinstance(result.exception, InvalidInput)
    assert message in str(result.exception)


def test_a_folder_is_refused_as_a_file(model, tmp_path):
    result = run(*model, "--accept", "psnr>=30: 5%", "--out", str(tmp_path))
    assert result.exit_code == 2
