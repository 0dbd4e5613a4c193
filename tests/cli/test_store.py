import csv
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import reconrisk as rr
from reconrisk.cli.app import app
from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Status
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.data.dataset import Dataset
from reconrisk.defenses import clip_and_noise
from reconrisk.studies.audit.comparison import AuditComparison
from reconrisk.studies.audit.run import audit
from reconrisk.studies.audit.store import Store, trial_columns, write_columns
from reconrisk.studies.common.runs import RunInfo

RUNNER = CliRunner()
PROGRAM = "import sys; from reconrisk.cli import main; sys.argv = ['reconrisk', *sys.argv[1:]]; main()"


def run(*words):
    result = RUNNER.invoke(app, list(map(str, words)))
    if isinstance(result.exception, (InvalidInput, InvalidFile, MissingExtra)):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def audits(tmp_path_factory):
    """A store with two runs, and their results: an open update and a noisy one, of two records each."""
    path = tmp_path_factory.mktemp("store") / "audit.db"
    torch.manual_seed(0)
    data = Dataset("toy", torch.rand(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)
    shared = {
        "trials": 3,
        "attacks": [("inverting_gradients", {"steps": 2})],
        "budget": None,
        "store": path,
        "update": rr.UpdateRecipe(batch_size=2),
    }
    model = nn.Linear(4, 2)
    first = audit(model, data, max_risk="mse<=0.5: 1%", **shared)
    noisy = audit(model, data, defenses=clip_and_noise(noise_multiplier=5.0, clip_norm=1.0), **shared)
    return path, first, noisy


def test_runs_are_listed_with_progress_and_verdict(audits):
    path, first, noisy = audits
    lines = run("runs", path).splitlines()
    assert lines[0].split() == ["run", "created", "subject", "data", "trials", "seconds", "verdict"]
    rows = {line.split()[0]: line for line in lines[1:]}
    assert set(rows) == {first.run, noisy.run}
    assert rows[first.run].split()[3:6] == ["Linear", "toy", str(first.done)]
    assert f"above the limit: {first.sentence}" in rows[first.run]
    assert rows[noisy.run].endswith(noisy.sentence)


def test_runs_as_json_are_what_the_store_says(audits):
    path, *_ = audits
    with Store.read(path) as store:
        assert from_json(run("runs", path, "--json")) == store.runs()


def test_a_run_that_was_ended_is_listed_as_such(tmp_path):
    path = tmp_path / "audit.db"
    with Store.open(path) as store:
        empty = run("runs", path)
        store.begin(RunInfo("abc", "2026-01-01T00:00:00+00:00", "Linear", "d1", "", "{}"))
    assert "no run in" in empty
    assert "2026-01-01 00:00:00  Linear   d1    0       0.0      not finished" in run("runs", path)


def test_show_prints_table_sentence_and_signature(audits):
    path, first, noisy = audits
    text = run("show", path, first.run[:6])
    assert str(first) in text
    assert first.signature in text
    assert noisy.sentence in run("show", path)  # the newest


def test_show_as_json_is_the_whole_result(audits):
    path, first, _ = audits
    assert from_json(run("show", path, first.run, "--json")) == first


def test_compare_takes_runs_stores_and_files(audits, tmp_path):
    path, first, noisy = audits
    files = [tmp_path / "before.json", tmp_path / "after.json"]
    for file, result in zip(files, (first, noisy), strict=True):
        file.write_text(to_json(result))
    ways = [
        (first.run[:6], noisy.run[:6], "--store", path),
        (f"{path}#{first.run}", path),
        (files[0], files[1]),
        (files[0], f"{path}#"),
        (first.run, files[1], "--store", path),
    ]
    texts = [run("compare", *words) for words in ways]
    assert len(set(texts)) == 1
    assert f"From {first.run} to {noisy.run}" in texts[0]
    assert "limits: mse<=0.5: 1% -> none" in texts[0]
    compared = from_json(run("compare", *ways[0], "--json"))
    assert isinstance(compared, AuditComparison)
    assert compared.before == first.run


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text('{"kind": "gaussian", "noise_multiplier": 1.0}'), "holds a Gaussian"),
        (lambda path: path.write_text("[]"), "holds a tuple"),
        (lambda path: path.write_text("half {"), "Expected JSON"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "byte 0: It is not a text file"),
        (lambda path: None, "found no such file"),
    ],
)
def test_compare_refuses_what_is_no_result(audits, tmp_path, make, message):
    make(tmp_path / "thing")
    with pytest.raises((InvalidFile, InvalidInput), match=message):
        run("compare", tmp_path / "thing", audits[0])


def rows_expected(store, name):
    return [(trial, place) for trial in store.trials(name) for place in range(len(trial.records))]


