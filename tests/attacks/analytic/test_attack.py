import importlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import reconrisk as rr
from reconrisk.attacks import (
    analytic,
    james_stein,
    known_norm,
    known_scale,
    least_squares,
    posterior_mean,
    ratio,
    total_least_squares,
)
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, Sees, ThreatModel
from reconrisk.releases import GradientMap

WITH_BIAS = [None, least_squares(), ratio(), total_least_squares()]
EVERY_KNOWLEDGE = HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE, Knows.RECORD_NORM, Knows.PRIOR, Knows.LABELS)


def observe(model, inputs, labels):
    forward = GradientMap(model)
    released = {name: value.detach() for name, value in forward(inputs, labels).items()}
    return Observation(
        released, forward, HONEST_BUT_CURIOUS, tuple(inputs.shape[1:]), (0.0, 1.0), batch_size=len(inputs)
    )


def network(features, hidden, seed, *, bias=True):
    rng = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(features, hidden, bias=bias), nn.Tanh(), nn.Linear(hidden, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    return model.double(), torch.rand(1, features, generator=rng).double(), torch.tensor([seed % 3])


@pytest.mark.parametrize("estimate", WITH_BIAS, ids=repr)
@given(seed=st.integers(0, 10_000), features=st.integers(1, 50), hidden=st.integers(2, 30))
def test_a_record_is_rebuilt_exactly_from_any_network_that_begins_with_a_linear_layer(estimate, seed, features, hidden):
    model, target, label = network(features, hidden, seed)
    result = analytic(estimate=estimate)(observe(model, target, label), rng=torch.Generator())
    # tanh may saturate: the layer's gradient is then tiny, but its ratio keeps double precision
    torch.testing.assert_close(result.estimates, target.float(), rtol=0, atol=1e-5)
    assert result.status.ending is Ending.EXACT
    assert result.account.objective[0] < 1e-5


@pytest.mark.parametrize("estimate", [known_scale(), james_stein(), posterior_mean(mean=0.1, std=0.2)], ids=repr)
@given(seed=st.integers(0, 10_000), features=st.integers(1, 50), hidden=st.integers(2, 30))
def test_with_scales_from_the_known_release_it_is_exact_too(estimate, seed, features, hidden):
    model, target, label = network(features, hidden, seed)
    observation = rr.observe(rr.releases.GradientRelease(model, cross_entropy, target, label), threat=EVERY_KNOWLEDGE)
    result = analytic(estimate=estimate)(observation, rng=torch.Generator())
    torch.testing.assert_close(result.estimates, target.float(), rtol=0, atol=1e-5)
    assert result.status.ending is Ending.EXACT
    assert result.account.cost.evaluations == 1


@given(seed=st.integers(0, 10_000), features=st.integers(1, 50), hidden=st.integers(1, 30))
def test_a_layer_without_bias_gives_the_direction_and_the_norm_the_rest(seed, features, hidden):
    model, target, label = network(features, hidden, seed, bias=False)
    release = rr.releases.GradientRelease(model, cross_entropy, target, label)
    observation = rr.observe(release, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.RECORD_NORM))
    result = analytic()(observation, rng=torch.Generator())
    torch.testing.assert_close(result.estimates, target.float(), rtol=0, atol=1e-5)
    assert "KnownNorm" in result.account.attack


@given(factor=st.floats(1e-6, 1e6), seed=st.integers(0, 100))
def test_a_factor_that_clipping_leaves_changes_nothing(factor, seed):
    model, target, label = network(6, 4, seed)
    observation = observe(model, target, label)
    scaled = replace(observation, released={name: factor * value for name, value in observation.released.items()})
    for estimate in WITH_BIAS:
        result = analytic(estimate=estimate)(scaled, rng=torch.Generator())
        torch.testing.assert_close(result.estimates, target.float(), rtol=0, atol=1e-5)
        assert result.status.ending is Ending.EXACT


