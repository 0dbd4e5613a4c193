"""Generators in folders: what is read back, what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.priors.load.gan import gan, new_generator, save_generator

SHAPE = (1, 8, 12)


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "small"
    save_generator(new_generator(SHAPE, 5, 8), path, shape=SHAPE, latent=5, channels=8)
    return path


def restated(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_it_is_read_back_in_single_precision(folder):
    prior = gan(folder)
    assert (prior.name, prior.shape, prior.latent_size) == ("small", SHAPE, 5)
    stored = load_file(folder / "generator.safetensors")
    for name, value in prior.generate.state_dict().items():
        assert (stored[name].dtype, value.dtype) in {(torch.float16, torch.float32), (torch.int64, torch.int64)}
        assert torch.equal(value, stored[name].to(value.dtype))
    assert not any(value.requires_grad for value in prior.generate.parameters())


def test_records_lie_in_the_range_that_was_asked_for(folder):
    one = gan(folder).draw(20, torch.Generator().manual_seed(0))
    other = gan(str(folder), data_range=(0.0, 255.0)).draw(20, torch.Generator().manual_seed(0))
    assert one.shape == (20, *SHAPE)
    assert 0 <= float(one.min()) < float(one.max()) <= 1
    torch.testing.assert_close(other, 255 * one)


def test_a_record_does_not_depend_on_the_others_of_its_batch(folder):
    latents = torch.randn(6, 5)
    prior = gan(folder)
    # float32 sums of a few hundred terms in another order
    torch.testing.assert_close(prior.decode(latents)[2:3], prior.decode(latents[2:3]), rtol=1e-5, atol=1e-6)


def test_its_blocks_can_be_entered(folder):
    prior = gan(folder)
    assert isinstance(prior.generate, nn.Sequential)
    values = latents = torch.randn(2, 5)
    sizes = []
    for block in prior.generate:
        values = block(values)
        sizes.append(tuple(values.shape[1:]))
    assert sizes == [(16, 2, 3), (8, 4, 6), (4, 8, 12), SHAPE]
    assert torch.equal(prior.to_records(values, 2), prior.decode(latents))


def test_the_shipped_size_stays_small():
    counts = [sum(p.numel() for p in new_generator(s, 64, 32).parameters()) for s in ((1, 28, 28), (3, 32, 32))]
    assert max(counts) <= 700_000


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidFile, match=r"There is no such folder\. Nothing is downloaded"):
        gan(tmp_path / "none")


@pytest.mark.parametrize("name", ["config.json", "generator.safetensors"])
def test_a_missing_file_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(InvalidFile, match=f"{name}, file: There is no such file"):
        gan(folder)


def test_weights_that_do_not_match_are_refused(folder):
    restated(folder, channels=16)
    with pytest.raises(InvalidFile, match=r"They do not fit config\.json: size mismatch"):
        gan(folder)


def test_weights_of_another_network_are_refused(folder):
    save_file({"weight": torch.zeros(2)}, folder / "generator.safetensors")
    with pytest.raises(InvalidFile, match="They do not fit"):
        gan(folder)


def test_weights_that_are_cut_short_are_refused(folder):
    path = folder / "generator.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InvalidFile, match="They do not fit"):
        gan(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "It cannot be read"),
        ("[]", "of unknown kind"),
        ('{"_class_name": "UNet2DModel"}', "It is UNet2DModel, not a"),
    ],
)
def test_settings_of_another_kind_are_refused(folder, text, words):
    (folder / "config.json").write_text(text)
    with pytest.raises(InvalidFile, match=words):
        gan(folder)


@pytest.mark.parametrize("changes", [{"shape": [8, 12]}, {"shape": None}, {"latent_size": 0}, {"channels": "8"}])
def test_settings_that_lack_a_size_are_refused(folder, changes):
    restated(folder, **changes)
    with pytest.raises(InvalidFile, match="does not state shape, latent_size and channels"):
        gan(folder)


def test_sides_that_cannot_be_halved_twice_are_refused():
    with pytest.raises(InvalidInput, match="divisible by 4"):
        new_generator((1, 10, 8), 5, 8)
