import math
from dataclasses import dataclass, replace

import pytest
import torch
from scipy.stats import t as student
from torch import nn

import reconrisk as rr
from reconrisk.attacks.baselines import prior_alone
from reconrisk.core.guarantee import Estimate
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data.dataset import Dataset
from reconrisk.studies.prior_value.over_prior import exchange_update, leakage_over_prior
from reconrisk.studies.prior_value.result import OverPrior

SIZE, COUNT = 6, 12
PRIOR = rr.priors.gaussian(torch.full((SIZE,), 0.5), 0.02 * torch.eye(SIZE))
RECORDS = PRIOR.draw(COUNT, torch.Generator().manual_seed(3)).float().clamp(0, 1)
DATA = Dataset("toy", RECORDS, torch.arange(COUNT) % 2)


def model():
    network = nn.Linear(SIZE, 2)
    network.weight.data = torch.randn(2, SIZE, generator=torch.Generator().manual_seed(1))
    network.bias.data.zero_()
    return network


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Told:
    """An attack that makes up its estimates; ``reads`` lets it solve the linear layer."""

    estimate: object
    needs: rr.ThreatModel = HONEST_BUT_CURIOUS

    def __call__(self, observation, *, rng):
        made = self.estimate(observation, rng)
        account = AttackReport("told()", Status(Ending.CONVERGED, "told"), (0.0,) * len(made), Cost(0.0, 0))
        return Reconstruction(made, account)

    def __repr__(self):
        return "told()"


def solved(observation, _):
    """The record itself, up to one thousandth."""
    weight, bias = observation.released["weight"], observation.released["bias"]
    place = bias.abs().argmax()
    return (weight[place] / bias[place])[None] + 1e-3


def plausible(observation, generator):
    return PRIOR.draw(observation.batch_size, generator).float().clamp(0, 1)


def test_an_attack_that_reads_the_record_leaks_and_by_how_much_is_known():
    found = leakage_over_prior(Told(solved), PRIOR, model(), DATA, rng=rng())
    row = found["psnr"]
    assert row.attack.value == pytest.approx(60.0, abs=0.1)  # an error of one thousandth
    errors = (RECORDS - 0.5).square().mean(1).double()
    assert row.prior_alone.value == pytest.approx(float((-10 * errors.log10()).mean()), rel=1e-6)
    swapped = RECORDS.view(-1, 2, RECORDS.shape[1]).flip(1).view_as(RECORDS)  # within pairs
    others = (swapped - RECORDS).square().mean(1).double()
    assert row.from_another.value == pytest.approx(float((-10 * others.log10()).mean()), abs=0.1)
    assert row.over_prior.value == pytest.approx(row.attack.value - row.prior_alone.value)
    assert row.over_another.value == pytest.approx(row.attack.value - row.from_another.value)
    assert found.leaks
    assert found.sentence.endswith("leaked.")


def test_differences_of_errors_are_positive_where_the_attack_is_nearer():
    row = leakage_over_prior(Told(solved), PRIOR, model(), DATA, rng=rng())["mse"]
    assert row.over_prior.value == pytest.approx(row.prior_alone.value - row.attack.value)
    assert row.over_prior.low > 0


def test_plausible_records_are_not_taken_for_leaked_ones():
    found = leakage_over_prior(Told(plausible), PRIOR, model(), DATA, rng=rng())
    assert not found.leaks
    assert found["psnr"].over_prior.high < 0  # a draw is further away than the mean
    assert "worse than the prior alone" in found.sentence
    assert "not distinguishable from the prior" in found.sentence


def test_the_prior_alone_is_told_apart_from_neither_baseline():
    found = leakage_over_prior(prior_alone(PRIOR), PRIOR, model(), DATA, rng=rng())
    for row in found.rows:
        assert (row.over_prior.low, row.over_prior.value, row.over_prior.high) == (0.0, 0.0, 0.0)
        assert (row.over_another.low, row.over_another.value, row.over_another.high) == (0.0, 0.0, 0.0)
    assert not found.leaks


