"""riess2025's attack end to end: plant, release, clip, noise, observe, attack, and the law of its error."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy, interpolate

import reconrisk as rr
from reconrisk.attacks import (
    average_observations,
    james_stein,
    known_norm,
    known_scale,
    least_squares,
    neurons_for_clipping,
    optimal_analytic,
)
from reconrisk.bounds.analytic_inversion import ChiSquareLaw, neurons_needed
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.papers import Reference
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import MALICIOUS_SERVER, Controls, Knows, Sees, ThreatModel

WIDE = (-1e6, 1e6)  # the law is for estimates that are not cut to a range
LABEL = torch.tensor([0])


def attacked(attack, planted, targets, defense, *, seed=0, data_range=WIDE, threat=None):
    """One release and one attack for each target, with errors and the last reconstruction."""
    rng, errors = torch.Generator().manual_seed(seed), []
    for target in targets:
        release = rr.releases.GradientRelease(planted.module, planted.loss_fn, target[None], LABEL)
        observation = rr.observe(
            release, defense=defense, threat=threat or attack.needs, data_range=data_range, rng=rng
        )
        reconstruction = attack(observation, rng=rng)
        errors.append(float((reconstruction.estimates[0] - target).square().mean()))
    return np.array(errors), reconstruction


def two_by_two(count):
    """Bundled digits in the paper's form: four grey values of norm 1.01."""
    digits = rr.load_dataset("mnist", split="test").inputs[:count].double()
    small = interpolate(digits, size=(2, 2), mode="area")
    return 1.01 * small / small.flatten(1).norm(dim=1)[:, None, None, None]


@pytest.mark.parametrize("noise", [0.1, 10.0])
def test_the_error_follows_the_chi_square_law_in_the_papers_setting(noise):
    targets, attack = two_by_two(200), optimal_analytic(neurons=1)
    defense = rr.defenses.clip_and_noise(noise_multiplier=noise, clip_norm=1.0)
    errors, reconstruction = attacked(attack, attack.plant((1, 2, 2)), targets, defense)
    law = rr.bounds.analytic_inversion_law(Gaussian(noise), dimension=4, norm=1.01)
    assert stats.kstest(errors, law.cdf).pvalue > 0.01
    assert reconstruction.status.ending is Ending.CONVERGED
    assert "clipping does not bind" not in reconstruction.status.cause


def test_records_of_their_own_norms_follow_their_own_laws_once_clipping_binds():
    targets = rr.load_dataset("mnist", split="test").inputs[:100]
    norms = targets.flatten(1).norm(dim=1)
    clip, noise = 12.0, 0.3
    attack = optimal_analytic(neurons=neurons_for_clipping(clip, smallest_norm=float(norms.min())))
    assert attack.neurons > 1
    defense = rr.defenses.clip_and_noise(noise_multiplier=noise, clip_norm=clip)
    errors, _ = attacked(attack, attack.plant((1, 28, 28)), targets, defense)
    laws = [rr.bounds.analytic_inversion_law(Gaussian(noise), dimension=784, norm=float(norm)) for norm in norms]
    levels = [float(law.cdf(error)) for law, error in zip(laws, errors, strict=True)]
    assert stats.kstest(levels, "uniform").pvalue > 0.01


def test_too_few_neurons_cost_accuracy_and_the_status_says_so():
    targets, attack, clip, noise = two_by_two(200), optimal_analytic(neurons=3), 5.0, 0.1
    assert attack.neurons < neurons_for_clipping(clip, smallest_norm=1.01)
    defense = rr.defenses.clip_and_noise(noise_multiplier=noise, clip_norm=clip)
    errors, reconstruction = attacked(attack, attack.plant((1, 2, 2)), targets, defense)
    law = ChiSquareLaw("too few neurons", Reference("equation 15", "riess2025"), 4, (noise * clip) ** 2 / 3)
    assert law.variance > 5 * (noise * 1.01) ** 2
    assert stats.kstest(errors, law.cdf).pvalue > 0.01
    assert "clipping does not bind" in reconstruction.status.cause
    assert "neurons_for_clipping" in reconstruction.status.remedy


