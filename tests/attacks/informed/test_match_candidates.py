"""Identification under DP-SGD: measured success against closed forms and the certified bound."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.datasets import load_digits
from torch import nn

import reconrisk as rr
from reconrisk.attacks.informed.match_candidates import (
    DpSgdSettings,
    clipped_gradients,
    log_likelihood_ratios,
    most_likely_candidate,
)
from reconrisk.core.errors import InvalidInput
from reconrisk.statistics.intervals import clopper_pearson


def success(contributions, noise_std, trials, *, rate=1.0, seed=0, prior=None):
    """How often the attack names the candidate that was drawn, over noisy sums with nobody else."""
    rng = torch.Generator().manual_seed(seed)
    steps, count, size = contributions.shape
    weights = torch.ones(count) if prior is None else prior
    hits = 0
    for _ in range(trials):
        chosen = int(torch.multinomial(weights, 1, generator=rng))
        entered = (torch.rand(steps, 1, generator=rng) < rate).double()
        seen = entered * contributions[:, chosen] + noise_std * torch.randn(steps, size, generator=rng).double()
        ratios = log_likelihood_ratios(seen, contributions, noise_std=noise_std, sampling_probability=rate)
        hits += most_likely_candidate(ratios, torch.eye(count), prior=prior)[0] == chosen
    return clopper_pearson(hits, trials, 0.999)


@pytest.mark.parametrize(("count", "noise", "steps"), [(2, 1.0, 1), (10, 0.5, 1), (50, 1.0, 9)])
def test_orthogonal_candidates_are_named_as_often_as_the_closed_form_says(count, noise, steps):
    contributions = torch.eye(count).double().expand(steps, count, count)
    measured = success(contributions, noise, 2000)
    # the own product is N(mu, 1) against count - 1 independent N(0, 1), mu = sqrt(steps) / noise
    mu = math.sqrt(steps) / noise
    exact = quad(lambda z: norm.pdf(z - mu) * norm.cdf(z) ** (count - 1), mu - 12, mu + 12)[0]
    assert measured.low <= exact <= measured.high
    bound = rr.success_upper_bound(rr.mechanisms.dp_sgd(noise_multiplier=noise, steps=steps), prior_success=1 / count)
    assert exact <= bound.value
    assert not bound.is_contradicted_by(measured)


@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_two_opposite_candidates_meet_the_bound(noise):
    """The tight case at prior 1/2: telling g from -g is a test between normals whose means are 2 mu apart."""
    contributions = torch.tensor([[[1.0], [-1.0]]]).double()
    measured = success(contributions, noise, 2500)
    bound = rr.success_upper_bound(rr.mechanisms.dp_sgd(noise_multiplier=noise), prior_success=0.5)
    assert bound.value == pytest.approx(norm.cdf(1 / noise), rel=1e-6)
    assert measured.low <= bound.value <= measured.high


def test_sampling_stays_below_the_certified_bound_and_above_the_prior():
    contributions = torch.tensor([[[1.0], [-1.0]]]).double().expand(30, 2, 1)
    measured = success(contributions, 0.5, 2000, rate=0.1)
    run = rr.mechanisms.dp_sgd(noise_multiplier=0.5, sampling_probability=0.1, steps=30)
    bound = rr.success_upper_bound(run, prior_success=0.5)
    assert not bound.is_contradicted_by(measured)
    assert measured.low > 0.5
    # ignoring the sampling is a worse attack than knowing it
    plain = torch.Generator().manual_seed(0)
    hits = [0, 0]
    for _ in range(1500):
        chosen = int(torch.randint(2, (1,), generator=plain))
        entered = (torch.rand(30, 1, generator=plain) < 0.1).double()
        seen = entered * contributions[:, chosen] + 0.5 * torch.randn(30, 1, generator=plain).double()
        for kind, rate in enumerate((0.1, 1.0)):
            ratios = log_likelihood_ratios(seen, contributions, noise_std=0.5, sampling_probability=rate)
            hits[kind] += int(ratios.argmax()) == chosen
    assert hits[0] > hits[1]


def test_ratios_are_those_of_the_densities():
    rng = np.random.default_rng(0)
    seen, gradients = rng.standard_normal((3, 4)), rng.standard_normal((3, 5, 4))
    found = log_likelihood_ratios(
        torch.as_tensor(seen), torch.as_tensor(gradients), noise_std=0.7, sampling_probability=0.3
    )
    without = norm.pdf(seen, scale=0.7).prod(1)
    entered = norm.pdf(seen[:, None], loc=gradients, scale=0.7).prod(2)
    expected = np.log((0.7 * without[:, None] + 0.3 * entered) / without[:, None]).sum(0)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)


def test_the_prior_decides_where_the_release_does_not():
    ratios, candidates = torch.zeros(3), torch.eye(3)
    index, posterior, _ = most_likely_candidate(ratios, candidates, prior=torch.tensor([1.0, 5.0, 2.0]))
    assert index == 1
    torch.testing.assert_close(posterior, torch.tensor([0.125, 0.625, 0.25]).double())


def test_a_radius_prefers_a_crowd_to_the_likeliest_single_candidate():
    candidates = torch.tensor([[0.0], [10.0], [10.5], [11.0]])
    ratios = torch.tensor([1.0, 0.5, 0.4, 0.5])
    assert most_likely_candidate(ratios, candidates)[0] == 0
    index, posterior, masses = most_likely_candidate(ratios, candidates, mse=0.25)
    assert index == 2
    assert float(masses[2]) == pytest.approx(float(posterior[1:].sum()))


def digits(count):
    features, labels = load_digits(return_X_y=True)
    return torch.as_tensor(features[:count] / 16, dtype=torch.float32), torch.as_tensor(labels[:count])


def trained(inputs, labels, *, steps, noise, clip_norm, rate, rng):
    """A run of full-batch DP-SGD by plain torch, one record after the other."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    trajectory = [{name: value.detach().clone() for name, value in model.named_parameters()}]
    for _ in range(steps):
        total = [torch.zeros_like(value) for value in model.parameters()]
        for record, label in zip(inputs, labels, strict=True):
            loss = nn.functional.cross_entropy(model(record[None]), label[None])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            size = torch.sqrt(sum(value.square().sum() for value in gradients))
            for place, value in zip(total, gradients, strict=True):
                place += value * (clip_norm / size).clamp(max=1.0)
        for value, gradient in zip(model.parameters(), total, strict=True):
            noisy = gradient + noise * clip_norm * torch.randn(gradient.shape, generator=rng)
            value.data -= rate * noisy / len(inputs)
        trajectory.append({name: value.detach().clone() for name, value in model.named_parameters()})
    return model, trajectory


