import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.matching.distances import Cosine, GaussianLikelihood, SquaredError
from reconrisk.attacks.matching.loop import Objective, WeightedPenalty
from reconrisk.attacks.matching.regularizers import GroupConsistency, L2Norm, TotalVariation
from reconrisk.attacks.matching.variables import Values
from reconrisk.core.observation import Observation
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows

LABELS = torch.tensor([0, 2])
RANGE = (-1.0, 3.0)


class RowNorm(nn.Module):
    """Layer norm inside a network: what torch vectorises wrongly if autograd is outside."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 12), nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, inputs):
        return self.last(torch.tanh(self.norm(self.first(inputs.flatten(1)))))


class ByHand(nn.Module):
    """A layer that reads the values of its tensor in Python, which torch cannot vectorise."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(16, 3)

    def forward(self, inputs):
        return self.last(inputs.flatten(1) * (2.0 if float(inputs.detach().sum()) > 0 else 1.0))


def convolutional(norm=nn.Identity):
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm(4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))


MODELS = {
    "convolution": convolutional,
    "layer norm": RowNorm,
    "group norm": lambda: convolutional(lambda channels: nn.GroupNorm(2, channels)),
    "batch norm, eval": lambda: convolutional(nn.BatchNorm2d).eval(),
    "batch norm, train": lambda: convolutional(nn.BatchNorm2d).train(),
    "not vectorised": ByHand,
}


def observed(model, **settings):
    rng = torch.Generator().manual_seed(1)
    records = RANGE[0] + (RANGE[1] - RANGE[0]) * torch.rand(2, 1, 4, 4, generator=rng)
    release = rr.releases.GradientRelease(model, nn.functional.cross_entropy, records, LABELS)
    return rr.observe(release, data_range=RANGE, rng=rng, **settings)


@pytest.fixture(autouse=True)
def _the_same_networks():
    torch.manual_seed(0)


@pytest.fixture(params=MODELS)
def observation(request):
    return observed(MODELS[request.param]())


def objective_of(observation, distance=None, regularizers=()):
    distance = SquaredError() if distance is None else distance
    return Objective.build(
        observation, distance, regularizers, Values(), lambda v: LABELS.expand(len(v["inputs"]), len(LABELS))
    )


def candidates(restarts, seed=2):
    return {"inputs": torch.rand(restarts, 2, 1, 4, 4, generator=torch.Generator().manual_seed(seed))}


def at_scale(objective, scale=0.7):
    """The same unit of distance for objectives that are compared."""
    objective._scale = scale
    return objective


@pytest.mark.parametrize("distance", [SquaredError(), Cosine()], ids=repr)
def test_restarts_at_once_are_evaluated_as_one_by_one(observation, distance):
    places = candidates(3)
    objective = at_scale(objective_of(observation, distance, (TotalVariation(0.1),)))
    first, again = objective(places), objective(places)  # the second is by the way that was chosen
    for row in range(3):
        alone = at_scale(objective_of(observation, distance, (TotalVariation(0.1),)))(
            {"inputs": places["inputs"][row : row + 1]}
        )
        for point in (first, again):
            torch.testing.assert_close(point.values[row], alone.values[0], rtol=1e-5, atol=1e-6)
            expected = alone.gradients["inputs"][0]
            close = 1e-5 * float(expected.abs().max())  # a hundred units of single precision
            torch.testing.assert_close(point.gradients["inputs"][row], expected, rtol=1e-5, atol=close)


def test_the_gradient_is_the_slope_of_the_objective(observation):
    """Central differences in double precision, along random directions, for the way that serves several restarts."""
    torch.set_default_dtype(torch.float64)
    try:
        objective = at_scale(objective_of(observation, Cosine(), (L2Norm(0.1), TotalVariation(0.1))))
        places = {"inputs": candidates(2)["inputs"].double()}
        objective(places)
        point = objective(places)
        direction = torch.randn(places["inputs"].shape, generator=torch.Generator().manual_seed(3))
        ends = [objective({"inputs": places["inputs"] + size * direction}).values for size in (1e-5, -1e-5)]
        slope = (point.gradients["inputs"] * direction).flatten(1).sum(1)
        torch.testing.assert_close((ends[0] - ends[1]) / 2e-5, slope, rtol=1e-5, atol=1e-7)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("name", "expected"), [("convolution", True), ("group norm", True), ("not vectorised", False)])
def test_what_torch_can_vectorise_is_vectorised(name, expected):
    objective = objective_of(observed(MODELS[name]()))
    objective(candidates(3))
    assert objective._vectorised is expected


def test_a_vectorised_gradient_that_disagrees_is_not_used():
    class Wrong(Objective):
        def _together(self, variables):
            point = super()._together(variables)
            point.gradients["inputs"].mul_(1.001)  # as far off as layer norm in torch 2.13
            return point

    observation = observed(convolutional())
    right, wrong = objective_of(observation), objective_of(observation)
    wrong.__class__ = Wrong
    for _ in range(2):
        expected, found = right(candidates(3)), wrong(candidates(3))
    torch.testing.assert_close(found.gradients["inputs"], expected.gradients["inputs"], rtol=1e-5, atol=1e-6)


