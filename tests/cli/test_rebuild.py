import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

from reconrisk.attacks.matching.optimizers import LBFGS
from reconrisk.attacks.registry import ATTACKS
from reconrisk.cli.app import app
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.core.storage.serialization import from_json
from reconrisk.data import load_dataset
from reconrisk.priors.load.gan import new_generator, save_generator
from tests.attacks.tiny_priors import write_diffusion, write_gan

RUNNER = CliRunner()

NETS = """
from torch import nn
def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Sigmoid(), nn.Linear(20, 10))
def cnn():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 10))
def normed():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 10))
def dropping():
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10))
def table():
    return nn.Sequential(nn.Linear(30, 10), nn.Sigmoid(), nn.Linear(10, 2))
"""
EXTRA = {"finetuned_diffusion": "diffusers", "ggl": "cma"}
SEARCH = {
    "dlg": ["--steps", "3", "--restarts", "2"],
    "idlg": ["--steps", "3"],
    "inverting_gradients": ["--steps", "3"],
    "grad_inversion": ["--steps", "3"],
    "span_inversion": ["--steps", "3"],
    "gauss_newton": ["--steps", "2"],
    "gaussian_posterior": ["--steps", "2", "--setting", "prior=gaussian"],
    "plug_and_play": ["--setting", "levels=2", "--setting", "starts=1"],
    "ggss_r": ["--steps", "3", "--setting", "prior=gaussian"],
    "finetuned_diffusion": ["--steps", "2", "--setting", "sampling_steps=2", "--setting", "prior=diffusion"],
    "gias": ["--steps", "2", "--setting", "weight_steps=1", "--setting", "prior=gan"],
    "ggl": ["--steps", "2", "--setting", "population=4", "--setting", "prior=gan"],
    "gifd": ["--steps", "2", "--setting", "layer_steps=1", "--setting", "prior=gan"],
    "imprint": ["--setting", "bins=32"],
    "trap_weights": ["--setting", "neurons=50"],
    "optimal_analytic": ["--labels", "known"],
}


def run(*words):
    result = RUNNER.invoke(app, ["rebuild", *map(str, words)])
    if isinstance(result.exception, (InvalidInput, InvalidFile)):
        raise result.exception
    return result


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working folder of its own with networks in it; what the command adds to the module path goes away again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tiny_nets.py").write_text(NETS)
    write_gan(tmp_path / "gan")
    yield tmp_path
    sys.modules.pop("tiny_nets", None)


def on(net="mlp", data="digits"):
    return ["--model", f"tiny_nets:{net}", "--data", data]


def report(folder):
    return from_json((folder / "rebuild.json").read_text())


@pytest.mark.parametrize("name", [name for name, info in ATTACKS.items() if not info.reads])
def test_each_attack_runs_and_writes_report_estimates_and_picture(work, name):
    if name in EXTRA:
        pytest.importorskip(EXTRA[name], reason="needs the extra diffusion")
    if name == "finetuned_diffusion":
        write_diffusion(work / "diffusion")
    result = run(name, *on(), "--records", "3,5", *SEARCH.get(name, []), "--out", "new/out")
    assert result.exit_code == 0, result.output
    folder = work / "new" / "out"
    assert sorted(path.name for path in folder.iterdir()) == ["rebuild.json", "rebuild.png", "rebuild.safetensors"]
    found = report(folder)
    assert (found.attack, found.data, found.records) == (name, "digits", (3, 5))
    assert [score.name for score in found.scores] == ["psnr", "ssim", "mse"]
    stored = load_file(folder / "rebuild.safetensors")
    digits = load_dataset("digits").inputs[[3, 5]]
    errors = (stored["estimates"].double() - digits.double()).square().flatten(1).mean(1)
    assert found.scores[2].values == pytest.approx(errors.tolist(), rel=1e-6, abs=1e-20)
    with Image.open(folder / "rebuild.png") as picture:
        assert picture.size == (480, 2 * 18 + 2 * (128 + 18 + 8))
    lines = [line.split() for line in result.output.splitlines()]
    assert [line[:2] for line in lines if line and line[0] in ("3", "5")] == [["3", "3"], ["5", "5"]]
    assert str(folder / "rebuild.png") in re.sub(r"\n", "", result.output)