def test_riess2025_figure_2_caption_has_clipping_the_wrong_way_round():
    # "When M < (C/|X|)^2 gradient clipping is triggered": the gradient has norm sqrt(M)|x| < C, and stays as it is.
    target, clip = two_by_two(1), 5.0
    for neurons in (1, 24, 25, 100):
        planted = optimal_analytic(neurons=neurons).plant((1, 2, 2))
        gradient = rr.releases.GradientRelease(planted.module, planted.loss_fn, target, LABEL).value()
        clipped = rr.defenses.clip_and_noise(noise_multiplier=1.0, clip_norm=clip).replay(gradient)
        triggered = not torch.equal(clipped["planted.weight"], gradient["planted.weight"])
        assert triggered == (neurons >= (clip / 1.01) ** 2)


@pytest.mark.parametrize("clip", [0.2, 1.0, 5.0])
def test_riess2025_mu_is_one_over_the_noise_multiplier(clip):
    # Section II-B has mu = sensitivity/sigma beside noise of deviation sigma times sensitivity. The likelihood ratio
    # test between a release with and one without the record is the attack that mu describes.
    noise, prior = 0.8, 0.3
    power = stats.norm.sf(stats.norm.isf(prior, scale=noise * clip), loc=clip, scale=noise * clip)
    assert power == pytest.approx(stats.norm.cdf(stats.norm.ppf(prior) + 1 / noise))
    assert rr.success_upper_bound(Gaussian(noise, clip), prior_success=prior).value == pytest.approx(power, abs=1e-9)
    printed = stats.norm.cdf(stats.norm.ppf(prior) + clip / noise)
    assert clip == 1.0 or abs(printed - power) > 0.05


def test_averages_of_matched_updates_have_a_fraction_of_the_variance():
    targets, noise, updates = two_by_two(120), 0.5, 4
    attack = optimal_analytic()
    threat = ThreatModel(Sees.EVERY_UPDATE, attack.needs.knows, attack.needs.controls)
    defense = rr.defenses.clip_and_noise(noise_multiplier=noise, clip_norm=1.0)
    planted, rng, errors = attack.plant((1, 2, 2)), torch.Generator().manual_seed(3), []
    for target in targets:
        release = rr.releases.GradientRelease(planted.module, planted.loss_fn, target[None], LABEL)
        seen = [rr.observe(release, defense=defense, threat=threat, data_range=WIDE, rng=rng) for _ in range(updates)]
        estimate = attack(average_observations(seen), rng=rng).estimates[0]
        errors.append(float((estimate - target).square().mean()))
    law = rr.bounds.analytic_inversion_law(Gaussian(noise), dimension=4, norm=1.01, observations=updates)
    assert stats.kstest(errors, law.cdf).pvalue > 0.01


