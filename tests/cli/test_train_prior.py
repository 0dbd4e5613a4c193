"""``reconrisk train-prior``: trains, goes on where it was stopped, and says what came of it."""

import importlib
import shlex
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from reconrisk.cli.app import app
from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra
from reconrisk.priors import gan
from reconrisk.priors.train.training_state import Training, read_training_record

RUNNER = CliRunner()
SMALL = ["--kind", "gan", "--steps", 4, "--batch-size", 4, "--channels", 8, "--learning-rate", 0.0003]


def run(*words):
    result = RUNNER.invoke(app, ["train-prior", *map(str, words)])
    if isinstance(result.exception, (InvalidInput, InvalidFile, MissingExtra)):
        raise result.exception
    return result


@pytest.fixture
def records(tmp_path):
    """Forty pictures with a train and a test split, as MedMNIST stores them."""
    rng = np.random.default_rng(0)
    parts = {
        f"{name}_{what}": rng.integers(0, 255 if what == "images" else 2, size, dtype=np.uint8)
        for name, count in (("train", 30), ("test", 10))
        for what, size in (("images", (count, 8, 8)), ("labels", (count, 1)))
    }
    np.savez(tmp_path / "small.npz", **parts)
    return tmp_path / "small.npz"


def test_it_trains_and_says_where_the_prior_is_and_how_good(records, tmp_path):
    out = tmp_path / "new" / "prior"
    words = ["--data", records, *SMALL, "--split", "train", "--held-out", "test", "--out", out]
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert {"card.md", "config.json", "generator.safetensors", "samples.png", "trained.json"} == {
        path.name for path in out.iterdir()
    }
    assert gan(out).shape == (1, 8, 8)
    assert (read_training_record(out).count, read_training_record(out).settings["steps"]) == (30, 4)
    for words_ in (f"prior     {out}", "held-out  distance 0.", f"card      {out / 'card.md'}", "rr.attacks.gias("):
        assert words_ in result.output
    text = (out / "card.md").read_text()
    assert "| held out | 10 records, split test |" in text
    settings = "--steps 4 --batch-size 4 --channels 8 --learning-rate 0.0003 --seed 0"
    assert f"--kind gan --split train --held-out test {settings} --out prior" in text
    before = (out / "generator.safetensors").stat().st_mtime_ns
    again = run(*words)  # finished: the card alone is written anew
    assert again.output == result.output
    assert (out / "generator.safetensors").stat().st_mtime_ns == before


def test_a_share_is_held_out_that_depends_on_the_seed(records, tmp_path, monkeypatch):
    module = importlib.import_module("reconrisk.cli.train_prior")
    one, rest = module._parts(str(records), None, "0.2", 0)
    assert (len(one), len(rest)) == (32, 8)
    rows = torch.cat([one.inputs, rest.inputs]).flatten(1)
    assert len(rows.unique(dim=0)) == 40
    assert torch.equal(module._parts(str(records), None, "0.2", 0)[1].inputs, rest.inputs)
    assert not torch.equal(module._parts(str(records), None, "0.2", 1)[1].inputs, rest.inputs)


def test_stopped_it_goes_on(records, tmp_path, monkeypatch):
    words = ["--data", records, *SMALL, "--out"]
    run(*words, tmp_path / "whole")
    original = Training.remaining

    def remaining(training):
        for step in original(training):
            yield step
            if step == 2:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "remaining", remaining)
        result = run(*words, tmp_path / "parts")
    assert result.exit_code == 130
    assert "the same command resumes from it" in result.output
    assert not (tmp_path / "parts" / "card.md").exists()
    assert run(*words, tmp_path / "parts").exit_code == 0
    one, other = (gan(tmp_path / name).draw(3, torch.Generator().manual_seed(0)) for name in ("whole", "parts"))
    assert torch.equal(one, other)


