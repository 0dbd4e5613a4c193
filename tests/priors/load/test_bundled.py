"""The priors in the package: their size, their cards, and which is chosen for records."""

import re
import sys

import pytest
import torch

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.priors import SHIPPED_DIFFUSION, SHIPPED_GAN, choose_shipped, denoising_loss, nearest_distance
from reconrisk.priors.load import bundled as shipped
from reconrisk.priors.load import folders as places
from reconrisk.priors.load.folders import BUNDLED
from reconrisk.priors.load.gan import new_generator, save_generator
from reconrisk.priors.train.card import DRAWS
from reconrisk.priors.train.training_state import read_training_record

SHAPES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
ALL = [("diffusion", name) for name in SHIPPED_DIFFUSION] + [("gan", name) for name in SHIPPED_GAN]
LARGEST = 16 * 2**20  # bytes, all together


def loaded(kind, name):
    if kind == "diffusion":
        pytest.importorskip("diffusers", reason="needs the extra diffusion")
        return rr.priors.diffusion(name)
    return rr.priors.gan(name)


def stated(kind, name):
    """The number on the card and its standard error."""
    text = (BUNDLED / kind / name / "card.md").read_text(encoding="utf-8")
    found = re.search(r"^Held-out (?:loss|distance): ([\d.]+) \+- ([\d.]+) ", text, re.MULTILINE)
    return float(found[1]), float(found[2])


def test_all_together_stay_small():
    assert sum(path.stat().st_size for path in BUNDLED.rglob("*") if path.is_file()) <= LARGEST


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_each_can_be_loaded_and_says_what_it_is(kind, name):
    prior = loaded(kind, name)
    assert (prior.name, prior.shape) == (name, SHAPES[name])
    folder = BUNDLED / kind / name
    assert read_training_record(folder).kind == kind
    text = (folder / "card.md").read_text(encoding="utf-8")
    for words in ("licence of the data", "reconrisk train-prior --data", "must not be", "samples.png"):
        assert words in text
    assert not re.search(r"(?:^|[\s(`'\"])/\w", text)  # no path of the machine that trained it
    assert (folder / "samples.png").is_file()
    value, error = stated(kind, name)
    assert 0 < 4 * error < value < 1


@pytest.mark.parametrize("kind", [kind for kind, name in ALL if name == "mnist"])
def test_digits_of_the_package_get_what_the_card_states(kind):
    # other digits than those of the card: both are means over records, four standard errors of their difference
    records = rr.load_dataset("mnist", split="test").inputs[::20]
    prior = loaded(kind, "mnist")
    rng = torch.Generator().manual_seed(0)
    if kind == "diffusion":
        found = denoising_loss(prior, records, rng=rng).mean(1)
    else:
        found = nearest_distance(records, prior.draw(DRAWS, rng))
    value, error = stated(kind, "mnist")
    own = float(found.std()) / len(found) ** 0.5
    assert float(found.mean()) == pytest.approx(value, abs=4 * (error**2 + own**2) ** 0.5)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_records_like_those_of_a_generator_get_its_prior(kind, name):
    loaded(kind, name)
    records = 255 * rr.priors.gan(name).draw(16, torch.Generator().manual_seed(5))
    found = choose_shipped(records, (0.0, 255.0), kind=kind)
    assert (found.name, found.data_range) == (name, (0.0, 255.0))


@pytest.fixture
def two(tmp_path, monkeypatch):
    """A package with two generators of bright and of dark pictures, and one of another shape."""
    for name, shape, bias in (("dark", (1, 4, 4), -3.0), ("bright", (1, 4, 4), 3.0), ("wide", (1, 4, 8), 3.0)):
        network = new_generator(shape, 2, 8)
        torch.nn.init.constant_(network[-1][0].bias, bias)
        save_generator(network, tmp_path / "gan" / name, shape=shape, latent=2, channels=8)
    monkeypatch.setattr(places, "BUNDLED", tmp_path)
    monkeypatch.setattr(sys.modules["reconrisk.priors.load.bundled"], "SHIPPED_GAN", ("bright", "dark", "wide"))
    monkeypatch.setattr(sys.modules["reconrisk.priors.load.bundled"], "SHIPPED_DIFFUSION", ())


@pytest.mark.parametrize(("value", "name"), [(0.0, "dark"), (1.0, "bright")])
def test_the_one_that_is_nearest_is_chosen(two, value, name):
    assert choose_shipped(torch.full((100, 1, 4, 4), value), (0.0, 1.0), kind="gan").name == name
    assert choose_shipped(torch.full((1, 1, 4, 4), 255 * value), (0.0, 255.0), kind="gan").data_range == (0.0, 255.0)


def test_where_none_has_the_shape_there_is_none(two):
    assert choose_shipped(torch.zeros(2, 1, 5, 5), (0.0, 1.0), kind="gan") is None
    assert choose_shipped(torch.zeros(2, 3), (0.0, 1.0)) is None


def test_without_the_extra_there_is_no_diffusion(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffusers.models.unets.unet_2d", None)
    assert choose_shipped(torch.zeros(2, 1, 28, 28), (0.0, 1.0)) is None


@pytest.mark.parametrize(
    ("records", "kind", "words"),
    [
        (torch.zeros(2, 1, 4, 4), "vae", "diffusion or gan"),
        (torch.zeros(0, 1, 4, 4), "gan", "empty"),
        (2 + torch.zeros(2, 1, 4, 4), "gan", "within data_range"),
    ],
)
def test_what_cannot_be_judged_is_refused(records, kind, words):
    with pytest.raises(InvalidInput, match=words):
        choose_shipped(records, (0.0, 1.0), kind=kind)


def test_names_are_those_of_known_data():
    assert set(SHIPPED_DIFFUSION) == set(SHIPPED_GAN) == set(SHAPES)
    assert shipped.SHIPPED_GAN == SHIPPED_GAN
