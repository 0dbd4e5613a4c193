"""Generators as priors: units, draws, and what is refused."""

import pytest
import torch

from reconrisk.core.errors import InvalidInput
from reconrisk.priors.generator import generator


def test_records_are_in_the_range_of_the_data():
    prior = generator(lambda latents: latents.tanh(), (3,), 3, data_range=(0.0, 255.0))
    latents = torch.tensor([[-50.0, 0.0, 50.0]])
    assert prior.decode(latents).tolist() == [[0.0, 127.5, 255.0]]
    assert prior.scaled_to((2.0, 3.0)).decode(latents).tolist() == [[2.0, 2.5, 3.0]]


def test_draws_are_of_standard_normal_values():
    prior = generator(lambda latents: latents, (2,), 2, data_range=(-1.0, 1.0))
    drawn = prior.draw(20_000, torch.Generator().manual_seed(0))
    assert bool((drawn.mean(0).abs() < 5 / 20_000**0.5).all())
    assert bool(((drawn.var(0) - 1).abs() < 5 * (2 / 20_000) ** 0.5).all())


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda latents: latents[:, :1], r"to be records of shape \(2, 3\)\. It is of shape \(2, 1\)"),
        (lambda latents: latents * float("nan"), r" to be finite\. Check its weights"),
        (lambda latents: "text", "It is a str"),
    ],
)
def test_what_is_no_record_is_refused_by_the_name_of_the_prior(made, words):
    with pytest.raises(InvalidInput, match=f"Expected the output of odd.*({words})"):
        generator(made, (3,), 3, name="odd").decode(torch.zeros(2, 3))


def test_latent_values_of_another_size_are_refused():
    with pytest.raises(InvalidInput, match=r"to be \(records, 3\)"):
        generator(lambda latents: latents, (3,), 3).decode(torch.zeros(2, 4))


def test_records_of_another_shape_are_refused():
    with pytest.raises(InvalidInput, match=r"reconrisk train-prior"):
        generator(lambda latents: latents, (3,), 3).check_fits((4,), (0.0, 1.0))