def test_in_train_mode_each_restart_has_the_statistics_of_its_own_batch():
    model = convolutional(nn.BatchNorm2d).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    objective = objective_of(observed(model))
    together = objective(candidates(3)).values
    changed = candidates(3)
    changed["inputs"][1:] = 1 - changed["inputs"][1:]
    torch.testing.assert_close(objective(changed).values[0], together[0])
    assert not torch.allclose(objective(changed).values[1:], together[1:])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_distance_is_one_in_the_mean_over_the_starts():
    objective = objective_of(observed(convolutional()), Cosine())
    assert float(objective(candidates(5)).values.mean()) == pytest.approx(1.0, rel=1e-5)
    assert float(objective(candidates(5, seed=9)).values.mean()) != pytest.approx(1.0, rel=1e-3)


def test_candidates_outside_of_the_range_are_brought_back_before_they_are_judged():
    objective = at_scale(objective_of(observed(convolutional())))
    far, near = candidates(1), candidates(1)
    far["inputs"][..., 0, 0], near["inputs"][..., 0, 0] = 7.0, 1.0
    point = objective(far)
    assert float(point.variables["inputs"].max()) == 1.0
    torch.testing.assert_close(point.values, objective(near).values)
    assert float(objective.inputs(point.variables).max()) == RANGE[1]


def test_every_restart_counts_as_an_evaluation():
    objective = objective_of(observed(convolutional()))
    for _ in range(4):
        objective(candidates(3))
    assert objective.evaluations == 12


def test_weights_fade_evenly_on_a_logarithmic_scale_and_scores_are_those_of_the_end():
    assert [WeightedPenalty(1.0, 0.01, abs).weight(share) for share in (0, 0.5, 1)] == pytest.approx([1, 0.1, 0.01])
    assert [WeightedPenalty(1.0, 0.0, abs).weight(share) for share in (0, 0.25, 1)] == pytest.approx([1, 0.75, 0])
    observation = observed(convolutional())
    objective = at_scale(objective_of(observation, regularizers=(L2Norm(2.0, final_share=0.25),)))
    plain = at_scale(objective_of(observation))
    for share, weight in ((0.0, 2.0), (0.5, 1.0), (1.0, 0.5)):
        objective.progress = share
        point = objective(candidates(2))
        penalty = (candidates(2)["inputs"] - 0.5).square().flatten(1).mean(1)
        distance = plain(candidates(2)).values
        torch.testing.assert_close(point.values, distance + weight * penalty)
        torch.testing.assert_close(point.scores, distance + 0.5 * penalty)


def test_known_noise_replaces_the_distance_by_the_likelihood_of_the_clipped_release():
    model = convolutional()
    defense = rr.defenses.clip_and_noise(noise_multiplier=0.1, clip_norm=0.5)
    known = observed(model, defense=defense, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE))
    found = float(objective_of(known, Cosine())(candidates(1)).values)
    inputs = Values().decode(candidates(1)["inputs"][0], known)
    gradient = rr.releases.GradientMap(model)(inputs, LABELS)
    size = torch.cat([value.flatten() for value in gradient.values()]).norm()
    assert float(size) > 0.5  # else nothing is clipped
    residual = sum((0.5 * gradient[name] / size - sent).square().sum() for name, sent in known.released.items())
    assert found == pytest.approx(float(residual) / 0.05**2 / (2 * 32), rel=1e-4)  # 2 records of 16 values


def test_beside_a_likelihood_penalties_have_their_prior_weights_and_those_of_weight_zero_are_off():
    defense = rr.defenses.gaussian_noise(0.1)
    known = observed(convolutional(), defense=defense, threat=HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE))
    parts = (L2Norm(0.1, prior_weight=3.0), TotalVariation(0.0), GroupConsistency(0.1))
    objective = objective_of(known, SquaredError(), parts)
    assert isinstance(objective.distance, GaussianLikelihood)
    assert [part.weight(share) for part in objective.penalties for share in (0, 1)] == [3.0, 3.0]
    assert objective(candidates(2)).values.mean() != pytest.approx(1.0, rel=0.1)


def test_values_that_were_not_sent_do_not_count():
    def forward(inputs, labels):
        return {"y": inputs.flatten()}

    sent = torch.tensor([1.0, 0.0, 2.0, 0.0])
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.DEFENSE)
    seen = Observation({"y": sent}, forward, threat, (4,), (0.0, 4.0), kept={"y": sent != 0})
    objective = at_scale(
        Objective.build(seen, SquaredError(), (), Values(), lambda v: torch.zeros(len(v["inputs"]), 1))
    )
    point = objective({"inputs": torch.tensor([[[0.25, 0.9, 0.75, 0.3]]])})  # decoded 1, 3.6, 3, 1.2
    assert float(point.values) == pytest.approx(1 / 5 / 0.7, rel=1e-6)
    assert point.gradients["inputs"][0, 0, 1].item() == point.gradients["inputs"][0, 0, 3].item() == 0
