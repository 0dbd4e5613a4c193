"""The noise of a finished DP-SGD run, written here step by step, is found in its iterates."""

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.studies.verify_mechanism.result import Verdict

INPUTS = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (20,), generator=torch.Generator().manual_seed(1))
RATE, CLIP, SIGMA = 0.2, 0.3, 1.5


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 3))


def run(noise=1.0, *, steps=12, sampling=1.0, divisor=20.0, dtype=torch.float32, reuse=False):
    """Return the iterates and the records of each step; gradients by autograd, one record after the other."""
    model, rng = small_model(), torch.Generator().manual_seed(2)
    names = [name for name, _ in model.named_parameters()]
    iterates, participation, drawn = [], [], None
    for _ in range(steps + 1):
        iterates.append({name: value.detach().clone().to(dtype) for name, value in model.named_parameters()})
        taken = torch.rand(20, generator=rng) < sampling
        participation.append(taken)
        total = [torch.zeros_like(value) for value in model.parameters()]
        for record, label in zip(INPUTS[taken], LABELS[taken], strict=True):
            loss = nn.functional.cross_entropy(model(record[None]), label[None])
            gradient = torch.autograd.grad(loss, list(model.parameters()))
            norm = torch.cat([part.flatten() for part in gradient]).norm()
            total = [value + part * (CLIP / norm).clamp(max=1) for value, part in zip(total, gradient, strict=True)]
        if drawn is None or not reuse:
            drawn = [torch.randn(value.shape, generator=rng) for value in total]
        with torch.no_grad():
            for value, part, each in zip(model.parameters(), total, drawn, strict=True):
                value -= RATE / divisor * (part + noise * SIGMA * CLIP * each)
    assert list(iterates[0]) == names
    return iterates, torch.stack(participation[:-1])


def verify(iterates, data=(INPUTS, LABELS), **settings):
    given = {key: settings.pop(key) for key in ("releases", "stopping") if key in settings}
    claim = rr.attacks.DpSgdSettings(
        **{"learning_rate": RATE, "clip_norm": CLIP, "noise_multiplier": SIGMA, **settings}
    )
    rng = torch.Generator().manual_seed(0)
    return rr.verify_mechanism(iterates, data, claimed=claim, model=small_model(), **given, rng=rng)


def test_an_honest_run_is_consistent_after_all_of_its_steps():
    found = verify(run()[0])
    assert found.verdict is Verdict.CONSISTENT, found.reason
    assert found.releases == found.requested == 12
    assert found.claimed == rr.mechanisms.dp_sgd(noise_multiplier=SIGMA, clip_norm=CLIP, steps=12)
    assert found.epsilon_shape_free is None
    assert found.noise_ratio_high < 1 / 0.9
    assert "fit the described" in found.reason


def test_sampled_records_are_taken_from_the_participation():
    iterates, participation = run(sampling=0.4, divisor=8.0)
    settings = {"sampling_probability": 0.4, "batch_size": 8.0}
    found = verify(iterates, participation=participation, **settings)
    assert found.verdict is Verdict.CONSISTENT, found.reason
    assert found.epsilon_within_family < found.epsilon_claimed < verify(run()[0]).epsilon_claimed
    with pytest.raises(InvalidInput, match="participation"):
        verify(iterates, **settings)
    with pytest.raises(InvalidInput, match="batch_size"):
        verify(iterates, participation=participation, sampling_probability=0.4)


@pytest.mark.parametrize("stopping", ["anytime", "fixed"])
def test_missing_noise_is_contradicted(stopping):
    found = verify(run(0.7)[0], stopping=stopping, releases=12)
    assert found.is_contradicted
    assert found.releases == (12 if stopping == "fixed" else 1)
    assert found.noise_ratio_high < 1


def test_noise_that_is_used_again_is_contradicted():
    assert verify(run(reuse=True)[0]).is_contradicted


def test_a_wrong_description_is_not_called_consistent():
    found = verify(run()[0], clip_norm=0.1)
    assert found.verdict is Verdict.NOT_ENOUGH
    assert "description" in found.reason
    assert found.releases_needed is None
    assert found.exit_code == 4


def test_one_step_is_not_enough():
    found = verify(run(steps=1)[0])
    assert found.verdict is Verdict.NOT_ENOUGH
    assert found.releases_needed > 1
    assert "more" in found.sentence


def test_iterates_of_low_precision_are_refused():
    with pytest.raises(InvalidInput, match="rounding"):
        verify(run(dtype=torch.bfloat16)[0])


def test_incomplete_descriptions_are_refused():
    iterates, rng = run(steps=1)[0], torch.Generator()
    with pytest.raises(InvalidInput, match="DpSgdSettings"):
        rr.verify_mechanism(iterates, (INPUTS, LABELS), model=small_model(), rng=rng)
    claim = rr.attacks.DpSgdSettings(learning_rate=RATE, clip_norm=CLIP, noise_multiplier=SIGMA)
    with pytest.raises(InvalidInput, match="trained model"):
        rr.verify_mechanism(iterates, (INPUTS, LABELS), claimed=claim, rng=rng)
    with pytest.raises(InvalidInput, match="to be a mechanism"):
        rr.verify_mechanism(rr.defenses.clip(1.0), claimed=claim, rng=rng)
    with pytest.raises(InvalidInput, match="len\\(labels\\)"):
        verify(iterates, (INPUTS, LABELS[:3]))