def test_stopped_before_or_after_training_it_says_what_there_is(records, tmp_path, monkeypatch):
    out = tmp_path / "prior"
    words = ["--data", records, *SMALL, "--out", out]

    def stopped(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            importlib.import_module("reconrisk.priors.train.gan")._Run, "__init__", stopped
        )  # a function has this name
        result = run(*words)
    assert (result.exit_code, out.exists()) == (130, False)
    assert "nothing was written" in result.output
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("reconrisk.priors.train.card"), "write_card", stopped)
        result = run(*words)
    assert result.exit_code == 130
    assert f"the prior is in {out}, without a card" in result.output
    assert run(*words).exit_code == 0
    assert (out / "card.md").is_file()


def test_a_training_that_diverges_leaves_no_prior(records, tmp_path):
    out = tmp_path / "prior"
    words = ["--kind", "gan", "--steps", 20, "--batch-size", 4, "--channels", 8, "--learning-rate", 1e30]
    with pytest.raises(InvalidInput, match="Pass a lower learning_rate and a new folder: the training diverged"):
        run("--data", records, *words, "--out", out)
    assert not out.exists()


def test_floats_and_pictures_of_many_sizes_are_read(tmp_path):
    np.savez(tmp_path / "floats.npz", images=np.random.default_rng(0).random((20, 8, 8), dtype=np.float32))
    out = tmp_path / "floats"
    assert run("--data", tmp_path / "floats.npz", "--data-range", "0,2", *SMALL, "--out", out).exit_code == 0
    assert "--data-range 0,2" in (out / "card.md").read_text()
    (tmp_path / "pictures").mkdir()
    for number in range(20):
        Image.fromarray(np.full((8 + number, 9), number, dtype=np.uint8)).save(tmp_path / "pictures" / f"{number}.png")
    out = tmp_path / "sized"
    assert run("--data", tmp_path / "pictures", "--size", 8, *SMALL, "--out", out).exit_code == 0
    assert gan(out).shape == (1, 8, 8)


def test_a_diffusion_is_trained_alike(records, tmp_path):
    pytest.importorskip("diffusers", reason="needs the extra diffusion")
    out = tmp_path / "prior"
    words = ["--kind", "diffusion", "--steps", 2, "--batch-size", 4, "--channels", "8,16", "--out", out]
    result = run("--data", records, *words)
    assert result.exit_code == 0, result.output
    assert read_training_record(out).settings["channels"] == [8, 16]
    assert "held-out  loss" in result.output
    assert "finding no noise 1" in result.output
    assert "rr.attacks.ggss_r(rr.priors.diffusion(" in result.output
    assert "--channels 8,16" in (out / "card.md").read_text()


def test_a_diffusion_needs_its_extra(records, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("diffusers.models.unets.unet_2d")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "diffusers.models.unets.unet_2d", None)
    with pytest.raises(MissingExtra, match=r"reconrisk\[diffusion\]"):
        run("--data", records, "--kind", "diffusion", "--out", tmp_path / "prior")
    assert not (tmp_path / "prior").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", 0], "steps=0 >= 1"),
        (["--channels", "8,16"], "one number for a GAN"),
        (["--channels", "wide"], "whole numbers such as"),
        (["--channels", "7"], "to be even"),
        (["--predicts", "epsilon"], "to be used with a diffusion only"),
        (["--held-out", "test"], "to differ from the training split"),
        (["--held-out", "train", "--split", "train"], "Pass --split test"),
        (["--held-out", "1.5"], r"held_out=1.5 in \(0, 1\)"),
        (["--held-out", "some"], "train, test or a share"),
        (["--held-out", "0.001"], "found 40 to train on and 0 held out"),
        (["--seed", -1], "seed=-1"),
        (["--data", "minst"], "Did you mean mnist"),
        (["--data", "diabetes"], r"to be \(n, channels, height, width\)\. Pass pictures"),
    ],
)
def test_wrong_input_leaves_nothing_behind(records, tmp_path, words, message):
    with pytest.raises(InvalidInput, match=message):
        run("--data", records, *SMALL, *words, "--out", tmp_path / "prior")
    assert not (tmp_path / "prior").exists()


def test_a_folder_of_another_prior_is_refused(records, tmp_path):
    out = tmp_path / "prior"
    run("--data", records, *SMALL, "--out", out)
    with pytest.raises(InvalidFile, match="a prior of another training"):
        run("--data", records, *SMALL, "--seed", 1, "--out", out)
    (out / "trained.json").unlink()
    with pytest.raises(InvalidFile, match="a prior without a description of its training"):
        run("--data", records, *SMALL, "--out", out)


