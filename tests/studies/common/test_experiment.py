from dataclasses import dataclass, field, replace

import pytest
import torch

import reconrisk as rr
from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.releases.release import ForwardRelease
from reconrisk.studies.common.arguments import metrics_for
from reconrisk.studies.common.experiment import Experiment
from reconrisk.studies.common.plan import Plan, PlannedAttack
from reconrisk.studies.common.population import draw_population
from reconrisk.studies.common.runs import TrialKey
from reconrisk.studies.common.subjects.given_release import GivenRelease

INPUTS = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
DATA = Dataset("toy", INPUTS, torch.arange(6) % 2)
RELEASE = ForwardRelease(lambda inputs, labels: {"y": inputs.flatten(1)}, INPUTS, DATA.labels)
THREAT = HONEST_BUT_CURIOUS.with_knowledge(Knows.LABELS)
NOISE = rr.defenses.gaussian_noise(0.1)


def experiment(*, updates=((0,), (1,)), seed=0, chosen=False):
    attacks = (
        PlannedAttack("newton", rr.attacks.gauss_newton(restarts=1), False, chosen, 10),
        PlannedAttack("analytic", rr.attacks.analytic(), False, chosen, 2),
        PlannedAttack("constant_guess", rr.attacks.constant_guess(), True, False, 0),
        PlannedAttack("prior_mean", rr.attacks.prior_mean(INPUTS.mean(0)), True, False, 0),
    )
    plan = Plan(attacks, {"none": None, "noise": NOISE}, tuple(updates), 0.0)
    population = draw_population(DATA, None, torch.Generator())
    return Experiment(plan, GivenRelease(RELEASE, DATA), population, THREAT, metrics_for(DATA), seed)


def test_a_trial_is_the_same_whatever_ran_before():
    key = TrialKey("noise", "newton", 1)
    fresh, estimates = experiment().trial(key)
    used = experiment()
    for other in used.plan.trials():
        used.trial(other)
    again, repeated = used.trial(key)
    assert torch.equal(estimates, repeated)
    assert (fresh.scores, fresh.seed, fresh.records) == (again.scores, again.seed, again.records)
    assert experiment(seed=1).trial(key)[0].scores != fresh.scores


def test_scores_are_those_of_the_records_in_their_order():
    trial, estimates = experiment(updates=[(4, 2, 0)]).trial(TrialKey("none", "newton", 0))
    assert trial.records == (4, 2, 0)
    assert torch.allclose(estimates, INPUTS[[4, 2, 0]], atol=1e-3)
    assert max(trial.values("mse")) < 1e-6
    assert {scores.metric for scores in trial.scores} == {"psnr", "mse", "ncc"}


def test_an_attack_of_a_portfolio_that_refuses_is_told_from_one_that_fails():
    trial, estimates = experiment().trial(TrialKey("none", "analytic", 0))
    assert trial.account.status.ending is Ending.NOT_APPLICABLE
    assert "Expected a released linear layer" in trial.account.status.cause
    assert estimates.isnan().all()
    assert trial.values("mse") == (float("inf"),)
    with pytest.raises(InvalidInput, match="Expected a released linear layer"):
        experiment(chosen=True).trial(TrialKey("none", "analytic", 0))


def test_guesses_may_know_what_the_audited_adversary_does_not():
    run = experiment()
    assert Knows.PRIOR in run.threat_of(run.attacks["prior_mean"]).knows
    assert run.threat_of(run.attacks["newton"]) == THREAT
    assert run.trial(TrialKey("none", "prior_mean", 0))[0].account.status.ending is not Ending.NOT_APPLICABLE


def test_the_first_guess_measures_what_the_defense_does_to_the_update():
    run = experiment()
    assert run.trial(TrialKey("none", "constant_guess", 0))[0].distortion == 0.0
    measured = run.trial(TrialKey("noise", "constant_guess", 0))[0].distortion
    # three values of noise 0.1 over the squared norm: chi-square of three degrees, below 25 but for one in 10^5
    assert 0 < measured < 25 * 0.01 / float(INPUTS[0].square().sum())
    assert run.trial(TrialKey("noise", "prior_mean", 0))[0].distortion is None
    assert run.trial(TrialKey("noise", "newton", 0))[0].distortion is None