def test_an_estimate_is_not_called_exact_under_noise_that_nobody_knows_of():
    model, target, label = network(6, 4, 0)
    observation = observe(model, target, label)
    rng = torch.Generator().manual_seed(0)
    size = sum(float(value.square().sum()) for value in observation.released.values()) ** 0.5
    sent = {
        name: value + 1e-4 * size * torch.randn(value.shape, generator=rng, dtype=value.dtype)
        for name, value in observation.released.items()
    }
    result = analytic()(replace(observation, released=sent), rng=torch.Generator())
    assert float((result.estimates - target).abs().max()) > 1e-5
    assert result.status.ending is Ending.CONVERGED


def test_several_local_steps_on_the_one_record_are_inverted():
    model, target, label = network(9, 5, 0)
    release = rr.releases.LocalUpdateRelease(model, cross_entropy, target, label, learning_rate=0.1, steps=7)
    result = analytic()(rr.observe(release), rng=torch.Generator())
    torch.testing.assert_close(result.estimates, target.float(), rtol=0, atol=1e-5)
    assert result.status.ending is Ending.EXACT


def test_values_that_were_not_sent_are_left_out():
    model, target, label = network(40, 30, 1)
    release = rr.releases.GradientRelease(model, cross_entropy, target, label)
    defense = rr.defenses.prune(0.95)
    unaware, aware = (
        rr.observe(release, defense=defense, threat=threat, rng=torch.Generator())
        for threat in (HONEST_BUT_CURIOUS, HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE))
    )
    held = aware.kept["0.weight"].any(0)
    assert 10 < int(held.sum()) < 40
    for estimate in (least_squares(), total_least_squares()):
        found = analytic(estimate=estimate)(aware, rng=torch.Generator()).estimates[0]
        torch.testing.assert_close(found[held], target[0, held].float(), rtol=0, atol=1e-5)
        assert not bool(found[~held].any())
    off = analytic(estimate=least_squares())(unaware, rng=torch.Generator()).estimates[0]
    assert float((off - target[0])[held].abs().max()) > 1e-2


def test_what_is_chosen_follows_what_is_known():
    model, target, label = network(4, 5, 2)
    release = rr.releases.GradientRelease(model, cross_entropy, target, label)
    defense, rng = rr.defenses.gaussian_noise(0.01), torch.Generator().manual_seed(0)

    def chosen(threat, defense):
        return analytic()(rr.observe(release, defense=defense, threat=threat, rng=rng), rng=rng).account.attack

    curious = HONEST_BUT_CURIOUS
    assert chosen(curious, defense) == "Analytic(estimate=LeastSquares(), scales=None)"
    assert "TotalLeastSquares" in chosen(curious.with_knowledge(Knows.DEFENSE), defense)
    assert "KnownNorm" in chosen(curious.with_knowledge(Knows.DEFENSE, Knows.RECORD_NORM), defense)
    assert "LeastSquares" in chosen(curious.with_knowledge(Knows.RECORD_NORM), None)


def test_each_estimate_declares_what_it_needs():
    assert analytic().needs == HONEST_BUT_CURIOUS
    assert analytic(estimate=ratio()).needs == HONEST_BUT_CURIOUS
    assert analytic(estimate=known_norm()).needs.knows == {Knows.RECORD_NORM}
    assert analytic(estimate=known_scale()).needs.knows == {Knows.DEFENSE}
    assert analytic(estimate=known_scale(), scales=1.0).needs.knows == frozenset()
    assert analytic(estimate=james_stein(), scales=1.0).needs.knows == {Knows.DEFENSE}
    assert analytic(estimate=posterior_mean(mean=0.0, std=1.0)).needs.knows == {Knows.DEFENSE, Knows.PRIOR}
    observation = observe(nn.Linear(3, 2), torch.ones(1, 3), torch.tensor([0]))
    for estimate in (known_norm(), known_scale(), james_stein(), posterior_mean(mean=0.0, std=1.0)):
        with pytest.raises(InvalidInput, match="to cover what the attack needs"):
            analytic(estimate=estimate)(observation, rng=torch.Generator())


