import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.prior_alone import prior_alone
from reconrisk.audit.leakage_over_prior import OverPrior, leakage_over_prior
from reconrisk.core.guarantee import Estimate
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data.dataset import Dataset

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
        account = Account("told()", Status(Ending.CONVERGED, "told"), (0.0,) * len(made), Cost(0.0, 0))
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
    assert found.verdict.endswith("leaked.")


def test_differences_of_errors_are_positive_where_the_attack_is_nearer():
    row = leakage_over_prior(Told(solved), PRIOR, model(), DATA, rng=rng())["mse"]
    assert row.over_prior.value == pytest.approx(row.prior_alone.value - row.attack.value)
    assert row.over_prior.low > 0


def test_plausible_records_are_not_taken_for_leaked_ones():
    found = leakage_over_prior(Told(plausible), PRIOR, model(), DATA, rng=rng())
    assert not found.leaks
    assert found["psnr"].over_prior.high < 0  # a draw is further away than the mean
    assert "worse than the prior alone" in found.verdict
    assert "not told apart" in found.verdict


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

    found = leakage_over_prior(Told(two), PRIOR, model(), DATA, batch_size=2, rng=rng())
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
    assert " in mse [" in found.verdict
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
        ({"batch_size": 5}, "batch_size=5 to divide 12"),
        ({"records": [0]}, "records=1 >= 4"),
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
    with pytest.raises(rr.InvalidInput, match="records=2 to be named once"):
        leakage_over_prior(prior_alone(PRIOR), PRIOR, model(), DATA, records=[0, 2, 1, 2], rng=rng())


def test_the_baseline_is_the_prior_of_the_attack():
    other = rr.priors.gaussian(torch.full((SIZE,), 0.1), 0.02 * torch.eye(SIZE))
    with pytest.raises(rr.InvalidInput, match="to be that of the attack"):
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
