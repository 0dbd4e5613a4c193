import json
import re
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import reconrisk.studies.leakage.leakage as library
from reconrisk.cli import main
from reconrisk.cli.app import app
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.storage.serialization import from_json
from reconrisk.models import logistic

RUNNER = CliRunner()
STEP = ["--noise-multiplier", "0.1", "--clip-norm", "1", "--relative-error", "0.5"]


def run(*words):
    result = RUNNER.invoke(app, ["leakage", *map(str, words)])
    if isinstance(result.exception, (InvalidInput, InvalidFile)):
        raise result.exception
    return result


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working folder of its own; what the command adds to the module path goes away again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def stored(path, features, classes):
    save_file(logistic(features, classes, rng=torch.Generator().manual_seed(0)).state_dict(), path)
    return path


@pytest.fixture
def digits(work):
    weights = stored(work / "digits.safetensors", 64, 10)
    return ["--model", "logistic", "--weights", weights, "--data", "digits", *STEP, "--records", "30"]


def test_it_prints_the_distribution_and_writes_report_and_picture(digits, work):
    result = run(*digits, "--sampling-probability", "0.1", "--out", "new/report")
    assert result.exit_code == 0, result.output
    folder = work / "new" / "report"
    assert sorted(path.name for path in folder.iterdir()) == ["leakage.json", "leakage.png"]
    report = from_json((folder / "leakage.json").read_text())
    assert (report.data, report.dimension, len(report.records)) == ("digits", 64, 30)
    assert report.mechanism.sampling_probability == 0.1
    assert report.model == f"logistic with {work / 'digits.safetensors'}"
    text = result.output
    assert f"maximum     {report.maximum:.4g}" in text
    assert f" 50%        {report.median:.4g}" in text
    assert "depends on private records; do not publish" in text
    assert "a constant guess, which is biased, has at most 0.25" in text
    assert str(folder / "leakage.json") in text
    named = [int(number) for number in re.findall(r"^ +(\d+)  \d ", text, re.MULTILINE)]
    assert named == [row.record for row in (*report.most_exposed(), *report.least_exposed())]
    assert sum(int(count) for count in re.findall(r" to \S+ +(\d+)", text)) == 30
    with Image.open(folder / "leakage.png") as picture:
        assert picture.size[0] > 800


def test_tables_have_a_picture_too(work):
    weights = stored(work / "w.safetensors", 30, 2)
    words = ["--model", "logistic", "--weights", weights, "--data", "breast_cancer", *STEP, "--records", 9]
    assert "malignant" in run(*words).output
    assert (work / "leakage-report" / "leakage.png").stat().st_size > 5000


def test_options_reach_the_measurement(digits, work):
    run(*digits, "--smooth-clipping", "--parameters", "linear.weight", "--seed", "5")
    report = from_json((work / "leakage-report" / "leakage.json").read_text())
    assert (report.clipping, report.parameters, report.seed) == ("smooth", ("linear.weight",), 5)
    assert report.relative_error == 0.5


def test_bundled_records_are_not_drawn_where_that_is_asked(digits, work):
    assert "picture   not drawn" in run(*digits, "--redact").output
    assert [path.name for path in (work / "leakage-report").iterdir()] == ["leakage.json"]


@pytest.fixture
def private(work):
    """A file of the user, with a network of the user in the current folder."""
    lines = [f"{a},{b},{kind}" for a, b, kind in ((1, 5, "x"), (2, 7, "y"), (3, 6, "x"), (4, 9, "y"))]
    (work / "people.csv").write_text("\n".join(["age,size,kind", *lines]))
    (work / "private_nets.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(2, 2)\n")
    save_file(nn.Linear(2, 2).state_dict(), work / "w.safetensors")
    yield ["--model", "private_nets:build", "--weights", "w.safetensors", "--data", "people.csv", "--label", "kind"]
    sys.modules.pop("private_nets", None)


def test_private_records_are_drawn_only_on_request(private, work):
    result = run(*private, *STEP)
    assert result.exit_code == 0, result.output
    assert "picture   not drawn: it would show private records. Add --show-records to draw it." in result.output
    assert [path.name for path in (work / "leakage-report").iterdir()] == ["leakage.json"]
    run(*private, *STEP, "--show-records")
    assert (work / "leakage-report" / "leakage.png").stat().st_mode & 0o777 == 0o600