def test_a_prior_is_stated_by_a_word_and_told_in_the_report(work):
    run("ggss_r", *on(), "--setting", "prior=gaussian", "--steps", "2")
    found = report(work / "rebuild-report")
    assert found.settings.startswith("ggss_r(gaussian, steps=2")
    assert {item.value for item in found.threat.knows} == {"prior"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ggss_r", "--setting", "prior=nobodys"], "Expected prior='nobodys' to be gaussian, shipped.* or a folder"),
        (["gifd", "--setting", "prior=gaussian"], "to be a generator"),
        (["gifd", "--setting", "prior=wide"], "The prior wide does not fit the records. Expected prior.shape"),
        (["gifd"], "to be the shape of a shipped prior"),
    ],
)
def test_priors_that_do_not_serve_are_refused(work, words, message):
    save_generator(new_generator((3, 8, 8), 4, 8), work / "wide", shape=(3, 8, 8), latent=4, channels=8)
    with pytest.raises(InvalidInput, match=message):
        run(*words, *on())
    assert not (work / "rebuild-report").exists()


@pytest.mark.parametrize("name", ["analytic", "optimal_analytic", "imprint", "trap_weights", "best_candidate"])
def test_attacks_that_solve_are_exact(work, name):
    run(name, *on(), "--records", "3,5", *SEARCH.get(name, []))
    assert max(report(work / "rebuild-report").scores[2].values) < 1e-10


def test_records_that_share_an_update_are_told_apart(work):
    result = run("imprint", *on("cnn"), "--records", "0-5", "--batch-size", "3")
    found = report(work / "rebuild-report")
    assert (found.updates, found.batch_size) == ((0, 0, 0, 1, 1, 1), 3)
    assert "imprint, 2 updates of 3 records" in result.output
    assert found.threat.controls


def test_options_reach_release_defense_and_adversary(work):
    words = ["--local-steps", "2", "--local-learning-rate", "0.1", "--prune", "0.5", "--knows-defense", "--train-mode"]
    words += ["--labels", "known", "--knows-norm", "--knows-statistics", "--seed", "5"]
    run("inverting_gradients", *on(), *words, "--steps", "2", "--restarts", "2", "--setting", "total_variation=0.25")
    found = report(work / "rebuild-report")
    assert found.release == "change by 2 steps of SGD, learning rate 0.1, on cross_entropy in training mode"
    assert found.defense == "Pruning(share=0.5)"
    assert {item.value for item in found.threat.knows} == {"labels", "defense", "record-norm", "batch-statistics"}
    assert found.seed == 5
    assert "restarts=2" in found.settings
    assert "0.25" in found.settings


def test_noise_makes_it_worse_and_is_said(work):
    words = ["analytic", *on(), "--clip-norm", "1"]
    run(*words, "--noise-multiplier", "1e-4", "--out", "little")
    run(*words, "--noise-multiplier", "1e-2", "--out", "much")
    little, much = report(work / "little"), report(work / "much")
    assert little.scores[2].values[0] < much.scores[2].values[0]
    assert much.defense == "NoisyRelease(std=0.01, clip_norm=1.0)"


def test_the_training_split_is_what_an_adversary_believes(work):
    words = ["prior_mean", "--model", "logistic", "--data", "mnist", "--split", "test"]
    run(*words)
    mean = load_dataset("mnist", split="train").inputs.double().mean(0)
    estimate = load_file(work / "rebuild-report" / "rebuild.safetensors")["estimates"][0]
    torch.testing.assert_close(estimate.double(), mean, rtol=0, atol=1e-6)


def test_weights_are_those_of_the_file_or_of_the_seed(work):
    words = ["analytic", "--model", "tiny_nets:mlp", "--data", "digits"]
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Sigmoid(), nn.Linear(20, 10))
    save_file({name: torch.zeros_like(value) for name, value in net.state_dict().items()}, "zero.safetensors")
    result = run(*words, "--weights", "zero.safetensors")
    assert result.exit_code == 1  # the gradient of a network of zeros does not reach its first layer
    assert "status    not applicable: no neuron of the layer is active." in result.output
    assert report(work / "rebuild-report").model == "tiny_nets:mlp with zero.safetensors"
    objectives = []
    for seed in (1, 1, 2):
        torch.rand(3)  # what others draw does not matter
        run("dlg", *on(), "--steps", "2", "--seed", seed, "--out", "out")
        objectives.append(report(work / "out").objective)
    first, again, other = objectives
    assert first == again != other
    assert report(work / "out").model == "tiny_nets:mlp with random weights"


