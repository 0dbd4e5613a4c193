import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn
from typer.testing import CliRunner

from reconrisk.attacks.informed.invert_training.attack import InvertTraining
from reconrisk.cli.app import app
from reconrisk.cli.rebuild_informed import LINEAR
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.storage.serialization import from_json
from reconrisk.data import load_dataset
from reconrisk.studies.informed.linear import KINDS

RUNNER = CliRunner()

NETS = """
from torch import nn
def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ELU(), nn.Linear(10, 10))
def table():
    return nn.Sequential(nn.Linear(30, 6), nn.Tanh(), nn.Linear(6, 2))
"""


def run(*words):
    result = RUNNER.invoke(app, ["rebuild-informed", *map(str, words)])
    if isinstance(result.exception, (InvalidInput, InvalidFile)):
        raise result.exception
    return result


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working folder of its own with networks in it; what the command adds to the module path goes away again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tiny_nets.py").write_text(NETS)
    yield tmp_path
    sys.modules.pop("tiny_nets", None)


def report(folder):
    return from_json((folder / "rebuild-informed.json").read_text())


NET = ["--model", "tiny_nets:mlp", "--data", "digits", "--fixed", "60", "--steps", "10"]


def net():
    torch.manual_seed(5)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ELU(), nn.Linear(10, 10))


def trained(start, rows, steps=10):
    """A network trained by torch itself: what somebody else would release."""
    digits, model = load_dataset("digits"), nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ELU(), nn.Linear(10, 10))
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(digits.inputs[rows]), digits.labels[rows]).backward()
        optimizer.step()
    return model.state_dict()


@pytest.fixture
def released(work):
    """The files of a network that was trained on the first 60 digits and number 70."""
    start = net().state_dict()
    save_file(start, "start.safetensors")
    save_file(trained(start, [*range(60), 70]), "released.safetensors")
    return ["--weights", "released.safetensors", "--start", "start.safetensors"]


def test_own_recipe_is_audited_and_files_are_written(work):
    result = run(*NET, "--target-index", "17,70-71", "--membership", "--out", "new/out")
    assert result.exit_code == 0, result.output
    folder = work / "new" / "out"
    assert sorted(path.name for path in folder.iterdir()) == [
        "rebuild-informed.json",
        "rebuild-informed.png",
        "rebuild-informed.safetensors",
    ]
    found = report(folder)
    assert [target.record for target in found.targets] == [17, 70, 71]
    stored, digits = load_file(folder / "rebuild-informed.safetensors"), load_dataset("digits")
    torch.testing.assert_close(stored["estimates"], digits.inputs[[17, 70, 71]], rtol=0, atol=1e-3)
    assert stored["records"].tolist() == [17, 70, 71]
    errors = (stored["estimates"].double() - digits.inputs[[17, 70, 71]].double()).square().flatten(1).mean(1)
    assert [target.mse for target in found.targets] == pytest.approx(errors.tolist(), rel=1e-6, abs=1e-20)
    assert [target.membership for target in found.targets] == ["in"] * 3
    with Image.open(folder / "rebuild-informed.png") as picture:
        assert picture.size == (480, 2 * 18 + 3 * (128 + 18 + 8))
    assert "status    exact: 3 of 3 models fitted" in result.output
    assert "label     3 of 3 found" in result.output
    assert "start drawn from seed 0" in result.output
    assert (folder / "rebuild-informed.json").stat().st_mode & 0o077 == 0


def test_a_released_network_gives_its_record_away(work, released):
    result = run(*NET, *released, "--target-index", "70")
    assert result.exit_code == 0, result.output
    found = report(work / "rebuild-informed-report")
    assert found.targets[0].mse < 1e-6
    assert found.targets[0].found == found.targets[0].label == str(int(load_dataset("digits").labels[70]))
    assert "one released model" in result.output


def test_another_start_than_the_real_one_is_noticed(work, released):
    result = run(*NET, *released[:2], "--seed", "8", "--target-index", "70", "--seconds", "1", "--membership")
    assert "Check initialisation" in result.output
    assert report(work / "rebuild-informed-report").targets[0].membership == "undecided"


def test_a_reconstructor_is_learned_and_its_shadow_models_are_kept(work):
    words = [*NET, "--attack", "reconstructor", "--shadows", "400", "--store", "shadows", "--target-index", "70,71"]
    result = run(*words)
    assert result.exit_code == 0, result.output
    found = report(work / "rebuild-informed-report")
    assert found.attack == "reconstructor with 400 shadow models"
    assert all(target.beats_neighbour for target in found.targets)
    assert {item.value for item in found.threat.knows} == {"initialisation", "other-records", "prior"}
    assert any((work / "shadows").iterdir())