def beside():
    """A model of its own, whose gradient norm is about that of the record and hardly depends on it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()


def test_beside_a_model_the_replayed_clip_factor_keeps_the_estimate_unbiased_where_the_norm_alone_does_not():
    targets, noise, model = two_by_two(120), 0.02, beside()
    attack = optimal_analytic()
    planted = attack.plant((1, 2, 2), model=model)
    threat = attack.needs.with_knowledge(Knows.LABELS)
    defense = rr.defenses.clip_and_noise(noise_multiplier=noise, clip_norm=1.0)
    errors, _ = attacked(attack, planted, targets, defense, threat=threat)
    wholes = []
    for target in targets:
        gradient = rr.releases.GradientRelease(planted.module, planted.loss_fn, target[None], LABEL).value()
        wholes.append(float(torch.cat([value.flatten() for value in gradient.values()]).norm()))
    wholes = np.array(wholes)
    assert wholes.min() > 1.2  # so the model takes a share
    # The factor is replayed at an estimate that is off by 2 %: the law holds up to second order in the noise.
    assert stats.kstest(4 * errors / (noise * wholes) ** 2, stats.chi2(4).cdf).pvalue > 0.01
    printed = optimal_analytic(estimate=known_scale(), scales=1 / 1.01)  # riess2025: the norm of the record alone
    biased, _ = attacked(printed, planted, targets, defense, threat=threat)
    bias = ((1.01 / wholes - 1) * 1.01) ** 2 / 4
    assert biased.mean() == pytest.approx((bias + (noise * 1.01) ** 2).mean(), rel=0.05)
    assert biased.mean() > 5 * errors.mean()
    directed, _ = attacked(optimal_analytic(estimate=known_norm()), planted, targets, defense, threat=threat)
    # the direction at the known norm has no noise along the record: 3 of 4 parts, with no scale at all
    assert directed.mean() == pytest.approx(
        0.75 * (noise * wholes).mean() ** 2, rel=5 * math.sqrt(2 / 3 / len(targets))
    )


@given(seed=st.integers(0, 1000), neurons=st.integers(1, 20), features=st.integers(1, 30), clip=st.floats(0.01, 100.0))
def test_without_noise_the_record_is_exact_whether_clipping_binds_or_not(seed, neurons, features, clip):
    target = torch.rand(1, features, generator=torch.Generator().manual_seed(seed)) + 0.01
    target = target.clamp_max(1.0)
    attack = optimal_analytic(neurons=neurons)
    planted = attack.plant((features,))
    release = rr.releases.GradientRelease(planted.module, planted.loss_fn, target, LABEL)
    clipping = rr.defenses.clip_and_noise(noise_multiplier=1e-12, clip_norm=clip)
    observation = rr.observe(release, defense=clipping, threat=attack.needs, rng=torch.Generator())
    torch.testing.assert_close(attack(observation, rng=torch.Generator()).estimates, target, rtol=0, atol=1e-5)
    bare = rr.observe(release, threat=attack.needs)
    exact = attack(bare, rng=torch.Generator())
    torch.testing.assert_close(exact.estimates, target, rtol=0, atol=1e-5)
    assert exact.status.ending is Ending.EXACT
    direction = optimal_analytic(neurons=neurons, estimate=known_norm())
    torch.testing.assert_close(direction(observation, rng=torch.Generator()).estimates, target, rtol=0, atol=1e-5)


@given(neurons=st.integers(1, 10), seed=st.integers(0, 100))
def test_every_row_of_the_gradient_is_the_record(neurons, seed):
    target = torch.randn(1, 2, 3, generator=torch.Generator().manual_seed(seed))
    for model in (None, nn.Sequential(nn.Flatten(), nn.Linear(6, 4))):
        planted = optimal_analytic(neurons=neurons).plant((2, 3), model=model)
        rows = rr.releases.GradientRelease(planted.module, planted.loss_fn, target, LABEL).value()["planted.weight"]
        assert torch.equal(rows, target.flatten().expand(neurons, 6))


def test_the_users_model_is_trained_as_before():
    model, inputs, labels = nn.Sequential(nn.Flatten(), nn.Linear(6, 4)), torch.rand(5, 2, 3), torch.arange(5) % 4
    state = torch.get_rng_state()
    planted = optimal_analytic(neurons=3).plant((2, 3), model=model)
    assert torch.equal(state, torch.get_rng_state())
    alone = rr.releases.GradientRelease(model, cross_entropy, inputs, labels).value()
    together = rr.releases.GradientRelease(planted.module, planted.loss_fn, inputs, labels).value()
    for name, value in alone.items():
        torch.testing.assert_close(together[f"model.{name}"], value)
    torch.testing.assert_close(together["planted.weight"], inputs.flatten(1).mean(0).expand(3, 6))


def test_a_public_range_and_shrinkage_beat_the_papers_estimate():
    targets, noise = two_by_two(100), 1.0
    defense = rr.defenses.clip_and_noise(noise_multiplier=noise, clip_norm=1.0)
    plain = optimal_analytic()
    planted = plain.plant((1, 2, 2))
    law, _ = attacked(plain, planted, targets, defense)
    cut, reconstruction = attacked(plain, planted, targets, defense, data_range=(0.0, 1.01))
    shrunk, _ = attacked(optimal_analytic(estimate=james_stein()), planted, targets, defense)
    assert bool((cut <= law + 1e-9).all())  # projection onto a box that holds the target
    assert reconstruction.estimates.min() >= 0
    assert cut.mean() < 0.5 * law.mean()
    assert shrunk.mean() < law.mean()


@given(clip=st.floats(1e-3, 1e3), norm=st.floats(1e-2, 1e3))
def test_the_number_of_neurons_is_the_one_of_the_bound(clip, norm):
    neurons = neurons_for_clipping(clip, smallest_norm=norm)
    assert neurons == neurons_needed(clip, norm=norm)
    assert math.sqrt(neurons) * norm >= clip * (1 - 1e-12)
    assert neurons == 1 or math.sqrt(neurons - 1) * norm < clip * (1 + 1e-12)


def test_the_server_must_plant_and_know():
    attack = optimal_analytic(neurons=2)
    assert attack.needs.knows == {Knows.DEFENSE, Knows.RECORD_NORM}
    assert attack.needs.controls == frozenset(Controls)
    assert optimal_analytic(estimate=known_scale(), scales=1.0).needs == MALICIOUS_SERVER
    assert repr(attack) == "OptimalAnalytic(neurons=2, estimate=KnownScale(), scales=None)"
    planted = attack.plant((3,))
    release = rr.releases.GradientRelease(planted.module, planted.loss_fn, torch.ones(1, 3), LABEL)
    with pytest.raises(InvalidInput, match="to cover what the attack needs"):
        attack(rr.observe(release), rng=torch.Generator())
    with pytest.raises(InvalidInput, match=r"linear layer of 5 neurons on 3 features.*plant"):
        optimal_analytic(neurons=5)(rr.observe(release, threat=attack.needs), rng=torch.Generator())
    other = optimal_analytic(neurons=2, estimate=least_squares())
    with pytest.raises(InvalidInput, match=r"'planted.weight' has none"):
        other(rr.observe(release, threat=attack.needs), rng=torch.Generator())
    batch = rr.releases.GradientRelease(planted.module, planted.loss_fn, torch.ones(2, 3), torch.tensor([0, 0]))
    with pytest.raises(InvalidInput, match="batch_size=2 to be 1"):
        attack(rr.observe(batch, threat=attack.needs), rng=torch.Generator())


def test_bad_settings_are_refused():
    for make, message in (
        (lambda: optimal_analytic(neurons=0), "neurons=0 >= 1"),
        (lambda: optimal_analytic(scales=2.0, estimate=known_norm()), "scales=2.0 to be None"),
        (lambda: optimal_analytic().plant(()), "input_shape with at least one element"),
        (lambda: neurons_for_clipping(1.0, smallest_norm=0.0), "smallest_norm=0.0 > 0"),
        (lambda: neurons_for_clipping(math.inf, smallest_norm=1.0), "clip_norm=inf to be finite"),
    ):
        with pytest.raises(InvalidInput, match=message):
            make()


def test_a_record_of_zeros_releases_nothing():
    attack = optimal_analytic()
    planted = attack.plant((3,))
    release = rr.releases.GradientRelease(planted.module, planted.loss_fn, torch.zeros(1, 3), LABEL)
    result = attack(rr.observe(release, threat=attack.needs), rng=torch.Generator())
    assert result.status.ending is Ending.NOT_APPLICABLE