def test_differences_are_paired():
    class Shifted(Told):
        """Each record's error is that of the prior, a tenth smaller: hard and easy records gain alike."""

    by_record = {float(record.sum()): record for record in RECORDS}

    def nearer(observation, _):
        estimate = solved(observation, None) - 1e-3
        record = min(by_record.values(), key=lambda each: float((each - estimate).square().sum()))
        return (record + 0.9 * (PRIOR.mean.float() - record))[None]

    row = leakage_over_prior(Shifted(nearer), PRIOR, model(), DATA, rng=rng())["psnr"]
    assert row.over_prior.value == pytest.approx(-20 * math.log10(0.9), abs=1e-3)
    assert row.over_prior.high - row.over_prior.low < 1e-3  # while the scores themselves spread by decibels
    assert row.attack.high - row.attack.low > 0.5


def test_baselines_see_nothing_of_the_record_s_update():
    one, other = (leakage_over_prior(Told(attack), PRIOR, model(), DATA, rng=rng()) for attack in (solved, plausible))
    assert one["psnr"].prior_alone == other["psnr"].prior_alone


def test_noise_is_the_same_for_whoever_attacks_and_new_for_another_generator():
    def released(observation, _):
        return observation.released["weight"][:1].clamp(0, 1)

    def first(seed):
        defense = rr.defenses.gaussian_noise(0.1)
        return leakage_over_prior(Told(released), PRIOR, model(), DATA, defense=defense, rng=rng(seed))["mse"].attack

    assert first(0) == first(0)
    assert first(0) != first(1)


def test_updates_of_several_records_are_the_unit_and_matched():
    def two(observation, _):
        return torch.full((2, SIZE), 0.5)

    found = leakage_over_prior(Told(two), PRIOR, model(), DATA, update=rr.UpdateRecipe(batch_size=2), rng=rng())
    assert (found.updates, found.batch_size) == (6, 2)
    assert found["psnr"].attack.samples == 6
    assert found["psnr"].attack.value == pytest.approx(found["psnr"].prior_alone.value)


def test_an_exact_estimate_has_an_infinite_score_and_the_extremes_as_interval():
    def exact(observation, _):
        estimate = solved(observation, None) - 1e-3
        return RECORDS[(RECORDS - estimate).square().sum(1).argmin()][None]

    row = leakage_over_prior(Told(exact), PRIOR, model(), DATA, rng=rng())["psnr"]
    assert row.attack.value == math.inf
    assert row.attack.method == "extremes over updates"
    assert row.over_prior.value == math.inf
    assert row.leaks


def test_one_metric_decides_and_others_stand_below():
    found = leakage_over_prior(Told(solved), PRIOR, model(), DATA, metrics=rr.metrics.mse(), rng=rng())
    assert [row.name for row in found.rows] == ["mse"]
    assert " in mse [" in found.sentence
    with pytest.raises(KeyError, match="to be one of mse"):
        found["psnr"]


def test_the_table_says_whose_and_under_what():
    text = str(leakage_over_prior(Told(solved), PRIOR, model(), DATA, rng=rng()))
    assert text.startswith("told(), 12 updates of 1, defense none")
    assert "prior alone" in text
    assert "from another" in text


ESTIMATE = Estimate(1.0, 0.5, 1.5, 0.95, 9, "Student")
UNSURE = Estimate(1.0, -0.5, 2.5, 0.95, 9, "Student")


@pytest.mark.parametrize(
    ("over_prior", "over_another", "leaks"),
    [(ESTIMATE, ESTIMATE, True), (UNSURE, ESTIMATE, False), (ESTIMATE, UNSURE, False)],
)
def test_both_differences_must_be_sure(over_prior, over_another, leaks):
    row = OverPrior("psnr()", "psnr", ESTIMATE, ESTIMATE, ESTIMATE, over_prior, over_another)
    assert row.leaks is leaks
    assert ("leaked." in row.verdict) is leaks
    assert replace(row, over_prior=ESTIMATE).verdict.startswith("1 dB [0.5, 1.5] better than the prior alone;")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"update": rr.UpdateRecipe(batch_size=5)}, "batch_size=5 to divide 12"),
        ({"records": [0]}, r"len\(records\)=1 >= 4"),
        ({"confidence": 1.0}, "confidence=1.0 in"),
    ],
)
def test_what_cannot_be_compared_is_refused(settings, message):
    with pytest.raises(rr.InvalidInput, match=message):
        leakage_over_prior(Told(solved), PRIOR, model(), DATA, rng=rng(), **settings)


