"""One row per kind of prior: what every prior promises, whoever made it."""

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.priors.load.gan import new_generator, save_generator
from reconrisk.testing import BrokenContract, check_prior

SHAPE = (1, 4, 4)


def of_diffusers(folder):
    pytest.importorskip("diffusers", reason="needs the extra diffusion")
    settings = rr.priors.DiffusionTraining(channels=(8,), steps=2, batch_size=4)
    records = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0))
    return rr.priors.diffusion(rr.priors.train_diffusion(records, folder, settings))


def of_a_gan(folder):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = new_generator(SHAPE, 3, 4)
    save_generator(network, folder, shape=SHAPE, latent=3, channels=4)
    return rr.priors.gan(folder)


PRIORS = {
    "gaussian": lambda folder: rr.priors.gaussian(torch.full(SHAPE, 0.5), 0.01 * torch.eye(16)),
    "denoiser": lambda folder: rr.priors.denoiser(lambda noisy, times: 0.9 * noisy, SHAPE),
    "diffusion": of_diffusers,
    "generator": lambda folder: rr.priors.generator(lambda z: z.tanh().view(-1, *SHAPE), SHAPE, 16),
    "gan": of_a_gan,
}


class Doubtful(nn.Module):
    """A network that is no number anywhere, or has a layer that knows a mode of training."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, values, times=None):
        return self.layer(values)


@pytest.fixture(params=PRIORS)
def prior(request, tmp_path):
    return PRIORS[request.param](tmp_path / "prior")


def drawn(prior, seed=0):
    return prior.draw(5, torch.Generator().manual_seed(seed))


def test_it_keeps_the_rules_for_priors(prior, request):
    if request.node.callspec.params["prior"] != "diffusion":
        assert set(check_prior(prior).skipped) <= {"states_its_mean"}  # which a normal law alone knows
        return
    with pytest.raises(BrokenContract) as refused:
        check_prior(prior)
    assert set(refused.value.failures) == {"draws_in_the_units_of_its_range"}  # which two steps of training do not make


def test_records_of_another_shape_or_range_are_refused(prior):
    with pytest.raises(rr.InvalidInput, match=r"prior\.shape"):
        prior.check_fits((1, 4, 5), (0.0, 1.0))
    with pytest.raises(rr.InvalidInput, match="scaled_to"):
        prior.check_fits(SHAPE, (0.0, 255.0))


def test_what_it_achieves_alone_is_within_the_range(prior):
    threat = rr.attacks.prior_alone(prior).needs
    seen = rr.Observation({"y": torch.ones(1)}, lambda inputs, labels: {}, threat, SHAPE, (0.0, 1.0), 2)
    for guess in ("mean", "draw"):
        found = rr.attacks.prior_alone(prior, guess=guess, draws=4, steps=5)(seen, rng=torch.Generator())
        assert found.estimates.shape == (2, *SHAPE)
        assert 0 <= float(found.estimates.min()) <= float(found.estimates.max()) <= 1


def make(kind, network):
    if kind == "denoiser":
        return rr.priors.denoiser(network, SHAPE)
    return rr.priors.generator(nn.Sequential(nn.Unflatten(1, SHAPE), network), SHAPE, 16)


@pytest.mark.parametrize("kind", ["denoiser", "generator"])
@pytest.mark.parametrize("layer", [nn.BatchNorm2d(1), nn.Dropout(0.5)])
def test_networks_in_the_mode_of_training_are_refused(kind, layer):
    network = Doubtful(layer)
    with pytest.raises(rr.InvalidInput, match=r"Call \.eval\(\) on it"):
        make(kind, network.train())
    assert drawn(make(kind, network.eval())).shape == (5, *SHAPE)


@pytest.mark.parametrize("kind", ["denoiser", "generator"])
def test_what_is_no_number_is_refused_by_name(kind):
    class Broken(nn.Module):
        def forward(self, values, times=None):
            return values * float("nan")

    with pytest.raises(rr.InvalidInput, match=f"{kind}.*to be finite"):
        drawn(make(kind, Broken()))


@pytest.mark.parametrize("kind", ["denoiser", "generator"])
@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float64])
def test_networks_of_another_precision_are_refused_and_functions_may_convert(kind, precision):
    network = Doubtful(nn.Conv2d(1, 1, 1)).to(precision)
    with pytest.raises(
        rr.InvalidInput, match=r"single precision, some are (b?float16|float64)\. Pass network\.float\(\)"
    ):
        make(kind, network)
    if kind == "denoiser":
        prior = rr.priors.denoiser(lambda noisy, times: network(noisy.to(precision)).to(noisy), SHAPE)
        assert drawn(prior).shape == (5, *SHAPE)