def test_a_dead_layer_is_reported_not_guessed_at():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.constant_(model[0].weight, -1.0)
    nn.init.constant_(model[0].bias, -1.0)
    release = rr.releases.GradientRelease(model, cross_entropy, torch.ones(1, 3), torch.tensor([0]))
    for estimate in (*WITH_BIAS, known_norm(), known_scale()):
        observation = rr.observe(release, threat=EVERY_KNOWLEDGE)
        result = analytic(estimate=estimate)(observation, rng=torch.Generator())
        assert result.status.ending is Ending.NOT_APPLICABLE
        assert result.estimates.tolist() == [[0.5, 0.5, 0.5]]


def test_batches_and_networks_without_such_a_layer_are_refused():
    model = nn.Linear(3, 2)
    with pytest.raises(InvalidInput, match="batch_size=2 to be 1"):
        analytic()(observe(model, torch.ones(2, 3), torch.tensor([0, 1])), rng=torch.Generator())
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    with pytest.raises(InvalidInput, match="linear layer with bias on 9 features"):
        analytic()(observe(convolution, torch.ones(1, 1, 3, 3), torch.tensor([0])), rng=torch.Generator())
    with pytest.raises(InvalidInput, match=r"with bias on 3 features, 'weight' has none. Use estimate=known_norm"):
        analytic()(observe(nn.Linear(3, 2, bias=False), torch.ones(1, 3), torch.tensor([0])), rng=torch.Generator())


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(InvalidInput, match="estimate='ratio' to be an estimate"):
        analytic(estimate="ratio")
    with pytest.raises(InvalidInput, match=r"scales=1.0 to be None for estimate=Ratio"):
        analytic(estimate=ratio(), scales=1.0)
    observation = observe(nn.Linear(3, 2), torch.ones(1, 3), torch.tensor([0]))
    for scales, message in (((1.0,), "one for each of 2 neurons"), (0.0, "to have a nonzero entry")):
        with pytest.raises(InvalidInput, match=message):
            analytic(estimate=known_scale(), scales=scales)(observation, rng=torch.Generator())


def test_without_norm_or_bias_the_scales_must_be_stated():
    release = rr.releases.GradientRelease(
        nn.Linear(3, 2, bias=False), cross_entropy, torch.ones(1, 3), torch.tensor([0])
    )
    observation = rr.observe(release, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE))
    with pytest.raises(InvalidInput, match="record_norms=None to be known for a layer without bias"):
        analytic(estimate=known_scale())(observation, rng=torch.Generator())


def noisy(observation, scale):
    rng = torch.Generator().manual_seed(0)
    released = {
        name: value + scale * torch.randn(value.shape, generator=rng) for name, value in observation.released.items()
    }
    return replace(observation, released=released)


def test_noise_is_reported_leaves_a_residual_and_the_estimate_in_range():
    model = nn.Linear(20, 8)
    result = analytic()(noisy(observe(model, torch.rand(1, 20), torch.tensor([0])), 1.0), rng=torch.Generator())
    assert result.status.ending is Ending.CONVERGED
    assert "noisy neurons" in result.status.cause
    assert result.account.objective[0] > 1e-3
    assert result.estimates.aminmax().min >= 0
    assert result.estimates.aminmax().max <= 1


def test_noise_too_small_to_see_is_not_called_exact_where_it_is_known():
    model, target, label = network(5, 4, 3)
    release = rr.releases.GradientRelease(model, cross_entropy, target, label)
    threat, rng = HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE), torch.Generator().manual_seed(0)
    observation = rr.observe(release, defense=rr.defenses.gaussian_noise(1e-9), threat=threat, rng=rng)
    assert analytic()(observation, rng=rng).status.ending is Ending.CONVERGED


@pytest.mark.parametrize("scale", [0.0, 0.1])
def test_a_layer_of_the_right_width_that_reads_features_is_not_attacked(scale):
    model = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(16, 4))
    observation = noisy(observe(model, torch.rand(1, 1, 4, 4), torch.tensor([2])), scale)
    result = analytic()(observation, rng=torch.Generator())
    assert result.status.ending is Ending.NOT_APPLICABLE
    assert "does not read the record" in result.status.cause
    assert bool((result.estimates == 0.5).all())