def test_options_of_training_reach_it(work):
    run(
        *NET[:4],
        "--fixed",
        "20",
        "--target-index",
        "3",
        "--optimizer",
        "adam",
        "--learning-rate",
        "0.01",
        "--steps",
        "3",
    )
    assert "3 steps of Adam(learning_rate=0.01" in report(work / "rebuild-informed-report").training
    run(*NET[:4], "--fixed", "20", "--target-index", "3", "--momentum", "0.5", "--steps", "3", "--labels", "known")
    found = report(work / "rebuild-informed-report")
    assert "momentum=0.5" in found.training
    assert "labels" in {item.value for item in found.threat.knows}
    assert found.targets[0].found == ""


def test_noise_has_its_bound_beside(work):
    words = ["--model", "tiny_nets:table", "--data", "breast_cancer", "--fixed", "40", "--steps", "5"]
    result = run(*words, "--target-index", "3", "--noise-std", "1e-6", "--labels", "known")
    target = report(work / "rebuild-informed-report").targets[0]
    assert 0 < target.cramer_rao_mse < 1
    assert re.search(r"class mean +Cramer-Rao +objective", result.output)
    assert "picture   not drawn: the records are not images" in result.output
    assert not (work / "rebuild-informed-report" / "rebuild-informed.png").exists()


@pytest.mark.parametrize(
    ("model", "data"), [("logistic", "breast_cancer"), ("ridge", "diabetes"), ("linear", "diabetes")]
)
def test_linear_models_are_fitted_and_exact(work, model, data):
    result = run("--model", model, "--data", data, "--target-index", "17,30", "--membership")
    assert result.exit_code == 0, result.output
    found = report(work / "rebuild-informed-report")
    assert max(target.mse for target in found.targets) < 1e-10
    assert [target.membership for target in found.targets] == ["in", "in"]
    assert "label     2 of 2 found" in result.output


@pytest.mark.parametrize("form", ["npz", "json", "safetensors"])
def test_released_coefficients_are_read_from_a_file(work, form):
    data = load_dataset("breast_cancer")
    fitted = LogisticRegression(C=10.0, solver="newton-cholesky", tol=1e-12).fit(data.inputs.double(), data.labels)
    values = {"coef": fitted.coef_, "intercept": fitted.intercept_}
    if form == "npz":
        np.savez("model.npz", **values)
    elif form == "json":
        (work / "model.json").write_text(json.dumps({f"{name}_": value.tolist() for name, value in values.items()}))
    else:
        save_file({name: torch.as_tensor(value) for name, value in values.items()}, "model.safetensors")
    words = ["--model", "logistic", "--data", "breast_cancer", "--weights", f"model.{form}", "--target-index", "17"]
    result = run(*words, "--regularization", "0.1")
    assert result.exit_code == 0, result.output
    assert report(work / "rebuild-informed-report").targets[0].mse < 1e-10
    wrong = run(*words, "--regularization", "0.2")
    assert report(work / "rebuild-informed-report").accounts[0].status.ending.value != "exact", wrong.output


def test_attributes_are_found_beside_known_columns(work):
    columns = ",".join(column.name for column in load_dataset("diabetes").columns[1:])
    run("--model", "ridge", "--data", "diabetes", "--target-index", "17", "--known-columns", columns)
    found = report(work / "rebuild-informed-report")
    assert found.targets[0].mse < 1e-10
    assert found.attack == f"glm, {columns.replace(',', ', ')} known"


def test_a_failed_attack_ends_with_one(work):
    data = load_dataset("diabetes")
    others = [row for row in range(len(data)) if row != 17]
    fitted = Ridge(alpha=1.0).fit(data.inputs[others].double(), data.labels[others].double())
    np.savez("model.npz", coef=fitted.coef_, intercept=np.atleast_1d(fitted.intercept_))
    words = ["--model", "ridge", "--data", "diabetes", "--weights", "model.npz", "--regularization", "1"]
    result = run(*words, "--target-index", "17", "--membership", "--labels", "known")
    assert result.exit_code == 1, result.output
    assert "status    not applicable: " in result.output
    assert report(work / "rebuild-informed-report").targets[0].membership == "not in"


def test_an_interrupted_run_writes_what_is_there_and_says_so(work, released, monkeypatch):
    rebuild, calls = InvertTraining.rebuild, []

    def rebuilding(*words, **settings):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return rebuild(*words, **settings)

    monkeypatch.setattr(InvertTraining, "rebuild", rebuilding)
    words = [*NET[:4], "--fixed", "59", "--steps", "10", *released]
    result = run(*words, "--target-index", "70,59")
    assert result.exit_code == 130
    assert "INTERRUPTED: 1 of 2 targets were reached." in result.output
    assert report(work / "rebuild-informed-report").targets[0].mse < 1e-6