def test_records_are_those_of_the_update_and_labels_too():
    run = experiment()
    release = run.subject.release((3, 1), run.attacks["newton"].attack)
    assert torch.equal(release.inputs, INPUTS[[3, 1]])
    assert release.labels.tolist() == [1, 1]


class Raising:
    """An attack that raises something of no kind in particular, where told to."""

    def __init__(self, *, error):
        self.error, self.needs = error, rr.attacks.constant_guess().needs

    def __call__(self, observation, *, rng):
        raise self.error

    def __repr__(self):
        return "Raising()"


def with_raising(error, *, chosen):
    run = experiment()
    attacks = (PlannedAttack("raising", Raising(error=error), False, chosen, 1), *run.plan.attacks)
    return replace(run, plan=replace(run.plan, attacks=attacks))


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("matrix is singular.\nmore"), "RuntimeError: matrix is singular"),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ],
)
def test_an_attack_that_raises_has_failed_in_that_trial(chosen, error, cause):
    trial, estimates = with_raising(error, chosen=chosen).trial(TrialKey("none", "raising", 0))
    assert trial.account.status.ending is Ending.DIVERGED
    assert trial.account.status.cause == cause
    assert trial.account.status.is_failure
    assert estimates.isnan().all()
    assert trial.values("mse") == (float("inf"),)


def test_ctrl_c_within_an_attack_is_no_failure_of_it():
    with pytest.raises(KeyboardInterrupt):
        with_raising(KeyboardInterrupt(), chosen=False).trial(TrialKey("none", "raising", 0))


def test_a_missing_package_is_told_like_a_refusal():
    error = MissingExtra("x", "y", "It")
    key = TrialKey("none", "raising", 0)
    assert with_raising(error, chosen=False).trial(key)[0].account.status.ending is Ending.NOT_APPLICABLE
    with pytest.raises(MissingExtra):
        with_raising(error, chosen=True).trial(key)


def test_a_model_that_raises_is_refused_with_what_it_said():
    def broken(inputs, labels):
        raise RuntimeError("shapes cannot be multiplied")

    run = replace(experiment(), subject=GivenRelease(ForwardRelease(broken, INPUTS, DATA.labels), DATA))
    words = r"^Expected an update of the records \(0,\) under noise, got RuntimeError: shapes cannot be multiplied\."
    with pytest.raises(InvalidInput, match=words):
        run.trial(TrialKey("noise", "newton", 0))


@dataclass
class Fragile:
    """An attack that rebuilds, but raises at its second update; it prints the records it has."""

    records: torch.Tensor
    calls: int = 0
    needs: ThreatModel = field(default_factory=lambda: rr.attacks.constant_guess().needs)

    def __call__(self, observation, *, rng):
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("matrix is singular")
        return rr.attacks.constant_guess()(observation, rng=rng)


def test_one_failing_trial_does_not_lose_the_audit():
    result = rr.audit(RELEASE, DATA, attacks=[Fragile(INPUTS)], threat=THREAT, trials=4, budget=None)
    (fragile,) = [each for each in result.attacks if not each.is_baseline]
    assert result.is_complete
    assert (fragile.done, fragile.failed) == (4, 1)
    assert "diverged: RuntimeError: matrix is singular" in fragile.remark


def test_no_record_enters_the_account_of_a_trial_that_failed():
    attack, run = Fragile(INPUTS, calls=1), experiment()
    attacks = (PlannedAttack("fragile", attack, False, True, 1), *run.plan.attacks)
    trial, _ = replace(run, plan=replace(run.plan, attacks=attacks)).trial(TrialKey("none", "fragile", 0))
    assert f"{float(INPUTS[0, 0]):.4f}" in repr(attack)
    assert f"{float(INPUTS[0, 0]):.4f}" not in trial.account.attack
    assert "Fragile" in trial.account.attack
