"""Priors by name: shipped names, folders, and the error for unknown ones."""

import json
import sys

import pytest
import torch

from reconrisk.attacks.prior_choice import check_prior_fits, prior_by_name, shipped_for
from reconrisk.attacks.registry import ATTACKS, attack_by_name, settings_from_text
from reconrisk.core.errors import InvalidFile, InvalidInput, MissingExtra
from reconrisk.priors.gaussian import gaussian
from reconrisk.priors.generator import GeneratorPrior
from reconrisk.priors.train.training_state import TrainingRecord, write_training_record
from tests.attacks.tiny_priors import SHAPE, ship, write_diffusion, write_gan

RECORDS = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(0))
EVERY = ("diffusion", "gaussian", "gan")


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    """A package that ships a prior of each kind."""
    pytest.importorskip("diffusers", reason="needs the extra diffusion")
    ship(monkeypatch, tmp_path / "bundled")
    return tmp_path / "bundled"


@pytest.fixture
def without_extra(tmp_path, monkeypatch):
    """A package that ships a prior of each kind, where diffusers is not installed."""
    ship(monkeypatch, tmp_path / "bundled", diffusion=False)
    network = {"_class_name": "UNet2DModel", "in_channels": RECORDS.shape[1], "sample_size": list(RECORDS.shape[2:])}
    scheduler = {"num_train_timesteps": 10, "beta_start": 1e-4, "beta_end": 0.02, "beta_schedule": "linear"}
    for part, stated in (("scheduler/scheduler_config.json", scheduler), ("unet/config.json", network)):
        path = tmp_path / "bundled" / "diffusion" / "tiny" / part
        path.parent.mkdir()
        path.write_text(json.dumps(stated))
    for module in [name for name in sys.modules if name.partition(".")[0] == "diffusers"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "diffusers", None)


def test_every_attack_with_a_prior_says_of_which_kinds():
    assert {name: info.priors[0] for name, info in ATTACKS.items() if info.priors} == {
        "gaussian_posterior": "gaussian",
        "plug_and_play": "diffusion",
        "ggss_r": "diffusion",
        "finetuned_diffusion": "diffusion",
        "gias": "gan",
        "ggl": "gan",
        "gifd": "gan",
        "prior_alone": "diffusion",
    }
    assert [name for name, info in ATTACKS.items() if "gaussian" in info.priors] == [
        "gaussian_posterior",
        "plug_and_play",
        "ggss_r",
        "prior_alone",
    ]


@pytest.mark.parametrize(
    ("word", "kinds", "kind"),
    [
        ("tiny", EVERY, "diffusion"),
        ("tiny", ("gan",), "gan"),
        ("gan/tiny", EVERY, "gan"),
        ("diffusion/tiny", EVERY, "diffusion"),
    ],
)
def test_a_name_is_of_the_first_kind_unless_it_says_its_own(bundled, word, kinds, kind):
    found = prior_by_name(word, kinds, (0.0, 255.0))
    assert found.value.kind == kind
    assert (found.value.name, found.value.data_range) == ("tiny", (0.0, 255.0))
    assert found.trained_on == "tiny"
    assert "trained on the training records of tiny" in found.source
    assert found.word == ("gan/tiny" if kind == "gan" else "tiny")


def test_a_kind_that_an_attack_does_not_take_is_no_name(bundled):
    with pytest.raises(InvalidInput, match="Expected prior='diffusion/tiny' to be shipped, tiny or a folder"):
        prior_by_name("diffusion/tiny", ("gan",))


def test_folders_are_read_as_the_kind_that_the_attack_takes(tmp_path):
    write_gan(tmp_path / "mine")
    found = prior_by_name(str(tmp_path / "mine"), ("gan",))
    assert isinstance(found.value, GeneratorPrior)
    assert (found.value.name, found.source, found.trained_on) == ("mine", "read from a folder", "")
    with pytest.raises(InvalidFile):
        prior_by_name(str(tmp_path / "mine"), ("diffusion",))


