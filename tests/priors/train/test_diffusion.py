"""Training of diffusion priors: what it learns, and that being stopped changes nothing."""

import json
import sys
from dataclasses import asdict

import pytest
import torch

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.priors.load.diffusers import diffusion
from reconrisk.priors.load.folders import BUNDLED
from reconrisk.priors.train.diffusion import DiffusionTraining, train_diffusion
from reconrisk.priors.train.training_state import read_training_record

pytest.importorskip("diffusers", reason="needs the extra diffusion")

TINY = DiffusionTraining(channels=(8,), steps=12, batch_size=8)


def pictures(count=32, seed=0):
    return torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed))


class Stopped(KeyboardInterrupt):
    """The user's Ctrl-C after some steps."""


def stopped_after(monkeypatch, steps):
    module = sys.modules["reconrisk.priors.train.diffusion"]  # the package has a function of this name
    original = module._Run.remaining

    def remaining(run):
        for number, step in enumerate(original(run)):
            yield step
            if number + 1 == steps:
                raise Stopped

    monkeypatch.setattr(module._Run, "remaining", remaining)


def weights(folder):
    prior = diffusion(folder)
    return prior.noise(torch.ones(1, 1, 4, 4), 500)


def test_stopped_twice_it_ends_with_the_same_weights(tmp_path, monkeypatch):
    whole = train_diffusion(pictures(), tmp_path / "whole", TINY)
    for _ in range(2):
        with monkeypatch.context() as patch:
            stopped_after(patch, 4)
            with pytest.raises(Stopped):
                train_diffusion(pictures(), tmp_path / "parts", TINY)
    parts = train_diffusion(pictures(), tmp_path / "parts", TINY)
    assert torch.equal(weights(whole), weights(parts))
    assert sorted(path.name for path in parts.iterdir()) == ["scheduler", "trained.json", "unet"]


@pytest.mark.parametrize("predicts", ["v_prediction", "epsilon"])
def test_it_learns_a_single_picture(tmp_path, predicts):
    # of one picture, the noise is known from the noisy one: the loss falls from 1 toward 0
    values = torch.where(torch.arange(16).view(1, 1, 4, 4) % 3 == 0, 1.0, 0.0).repeat(8, 1, 1, 1)
    given = {"channels": (16,), "steps": 150, "batch_size": 32, "learning_rate": 5e-3, "average": 0.9}
    settings = DiffusionTraining(predicts=predicts, **given)
    prior = diffusion(train_diffusion(values, tmp_path / "one", settings))
    rng = torch.Generator().manual_seed(1)
    noise = torch.randn(64, 1, 4, 4, generator=rng)
    time, share = 300, float(prior.schedule.signal[300])
    noisy = share**0.5 * prior.values(values[:1]) + (1 - share) ** 0.5 * noise
    assert float((prior.noise(noisy, time) - noise).square().mean()) < 0.2


def test_v_knows_the_record_where_there_is_nothing_but_noise(tmp_path):
    # the clean picture is a constant: v is all of it at the last time, while noise is a hundred times the picture
    values = torch.where(torch.arange(16).view(1, 1, 4, 4) % 3 == 0, 1.0, 0.0).repeat(8, 1, 1, 1)
    errors = {}
    for predicts in ("v_prediction", "epsilon"):
        given = {"channels": (16,), "steps": 150, "batch_size": 32, "learning_rate": 5e-3, "average": 0.9}
        settings = DiffusionTraining(predicts=predicts, **given)
        prior = diffusion(train_diffusion(values, tmp_path / predicts, settings))
        noisy = torch.randn(64, 1, 4, 4, generator=torch.Generator().manual_seed(1))
        errors[predicts] = float((prior.clean(noisy, 999) - prior.values(values[:1])).square().mean())
    assert errors["v_prediction"] < 0.2 < errors["epsilon"]


def test_a_folder_of_another_training_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stopped_after(patch, 4)
        with pytest.raises(Stopped):
            train_diffusion(pictures(), tmp_path / "one", TINY)
    with pytest.raises(InvalidFile, match="of another training"):
        train_diffusion(pictures(seed=1), tmp_path / "one", TINY)


@pytest.mark.parametrize(
    ("records", "settings", "words"),
    [
        (torch.rand(4, 16), TINY, r"to be \(n, channels, height, width\)\. Pass pictures"),
        (torch.rand(4, 1, 6, 6), DiffusionTraining(channels=(8, 8, 8), steps=1), "divisible by 4"),
        (2 * torch.ones(4, 1, 4, 4), TINY, "records"),
    ],
)
def test_records_that_cannot_be_learned_are_refused(tmp_path, records, settings, words):
    with pytest.raises(InvalidInput, match=words):
        train_diffusion(records, tmp_path / "none", settings)
    assert not (tmp_path / "none").exists()


def test_channels_that_cannot_be_grouped_are_refused():
    with pytest.raises(InvalidInput, match="multiples of 8"):
        DiffusionTraining(channels=(12,))


def test_what_cannot_be_predicted_is_refused():
    with pytest.raises(InvalidInput, match="epsilon or v_prediction"):
        DiffusionTraining(predicts="score")


def test_weights_can_be_read_by_whom_the_other_files_can_be(tmp_path):
    folder = train_diffusion(pictures(), tmp_path / "one", TINY)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder / "unet").iterdir()}
    assert len(modes) == 2
    assert len(set(modes.values())) == 1, modes


def test_the_range_of_the_records_is_stated_and_is_the_default(tmp_path):
    folder = train_diffusion(255 * pictures(), tmp_path / "one", TINY, data_range=(0, 255))
    assert diffusion(folder).data_range == (0.0, 255.0)
    assert diffusion(folder, data_range=(0.0, 1.0)).data_range == (0.0, 1.0)


def test_the_defaults_are_those_of_the_shipped_prior():
    stated = read_training_record(BUNDLED / "diffusion" / "mnist").settings
    assert json.loads(json.dumps(asdict(DiffusionTraining()))) == stated
