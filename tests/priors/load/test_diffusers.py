"""Diffusion priors from folders of diffusers: what networks predict, and what is refused."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.priors.load.diffusers import diffusion, import_diffusers, noise_from_prediction

pytest.importorskip("diffusers", reason="needs the extra diffusion")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny network with its scheduler, as a pipeline is saved."""
    folder = tmp_path_factory.mktemp("prior")
    kinds = import_diffusers("this test")
    torch.manual_seed(0)
    network = kinds.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 8),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
    )
    network.save_pretrained(folder / "unet")
    kinds.DDPMScheduler(num_train_timesteps=50).save_pretrained(folder / "scheduler")
    return folder, network


def copied(source, target, **changed):
    """The folder again with settings of its scheduler changed."""
    for part in ("unet", "scheduler"):
        (target / part).mkdir()
        for file in (source / part).iterdir():
            (target / part / file.name).write_bytes(file.read_bytes())
    path = target / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    return target


def test_the_noise_is_that_of_the_network(saved):
    folder, network = saved
    prior = diffusion(folder)
    noisy = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    assert (prior.shape, len(prior.schedule)) == ((1, 8, 8), 50)
    with torch.no_grad():
        expected = network(noisy, torch.tensor([7, 7])).sample
    assert torch.allclose(prior.noise(noisy, 7), expected, atol=1e-6)  # rounding of float32 by other kernels


@given(st.sampled_from(["epsilon", "sample", "v_prediction"]), st.floats(0.01, 0.99), st.integers(0, 10**6))
def test_every_prediction_is_the_same_noise(predicts, share, seed):
    clean, noise = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    kept = torch.tensor(share, dtype=torch.float64)
    noisy = kept.sqrt() * clean + (1 - kept).sqrt() * noise
    velocity = kept.sqrt() * noise - (1 - kept).sqrt() * clean
    predicted = {"epsilon": noise, "sample": clean, "v_prediction": velocity}[predicts]
    assert torch.allclose(noise_from_prediction(predicted, noisy, kept, predicts), noise, atol=1e-9)


def test_a_missing_scheduler_is_named(saved, tmp_path):
    folder = copied(saved[0], tmp_path)
    (folder / "scheduler" / "scheduler_config.json").unlink()
    with pytest.raises(InvalidFile, match="Save the scheduler of training"):
        diffusion(folder)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"prediction_type": "flow"}, "prediction_type: It is flow"),
        ({"beta_schedule": "odd"}, "no cumulative products"),
    ],
)
def test_schedulers_without_what_is_needed_are_refused(saved, tmp_path, changed, words):
    with pytest.raises(InvalidFile, match=words):
        diffusion(copied(saved[0], tmp_path, **changed))


def test_another_network_is_refused(saved, tmp_path):
    folder = copied(saved[0], tmp_path)
    path = folder / "unet" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "_class_name": "Transformer2DModel"}))
    with pytest.raises(InvalidFile, match="not a UNet2DModel"):
        diffusion(folder)


def test_weights_that_do_not_fit_are_refused(saved, tmp_path):
    folder = copied(saved[0], tmp_path)
    path = folder / "unet" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "block_out_channels": [8, 16]}))
    with pytest.raises(InvalidFile, match="weights"):
        diffusion(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda weights: weights.pop("conv_out.bias"), r"They lack conv_out\.bias\."),
        (lambda weights: weights.update(more=torch.ones(1), other=torch.ones(1)), "The network has no more and 1 more"),
        (lambda weights: weights.update({"conv_out.bias": torch.ones(3)}), r"another shape for conv_out\.bias\."),
    ],
)
def test_weights_that_are_not_those_of_the_network_are_refused(saved, tmp_path, capfd, change, words):
    folder = copied(saved[0], tmp_path)
    path = folder / "unet" / "diffusion_pytorch_model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)
    with pytest.raises(InvalidFile, match=words):
        diffusion(folder)
    assert capfd.readouterr().err == ""  # what the import_diffusers says of it is said by the error