@pytest.mark.parametrize(("noise", "least"), [(0.05, 1.0), (4.0, 0.0)])
def test_a_training_run_gives_its_record_away_as_far_as_the_bound_allows(noise, least):
    inputs, labels = digits(18)
    rng = torch.Generator().manual_seed(0)
    known, candidates = slice(0, 10), slice(10, 18)
    steps, hits, trials = 4, 0, 24
    for trial in range(trials):
        chosen = trial % 8
        rows = [*range(10), 10 + chosen]
        model, trajectory = trained(
            inputs[rows], labels[rows], steps=steps, noise=noise, clip_norm=1.0, rate=0.5, rng=rng
        )
        found = rr.attacks.match_candidates(
            model,
            nn.functional.cross_entropy,
            trajectory,
            inputs[candidates],
            labels[candidates],
            known_inputs=inputs[known],
            known_labels=labels[known],
            settings=rr.attacks.DpSgdSettings(learning_rate=0.5, clip_norm=1.0, noise_multiplier=noise),
        )
        hits += found.index == chosen
    measured = clopper_pearson(hits, trials, 0.999)
    bound = rr.success_upper_bound(rr.mechanisms.dp_sgd(noise_multiplier=noise, steps=steps), prior_success=1 / 8)
    assert not bound.is_contradicted_by(measured)
    assert measured.value >= least
    assert found.posterior.sum() == pytest.approx(1.0)
    assert found.estimate.shape == (64,)


def test_clipped_gradients_are_those_of_autograd():
    inputs, labels = digits(5)
    model = nn.Sequential(nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 10))
    point = dict(model.named_parameters())
    found = clipped_gradients(model, nn.functional.cross_entropy, point, inputs, labels, 0.8)
    for row, record, label in zip(found, inputs, labels, strict=True):
        loss = nn.functional.cross_entropy(model(record[None]), label[None])
        plain = torch.cat([value.flatten() for value in torch.autograd.grad(loss, list(model.parameters()))]).double()
        torch.testing.assert_close(row, plain * min(1.0, 0.8 / float(plain.norm())), rtol=1e-4, atol=1e-6)


def test_bad_input_is_refused_in_words():
    inputs, labels = digits(4)
    model = nn.Linear(64, 10)
    state = dict(model.named_parameters())
    settings = rr.attacks.DpSgdSettings(learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.0)
    run = {"known_inputs": inputs[:2], "known_labels": labels[:2], "settings": settings}
    loss = nn.functional.cross_entropy
    with pytest.raises(InvalidInput, match=r"len\(trajectory\)=1 >= 2"):
        rr.attacks.match_candidates(model, loss, [state], inputs[2:], labels[2:], **run)
    with pytest.raises(InvalidInput, match=r"to contain bias\. Pass every parameter of the model"):
        rr.attacks.match_candidates(model, loss, [state, {"weight": model.weight}], inputs[2:], labels[2:], **run)
    sampled = {**run, "settings": replace(settings, sampling_probability=0.5)}
    with pytest.raises(InvalidInput, match="participation=None to be given under sampling"):
        rr.attacks.match_candidates(model, loss, [state, state], inputs[2:], labels[2:], **sampled)
    with pytest.raises(InvalidInput, match=r"len\(candidate_labels\)=1 to be 2"):
        rr.attacks.match_candidates(model, loss, [state, state], inputs[2:], labels[3:], **run)
    with pytest.raises(InvalidInput, match=r"candidates\.shape=\(2, 3\) to end in \(64,\)"):
        rr.attacks.match_candidates(model, loss, [state, state], inputs[2:, :3], labels[2:], **run)
    with pytest.raises(InvalidInput, match="Expected prior to be 2 numbers >= 0, not all 0"):
        most_likely_candidate(torch.zeros(2), torch.eye(2), prior=torch.zeros(2))
    with pytest.raises(InvalidInput, match=r"noise_std=0\.0 > 0"):
        log_likelihood_ratios(torch.zeros(1, 1), torch.zeros(1, 1, 1), noise_std=0.0)