def test_a_file_as_folder_is_refused(records):
    before = records.read_bytes()
    assert run("--data", records, *SMALL, "--out", records).exit_code == 2
    assert records.read_bytes() == before


def files_in(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name", ["config.json", "training.json", "diffusion_pytorch_model.safetensors", "unet/config.json"]
)
def test_files_of_others_are_not_overwritten(records, tmp_path, name):
    out = tmp_path / "junk"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text('{"a": 1}')
    before = files_in(out)
    with pytest.raises(InvalidFile, match=r"It does not belong to a training.*Pass a new or an empty folder"):
        run("--data", records, *SMALL, "--out", out)
    assert files_in(out) == before


def test_an_empty_folder_is_filled_and_hidden_files_are_left_alone(records, tmp_path):
    out = tmp_path / "empty"
    out.mkdir()
    (out / ".gitkeep").write_text("")
    assert run("--data", records, *SMALL, "--out", out).exit_code == 0
    assert (out / ".gitkeep").is_file()


@pytest.mark.parametrize("kind", ["gan", "diffusion"])
def test_a_single_held_out_record_is_refused_before_training(records, tmp_path, kind):
    with pytest.raises(InvalidInput, match="found 39 to train on and 1 held out"):
        run("--data", records, "--kind", kind, "--held-out", "0.025", "--out", tmp_path / "prior")
    assert not (tmp_path / "prior").exists()


def floats(path, low, high):
    values = np.random.default_rng(0).uniform(low, high, (20, 8, 8)).astype(np.float32)
    np.savez(path, images=values)
    return path


def test_what_it_says_of_use_works_for_every_range(tmp_path):
    data, out = floats(tmp_path / "floats.npz", -3, 5), tmp_path / 'it\'s "mine"'
    result = run("--data", data, "--data-range=-3,5", *SMALL, "--out", out)
    assert result.exit_code == 0, result.output
    use = next(line for line in result.output.splitlines() if line.startswith("use")).removeprefix("use").strip()
    attack = eval(use, {"rr": importlib.import_module("reconrisk")})  # noqa: S307 - what a user would paste
    assert attack.prior.data_range == (-3.0, 5.0)
    with pytest.raises(InvalidFile, match=r"data_range: .*data_range \[-3.0, 5.0\] instead of \[-4.0, 5.0\]"):
        run("--data", data, "--data-range=-4,5", *SMALL, "--out", out)


def test_the_command_of_a_card_is_quoted_and_shows_no_folders(records, tmp_path):
    data = tmp_path / "my records.npz"
    records.rename(data)
    run("--data", data, *SMALL, "--out", tmp_path / "my prior")
    text = (tmp_path / "my prior" / "card.md").read_text()
    assert str(tmp_path) not in text
    assert "| source | my records.npz |" in text
    command = text.split("```")[1].strip()
    assert shlex.split(command)[:4] == ["reconrisk", "train-prior", "--data", "my records.npz"]
    assert shlex.split(command)[-2:] == ["--out", "my prior"]


def test_what_is_missing_is_named_as_an_option(tmp_path):
    with pytest.raises(InvalidFile, match="--data-range"):
        run("--data", floats(tmp_path / "floats.npz", 0, 5), *SMALL, "--out", tmp_path / "prior")
    np.savez(tmp_path / "none.npz", images=np.full((20, 8, 8), np.nan, dtype=np.float32))
    with pytest.raises(InvalidFile, match="Expected a finite number, found nan"):
        run("--data", tmp_path / "none.npz", *SMALL, "--out", tmp_path / "prior")
    (tmp_path / "pictures").mkdir()
    for size in (8, 9):
        Image.fromarray(np.zeros((size, size), dtype=np.uint8)).save(tmp_path / "pictures" / f"{size}.png")
    with pytest.raises(InvalidFile, match="--size"):
        run("--data", tmp_path / "pictures", *SMALL, "--out", tmp_path / "prior")
