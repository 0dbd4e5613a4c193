"""Priors work where the records are: nothing is made on the CPU that meets a tensor of another device."""

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.priors.diffusion import draw_clean
from tests.attacks.tiny_priors import SHAPE, write_diffusion, write_gan
from tests.other_device import ELSEWHERE, TwoDevices

ROUNDING = 1e-4  # torch chooses other kernels for another device


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


class Own(nn.Module):
    """A denoiser with a weight, which looks at the times."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.9]))

    def forward(self, noisy, times):
        return self.weight * noisy / (1 + times.view(-1, 1, 1, 1))


def gaussian(records, folder):
    return rr.priors.fit_gaussian(records)


def denoiser(records, folder):
    return rr.priors.denoiser(Own().to(records.device), SHAPE)


def generator(records, folder):
    network = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Unflatten(1, SHAPE))
    return rr.priors.generator(network.to(records.device), SHAPE, 4)


def diffusion(records, folder):
    pytest.importorskip("diffusers", reason="needs the extra diffusion")
    return rr.priors.diffusion(write_diffusion(folder / "diffusion"), device=records.device)


def gan(records, folder):
    return rr.priors.gan(write_gan(folder / "gan"), device=records.device)


def seen(prior, records):
    """All that a prior says, as one list of tensors."""
    found = [prior.draw(2, rng())]
    asked = prior.diffusion if isinstance(prior, rr.priors.GaussianPrior) else prior
    if isinstance(asked, rr.priors.DiffusionPrior):
        found += [asked.noise(asked.values(records[:2]), 3), asked.denoise(records[:2], 0.1)]
        found += [asked.draw_in_steps(2, rng(), steps=3), draw_clean(asked, records[:2], 5, steps=2, rng=rng())]
        found.append(rr.priors.denoising_loss(asked, records[:2], rng=rng(), times=(3, 5)))
    return found


@pytest.mark.parametrize("build", [gaussian, denoiser, generator, diffusion, gan])
def test_what_a_prior_says_is_where_the_records_are_and_the_same_as_on_the_cpu(build, tmp_path):
    records = torch.rand(80, *SHAPE, generator=rng(1))
    torch.manual_seed(0)
    (tmp_path / "here").mkdir()
    expected = seen(build(records, tmp_path / "here"), records)
    torch.manual_seed(0)
    with TwoDevices():
        there = records.to(ELSEWHERE)
        found = seen(build(there, tmp_path), there)
        assert all(each.device == ELSEWHERE for each in found)
        brought = [each.detach().cpu() for each in found]
    for one, other in zip(expected, brought, strict=True):
        assert torch.allclose(one, other, rtol=ROUNDING, atol=ROUNDING * float(one.detach().abs().max()))


def test_the_other_device_is_one():
    with TwoDevices():
        there = torch.ones(2).to(ELSEWHERE)
        assert there.device == torch.zeros(2, device=ELSEWHERE).device == ELSEWHERE
        assert (there + 1).device == ELSEWHERE
        assert float((there + there)[torch.tensor([0])].sum()) == 2
        assert torch.equal(there.cpu(), torch.ones(2))
        with pytest.raises(RuntimeError, match="two devices meet"):
            there + torch.zeros(2)
        with pytest.raises(RuntimeError, match="two devices meet"):
            torch.zeros(2)[there.long()]
        with pytest.raises(RuntimeError, match="generator of the CPU"):
            torch.randn(2, generator=rng(), device=ELSEWHERE)
        with pytest.raises(RuntimeError, match="generator of the CPU"):
            there.normal_(generator=rng())
        with pytest.raises(RuntimeError, match="numpy"):
            there.numpy()


@pytest.mark.parametrize("kind", ["gan", "diffusion"])
def test_training_is_where_the_records_are(tmp_path, kind):
    if kind == "diffusion":
        pytest.importorskip("diffusers", reason="needs the extra diffusion")
        train, settings = rr.priors.train_diffusion, rr.priors.DiffusionTraining(channels=(8,), steps=2, batch_size=4)
    else:
        train, settings = rr.priors.train_gan, rr.priors.GanTraining(8, 4, 2, 4)
    records = torch.rand(8, *SHAPE, generator=rng(1))
    expected = getattr(rr.priors, kind)(train(records, tmp_path / "here", settings)).draw(2, rng())
    with TwoDevices():
        folder = train(records.to(ELSEWHERE), tmp_path / "there", settings)
    found = getattr(rr.priors, kind)(folder).draw(2, rng())
    close = 100 * ROUNDING * float(expected.abs().max())  # the first steps of Adam follow signs, also of tiny slopes
    assert torch.allclose(found, expected, atol=close)


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(tmp_path, device):
    with pytest.raises(InvalidInput, match=f"device='{device}' to be a device of this machine"):
        rr.priors.gan(write_gan(tmp_path / "gan"), device=device)