def digit_run(noise=0.5, steps=2, **change):
    """The arguments for a run on ten known digits and the first of two candidates, as it was or with a change."""
    inputs, labels = digits(12)
    rng = torch.Generator().manual_seed(0)
    model, trajectory = trained(inputs[:11], labels[:11], steps=steps, noise=noise, clip_norm=1.0, rate=0.5, rng=rng)
    run = {
        "model": model,
        "loss_fn": nn.functional.cross_entropy,
        "trajectory": trajectory,
        "candidates": inputs[10:],
        "candidate_labels": labels[10:],
        "known_inputs": inputs[:10],
        "known_labels": labels[:10],
    }
    settings = {"learning_rate": 0.5, "clip_norm": 1.0, "noise_multiplier": noise}
    settings |= {name: change[name] for name in change if name in DpSgdSettings.__dataclass_fields__}
    run |= {name: change[name] for name in change if name not in settings}
    return {**run, "settings": DpSgdSettings(**settings)}


def test_a_run_as_stated_is_almost_never_said_to_be_another():
    for noise in (1e-8, 0.05, 3.0):  # at the least, rounding of float32 is more than the noise
        found = rr.attacks.match_candidates(**digit_run(noise))
        assert found.status.ending.value == "converged"


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 0.25},
        {"noise_multiplier": 0.05},
        {"batch_size": 22},
        {"known_inputs": digits(12)[0][1:11]},
        {"candidates": 1 - digits(12)[0][10:], "noise_multiplier": 0.01},
    ],
)
def test_a_run_that_no_candidate_explains_is_not_applicable(change):
    noise = 0.01 if "candidates" in change or "known_inputs" in change else 0.5
    found = rr.attacks.match_candidates(**digit_run(noise, **change))
    assert found.status.ending.value == "not applicable"
    assert "no candidate fits the run" in found.status.cause
    assert "Check known records" in found.status.remedy
    assert found.mass == 0


def test_under_sampling_a_step_without_the_target_is_explained_too():
    """Eight steps of which the target enters half, among known records who all enter, with little noise."""
    rng = torch.Generator().manual_seed(0)
    model, loss = nn.Linear(3, 1, bias=False), nn.functional.mse_loss
    known, answers = torch.rand(4, 3, generator=rng), torch.rand(4, 1, generator=rng)
    candidates, wanted = torch.rand(2, 3, generator=rng), torch.ones(2, 1)
    point, trajectory = {"weight": torch.zeros(1, 3)}, [{"weight": torch.zeros(1, 3)}]
    for step in range(8):
        some = torch.cat([known, candidates[:1]])[: 5 - step % 2], torch.cat([answers, wanted[:1]])[: 5 - step % 2]
        total = clipped_gradients(model, loss, point, *some, 1.0).sum(0)
        noisy = total + 0.01 * torch.randn(3, generator=rng)
        point = {"weight": point["weight"] - 0.1 / 3 * noisy.float()[None]}
        trajectory.append(point)
    settings = DpSgdSettings(0.1, 1.0, 0.01, batch_size=3, participation=torch.ones(8, 4))
    run = model, loss, trajectory, candidates, wanted
    others = {"known_inputs": known, "known_labels": answers}
    found = rr.attacks.match_candidates(*run, **others, settings=replace(settings, sampling_probability=0.5))
    assert found.index == 0
    assert found.status.ending.value == "converged"
    always = rr.attacks.match_candidates(*run, **others, settings=settings)  # never left out
    assert always.status.ending.value == "not applicable"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"known_inputs": digits(10)[0] * torch.nan}, "known_inputs to be finite"),
        ({"candidates": digits(12)[0][10:] * torch.nan}, "candidates to be finite"),
        ({"known_labels": digits(9)[1]}, r"len\(known_labels\)=9 to be 10, the number of known_inputs"),
        (
            {"candidate_labels": torch.tensor([0, 10])},
            r"candidate_labels\[1\]=10 to be a class from 0 to 9",
        ),
        ({"known_labels": digits(10)[1] - 1}, r"known_labels\[0\]=-1 to be a class from 0 to 9"),
        (
            {"sampling_probability": 0.2, "participation": torch.ones(2, 10)},
            "batch_size=None to be given under sampling",
        ),
    ],
)
def test_what_cannot_be_a_run_is_refused(change, message):
    with pytest.raises(InvalidInput, match=message):
        rr.attacks.match_candidates(**digit_run(**change))
