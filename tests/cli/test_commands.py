import importlib.metadata
import math
import os
import shlex
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import reconrisk as rr
from reconrisk.cli.app import EXAMPLES, app
from reconrisk.cli.doctor import EXTRAS
from reconrisk.core import VERSION
from reconrisk.core.storage.serialization import from_json

RUNNER = CliRunner()
COMMANDS = (
    "demo",
    "audit",
    "rebuild",
    "rebuild-informed",
    "recommend-defense",
    "risk",
    "calibrate",
    "leakage",
    "verify-mechanism",
    "tradeoff",
    "train-prior",
    "runs",
    "show",
    "compare",
    "export",
    "plugins",
    "doctor",
)


def run(*words):
    return RUNNER.invoke(app, list(words))


def test_version_and_help():
    assert run("--version").output.strip() == f"reconrisk {VERSION}"
    text = run("--help").output
    assert all(command in text for command in COMMANDS)


def test_these_are_the_commands():
    """A new command is written here, so that whoever adds one meets the tests of all."""
    assert tuple(command.name or command.callback.__name__ for command in app.registered_commands) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_and_ends_with_an_example(command):
    result = RUNNER.invoke(app, [command, "--help"], terminal_width=80, env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert "--help" in result.output
    assert f"Example: reconrisk {command}" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    assert "…" not in result.output


@pytest.mark.parametrize(("function", "example"), EXAMPLES.items(), ids=COMMANDS)
def test_examples_use_options_that_exist(function, example):
    program, name, *words = shlex.split(example)
    command = typer.main.get_command(app).commands[name]
    assert (program, name) == ("reconrisk", function.__name__.replace("_", "-"))
    command.make_context(name, words)


def test_commands_have_the_name_of_their_function():
    """The others have no function: they print stored results, or facts about the installation."""
    places = (rr, rr.priors)
    functions = [name for name in COMMANDS if any(hasattr(place, name.replace("-", "_")) for place in places)]
    assert set(COMMANDS) - set(functions) == {"demo", "runs", "show", "export", "plugins", "doctor"}


def test_doctor_names_what_it_finds_and_passes(monkeypatch, tmp_path):
    monkeypatch.setenv("RECONRISK_DATA", str(tmp_path))
    result = run("doctor")
    assert result.exit_code == 0, result.output
    for part in ("python", "torch", "threads", "extra dp", "extra fl", str(tmp_path), "self-check"):
        assert part in result.output
    assert result.output.rstrip().endswith("ok")


def test_doctor_says_when_there_is_no_data_folder(monkeypatch):
    monkeypatch.delenv("RECONRISK_DATA", raising=False)
    assert "RECONRISK_DATA names no folder" in run("doctor").output


def test_doctor_knows_every_extra():
    declared = importlib.metadata.metadata("reconrisk").get_all("Provides-Extra")
    assert sorted(EXTRAS) == sorted(declared)


def test_doctor_fails_when_the_self_check_does(monkeypatch):
    monkeypatch.setattr("reconrisk.studies.audit.demo.self_check", lambda: 0.5)
    result = run("doctor")
    assert result.exit_code == 1
    assert "FAILED" in result.output


@pytest.mark.parametrize(
    ("function", "value"),
    [("largest_function_error", 4.5), ("largest_function_error", math.inf), ("count_random_bits", 53)],
)
def test_doctor_fails_where_the_proof_does_not_cover_the_noise(monkeypatch, function, value):
    monkeypatch.setattr(f"reconrisk.releases.float_safe_noise.{function}", lambda: value)
    result = run("doctor")
    assert result.exit_code == 1
    assert "do not rely on guarantees of noise that it adds" in " ".join(result.output.split())


PROGRAM = "import sys; from reconrisk.cli import main; sys.argv = ['reconrisk', *sys.argv[1:]]; main()"


def test_demo_audits_digits_and_writes_only_where_it_is_told(tmp_path):
    folders = {name: tmp_path / name for name in ("work", "home", "temporary")}
    for folder in folders.values():
        folder.mkdir()
    out = tmp_path / "deep" / "out"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "demo", "--out", str(out), "--trials", "1"],
        cwd=folders["work"],
        env={"PATH": os.environ["PATH"], "HOME": str(folders["home"]), "TMPDIR": str(folders["temporary"])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["audit.html", "audit.json", "demo.png"]
    assert [path for folder in folders.values() for path in folder.rglob("*")] == []
    assert all(str(path) in done.stdout for path in out.iterdir())
    result = from_json((out / "audit.json").read_text())
    assert result.sentence in done.stdout
    private = "(noise_multiplier=1, clip_norm=1)"
    defenses = ("none", f"clip_and_noise{private}", f"optimal_noise{private}", "prune(share=0.9)")
    assert tuple(item.label for item in result.defenses) == defenses
    rebuilt = {shown.defense: shown.score for shown in result.exposures}
    # the difference between a picture and noise; the exact scores depend on the machine
    assert rebuilt[defenses[0]] > 24
    assert rebuilt[defenses[3]] > 20
    assert max(rebuilt[defenses[1]], rebuilt[defenses[2]]) < 15
    page = (out / "audit.html").read_text()
    assert page.count("data:image/png") >= 8  # target and estimate under each defense


def test_demo_refuses_a_file_as_folder_before_it_works(tmp_path):
    file = tmp_path / "taken"
    file.write_text("mine")
    result = run("demo", "--out", str(file))
    assert result.exit_code == 2
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "--trials", "0"], "Expected trials=0 >= 1."),
        (["demo", "--seed", "99999999999999999999"], "Expected seed=99999999999999999999 < 2^63."),
        (
            ["rebuild-informed", "--model", "ridge", "--data", "diabetes", "--target-index", "17", "--noise-std", "-1"],
            "Expected noise_std=-1.0 > 0.",
        ),
    ],
)
def test_wrong_values_end_with_a_sentence_and_code_two(words, message, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == f"reconrisk: {message}"
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()