def test_a_prior_of_another_shape_is_refused():
    other = rr.priors.gaussian(torch.zeros(2), torch.eye(2))
    with pytest.raises(rr.InvalidInput, match=r"prior\.shape"):
        leakage_over_prior(Told(solved), other, model(), DATA, rng=rng())


def test_the_threat_knows_the_prior_and_what_else_is_stated():
    seen = []

    def remembered(observation, _):
        seen.append(observation.threat.knows)
        return torch.full((1, SIZE), 0.5)

    leakage_over_prior(Told(remembered), PRIOR, model(), DATA, knows=[Knows.LABELS], rng=rng())
    assert set(seen) == {frozenset({Knows.LABELS, Knows.PRIOR})}


def test_a_record_is_not_another_to_itself():
    with pytest.raises(rr.InvalidInput, match="records=2 to be listed once"):
        leakage_over_prior(prior_alone(PRIOR), PRIOR, model(), DATA, records=[0, 2, 1, 2], rng=rng())


def test_the_baseline_is_the_prior_of_the_attack():
    other = rr.priors.gaussian(torch.full((SIZE,), 0.1), 0.02 * torch.eye(SIZE))
    with pytest.raises(rr.InvalidInput, match="to be the prior of the attack"):
        leakage_over_prior(rr.attacks.ggss_r(other), PRIOR, model(), DATA, rng=rng())


@pytest.mark.parametrize(
    ("attack", "prior", "message"),
    [
        ("ggss_r", PRIOR, r"attack='ggss_r' to be a configured attack. Pass rr.attacks.ggss_r\(prior\)."),
        ("analytic", PRIOR, r"Pass rr.attacks.analytic\(\)."),
        ("ggss", PRIOR, r"Pass one of rr.attacks."),
        (Told(solved), "gaussian", r"prior='gaussian' to be a prior. Pass one of rr.priors"),
        (Told(solved), None, "prior='NoneType' to be a prior"),
    ],
)
def test_attacks_and_priors_by_name_are_refused(attack, prior, message):
    with pytest.raises(rr.InvalidInput, match=message):
        leakage_over_prior(attack, prior, model(), DATA, rng=rng())


def with_classes():
    """Records of two classes that lie far apart, with a normal law that knows no classes."""
    labels = torch.arange(COUNT) // 3 % 2  # pairs of both kinds: of one class, and of two
    inputs = (0.3 + 0.4 * labels[:, None] + 0.05 * torch.randn(COUNT, SIZE, generator=rng(5))).clamp(0, 1)
    data = Dataset("classes", inputs, labels)
    return data, rr.priors.fit_gaussian(inputs.repeat(3, 1) + 0.01 * torch.randn(3 * COUNT, SIZE, generator=rng(6)))


def test_what_the_labels_tell_was_not_leaked_by_the_update():
    data, prior = with_classes()
    means = torch.stack([data.inputs[data.labels == label].mean(0) for label in (0, 1)])
    for noise in (1e6, 1e-6):
        found = leakage_over_prior(
            rr.attacks.class_mean(means),
            prior,
            model(),
            data,
            knows=[Knows.LABELS],
            defense=rr.defenses.gaussian_noise(noise),
            rng=rng(),
        )
        row = found["psnr"]
        assert row.over_prior.low > 0  # the label is worth decibels
        assert (row.over_another.low, row.over_another.value, row.over_another.high) == (0.0, 0.0, 0.0)
        assert not found.leaks


def test_what_the_update_tells_beside_the_labels_was_leaked():
    data, prior = with_classes()
    found = leakage_over_prior(Told(solved), prior, model(), data, knows=[Knows.LABELS], rng=rng())
    assert found.leaks
    swapped = data.inputs.view(-1, 2, SIZE).flip(1).view_as(data.inputs)
    errors = (swapped - data.inputs).square().mean(1)
    assert found["mse"].from_another.value == pytest.approx(float(errors.mean()), abs=1e-3)


def told_norm(observation, _):
    return (observation.record_norms / SIZE**0.5)[:, None].expand(-1, SIZE)


def told_statistics(observation, _):
    return observation.batch_statistics["0.mean"][None]


def drawn(observation, generator):
    """Reads the label, and is otherwise chance."""
    return (0.3 + 0.4 * observation.labels[:, None] + 0.1 * torch.rand(1, SIZE, generator=generator)).clamp(0, 1)