def test_the_layer_that_reads_the_record_is_found_behind_one_of_the_same_width():
    class Sideways(nn.Module):
        def __init__(self):
            super().__init__()
            self.later, self.first = nn.Linear(4, 3), nn.Linear(4, 4)

        def forward(self, inputs):
            return self.later(self.first(inputs).tanh())

    target = torch.rand(1, 4)
    result = analytic()(observe(Sideways(), target, torch.tensor([1])), rng=torch.Generator())
    torch.testing.assert_close(result.estimates, target, rtol=0, atol=1e-5)
    assert "'first.weight'" in result.status.cause


def test_the_probe_leaves_batch_norm_and_random_numbers_alone():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4))
    model.add_module("norm", nn.BatchNorm1d(4, affine=False, momentum=0.5).eval())
    observation = observe(model, torch.ones(1, 3), torch.tensor([0]))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    analytic()(observation, rng=torch.Generator())
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model[0]._forward_pre_hooks


def without_model(record, factor=1.0, square=False):
    """The release of one layer as a bare function, in names of its own; squared, the layer reads something else."""

    def forward(inputs, labels):
        read = inputs.flatten(1)[0]
        read = read.square() if square else read
        scales = torch.tensor([1.0, -2.0], dtype=inputs.dtype) * (1 + inputs.sum())
        return {"w": scales[:, None] * read, "b": scales}

    released = {name: factor * value for name, value in forward(record, None).items()}
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)
    return Observation(released, forward, threat, (3,), (0.0, 1.0), labels=torch.tensor([0]))


def test_without_a_model_exactness_is_confirmed_by_the_release():
    record = torch.tensor([[0.2, 0.4, 0.9]])
    for factor in (1.0, 0.25):
        result = analytic()(without_model(record, factor), rng=torch.Generator())
        torch.testing.assert_close(result.estimates, record, rtol=0, atol=1e-6)
        assert result.status.ending is Ending.EXACT
        assert result.account.cost.evaluations == 1
        assert f"factor {factor:g}" in result.status.cause
    result = analytic()(without_model(record, square=True), rng=torch.Generator())
    assert result.status.ending is Ending.NOT_APPLICABLE
    assert "release of the estimate differs by" in result.status.cause


def test_without_a_model_and_labels_exactness_stays_open(monkeypatch):
    def not_inferred(observation):
        raise InvalidInput("Expected known labels.")

    monkeypatch.setattr(importlib.import_module("reconrisk.attacks.analytic.attack"), "labels_for", not_inferred)
    observation = without_model(torch.tensor([[0.2, 0.4, 0.9]]))
    result = analytic()(observation, rng=torch.Generator())
    torch.testing.assert_close(result.estimates, torch.tensor([[0.2, 0.4, 0.9]]), rtol=0, atol=1e-6)
    assert result.status.ending is Ending.CONVERGED
    assert "without labels the release cannot be checked" in result.status.cause


def test_an_adversary_without_an_update_cannot_run_it():
    observation = observe(nn.Linear(3, 2), torch.ones(1, 3), torch.tensor([0]))
    with pytest.raises(InvalidInput, match="to cover what the attack needs"):
        analytic()(replace(observation, threat=ThreatModel(Sees.FINAL_MODEL)), rng=torch.Generator())


def test_a_record_beyond_the_stated_range_is_not_called_exact():
    model, target, label = network(6, 5, 0)
    result = analytic()(observe(model, target + 2, label), rng=torch.Generator())
    assert result.status.ending is Ending.CONVERGED
    assert "clipped to (0.0, 1.0)" in result.status.cause
    assert "data_range" in result.status.remedy


def test_a_record_of_which_values_were_not_sent_is_not_called_exact():
    model, target, label = network(6, 5, 0)
    seen = replace(observe(model, target, label), threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE))
    kept = {name: torch.ones_like(value, dtype=torch.bool) for name, value in seen.released.items()}
    kept["0.weight"][:, 2] = False
    released = {name: value * kept[name] for name, value in seen.released.items()}
    result = analytic()(replace(seen, released=released, kept=kept), rng=torch.Generator())
    assert result.status.ending is Ending.CONVERGED
    assert "which lack 1 values of the record" in result.status.cause
