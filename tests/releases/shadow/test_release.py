"""Models of private training as releases."""

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.mechanism import Gaussian, Repeated

INPUTS, LABELS = torch.rand(9, 4, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 2


def training(**changes):
    torch.manual_seed(0)
    given = {"optimizer": rr.releases.sgd(0.2), "steps": 3, "private": Gaussian(2.0, 0.5), **changes}
    return rr.releases.ShadowTraining(nn.Linear(4, 2), INPUTS[1:], LABELS[1:], **given)


def release(**changes):
    return rr.releases.PrivateModelRelease(training(**changes), INPUTS[:1], LABELS[:1])


def test_the_model_follows_from_the_seed_and_differs_without():
    first = release()
    again, other = release(), first.redraw(torch.Generator().manual_seed(5))
    assert torch.equal(first.value()["weight"], again.value()["weight"])
    assert not torch.equal(first.value()["weight"], other.value()["weight"])
    assert torch.equal(other.value()["weight"], first.redraw(torch.Generator().manual_seed(5)).value()["weight"])


def test_the_map_has_the_clipping_and_not_the_noise():
    plain = release(private=Gaussian(1e-12, 0.5)).value()
    replayed = release().forward(INPUTS[:1], LABELS[:1])
    for name, value in plain.items():
        assert torch.allclose(replayed[name], value, atol=1e-6)  # float32, of values below 1
    assert {name: value.shape for name, value in release().template().items()} == {
        name: value.shape for name, value in plain.items()
    }


def test_the_noise_has_the_size_that_the_mechanism_states():
    quiet = release().forward(INPUTS[:1], LABELS[:1])["weight"]
    one = release(steps=1)
    start = one.forward(INPUTS[:1], LABELS[:1])["weight"]
    draws = torch.stack([one.redraw(torch.Generator().manual_seed(seed)).value()["weight"] for seed in range(300)])
    # 300 models of 8 values: the standard deviation is known to 1 / sqrt(2 * 2400) = 1.4 %, five of which are allowed
    expected = 0.2 * 2.0 * 0.5 / 9
    assert float((draws - start).std()) == pytest.approx(expected, rel=0.07)
    assert quiet.shape == start.shape


@pytest.mark.parametrize(
    ("change", "steps"), [({}, 3), ({"steps": 7}, 7), ({"steps": None, "batches": [[0, 8], [1, 2], [3, 8]]}, 3)]
)
def test_the_mechanism_counts_every_step(change, steps):
    assert release(**change).mechanism == Repeated(Gaussian(2.0, 0.5), steps)


def test_a_batch_with_the_record_twice_is_refused():
    with pytest.raises(rr.InvalidInput, match=r"batches\[1\]=.*to hold the record once, not 2 times"):
        release(steps=None, batches=[[0, 8], [8, 1, 8]])


def test_plain_training_is_refused_and_there_is_no_derivative():
    with pytest.raises(rr.InvalidInput, match=r"Use rr\.releases\.TrainedModelRelease for training without noise"):
        release(private=None)
    with pytest.raises(rr.InvalidInput, match="has no derivative"):
        release().linearize()
