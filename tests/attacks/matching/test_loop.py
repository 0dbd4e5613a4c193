import dataclasses
import itertools
import math
import types

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.matching import loop as matching
from reconrisk.attacks.matching.distances import SquaredError
from reconrisk.attacks.matching.loop import GradientMatching
from reconrisk.attacks.matching.optimizers import LBFGS, Adam
from reconrisk.attacks.matching.regularizers import L2Norm
from reconrisk.attacks.matching.variables import NormalStart
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, MALICIOUS_SERVER, Knows
from reconrisk.data import load_dataset

KNOWN = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)
TARGET = torch.tensor([0.2, 0.9, 0.5, 0.35])


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def toy(forward, target=TARGET):
    """What ``forward`` makes of a flat record; the label plays no part."""
    released = {"y": forward(target)}
    return Observation(
        released,
        lambda inputs, labels: {"y": forward(inputs[0])},
        KNOWN,
        tuple(target.shape),
        (0.0, 1.0),
        labels=torch.tensor([0]),
    )


def matrix_times(values):
    return torch.tensor([[2.0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 3], [0, 1, 1, 0], [1, 1, 1, 1]]) @ values


@dataclasses.dataclass(frozen=True)
class StartAt:
    """Stated candidates, one row per restart."""

    rows: tuple

    def __call__(self, observation, restarts, rng):
        return torch.tensor(self.rows).view(restarts, observation.batch_size, *observation.input_shape)


def attack(**settings):
    given = {"name": "test", "distance": SquaredError(), "update": LBFGS(), "steps": 60, **settings}
    return GradientMatching(**given)


def decibels(found, images):
    return -10 * math.log10(float((found.estimates - images).square().mean()))


def test_a_linear_release_is_inverted():
    found = attack(tolerance=1e-12)(toy(matrix_times), rng=generator())
    torch.testing.assert_close(found.estimates[0], TARGET, rtol=0, atol=1e-4)
    assert found.status.ending is Ending.CONVERGED
    assert found.account.objective[0] <= 1e-12


@pytest.mark.parametrize("update", [LBFGS(), Adam(0.1, schedule="constant")], ids=["lbfgs", "adam"])
def test_a_restart_that_is_not_a_number_never_wins(update):
    """Records whose first value exceeds 0.6 have no release; one restart begins there with all else right."""

    def forward(values):
        return torch.where(values[0] > 0.6, torch.nan, 1.0) * matrix_times(values)

    broken, fine = (0.9, 0.9, 0.5, 0.35), (0.5, 0.5, 0.5, 0.5)
    for rows in ((broken, fine), (fine, broken)):
        found = attack(start=StartAt(rows), restarts=2, update=update, steps=30)(toy(forward), rng=generator())
        assert math.isfinite(found.account.objective[0])
        torch.testing.assert_close(found.estimates[0], TARGET, rtol=0, atol=0.08)


def hilly(values):
    return torch.cat([torch.sin(9 * values), 0.1 * matrix_times(values)])


def test_the_restart_with_the_lowest_objective_is_returned():
    rows = tuple(tuple(row) for row in torch.rand(4, 4, generator=generator(3)).tolist())
    observation = toy(hilly)
    singles = []
    for row in rows:
        one = attack(start=StartAt((row,)), steps=25)(observation, rng=generator())
        residual = hilly(one.estimates[0]) - observation.released["y"]
        singles.append((float(residual.square().sum()), one))
    together = attack(start=StartAt(rows), restarts=4, steps=25)(observation, rng=generator())
    residual = float((hilly(together.estimates[0]) - observation.released["y"]).square().sum())
    lowest, best = min(singles, key=lambda pair: pair[0])
    assert max(value for value, _ in singles) > 10 * lowest  # else any restart would do
    assert residual == pytest.approx(lowest, abs=1e-6)
    torch.testing.assert_close(together.estimates, best.estimates, rtol=0, atol=1e-2)


def test_the_best_candidate_ever_seen_is_returned_not_the_last():
    wild = Adam(0.4, schedule="constant")  # steps too long to settle
    observation = toy(matrix_times)
    errors = []
    for steps in range(1, 12):
        found = attack(update=wild, steps=steps)(observation, rng=generator())
        errors.append(found.account.objective[0])
    assert all(later <= earlier for earlier, later in itertools.pairwise(errors))
    assert len(set(errors)) < len(errors)  # some step made it worse and was not kept