def test_the_scaling_of_a_table_is_said(private, digits, work):
    (line,) = [line for line in run(*private, *STEP).output.splitlines() if line.startswith("units: ")]
    assert "each numeric column is scaled to [0, 1] by its range in the data" in line
    assert "mean squared errors are in these units; the model must have been trained on the same scaling" in line
    assert line == f"units: {from_json((work / 'leakage-report' / 'leakage.json').read_text()).units}"
    assert "units: mean squared errors are those of values in [0, 1]\n" in run(*digits).output


def test_an_interrupted_run_writes_what_is_done_and_says_so(digits, work, monkeypatch):
    probe, calls = library.probe_clipped_gradients, []

    def probing(*words, **options):
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return probe(*words, **options)

    monkeypatch.setattr(library, "probe_clipped_gradients", probing)
    monkeypatch.setattr(library, "_CHUNK", 5)
    result = run(*digits)
    assert result.exit_code == 130
    assert "INTERRUPTED: 10 of 30 records, a random sample of them, are done." in result.output
    assert "leakage.json, 10 records so far" in result.output
    plain = json.loads((work / "leakage-report" / "leakage.json").read_text())
    assert (len(plain["records"]), plain["requested"]) == (10, 30)


def test_an_interruption_before_anything_is_done_writes_nothing(digits, work, monkeypatch):
    def probing(*words, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(library, "probe_clipped_gradients", probing)
    assert run(*digits).exit_code != 0
    assert not (work / "leakage-report").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "nets.build"], "Write the colon between module and function"),
        (["--model", "nets_not_there:build"], "found no module 'nets_not_there'"),
        (["--model", "torch.nn:Linear"], "when called without arguments"),
        (["--model", "torch:pi"], "to be callable, found type float"),
        (["--model", "builtins:dict"], "to return an nn.Module, found dict"),
        (["--model", "torch.nn:Identity"], "': is not in the model."),
        (["--model", "guo2022_mnist"], "Expected height=8 >= 16"),
        (["--data", "breast_cancer"], "where the model has (2"),
        (["--data", "digit"], "Did you mean digits?"),
        (["--split", "train"], "Expected split='train' to be left out for digits"),
        (["--weights", "none.safetensors"], "There is no such file."),
        (["--noise-multiplier", "0"], "Expected noise_multiplier=0.0 > 0."),
        (["--clip-norm", "-1"], "Expected clip_norm=-1.0 > 0."),
        (["--records", "100000"], "Expected records=100000 <= 1797"),
        (["--parameters", "head"], "Expected parameters='head' to name one of linear.weight, linear.bias."),
        (["--seed", "-1"], "Expected seed=-1 >= 0."),
        (["--seed", str(2**63)], "< 2^63"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(digits, work, words, message):
    with pytest.raises((InvalidInput, InvalidFile)) as caught:
        run(*digits, *words)
    assert message in str(caught.value)
    assert not (work / "leakage-report").exists()


def test_records_of_another_shape_than_the_model_takes_are_refused(private, work):
    (work / "private_nets.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(3, 2)\n")
    save_file(nn.Linear(3, 2).state_dict(), work / "w.safetensors")
    with pytest.raises(InvalidInput, match=r"takes records of shape \(2,\), those of people"):
        run(*private, *STEP)


def test_a_folder_that_cannot_be_one_is_refused_before_the_work(digits, work):
    (work / "taken").write_text("mine")
    for out in ("taken", "taken/below"):
        result = run(*digits, "--out", out)
        assert result.exit_code == 2
    assert (work / "taken").read_text() == "mine"


CUT = """
from torch import nn


class Cut(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs).detach()


def build():
    return nn.Sequential(Cut(2, 3), nn.Linear(3, 2))
"""


def test_a_cut_graph_is_a_message_and_an_exit_code(private, work, monkeypatch, capsys):
    (work / "cut_nets.py").write_text(CUT)
    save_file(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)).state_dict(), work / "w.safetensors")
    words = ["cut_nets:build" if word == "private_nets:build" else word for word in private]
    monkeypatch.setattr(sys, "argv", ["reconrisk", "leakage", *words, *STEP])
    with pytest.raises(SystemExit) as ended:
        main()
    sys.modules.pop("cut_nets", None)
    message = capsys.readouterr().err
    assert ended.value.code == 2
    assert message.startswith("reconrisk: Expected a derivative that agrees with finite differences")
    assert "layer '0' (Cut)" in message
    assert not (work / "leakage-report").exists()
