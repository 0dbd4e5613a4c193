import math

import pytest
import torch

from reconrisk.core.errors import InvalidInput
from reconrisk.releases.release import directions_rng, noise_stds, standard_normal_weights, whiten_by_noise

RELEASED = {"weight": torch.zeros(3, 2), "bias": torch.zeros(2, dtype=torch.float64)}


def test_a_scalar_a_mapping_and_full_tensors_say_the_same():
    values = {"weight": torch.rand(3, 2), "bias": torch.rand(2, dtype=torch.float64)}
    expected = {name: tensor / 0.3 for name, tensor in values.items()}
    full = {name: torch.full_like(tensor, 0.3) for name, tensor in values.items()}
    for noise_std in (0.3, {"weight": 0.3, "bias": torch.tensor(0.3)}, full):
        for name, tensor in whiten_by_noise(values, noise_std).items():
            torch.testing.assert_close(tensor, expected[name])
            assert tensor.dtype == values[name].dtype


def test_no_noise_given_leaves_everything_as_it_is():
    values = {"weight": torch.rand(3, 2)}
    assert torch.equal(whiten_by_noise(values, None)["weight"], values["weight"])
    assert torch.equal(whiten_by_noise(values, 1.0)["weight"], values["weight"])


def test_what_is_not_released_gets_no_weight():
    mask = torch.tensor([1.0, torch.inf])
    drawn = standard_normal_weights(RELEASED, {"weight": math.inf, "bias": mask}, torch.Generator().manual_seed(0))
    assert not drawn["weight"].any()
    assert drawn["bias"][0] != 0
    assert drawn["bias"][1] == 0


def test_the_draws_have_the_inverse_covariance_of_the_noise():
    noise = {"value": torch.tensor([0.5, 2.0, torch.inf])}
    rng = torch.Generator().manual_seed(0)
    draws = torch.stack(
        [standard_normal_weights({"value": torch.zeros(3)}, noise, rng)["value"] for _ in range(20_000)]
    )
    variance = draws.square().mean(0)  # relative standard error sqrt(2/20000) = .01; five of them
    torch.testing.assert_close(variance, torch.tensor([4.0, 0.25, 0.0]), rtol=0.05, atol=0)


def test_draws_depend_on_the_generator_alone():
    one, two = (standard_normal_weights(RELEASED, 0.5, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one["weight"], two["weight"])


@pytest.mark.parametrize(
    ("noise_std", "message"),
    [
        (0.0, r"min\(noise_std\)=0.0 > 0\. Pass None for the Jacobian without noise"),
        (-1.0, r"min\(noise_std\)=-1.0 > 0"),
        (math.nan, "noise_std=nan to be a number, not NaN"),
        (True, "noise_std=True to be a number"),
        ("1", "noise_std='1' to be a number"),
        ({"weight": 1.0}, r"without a value: \['bias'\]"),
        ({"weight": 1.0, "bias": 1.0, "head": 1.0}, r"not released: \['head'\]. Use inf"),
        ({"weight": torch.ones(2, 3), "bias": 1.0}, r"noise_std\['weight'\]\.shape=\(2, 3\) to be \(3, 2\)"),
        ({"weight": 1.0, "bias": torch.tensor([1.0, 0.0])}, r"min\(noise_std\['bias'\]\)=0.0 > 0"),
        ({"weight": 1.0, "bias": torch.tensor([1.0, math.nan])}, "1 of 2 values are not"),
        (1e-60, r"min\(noise_std\)=1e-60 to be representable in torch.float32\. Pass inputs.double"),
        (1e60, r"min\(noise_std\)=1e\+60 to be representable"),
    ],
)
def test_noise_outside_its_domain_is_refused(noise_std, message):
    with pytest.raises(InvalidInput, match=message):
        noise_stds(RELEASED, noise_std)


def test_without_a_generator_directions_are_the_same_each_time():
    one, two = (torch.rand(2, generator=directions_rng(None)) for _ in range(2))
    assert torch.equal(one, two)
    given = torch.Generator()
    assert directions_rng(given) is given
    with pytest.raises(InvalidInput, match=r"rng=3 to be a torch\.Generator"):
        directions_rng(3)
