import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from reconrisk.cli.app import app
from reconrisk.core.errors import InvalidInput
from reconrisk.core.storage.serialization import from_json

RUNNER = CliRunner()
TRAINING = ["--sampling-probability", "0.01", "--steps", "10000", "--clip-norm", "1"]
RISK = ["risk", "--noise-multiplier", "1.1", *TRAINING, "--dimension", "3072", "--norm", "1", "--data-range", "1"]


def run(*words):
    result = RUNNER.invoke(app, list(words))
    if isinstance(result.exception, InvalidInput):
        raise result.exception
    return result


def test_risk_prints_the_corridor_a_sentence_and_the_assumptions():
    text = " ".join(run(*RISK, "--psnr", "20", "--prior-success", "0.001").output.split())
    for part in ("law of one attack, no bound", "guarantee", "0.0257", "differentially private", "Poisson sampling"):
        assert part in text


def test_risk_as_json_reads_back():
    corridor = from_json(run(*RISK, "--psnr", "20", "--candidates", "1000", "--json").output)
    assert corridor.prior_success == 0.001
    assert 5 < corridor.epsilon < 5.5
    assert corridor.delta == 1e-5
    assert 0.025 < corridor.identification.value < 0.0262


def test_risk_draws_the_corridor(tmp_path):
    path = tmp_path / "new" / "corridor.png"
    assert str(path) in run(*RISK, "--psnr", "20", "--candidates", "10", "--plot", str(path)).output.replace("\n", "")
    with Image.open(path) as picture:
        assert picture.size[0] > 500


def test_calibrate_finds_the_noise_and_says_what_it_costs():
    words = ["calibrate", *TRAINING, "--identification", "0.2", "--prior-success", "0.1"]
    text = run(*words).output
    assert "smallest noise multiplier that meets every risk limit is 2.379" in text
    plain = json.loads(run(*words, "--unbiased-mse", "0.05", "--json").output)
    assert plain["kind"] == "calibration"
    assert len(plain["guarantees"]) == 2


def test_calibrate_warns_of_the_bound_for_one_release_and_offers_the_other():
    record = ["--dimension", "12", "--mse", "0.01"]
    one = run("calibrate", "--from-scratch", "0.001", *record)
    assert "Warning: Expected the release of every record to be x/|x| plus noise" in one.stderr
    assert "each release with the record is its direction x/|x|" in " ".join(one.stdout.split())
    other = run("calibrate", "--known-norm", "0.001", *record, "--json")
    assert other.stderr == ""
    assert from_json(other.stdout).guarantees[0].scope.value.endswith("any release")


def test_calibrate_adjusts_steps():
    words = ["calibrate", "--noise-multiplier", "1", "--sampling-probability", "0.01", "--adjust", "steps"]
    answer = from_json(run(*words, "--identification", "0.2", "--prior-success", "0.1", "--json").output)
    assert answer.value == answer.mechanism.steps == 1105  # by the certified bound, one step more exceeds 0.2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["risk", "--noise-multiplier", "1", "--psnr", "20", "--candidates", "10"], "--dimension"),
        ([*RISK, "--psnr", "20"], "--prior-success and --candidates"),
        ([*RISK, "--psnr", "20", "--candidates", "10", "--prior-success", "0.1"], "exactly one of"),
        ([*RISK, "--candidates", "10"], "exactly one number"),
        (["risk", "--noise-multiplier", "-1", "--dimension", "4", "--psnr", "20", "--candidates", "2"], r"-1\.0 > 0"),
        (["calibrate"], "at least one of --identification"),
        (
            ["calibrate", "--unbiased-mse", "0.1", "--candidates", "10"],
            "--identification, the accepted success, with --candidates",
        ),
        (["calibrate", "--unbiased-mse", "0.1", "--psnr", "20"], "--from-scratch, the accepted success, with --psnr"),
        ([*RISK, "--psnr", "20", "--candidates", "10", "--plot", "corridor.xyz"], "to end in one of .png"),
        (
            ["calibrate", "--from-scratch", "0.1", "--psnr", "20"],
            "--dimension, the number of values in a record, with --known-norm",
        ),
        (
            ["calibrate", "--identification", "0.05", "--prior-success", "0.1"],
            "Pass a number above 0.1, the success of guessing alone",
        ),
        (["calibrate", "--identification", "0.2", "--prior-success", "0.1", "--adjust", "noise"], "adjust='noise'"),
    ],
)
def test_wrong_use_is_explained(words, message):
    with pytest.raises(InvalidInput, match=message):
        run(*words)