def test_help_does_not_load_torch():
    program = (
        "import sys; from typer.testing import CliRunner; from reconrisk.cli.app import app; "
        "CliRunner().invoke(app, ['informed', '--help']); sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert LINEAR == KINDS


ON = ["--data", "digits", "--target-index", "17"]
LINE = ["--model", "logistic", *ON]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*NET, "--target-index", "1797"], "Expected target_index=1797 to be from 0 to 1796, the records of digits."),
        ([*NET, "--target-index", "x"], "to be whole numbers such as 0,3,8-15"),
        ([*NET[:4], "--target-index", "1", "--fixed", "1797"], "Expected fixed=1797 <= 1796"),
        ([*NET, "--target-index", "1", "--labels", "guessed"], "Expected labels='guessed' to be known or inferred."),
        ([*NET, "--target-index", "1", "--optimizer", "lbfgs"], "Expected optimizer='lbfgs' to be one of sgd, adam"),
        ([*NET, "--target-index", "1", "--optimizer", "adam", "--momentum", "0"], "to be left out for adam"),
        ([*NET, "--target-index", "1", "--steps", "0"], "Expected steps=0 >= 1."),
        ([*NET, "--target-index", "1", "--seed", "-1"], "Expected seed=-1 >= 0."),
        ([*NET, "--target-index", "1", "--attack", "guess"], "to be one of invert_training, reconstructor"),
        ([*NET, "--target-index", "1", "--shadows", "10"], "to be left out for invert_training"),
        ([*NET, "--target-index", "1", "--regularization", "1"], "Expected no --regularization for"),
        ([*NET, "--target-index", "1", "--weights", "start.safetensors"], "Expected --start or --seed with --weights"),
        (
            [*NET, "--target-index", "1", "--weights", "start.safetensors", "--start", "start.safetensors"],
            "Expected released weights after training, got the initial weights",
        ),
        ([*NET, "--target-index", "1", "--weights", "wrong.safetensors", "--seed", "0"], ": has shape (3,) where"),
        ([*NET, "--target-index", "1", "--start", "none.safetensors"], "There is no such file."),
        (["--model", "tiny_nets:mpl", *ON], "Did you mean mlp?"),
        (["--model", "logistc", *ON], "Did you mean logistic?"),
        (["--model", "ridg", *ON], "Did you mean ridge?"),
        ([*LINE, "--steps", "5"], "Expected no --steps for logistic, a linear model,"),
        ([*LINE, "--weights", "model.npz"], "to be a number for released coefficients"),
        (
            [*LINE, "--weights", "model.pkl", "--regularization", "1"],
            "It is a pickle. Reading a pickle can run any code.",
        ),
        ([*LINE, "--weights", "model.npz", "--regularization", "1"], "to be (records, 3)"),
        (
            [*LINE, "--weights", "names.npz", "--regularization", "1"],
            "Expected coef and, if the model has one, intercept.",
        ),
        ([*LINE, "--weights", "nan.npz", "--regularization", "1"], "Expected finite floating point numbers."),
        ([*LINE, "--weights", "list.json", "--regularization", "1"], "Expected a mapping from names to numbers"),
        ([*LINE, "--weights", "none.json", "--regularization", "1"], "The file does not exist."),
        (["--model", "logistic", "--data", "diabetes", "--target-index", "1"], "(whole numbers or text) for logistic"),
        (["--model", "logistic", "--data", "bare.npz", "--target-index", "1"], "to have labels"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(work, words, message):
    save_file(net().state_dict(), "start.safetensors")
    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.ELU(), nn.Linear(3, 10))
    save_file(small.state_dict(), "wrong.safetensors")
    (work / "model.pkl").write_bytes(b"")
    np.savez("model.npz", coef=np.ones((10, 3)), intercept=np.ones(10))
    np.savez("bare.npz", inputs=np.zeros((5, 3), dtype=np.float32))
    np.savez("names.npz", weight=np.ones((10, 64)))
    np.savez("nan.npz", coef=np.full((10, 64), np.nan))
    (work / "list.json").write_text("[1, 2]")
    with pytest.raises((InvalidInput, InvalidFile)) as caught:
        run(*words)
    assert message in str(caught.value)
    assert not (work / "rebuild-informed-report").exists()


def test_an_out_that_cannot_be_written_is_refused_before_the_work(work):
    (work / "taken").write_text("")
    assert run(*LINE, "--out", "taken").exit_code == 2