def test_export_has_one_row_for_each_record_of_each_trial(audits, tmp_path):
    path, first, _ = audits
    said = run("export", path, first.run[:5], "--out", tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with Store.read(path) as store:
        expected = rows_expected(store, first.run)
    assert len(rows) == len(expected) == 2 * first.done
    assert f"{len(rows)} rows of run {first.run}" in said
    for row, (trial, place) in zip(rows, expected, strict=True):
        key, account = trial.key, trial.account
        assert (row["run"], row["defense"], row["attack"]) == (first.run, key.defense, key.attack)
        assert (int(row["draw"]), int(row["record"])) == (key.draw, trial.records[place])
        assert {scores.metric: float(row[scores.metric]) for scores in trial.scores} == {
            scores.metric: scores.values[place] for scores in trial.scores
        }
        assert (row["status"], float(row["seconds"])) == (account.status.ending.value, account.cost.seconds)
        assert (int(row["evaluations"]), int(row["seed"])) == (account.cost.evaluations, trial.seed)


def test_json_has_the_rows_of_csv(audits, tmp_path):
    path, *_ = audits
    run("export", path, "--out", tmp_path / "t.csv")
    run("export", path, "--format", "json", "--out", tmp_path / "rows")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = json.loads((tmp_path / "rows").read_text())
    assert [{name: str(value) for name, value in row.items()} for row in found] == rows


@pytest.mark.skipif(os.name == "nt", reason="other permissions")
def test_exports_are_for_their_owner_alone(audits, tmp_path):
    run("export", audits[0], "--out", tmp_path / "t.csv")
    assert (tmp_path / "t.csv").stat().st_mode & 0o077 == 0


def test_parquet_has_the_rows(audits, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")
    path, first, _ = audits
    run("export", path, first.run, "--out", tmp_path / "t.parquet")
    with Store.read(path) as store:
        expected = trial_columns(first.run, store.trials(first.run))
    assert parquet.read_table(tmp_path / "t.parquet").to_pydict() == expected


def test_parquet_without_its_extra_says_how_to_install_it_and_leaves_no_file(audits, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"reconrisk\[parquet\]"):
        run("export", audits[0], "--out", tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--format", "xls"), ("--out", "t.xls"), ("--out", "t")])
def test_an_unknown_form_is_refused(audits, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="to be one of csv, json, parquet"):
        run("export", audits[0], *words)
    assert list(tmp_path.iterdir()) == []


def test_metrics_that_some_trials_lack_are_empty_there(audits, tmp_path):
    path, first, _ = audits
    with Store.read(path) as store:
        whole = store.trials(first.run)[0]
    account = AttackReport("a", Status(Ending.EXACT, "solved"), (0.0, 0.0), Cost(0.0, 0))
    fewer = type(whole)(whole.key, whole.records, 0, whole.scores[:1], account)
    columns = trial_columns("r", (whole, fewer))
    missing = whole.scores[-1].metric
    assert columns[missing] == [*whole.scores[-1].values, None, None]
    assert columns[whole.scores[0].metric] == list(whole.scores[0].values) * 2
    for name in ("t.csv", "t.json"):
        write_columns(tmp_path / name, columns)
    assert json.loads((tmp_path / "t.json").read_text())[-1][missing] is None


def test_a_run_without_trials_is_a_table_without_rows(tmp_path):
    columns = trial_columns("r", ())
    for name in ("t.csv", "t.json"):
        write_columns(tmp_path / name, columns)
    assert (tmp_path / "t.csv").read_text().strip() == "run,defense,attack,draw,record,status,seconds,evaluations,seed"
    assert json.loads((tmp_path / "t.json").read_text()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs", "nothing.db"], "nothing.db, store: there is no such file."),
        (["show", "{store}", "zzz"], "Expected run='zzz' to be the beginning of one of"),
        (["compare", "a", "b"], "Expected before='a' to be a result file (JSON)"),
        (["export", "{store}", "--out", "{store}/x.csv"], "audit.db"),
    ],
)
def test_trouble_ends_with_a_sentence_and_code_two(audits, words, message):
    filled = [word.format(store=audits[0]) for word in words]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *filled], capture_output=True, text=True, check=False, cwd=audits[0].parent
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("reconrisk: ")
    assert message in done.stderr
    assert done.stdout == ""
    assert not (audits[0].parent / "nothing.db").exists()


@pytest.mark.parametrize("words", [["runs"], ["show"], ["export", "--out", "t.csv"]])
def test_reading_a_store_loads_no_torch(audits, words, tmp_path):
    program = (
        "import sys; from typer.testing import CliRunner; from reconrisk.cli.app import app\n"
        "done = CliRunner().invoke(app, sys.argv[1:]); sys.exit(done.exit_code or 5 * ('torch' in sys.modules))"
    )
    words = [words[0], str(audits[0]), *words[1:]]
    assert subprocess.run([sys.executable, "-c", program, *words], check=False, cwd=tmp_path).returncode == 0


def test_comparing_loads_no_torch(audits, tmp_path):
    program = (
        "import sys; from typer.testing import CliRunner; from reconrisk.cli.app import app\n"
        "done = CliRunner().invoke(app, sys.argv[1:]); sys.exit(done.exit_code or 5 * ('torch' in sys.modules))"
    )
    words = ["compare", str(audits[0]), str(audits[0])]
    assert subprocess.run([sys.executable, "-c", program, *words], check=False, cwd=tmp_path).returncode == 0