def test_a_folder_of_diffusers_is_read(tmp_path):
    pytest.importorskip("diffusers", reason="needs the extra diffusion")
    write_diffusion(tmp_path / "mine")
    assert prior_by_name(str(tmp_path / "mine"), EVERY).value.shape == SHAPE


@pytest.mark.parametrize("word", ["gaussian", "shipped"])
def test_words_for_public_records_are_refused_without_any(word):
    with pytest.raises(InvalidInput, match=f"Expected prior='{word}' to need no public records"):
        attack_by_name("ggss_r", prior=word)


def test_a_name_that_is_none_is_refused_with_the_nearest(bundled):
    with pytest.raises(InvalidInput, match=r"tiny or a folder\. Nothing is downloaded\. Did you mean tiny\?"):
        prior_by_name("tinny", EVERY)


def test_text_keeps_the_word_and_the_attack_reads_it(bundled):
    assert settings_from_text("gifd", ["prior=tiny", "steps=3"]) == {"prior": "tiny", "steps": 3}
    assert attack_by_name("gifd", prior="tiny", steps=3).prior.latent_size == 4
    assert attack_by_name("ggss_r", prior="tiny", steps=3).prior.name == "tiny"


def test_the_shipped_prior_of_the_shape_is_found(bundled):
    assert shipped_for(RECORDS, EVERY, (0.0, 1.0)).value.kind == "diffusion"
    assert shipped_for(RECORDS, ("gan",), (0.0, 1.0)).value.kind == "gan"
    with pytest.raises(
        InvalidInput, match=r"Expected shape of a record=\(3, 8, 8\) to be the shape of a shipped prior"
    ):
        shipped_for(torch.zeros(1, 3, 8, 8), EVERY, (0.0, 1.0))


def test_the_missing_extra_is_named_where_it_is_the_reason_and_only_there(without_extra):
    with pytest.raises(MissingExtra, match=r"reconrisk\[diffusion\]"):
        shipped_for(RECORDS, ("diffusion", "gaussian"), (0.0, 1.0))
    with pytest.raises(InvalidInput, match="to be the shape of a shipped prior"):
        shipped_for(torch.zeros(1, 9), ("diffusion", "gaussian"), (0.0, 1.0))
    assert shipped_for(RECORDS, ("gan",), (0.0, 1.0)).value.kind == "gan"


@pytest.mark.parametrize(
    ("shape", "data_range", "message"), [((3,), (0.0, 1.0), "prior.shape"), ((2,), (0.0, 255.0), "prior.data_range")]
)
def test_what_does_not_fit_is_refused_by_the_name_of_the_prior(shape, data_range, message):
    prior = gaussian(torch.zeros(2), torch.eye(2), name="mine")
    check_prior_fits(prior, (2,), (0.0, 1.0))
    with pytest.raises(InvalidInput, match=f"The prior mine does not fit the records. Expected {message}"):
        check_prior_fits(prior, shape, data_range)


def test_a_prior_that_is_scaled_says_so(bundled, tmp_path):
    assert "scaled" not in prior_by_name("tiny", EVERY).source
    assert prior_by_name("gan/tiny", EVERY, (-1.0, 2.0)).said.count("scaled from [0, 1] to [-1, 2]") == 1
    assert shipped_for(255 * RECORDS, ("gan",), (0.0, 255.0)).source.endswith("scaled from [0, 1] to [0, 255]")
    folder = write_gan(tmp_path / "mine")
    write_training_record(folder, TrainingRecord("gan", {}, "", 3, 0.0, (0.0, 255.0)))
    assert "scaled" not in prior_by_name(str(folder), EVERY, (0, 255)).source
    assert prior_by_name(str(folder), EVERY, (0, 1)).source.endswith("scaled from [0, 255] to [0, 1]")
