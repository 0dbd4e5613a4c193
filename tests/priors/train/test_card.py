"""Cards of priors: what they state is what is measured."""

import importlib
import re

import numpy as np
import pytest
import torch
from PIL import Image

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.priors import (
    SHIPPED_DIFFUSION,
    SHIPPED_GAN,
    GanTraining,
    fit_gaussian,
    gan,
    generator,
    nearest_distance,
    read_card,
    train_gan,
)
from reconrisk.priors.train.card import Origin, write_card, write_samples
from reconrisk.priors.train.training_state import TrainingRecord

ORIGIN = Origin("noise", "nobody (2020)", "free", "reconrisk train-prior --data noise", "the last ones")


def pictures(count, seed):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def folder(tmp_path):
    settings = GanTraining(channels=8, latent_size=4, steps=3, batch_size=8)
    return train_gan(pictures(80, 0), tmp_path / "noise", settings)


def test_a_card_of_a_generator_states_what_is_measured(folder):
    held_out = pictures(40, 1)
    card = write_card(folder, pictures(80, 0), held_out, ORIGIN)
    text = card.path.read_text()
    for words in ("nobody (2020)", "| licence of the data | free |", "| records | 80 |", "the last ones"):
        assert words in text
    assert "# noise: a generator of pictures 1 x 8 x 8" in text
    assert "latent_size 4, steps 3" in text
    assert "`rr.attacks.gias`" in text
    assert "must not be" in text
    assert "```\nreconrisk train-prior --data noise\n```" in text
    found = nearest_distance(held_out, gan(folder).draw(2000, torch.Generator().manual_seed(0)))
    assert card.held_out == pytest.approx(float(found.mean()))
    assert card.standard_error == pytest.approx(float(found.std()) / 40**0.5)
    stated = re.search(r"Held-out distance: ([\d.]+) \+- ([\d.]+) \(standard error, 40 records\)", text)
    assert float(stated[1]) == pytest.approx(card.held_out, abs=1e-5)
    # other draws of the same Gaussian are as near, within four standard errors over records
    drawn = fit_gaussian(pictures(80, 0)).draw(2000, torch.Generator().manual_seed(5))
    others = nearest_distance(held_out, drawn)
    assert card.gaussian == pytest.approx(float(others.mean()), abs=4 * float(others.std()) / 40**0.5)
    assert card.gaussian != pytest.approx(card.held_out, rel=0.02)
    assert re.search(r"\| 80 training records \| [\d.]+ \| 0 \| [\d.]+ \|", text)
    assert str(folder) not in text


def test_a_card_of_a_diffusion_compares_it_with_a_gaussian(tmp_path):
    pytest.importorskip("diffusers", reason="needs the extra diffusion")
    from reconrisk.priors import DiffusionTraining, denoising_loss, diffusion, train_diffusion

    settings = DiffusionTraining(channels=(8,), steps=3, batch_size=8)
    folder = train_diffusion(pictures(80, 0), tmp_path / "noise", settings)
    held_out = pictures(30, 1)
    card = write_card(folder, pictures(80, 0), held_out, ORIGIN)
    loss = denoising_loss(diffusion(folder), held_out, rng=torch.Generator().manual_seed(0))
    assert card.held_out == pytest.approx(float(loss.mean()), rel=1e-5)
    fitted = fit_gaussian(pictures(80, 0)).diffusion
    other = denoising_loss(fitted, held_out, rng=torch.Generator().manual_seed(0))
    assert card.gaussian == pytest.approx(float(other.mean()), rel=1e-5)
    text = card.path.read_text()
    assert "channels 8, steps 3" in text
    assert "`rr.attacks.ggss_r`" in text
    assert len(re.findall(r"^\| \d+ \| [\d.]+ \| [\d.]+ \| [\d.]+ \| 1 \|$", text, re.MULTILINE)) == 10
    with Image.open(folder / "samples.png") as samples:
        assert samples.size == (8 * 2 * 9 - 2, 8 * 2 * 9 - 2)