@pytest.mark.parametrize(
    ("estimate", "known"),
    [(told_norm, Knows.RECORD_NORM), (told_statistics, Knows.BATCH_STATISTICS), (drawn, Knows.LABELS)],
)
def test_no_side_information_is_taken_for_a_leak(estimate, known):
    data, prior = with_classes()
    network = nn.Sequential(nn.BatchNorm1d(SIZE), model()).eval()
    row = leakage_over_prior(Told(estimate), prior, network, data, knows=[known], rng=rng())["psnr"]
    assert row.over_prior.low > 0
    assert (row.over_another.low, row.over_another.value, row.over_another.high) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("known", "calls"), [([], COUNT), ([Knows.DEFENSE], COUNT), ([Knows.LABELS], 2 * COUNT)])
def test_an_attack_runs_twice_only_where_something_is_known_of_the_record(known, calls):
    seen = []

    def counted(observation, _):
        seen.append(observation)
        return torch.full((1, SIZE), 0.5)

    defense = rr.defenses.gaussian_noise(0.1)
    leakage_over_prior(Told(counted), PRIOR, model(), DATA, knows=known, defense=defense, rng=rng())
    assert len(seen) == calls


def test_another_s_update_comes_with_its_defense_and_the_record_s_own_side_information():
    threat = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS, Knows.RECORD_NORM, Knows.BATCH_STATISTICS, Knows.DEFENSE)
    network, defense = nn.Sequential(nn.BatchNorm1d(SIZE), model()).eval(), rr.defenses.random_pruning(0.5)
    own, another = (
        rr.observe(
            rr.releases.GradientRelease(
                network, nn.functional.cross_entropy, RECORDS[place, None], DATA.labels[place, None]
            ),
            defense=defense >> rr.defenses.gaussian_noise(0.1),
            threat=threat,
            rng=rng(place),
        )
        for place in (0, 1)
    )
    given = exchange_update(another, own)
    assert all(getattr(given, name) is getattr(own, name) for name in ("labels", "record_norms", "batch_statistics"))
    assert own.kept is not None
    assert own.noise_std is not None
    sent = ("released", "forward", "noise_std", "kept", "noise_law")
    assert all(getattr(given, name) is getattr(another, name) for name in sent)


@pytest.mark.parametrize(("updates", "groups"), [(6, [(0, 1), (2, 3), (4, 5)]), (7, [(0, 1), (2, 3), (4, 5, 6)])])
@pytest.mark.parametrize("known", [[], [Knows.LABELS]])
def test_the_interval_of_another_s_update_is_over_pairs(updates, groups, known):
    found = leakage_over_prior(Told(solved), PRIOR, model(), DATA, records=range(updates), knows=known, rng=rng())
    row = found["mse"]
    partner = {place: group[index - 1] for group in groups for index, place in enumerate(group)}
    gains = [float((RECORDS[partner[place]] + 1e-3 - RECORDS[place]).square().mean()) - 1e-6 for place in partner]
    by_pair = torch.tensor([sum(gains[place] for place in group) / len(group) for group in groups]).double()
    half = student.ppf(0.975, 2) * float(by_pair.std()) / 3**0.5
    assert row.over_another.samples == row.from_another.samples == 3
    assert row.over_another.value == pytest.approx(sum(gains) / updates, rel=1e-4)
    assert row.over_another.high - row.over_another.low == pytest.approx(2 * half, rel=1e-3)
    assert row.over_prior.samples == updates


@pytest.mark.parametrize("during_exchange", [True, False])
def test_interrupted_whole_pairs_are_compared(during_exchange):
    seen = []

    def stopped(observation, _):
        seen.append(observation)
        if len(seen) == (15 if during_exchange else 14):  # pairs of four calls each: of the fourth one
            raise KeyboardInterrupt
        return solved(observation, None)

    found = leakage_over_prior(Told(stopped), PRIOR, model(), DATA, knows=[Knows.LABELS], rng=rng())
    assert found.updates == 6
    assert found["mse"].over_another.samples == 3


def test_an_attack_that_plants_a_layer_meets_it():
    attack = rr.attacks.optimal_analytic(neurons=3)
    found = leakage_over_prior(attack, PRIOR, model(), DATA, knows=[Knows.LABELS], rng=rng())
    assert found["mse"].attack.value < 1e-6
    assert found.leaks