def test_tables_are_attacked_without_a_picture(work):
    words = on("table", "breast_cancer")
    result = run("inverting_gradients", *words, "--steps", "5")
    assert "picture   not drawn: the records are not images" in result.output
    assert sorted(path.name for path in (work / "rebuild-report").iterdir()) == ["rebuild.json", "rebuild.safetensors"]
    found = report(work / "rebuild-report")
    assert "tabular" in found.settings
    assert [column.name for column in found.columns][:2] == ["mean radius", "mean texture"]
    assert re.search(r"^mean radius +\d", result.output, re.MULTILINE)


def test_a_planted_layer_needs_no_model(work):
    run("optimal_analytic", "--data", "digits", "--clip-norm", "1", "--noise-multiplier", "1e-6")
    assert report(work / "rebuild-report").model == "none"


@pytest.fixture
def captured(work):
    """The gradient of a digit at a network of random weights, and the same as weights before and after."""
    rng = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Sigmoid(), nn.Linear(20, 10))
    for value in net.parameters():
        nn.init.uniform_(value, -1, 1, generator=rng)
    digits = load_dataset("digits")
    nn.functional.cross_entropy(net(digits.inputs[3:4]), digits.labels[3:4]).backward()
    gradient = {name: value.grad for name, value in net.named_parameters()}
    save_file(net.state_dict(), "before.safetensors")
    save_file(gradient, "gradient.safetensors")
    save_file({name: value - gradient[name] for name, value in net.state_dict().items()}, "after.safetensors")
    save_file({**gradient, "3.bias": torch.full((10,), torch.nan)}, "nan.safetensors")
    save_file({**gradient, "3.bias": torch.ones(9)}, "shape.safetensors")
    save_file({"1.weight": gradient["1.weight"]}, "count.safetensors")
    return ["--model", "tiny_nets:mlp", "--weights", "before.safetensors", "--input-shape", "1,8,8"]


def test_a_captured_update_is_attacked_without_data(work, captured):
    result = run("analytic", *captured, "--gradient", "gradient.safetensors")
    assert result.exit_code == 0, result.output
    target = load_dataset("digits").inputs[3:4]
    torch.testing.assert_close(load_file(work / "rebuild-report" / "rebuild.safetensors")["estimates"], target)
    found = report(work / "rebuild-report")
    assert (found.scores, found.labels) == ((), ("?",))
    with Image.open(work / "rebuild-report" / "rebuild.png") as picture:
        assert picture.size == (480, 2 * 18 + 128 + 18 + 8)
    weights = ["--before", "before.safetensors", "--after", "after.safetensors", "--learning-rate", "1"]
    run("analytic", *captured, *weights, "--out", "step")
    assert "change by 1 steps of SGD, learning rate 1" in report(work / "step").release
    estimates = load_file(work / "step" / "rebuild.safetensors")["estimates"]
    torch.testing.assert_close(estimates, target, rtol=0, atol=1e-3)  # differences of float32 weights


def test_labels_noise_and_public_data_of_a_captured_update(work, captured):
    words = [*captured[:4], "--gradient", "gradient.safetensors", "--data", "digits", "--labels", "3"]
    run("class_mean", *words, "--noise-std", "0.1")
    digits = load_dataset("digits")
    mean = digits.inputs[digits.labels == 3].double().mean(0)
    estimate = load_file(work / "rebuild-report" / "rebuild.safetensors")["estimates"][0]
    torch.testing.assert_close(estimate.double(), mean, rtol=0, atol=1e-6)
    found = report(work / "rebuild-report")
    assert {item.value for item in found.threat.knows} == {"labels", "defense", "prior"}