def test_how_it_was_trained_can_be_stated_where_the_folder_does_not(folder):
    (folder / "trained.json").unlink()
    with pytest.raises(InvalidFile, match="does not describe a training"):
        write_card(folder, pictures(80, 0), pictures(8, 1), ORIGIN)
    assert not (folder / "card.md").exists()
    facts = TrainingRecord("gan", {"steps": 7}, "", 80, 600.0)
    text = write_card(folder, pictures(80, 0), pictures(8, 1), ORIGIN, trained=facts).path.read_text()
    assert "| settings | steps 7 |" in text
    assert "| processor time | 10 minutes |" in text


@pytest.mark.parametrize("which", ["training", "held_out"])
def test_no_records_are_refused(folder, which):
    records = {"training": pictures(8, 0), "held_out": pictures(8, 1)} | {which: pictures(0, 0)}
    with pytest.raises(InvalidInput, match=f"{which} with at least one"):
        write_card(folder, records["training"], records["held_out"], ORIGIN)


@pytest.mark.parametrize(("channels", "shape"), [(1, (94, 78)), (3, (94, 78, 3)), (2, (94, 142))])
def test_samples_are_a_grid_of_draws(tmp_path, channels, shape):
    # 8 pictures of 5 rows and a gap, less the last gap, twice enlarged: 94; two channels lie side by side
    prior = generator(
        lambda latents: latents[:, :1].clamp(-1, 1).view(-1, 1, 1, 1).expand(-1, channels, 5, 4), (channels, 5, 4), 2
    )
    with Image.open(write_samples(prior, tmp_path / "samples.png")) as samples:
        pixels = np.asarray(samples)
    assert pixels.shape == shape
    drawn = (255 * prior.draw(64, torch.Generator().manual_seed(0))[:, 0, 0, 0]).round()
    row, column = 3, 5
    assert (pixels[row * 12 + 2, column * (shape[1] + 2) // 8 + 2] == int(drawn[row * 8 + column])).all()


def test_samples_of_what_are_no_pictures_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="Pass a prior of pictures"):
        write_samples(generator(lambda latents: latents, (3,), 3), tmp_path / "samples.png")


@pytest.mark.parametrize("kind", ["gan", "diffusion"])
def test_large_pictures_are_not_compared_with_a_gaussian(tmp_path, monkeypatch, folder, kind):
    if kind == "diffusion":
        pytest.importorskip("diffusers", reason="needs the extra diffusion")
        from reconrisk.priors import DiffusionTraining, train_diffusion

        settings = DiffusionTraining(channels=(8,), steps=3, batch_size=8)
        folder = train_diffusion(pictures(80, 0), tmp_path / "diffusion", settings)
    whole = write_card(folder, pictures(80, 0), pictures(8, 1), ORIGIN)
    module = importlib.import_module("reconrisk.priors.train.card")
    monkeypatch.setattr(module, "LARGEST_COVARIANCE", 63)  # pictures have 64 values
    monkeypatch.setattr(module, "fit_gaussian", lambda *_, **__: pytest.fail("too large to be fitted"))
    card = write_card(folder, pictures(80, 0), pictures(8, 1), ORIGIN)
    assert card.gaussian is None
    assert (card.held_out, card.standard_error) == (whole.held_out, whole.standard_error)
    text = card.path.read_text()
    assert "not compared with a Gaussian" in text
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)
    assert "Frechet" not in text


@pytest.mark.parametrize("which", ["training", "held_out"])
def test_a_single_record_is_refused(folder, which):
    records = {"training": pictures(8, 0), "held_out": pictures(8, 1)} | {which: pictures(1, 0)}
    with pytest.raises(InvalidInput, match=rf"len\({which}\)=1 >= 2"):
        write_card(folder, records["training"], records["held_out"], ORIGIN)


def test_shipped_cards_can_be_read():
    for kind, names in (("diffusion", SHIPPED_DIFFUSION), ("gan", SHIPPED_GAN)):
        for name in names:
            assert read_card(name, kind).startswith(f"# {name}: a ")


def test_what_has_no_card_is_refused(folder):
    with pytest.raises(InvalidFile, match=r"card\.md, file: There is no such file"):
        read_card(folder, "gan")
    with pytest.raises(InvalidInput, match="kind='vae' to be diffusion or gan"):
        read_card("mnist", "vae")
