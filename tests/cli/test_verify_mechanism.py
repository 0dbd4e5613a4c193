import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import reconrisk as rr
from reconrisk.cli.app import app
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.storage.serialization import from_json
from reconrisk.models import logistic

RUNNER = CliRunner()
SOUND = "clip_and_noise(noise_multiplier=1, clip_norm=1)"
CLAIM = ["--noise-multiplier", "2", "--clip-norm", "1"]


def run(*words):
    result = RUNNER.invoke(app, ["verify-mechanism", *map(str, words)])
    if isinstance(result.exception, (InvalidInput, InvalidFile)):
        raise result.exception
    return result


def test_exit_codes_are_those_of_the_verdict():
    consistent = run("--defense", SOUND)
    assert consistent.exit_code == 0, consistent.output
    assert "consistent" in consistent.output
    contradicted = run("--defense", SOUND, *CLAIM, "--releases", "1")
    assert contradicted.exit_code == 1
    assert "times the claimed one" in contradicted.output
    assert run("--defense", SOUND, "--releases", "2").exit_code == 4


def test_json_and_a_file(tmp_path):
    result = run("--defense", SOUND, "--releases", "3", "--fixed", "--json", "--out", tmp_path / "new" / "verdict.json")
    found = from_json(result.stdout)
    assert (found.releases, found.stopping, found.exit_code) == (3, "fixed", result.exit_code)
    assert rr.load(tmp_path / "new" / "verdict.json") == found


def test_the_update_of_a_model():
    result = run("--defense", SOUND, "--model", "logistic", "--data", "digits", "--releases", "2", "--json")
    assert from_json(result.stdout).subject.startswith("clip_and_noise")


@pytest.fixture
def finished(tmp_path):
    """A run of three steps on the bundled digits with noise alone: gradients are clipped to nearly nothing."""
    folder, rng = tmp_path / "run", torch.Generator().manual_seed(0)
    folder.mkdir()
    weights = logistic(64, 10, rng=rng).state_dict()
    for step in range(4):
        save_file(weights, folder / f"step-{step}.safetensors")
        weights = {name: value + 1e-6 * torch.randn(value.shape, generator=rng) for name, value in weights.items()}
    return folder


def test_a_finished_run(finished):
    count = len(rr.load_dataset("digits"))
    # noise of 1e-6 in weights is noise multiplier * clip norm * learning rate / records
    settings = ["--model", "logistic", "--data", "digits", "--clip-norm", 1e-9, "--learning-rate", 1e-3]
    claim = 1e-6 / 1e-3 / 1e-9 * count
    result = run("--iterates", finished, *settings, "--noise-multiplier", claim, "--json")
    assert from_json(result.stdout).releases == 3
    assert not from_json(result.stdout).is_contradicted
    assert run("--iterates", finished, *settings, "--noise-multiplier", 2 * claim).exit_code == 1


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ([], "--defense or --iterates"),
        (["--defense", SOUND, "--iterates", "run"], "--defense or --iterates"),
        (["--defense", "none"], "add noise"),
        (["--defense", "gaussian_noise(std=1)"], "mechanism of"),
        (["--defense", SOUND, "--noise-multiplier", "1"], "--clip-norm"),
        (["--defense", SOUND, "--model", "logistic"], "--model and --data"),
        (["--iterates", "missing", *CLAIM], "--learning-rate"),
        (
            ["--iterates", "missing", *CLAIM, "--model", "logistic", "--data", "digits", "--learning-rate", "1"],
            "no such folder",
        ),
    ],
)
def test_incomplete_commands_are_refused(words, match):
    with pytest.raises((InvalidInput, InvalidFile), match=match):
        run(*words)