def test_text_that_is_no_settings_is_refused(saved, tmp_path):
    folder = copied(saved[0], tmp_path)
    (folder / "unet" / "config.json").write_text("{")
    with pytest.raises(InvalidFile, match="syntax"):
        diffusion(folder)


@pytest.mark.parametrize("kind", ["FlowMatchEulerDiscreteScheduler", "EDMEulerScheduler", "DDPMScheduler"])
def test_a_scheduler_without_betas_is_not_given_any(saved, tmp_path, kind):
    folder = copied(saved[0], tmp_path)
    path = folder / "scheduler" / "scheduler_config.json"
    path.write_text(json.dumps({"_class_name": kind, "num_train_timesteps": 1000}))
    with pytest.raises(InvalidFile, match="beta_start"):
        diffusion(folder)


def test_a_network_that_needs_the_class_is_refused(saved, tmp_path):
    folder = copied(saved[0], tmp_path)
    path = folder / "unet" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_class_embeds": 10}))
    with pytest.raises(InvalidFile, match="needs the class"):
        diffusion(folder)


def test_records_in_double_precision_get_their_noise_in_it(saved):
    prior = diffusion(saved[0])
    noisy = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = prior.noise(noisy, 3)
    assert found.dtype == torch.float64
    assert torch.allclose(found.float(), prior.noise(noisy.float(), 3))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"num_train_timesteps": -5}, "no cumulative products of alphas"),
        ({"rescale_betas_zero_snr": True}, "rescale_betas_zero_snr leaves no signal"),
    ],
)
def test_schedules_that_are_none_are_refused_by_their_file(saved, tmp_path, changed, words):
    with pytest.raises(InvalidFile, match=words):
        diffusion(copied(saved[0], tmp_path, **changed))


@pytest.mark.parametrize("size", [[28], "28", [28, 28.5]])
def test_sizes_that_are_none_are_refused(saved, tmp_path, size):
    folder = copied(saved[0], tmp_path)
    path = folder / "unet" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sample_size": size}))
    with pytest.raises(InvalidInput, match="sample_size"):
        diffusion(folder)


def test_what_it_predicts_is_part_of_what_it_is(saved, tmp_path):
    def said(kind):
        (tmp_path / kind).mkdir()
        return repr(diffusion(copied(saved[0], tmp_path / kind, prediction_type=kind)).predict_noise)

    assert said("epsilon") != said("v_prediction")


def with_channels(folder, made, **scheduler):
    """A tiny network that makes so many channels of one, and its scheduler."""
    kinds = import_diffusers("this test")
    torch.manual_seed(0)
    network = kinds.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=made,
        block_out_channels=(8,),
        layers_per_block=1,
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
        norm_num_groups=4,
    )
    network.save_pretrained(folder / "unet")
    kinds.DDPMScheduler(num_train_timesteps=50, **scheduler).save_pretrained(folder / "scheduler")
    return network


@pytest.mark.parametrize("kind", ["learned", "learned_range"])
def test_learned_variances_are_left_aside(tmp_path, kind):
    network = with_channels(tmp_path, 2, variance_type=kind)
    noisy = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        noise, _ = network(noisy, torch.tensor([7, 7])).sample.split(1, dim=1)  # as diffusers' schedulers do
    prior = diffusion(tmp_path)
    assert torch.allclose(prior.noise(noisy, 7), noise, atol=1e-6)  # rounding of float32 by other kernels
    assert prior.draw(2, torch.Generator().manual_seed(0), steps=3).shape == (2, 1, 8, 8)


@pytest.mark.parametrize(("made", "words"), [(2, "variance_type: It is fixed_small"), (3, "out_channels: The network")])
def test_other_channels_than_those_of_a_record_are_refused(tmp_path, made, words):
    with_channels(tmp_path, made)
    with pytest.raises(InvalidFile, match=words):
        diffusion(tmp_path)
