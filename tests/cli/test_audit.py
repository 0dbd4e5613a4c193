import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import reconrisk as rr
from reconrisk.cli import main
from reconrisk.cli.app import app
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.storage.serialization import from_json
from reconrisk.studies.audit.job import Job
from reconrisk.studies.audit.spec import KEYS

RUNNER = CliRunner()
ROOT = Path(__file__).parents[2]
QUICK = ["--attacks", "analytic", "--trials", "3", "--records", "0-39"]
NOISE = "clip_and_noise(noise_multiplier=1, clip_norm=1)"
PROGRAM = "import sys; from reconrisk.cli import main; sys.argv = ['reconrisk', *sys.argv[1:]]; main()"


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    """A working folder of its own; what the command adds to the module path goes away again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(*words):
    result = RUNNER.invoke(app, ["audit", *map(str, words)])
    if isinstance(result.exception, (InvalidInput, InvalidFile)):
        raise result.exception
    return result


def on_digits(*words):
    return run("--model", "logistic", "--data", "digits", *QUICK, *words)


def stored(folder):
    return from_json((folder / "audit.json").read_text())


def test_the_common_job_needs_no_file_and_prints_plan_table_verdict_and_paths(work):
    done = on_digits("--defense", "none", "--defense", NOISE)
    assert done.exit_code == 0, done.output
    folder = work / "audit-report"
    assert sorted(path.name for path in work.rglob("*")) == ["audit-report", "audit.html", "audit.json"]
    result = stored(folder)
    text = done.stdout
    assert text.index("plan ") < text.index("expected ") < text.index("best attack") < text.index(result.sentence)
    assert str(folder / "audit.html") in text
    assert text.rstrip().endswith(result.signature)
    assert [line.success.value for line in result.lines] == [1.0, 0.0, 1.0, 0.0]


def test_the_signature_repeats_the_result(work):
    on_digits("--defense", NOISE, "--seed", "3", "--out", "first")
    signature = stored(work / "first").signature
    words = shlex.split(signature)
    assert words[:2] == ["reconrisk", "audit"]
    assert run(*words[2:], "--out", "second").exit_code == 0
    first, second = (stored(work / name) for name in ("first", "second"))
    assert (first.exposures, first.lines, first.signature) == (second.exposures, second.lines, second.signature)


def test_a_risk_above_its_limit_ends_with_one_and_both_numbers(work):
    done = on_digits("--max-risk", "psnr>=20: 1%")
    assert done.exit_code == 1
    assert "LIMIT: psnr>=20 under none is reached with probability 1 [" in done.stderr
    assert "the limit is psnr>=20: 1%: above the limit" in done.stderr
    assert "above the limit" in done.stdout
    assert on_digits("--max-risk", "psnr>=20: 100%").exit_code == 0


def test_strict_fails_a_limit_that_few_trials_cannot_show():
    words = ["--defense", NOISE, "--max-risk", "mse<=0.01: 5%"]
    assert on_digits(*words, "--junit", "lenient.xml").exit_code == 0
    assert "<failure" not in Path("lenient.xml").read_text()
    done = on_digits(*words, "--strict", "--junit", "strict.xml")
    assert done.exit_code == 1
    assert "<failure" in Path("strict.xml").read_text()
    assert "too few trials to show it" in done.stderr


def test_a_contradicted_bound_ends_with_one_both_numbers_and_a_report(work, monkeypatch):
    honest = Job.run

    def lying(job, **settings):
        class Halved:
            """A defense with a thousandth of the noise that it claims."""

            claimed = rr.defenses.clip_and_noise(noise_multiplier=5.0, clip_norm=1.0)
            real = rr.defenses.clip_and_noise(noise_multiplier=1e-6, clip_norm=1.0)
            mechanism = claimed.mechanism
            __call__ = lambda self, released, *, rng: self.real(released, rng=rng)  # noqa: E731  # one line is enough
            __str__ = lambda self: "liar"  # noqa: E731
            replay, noise_std, kept = real.replay, real.noise_std, real.kept

        return honest(replace(job, defenses=(Halved(),)), **settings)

    monkeypatch.setattr(Job, "run", lying)
    done = on_digits("--trials", "12", "--junit", "out/audit.xml")
    assert done.exit_code == 1, done.output
    assert re.search(
        r"CONTRADICTION: analytic reaches psnr>=20 under liar with probability 1 \[0\.\d+, 1\]", done.stderr
    )
    assert "the mechanism is not implemented as stated" in done.stderr
    assert stored(work / "audit-report").contradictions
    assert "<failure" in (work / "out" / "audit.xml").read_text()


def test_options_take_the_place_of_keys_and_are_relative_to_the_user(work):
    inner = work / "inner"
    inner.mkdir()
    (inner / "spec.toml").write_text(
        'model = "logistic"\ndata = "digits"\nattacks = "analytic"\ntrials = 2\nrecords = "0-39"\nout = "report"\n'
        'max_risk = "psnr>=20: 1%"\n'
    )
    assert run("inner/spec.toml").exit_code == 1
    assert len(stored(inner / "report").exposures) == 2
    done = run("inner/spec.toml", "--trials", "4", "--max-risk", "psnr>=20: 100%", "--out", "mine", "--store", "s.db")
    assert done.exit_code == 0, done.output
    assert len(stored(work / "mine").exposures) == 4
    assert (work / "s.db").is_file()
    assert sorted(path.name for path in inner.iterdir()) == ["report", "spec.toml"]


def test_no_path_of_the_machine_enters_the_report(work):
    inner = work / "inner"
    inner.mkdir()
    (inner / "spec.toml").write_text('model = "logistic"\ndata = "digits"\nattacks = "analytic"\ntrials = 1\n')
    digits = rr.load_dataset("digits")
    np.savez("mine.npz", images=digits.inputs[:40].numpy(), labels=digits.labels[:40].numpy())
    options = ["--data", "mine.npz", "--data-range", "0,1", "--store", "s.db", "--junit", "j.xml"]
    done = run(inner / "spec.toml", *options, "--out", "mine")
    assert done.exit_code == 0, done.output
    for path in ("mine/audit.html", "mine/audit.json", "s.db", "j.xml"):
        assert str(work).encode() not in Path(path).read_bytes(), path
    first = stored(work / "mine")
    assert '"../mine.npz"' in first.signature
    os.chdir(inner)
    assert run(*shlex.split(first.signature)[2:], "--out", "again").exit_code == 0
    assert stored(inner / "again").exposures == first.exposures


def test_options_reach_the_audit(work):
    words = ["--knows", "labels", "--knows", "prior", "--controls", "model-parameters", "--batch-size", "2"]
    words += ["--local-steps", "2", "--local-learning-rate", "0.1", "--goal", "ncc>=0.9", "--split", "test"]
    words += [
        "--sees",
        "one-update",
        "--confidence",
        "0.9",
        "--model",
        "balle2022_mlp",
        "--data",
        "mnist",
        "--attacks",
        "imprint(bins=16)",
        "--trials",
        "1",
    ]
    done = run(*words, "--noise-multiplier", "2", "--sampling-probability", "0.1", "--steps", "10", "--train-mode")
    assert done.exit_code == 0, done.output
    result = stored(work / "audit-report")
    assert {item.value for item in result.threat.knows} == {"labels", "prior"}
    assert result.threat.controls
    assert result.confidence == 0.9
    assert result.subject.batch_size == 2
    assert "2 steps of SGD, learning rate 0.1" in result.subject.release
    assert "training mode" in result.subject.release
    assert [str(goal) for goal in result.goals] == ["ncc>=0.9"]
    assert [item.label for item in result.attacks if not item.is_baseline] == ["imprint(bins=16)"]
    assert [item.label for item in result.defenses] == ["clip_and_noise(noise_multiplier=2, clip_norm=1)"]
    assert result.training.mechanism.steps == 10


def test_every_key_but_the_folder_is_an_option():
    text = RUNNER.invoke(app, ["audit", "--help"], env={"COLUMNS": "200"}).output
    several = {"defenses": "defense", "goals": "goal"}
    parts = {"threat": ("sees", "knows", "controls"), "training": ("noise-multiplier", "steps"), "folder": ()}
    for key in KEYS:
        for name in parts.get(key, (several.get(key, key).replace("_", "-"),)):
            assert f"--{name}" in text, key


def test_json_alone_is_printed_on_request():
    done = on_digits("--json")
    assert from_json(done.stdout).lines
    assert "plan " in done.stderr


def test_redaction_is_the_default_but_for_bundled_data(work):
    digits = rr.load_dataset("digits")
    np.savez("mine.npz", images=digits.inputs[:40].numpy() * 0.5, labels=digits.labels[:40].numpy())
    mine = ["--model", "logistic", "--data", "mine.npz", "--data-range", "0,1", "--attacks", "analytic", "--trials", 2]
    found = {}
    for name, words in {
        "private": mine,
        "shown": [*mine, "--no-redact"],
        "bundled": ["--model", "logistic", "--data", "digits", *QUICK],
        "hidden": ["--model", "logistic", "--data", "digits", *QUICK, "--redact"],
    }.items():
        assert run(*words, "--out", name).exit_code == 0
        found[name] = "data:image/png" in (work / name / "audit.html").read_text()
    assert found == {"private": False, "shown": True, "bundled": True, "hidden": False}


def test_the_store_lets_the_same_audit_go_on(work, monkeypatch):
    words = ["--store", "s.db", "--defense", NOISE]
    on_digits(*words, "--out", "first")
    monkeypatch.setattr(
        "reconrisk.studies.common.experiment.Experiment.trial", lambda *_: pytest.fail("computed twice")
    )
    assert on_digits(*words, "--out", "second").exit_code == 0
    assert stored(work / "first").exposures == stored(work / "second").exposures


def test_a_fisher_account_of_the_training_is_read(work):
    (work / "account_net.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(30, 2))\n"
    )
    data = rr.load_dataset("breast_cancer")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(30, 2))
    accountant = rr.integrations.FisherAccountant(
        model, data.inputs, data.labels, relative_error=0.5, records=range(40)
    )
    for _ in range(9):
        accountant.step(noise_multiplier=1.5, clip_norm=0.5, sampling_probability=0.2)
    accountant.save("account.safetensors")
    words = ["--model", "account_net:build", "--data", "breast_cancer", *QUICK, "--account", "account.safetensors"]
    done = run(*words)
    assert done.exit_code == 0, done.output
    result = stored(work / "audit-report")
    assert (result.training.leakage.records, result.training.leakage.steps) == (40, 9)
    assert [item.label for item in result.defenses] == ["clip_and_noise(noise_multiplier=1.5, clip_norm=0.5)"]
    assert "account   40 records" in done.stdout
    assert "training  " in done.stdout
    with pytest.raises(InvalidInput, match=r"^account: "):
        run("--model", "logistic", "--data", "digits", *QUICK, "--account", "account.safetensors")
    sys.modules.pop("account_net", None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Expected a spec file, or --model and --data."),
        (["--data", "digits"], "model: Expected this key"),
        (["absent.toml"], "absent.toml, file: There is no such file."),
        (
            ['{"model": "logistic", "data": "digits", "trails": 3}'],
            "trails: Expected a known key. Did you mean trials?",
        ),
        (["--model", "logistic", "--data", "digits", "--steps", "3"], "to state the noise_multiplier"),
        (["--model", "logistic", "--data", "digits", "--attacks", "analitic"], "Did you mean analytic?"),
        (["--model", "guo2022_cifar10", "--data", "breast_cancer"], "model: "),
    ],
)
def test_wrong_use_is_refused_and_leaves_nothing(work, words, message):
    with pytest.raises((InvalidInput, InvalidFile), match=re.escape(message)):
        run(*words)
    assert list(work.iterdir()) == []


def test_folders_that_cannot_be_written_are_refused_first(work):
    (work / "taken").write_text("mine")
    for words in (["--out", "taken"], ["--junit", "taken/audit.xml"]):
        assert on_digits(*words).exit_code == 2
    assert (work / "taken").read_text() == "mine"


def test_wrong_use_ends_with_code_two_and_one_sentence(work):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "audit", '{"modl": "x"}'], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "reconrisk: modl: Expected a known key. Did you mean model?"


def test_the_unexpected_ends_with_a_code_of_its_own(monkeypatch, capsys):
    def surprised(*_, **__):
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr("reconrisk.studies.audit.job.job_from_spec", surprised)
    monkeypatch.setattr(sys, "argv", ["reconrisk", "audit", "--model", "logistic", "--data", "digits"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    assert capsys.readouterr().err.endswith("reconrisk: unexpected RuntimeError: the disk is on fire\n")


def test_ctrl_c_keeps_what_is_done_and_ends_with_130(work):
    words = ["--model", "lenet", "--data", "mnist", "--attacks", "inverting_gradients(steps=100)", "--trials", "500"]
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "audit", *words, "--store", "s.db", "--budget", "none"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 120
        while not list(work.glob("s.db.arrays/*/*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=120)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert "trials were not run" in out
    assert 0 < stored(work / "audit-report").done < 1500


@pytest.mark.parametrize("steps", [100, 100_000])  # the budget ends between trials, and within one
def test_a_spent_budget_is_no_interruption(steps):
    words = ["--model", "lenet", "--data", "mnist", "--attacks", f"inverting_gradients(steps={steps})"]
    done = run(*words, "--trials", "500", "--budget", "3s")
    assert done.exit_code == 0, done.output
    assert "trials were not run" in done.stdout


def test_budgets_hold_where_ctrl_c_is_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background
    try:
        begun = time.monotonic()
        words = ["--model", "lenet", "--data", "mnist", "--attacks", "inverting_gradients(steps=100000)"]
        assert run(*words, "--trials", "1", "--budget", "2s").exit_code == 0
        assert time.monotonic() - begun < 60  # to its end the attack would take many minutes
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_failures_are_told_for_every_limit_of_a_result():
    job = rr.load_dataset("digits").subset(range(40))
    result = rr.audit(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)), job, attacks=["analytic"],
                      trials=2, max_risk=["psnr>=20: 1%", "mse<=0.01: 50%", "psnr>=20: 100%"])  # fmt: skip
    assert [text.partition(" under")[0] for text in result.failures()] == [
        "LIMIT: psnr>=20",
        "LIMIT: mse<=0.01",
    ]


def test_the_workflow_in_the_documentation_states_commands_that_exist():
    text = (ROOT / "docs" / "github-actions.yml").read_text()
    (command,) = re.findall(r"run: >-\n((?: {10}.*\n)+)", text)
    words = shlex.split(command)
    assert words[:2] == ["reconrisk", "audit"]
    options = set(re.findall(r"--[a-z-]+", RUNNER.invoke(app, ["audit", "--help"], env={"COLUMNS": "200"}).output))
    assert {word for word in words if word.startswith("--")} <= options
    assert {"--max-risk", "--junit", "--strict", "--out"} <= set(words)
    assert json.dumps(words)  # nothing is left to the shell


def test_the_workflow_keeps_estimates_of_records_out_of_caches_and_artifacts():
    lines = (ROOT / "docs" / "github-actions.yml").read_text().splitlines()
    code = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    assert "actions/cache" not in code
    assert "--store" not in code
    assert "--redact" in code
    (uploaded,) = re.findall(r"path: \|\n((?: {12}.*\n)+)", code)
    assert {Path(path).name for path in uploaded.split()} == {"audit.html", "audit.json", "junit.xml"}