def test_a_model_by_name_is_built_for_the_shape_and_classes_stated(work):
    save_file({"linear.weight": torch.ones(3, 4), "linear.bias": torch.ones(3)}, "gradient.safetensors")
    words = ["constant_guess", "--model", "logistic", "--gradient", "gradient.safetensors", "--input-shape", "4"]
    run(*words, "--classes", "3", "--data-range", "-1,3")
    assert load_file(work / "rebuild-report" / "rebuild.safetensors")["estimates"].tolist() == [[1.0] * 4]
    with pytest.raises(InvalidInput, match=r"Expected --classes, the number of outputs of logistic."):
        run(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gradient", "shape.safetensors"], "Expected gradient['3.bias'].shape=(9,) to be (10,)"),
        (["--gradient", "count.safetensors"], "Missing: 1.bias, 3.weight, 3.bias"),
        (["--gradient", "nan.safetensors"], "['3.bias'] to be finite"),
        (["--gradient", "none.safetensors"], "There is no such file."),
        (["--before", "before.safetensors"], "Expected exactly one of gradient and after, got none"),
        (["--gradient", "gradient.safetensors", "--labels", "10"], "Expected max(labels)=10 to be from 0 to 9"),
        (["--gradient", "gradient.safetensors", "--labels", "1,2"], "to have batch_size=1 entries"),
        (["--gradient", "gradient.safetensors", "--labels", "known"], "Write --labels 3,5."),
        (["--gradient", "gradient.safetensors", "--records", "3"], "Expected no --records for a captured update"),
        (["--gradient", "gradient.safetensors", "--prune", "0.5"], "Expected no --prune for a captured update"),
        (["--gradient", "gradient.safetensors", "--knows-norm"], "Expected no --knows-norm for a captured update"),
        (["--gradient", "gradient.safetensors", "--input-shape", "64,64"], "takes records of shape (64, 64)"),
        (["--gradient", "gradient.safetensors", "--data", "digits"], "Expected no --input-shape for --data"),
        (["--gradient", "gradient.safetensors", "--data-range", "0"], "to be two numbers such as -1,1"),
        (["--gradient", "gradient.safetensors", "--data-range", "1,0"], "to be (low, high) with low < high"),
        ([], "Expected --data or a captured update. Add --data, the records whose updates are attacked."),
    ],
)
def test_what_does_not_fit_a_captured_update_is_named_and_nothing_is_written(work, captured, words, message):
    with pytest.raises((InvalidInput, InvalidFile)) as caught:
        run("constant_guess", *captured, *words)
    assert message in str(caught.value)
    assert not (work / "rebuild-report").exists()


def test_an_interrupted_run_writes_what_is_there_and_says_so(work, monkeypatch):
    step, calls = LBFGS.step, []

    def stepping(*words):
        calls.append(1)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return step(*words)

    monkeypatch.setattr(LBFGS, "step", stepping)
    result = run("dlg", *on(), "--records", "0-3", "--batch-size", "2", "--steps", "9")
    assert result.exit_code == 130
    assert "INTERRUPTED: 2 of 4 records were reached." in result.output
    assert "status    interrupted: stopped by the user." in result.output
    plain = json.loads((work / "rebuild-report" / "rebuild.json").read_text())
    assert (plain["records"], plain["requested"]) == ([0, 1], 4)
    assert (work / "rebuild-report" / "rebuild.png").exists()


@pytest.mark.parametrize("name", [name for name, info in ATTACKS.items() if info.reads])
def test_attacks_on_trained_models_are_refused_with_the_command_that_runs_them(work, name):
    with pytest.raises(InvalidInput, match=f"attack='{name}' to be an attack on updates.* reconrisk rebuild-informed"):
        run(name, *on(), "--records", "3")
    assert not (work / "rebuild-report").exists()


def test_help_and_list_name_every_attack():
    text, listed = run("--help").output, run("--list").output
    for name, info in ATTACKS.items():
        assert f"{name:<20} {info.summary}" in text, name
        assert re.search(rf"^{name}\n    \S.*\.\n    (\w|$)", listed, re.MULTILINE), name
    assert "steps=300, restarts=4" in listed