def test_the_same_generator_gives_the_same_result_and_another_does_not():
    once, twice = (attack(restarts=3, steps=3)(toy(hilly), rng=generator(5)) for _ in range(2))
    other = attack(restarts=3, steps=3)(toy(hilly), rng=generator(6))
    assert torch.equal(once.estimates, twice.estimates)
    assert not torch.equal(once.estimates, other.estimates)


def test_estimates_lie_within_the_data_range():
    def forward(values):
        return 3 * values  # observed at a target outside of what is allowed

    observation = dataclasses.replace(toy(forward), released={"y": torch.tensor([-9.0, 9.0, 1.5, 0.6])})
    found = attack()(observation, rng=generator())
    torch.testing.assert_close(found.estimates[0], torch.tensor([0.0, 1.0, 0.5, 0.2]), rtol=0, atol=1e-3)


def test_a_plateau_ends_the_search_after_as_many_steps_as_stated():
    observation = toy(lambda values: 0 * values + 1)
    observation = dataclasses.replace(observation, released={"y": torch.full((4,), 2.0)})
    found = attack(update=Adam(0.1), patience=7, steps=500)(observation, rng=generator())
    assert found.status.ending is Ending.CONVERGED
    assert "no gain in 7 steps" in found.status.cause
    assert found.account.cost.evaluations == 8


def test_without_patience_every_step_is_taken():
    found = attack(update=Adam(0.01), steps=25)(toy(matrix_times), rng=generator())
    assert found.status.ending is Ending.BUDGET_SPENT
    assert found.account.cost.evaluations == 26
    assert "25 steps" in found.status.cause


def test_the_budget_of_seconds_ends_the_search_and_drives_the_schedule(monkeypatch):
    now = iter(range(10_000))
    monkeypatch.setattr(matching, "time", types.SimpleNamespace(monotonic=lambda: float(next(now))))
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Watched(Adam):
        def step(self, evaluate, point, memory, progress):
            seen.append(progress)
            return super().step(evaluate, point, memory, progress)

    found = attack(update=Watched(0.01), seconds=10.0, steps=5000)(toy(matrix_times), rng=generator())
    assert seen == pytest.approx([step / 10 for step in range(1, 10)])  # a second per look at the clock
    assert found.status.ending is Ending.BUDGET_SPENT
    assert "10 seconds, 9 steps" in found.status.cause


def test_interrupted_the_best_so_far_is_returned_and_the_status_says_so():
    def interrupted_after(calls):
        count = iter(range(10**6))

        def forward(values):
            if next(count) > calls:
                raise KeyboardInterrupt
            return matrix_times(values)

        return dataclasses.replace(toy(matrix_times), forward=lambda inputs, labels: {"y": forward(inputs[0])})

    rule = Adam(0.02, schedule="constant")
    found = attack(update=rule, steps=500)(interrupted_after(12), rng=generator())
    assert found.status.ending is Ending.INTERRUPTED
    assert found.status.is_failure
    whole = attack(update=rule, steps=11)(toy(matrix_times), rng=generator())
    torch.testing.assert_close(found.estimates, whole.estimates)


def test_a_release_of_zeros_is_not_applicable():
    found = attack()(toy(lambda values: 0 * values), rng=generator())
    assert found.status.ending is Ending.NOT_APPLICABLE
    assert found.status.is_failure
    assert bool(found.estimates.isfinite().all())


def test_a_forward_map_that_is_never_a_number_diverges():
    observation = dataclasses.replace(toy(matrix_times), forward=lambda inputs, labels: {"y": torch.nan * inputs[0]})
    observation = dataclasses.replace(observation, released={"y": TARGET})
    found = attack(restarts=2)(observation, rng=generator())
    assert found.status.ending is Ending.DIVERGED
    assert "Check the forward map" in str(found.status)
    assert bool(found.estimates.isfinite().all())
    assert found.account.cost.evaluations < 100


def test_the_account_names_every_setting():
    found = attack(steps=2, regularizers=(L2Norm(0.125),))(toy(matrix_times), rng=generator())
    for part in ("LBFGS(memory=30", "weight=0.125", "steps=2", "NormalStart(spread=0.25)", "FixedLabels()", "Values()"):
        assert part in found.account.attack


def test_an_attack_that_needs_more_than_the_threat_grants_is_refused():
    with pytest.raises(InvalidInput, match="to cover what the attack needs"):
        attack(needs=MALICIOUS_SERVER)(toy(matrix_times), rng=generator())


@pytest.mark.parametrize(("name", "value"), [("steps", 0), ("restarts", 0), ("seconds", 0.0), ("patience", 0)])
def test_settings_outside_their_domain_are_refused_by_name(name, value):
    with pytest.raises(InvalidInput, match=f"Expected {name}="):
        attack(**{name: value})


def test_normal_starts_fill_the_range_as_they_say():
    observation = dataclasses.replace(toy(matrix_times), data_range=(-2.0, 6.0), input_shape=(2000,))
    normal = NormalStart(0.1)(observation, 3, generator())
    assert normal.shape == (3, 1, 2000)
    # 6000 draws: the mean is within 4 standard errors of 0.8 / sqrt(6000), the deviation within 4 %
    assert float(normal.mean()) == pytest.approx(2.0, abs=0.05)
    assert float(normal.std()) == pytest.approx(0.8, rel=0.04)


# Known defenses and soft labels, on pictures


@pytest.fixture(scope="module")
def picture():
    crops = load_dataset("crops").inputs[3:4]
    return nn.functional.interpolate(crops, (8, 8), mode="area").mean(1, keepdim=True)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(6, 6, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(96, 5),
    )


def under_defense(picture, defense, used):
    """How near an attack comes that does not know of the defense, and one that does."""
    release = rr.releases.GradientRelease(network(), nn.functional.cross_entropy, picture, torch.tensor([1]))
    threats = (KNOWN, KNOWN.with_knowledge(Knows.DEFENSE))
    seen = [rr.observe(release, defense=defense, threat=threat, rng=generator()) for threat in threats]
    return [decibels(used(observation, rng=generator(1)), picture) for observation in seen]


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_pruned_gradient_is_inverted_by_who_knows_what_was_kept(picture, share):
    ignored, known = under_defense(picture, rr.defenses.prune(share), rr.attacks.idlg(steps=60, restarts=1))
    assert ignored < 30
    assert known > 60


def test_knowing_the_noise_gives_a_better_estimate_than_ignoring_it(picture):
    used = rr.attacks.inverting_gradients(steps=100)
    ignored, known = under_defense(picture, rr.defenses.gaussian_noise(0.02), used)
    assert 15 < ignored < 25
    assert known > ignored + 1.5


def test_knowing_the_clipping_undoes_it(picture):
    defense = rr.defenses.clip_and_noise(noise_multiplier=0.01, clip_norm=0.6)  # a third of the gradient's norm
    ignored, known = under_defense(picture, defense, rr.attacks.idlg(steps=60, restarts=1))
    assert known > ignored + 5


@pytest.mark.parametrize("label", [0, 4])
def test_soft_labels_of_dlg_converge_to_the_true_one(picture, label):
    release = rr.releases.GradientRelease(network(), nn.functional.cross_entropy, picture, torch.tensor([label]))
    found = rr.attacks.dlg(steps=150, restarts=2)(rr.observe(release), rng=generator())
    assert found.labels == (label,)
    assert decibels(found, picture) > 60


def test_known_labels_are_not_varied(picture):
    release = rr.releases.GradientRelease(network(), nn.functional.cross_entropy, picture, torch.tensor([2]))
    begun = rr.attacks.dlg().labels.begin(rr.observe(release, threat=KNOWN), 3, generator())
    assert begun.variables == {}
    assert begun.decode({"inputs": torch.zeros(2, 1)}).tolist() == [[2], [2]]


def test_labels_of_a_map_without_a_model_cannot_be_varied():
    observation = dataclasses.replace(toy(matrix_times), threat=HONEST_BUT_CURIOUS, labels=None)
    with pytest.raises(InvalidInput, match=r"Add Knows\.LABELS to the threat model"):
        rr.attacks.dlg()(observation, rng=generator())