def test_help_does_not_load_torch():
    program = (
        "import sys; from typer.testing import CliRunner; from reconrisk.cli.app import app; "
        "CliRunner().invoke(app, ['attack', '--help']); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([None], "Expected the name of an attack, one of dlg, "),
        (["inverting_gradient"], "Did you mean inverting_gradients?"),
        (["analytic", "--steps", "3"], "Expected steps=3 to be left out for analytic."),
        (["dlg", "--steps", "0"], "Expected steps=0 >= 1."),
        (["dlg", "--setting", "stps=2"], "Did you mean steps?"),
        (["dlg", "--data", "digit"], "Did you mean digits?"),
        (["dlg", "--model", "tiny_nets:mpl"], "Did you mean mlp?"),
        (["dlg", "--model", "tiny_nets:table"], "takes records of shape (1, 8, 8), those of digits"),
        (["dlg", "--records", "1797"], "Expected records=1797 to be from 0 to 1796, the records of digits."),
        (["dlg", "--records", ""], "to be whole numbers such as 0,3,8-15"),
        (["dlg", "--records", "5-3"], "the smaller first"),
        (["dlg", "--records", "-1"], "to be whole numbers such as 0,3,8-15"),
        (["dlg", "--batch-size", "0"], "Expected batch_size=0 >= 1."),
        (["dlg", "--labels", "guessed"], "Expected labels='guessed' to be known or inferred."),
        (["dlg", "--clip-norm", "1"], "Expected --noise-multiplier and --clip-norm together"),
        (["dlg", "--noise-multiplier", "1"], "Expected --noise-multiplier and --clip-norm together"),
        (["dlg", "--noise-multiplier", "1", "--clip-norm", "-1"], "Expected clip_norm=-1.0 > 0."),
        (["dlg", "--prune", "0.5", "--clip-norm", "1"], "Choose one defense."),
        (["dlg", "--prune", "1.5"], "Expected share=1.5 in [0, 1)."),
        (["dlg", "--local-steps", "3"], "Pass both for local training, or neither for a gradient."),
        (["dlg", "--noise-std", "1"], "Expected no --noise-std for records"),
        (["dlg", "--input-shape", "64"], "Expected no --input-shape for --data"),
        (["dlg", "--seed", "-1"], "Expected seed=-1 >= 0."),
        (["dlg", "--weights", "none.safetensors"], "There is no such file."),
        (["dlg", "--weights", "wrong.safetensors"], ": has shape (3,) where the model has (20,)."),
        (["dlg", "--model", "tiny_nets:dropping", "--train-mode"], "to be False for Dropout"),
        (["analytic", "--records", "0,1", "--batch-size", "2"], "Expected batch_size=2 to be 1"),
        (["analytic", "--model", "tiny_nets:cnn"], "Expected a released linear layer with bias on 64 features"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(work, words, message):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Sigmoid(), nn.Linear(3, 10))
    save_file(net.state_dict(), "wrong.safetensors")
    with pytest.raises((InvalidInput, InvalidFile)) as caught:
        run(*on(), *(word for word in words if word is not None))
    assert message in str(caught.value)
    assert not (work / "rebuild-report").exists()


def test_labels_without_an_output_are_refused(work):
    (work / "people.csv").write_text("a,b,kind\n1,2,x\n3,4,y\n5,6,z\n")
    (work / "tiny_nets.py").write_text("from torch import nn\ndef two():\n    return nn.Linear(2, 2)\n")
    words = ["--model", "tiny_nets:two", "--data", "people.csv", "--label", "kind", "--records", "0-2"]
    with pytest.raises(InvalidInput, match=r"max\(labels\)\)=\(0, 2\) to be from 0 to 1, the outputs of the model"):
        run("dlg", *words)
    assert not (work / "rebuild-report").exists()


def test_a_gradient_that_is_not_finite_is_refused(work):
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Sigmoid(), nn.Linear(20, 10))
    state = net.state_dict()
    state["3.bias"][0] = 1e38
    state["3.weight"][1] = 3e38
    save_file(state, "huge.safetensors")
    with pytest.raises(InvalidInput, match=r"Expected released\['1.weight'\] to be finite"):
        run("dlg", *on(), "--weights", "huge.safetensors")
    assert not (work / "rebuild-report").exists()


def test_wrong_input_ends_with_a_sentence_and_code_two(work):
    program = "import sys; from reconrisk.cli import main; sys.argv = ['reconrisk', *sys.argv[1:]]; main()"
    words = [sys.executable, "-c", program, "rebuild", "dlgg", "--data", "digits", "--out", "out"]
    done = subprocess.run(words, cwd=work, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("reconrisk: Expected attack='dlgg' to be one of dlg, ")
    assert not (work / "out").exists()


def test_a_folder_that_cannot_be_one_is_refused_before_the_work(work):
    (work / "taken").write_text("mine")
    assert run("constant_guess", *on(), "--out", "taken").exit_code == 2
    assert (work / "taken").read_text() == "mine"


def test_images_in_floats_are_attacked_with_their_range_stated(work):
    np.savez("floats.npz", inputs=2 * np.random.default_rng(0).random((3, 1, 8, 8)) - 1, labels=np.array([0, 1, 2]))
    words = ["analytic", *on(data="floats.npz"), "--records", "0-2"]
    with pytest.raises(InvalidFile, match="Pass data_range"):
        run(*words)
    assert not (work / "rebuild-report").exists()
    assert run(*words, "--data-range", "-1,1").exit_code == 0
    assert json.loads((work / "rebuild-report" / "rebuild.json").read_text())["data_range"] == [-1.0, 1.0]
