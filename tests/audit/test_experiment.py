import pytest
import torch

import reconrisk as rr
from reconrisk.audit.experiment import Experiment
from reconrisk.audit.goals import metrics_for
from reconrisk.audit.plan import Plan, PlannedAttack, Sender
from reconrisk.audit.population import population_of
from reconrisk.audit.trial import TrialKey
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data.dataset import Dataset
from reconrisk.releases.release import ForwardRelease

INPUTS = torch.rand(6, 3, generator=torch.Generator().manual_seed(0))
DATA = Dataset("toy", INPUTS, torch.arange(6) % 2)
RELEASE = ForwardRelease(lambda inputs, labels: {"y": inputs.flatten(1)}, INPUTS, DATA.labels)
THREAT = HONEST_BUT_CURIOUS.knowing(Knows.LABELS)
NOISE = rr.defenses.gaussian_noise(0.1)


def experiment(*, updates=((0,), (1,)), seed=0, chosen=False):
    attacks = (
        PlannedAttack("newton", rr.attacks.gauss_newton(restarts=1), False, chosen, 10),
        PlannedAttack("analytic", rr.attacks.analytic(), False, chosen, 2),
        PlannedAttack("constant_guess", rr.attacks.constant_guess(), True, False, 0),
        PlannedAttack("prior_mean", rr.attacks.prior_mean(INPUTS.mean(0)), True, False, 0),
    )
    plan = Plan(attacks, {"none": None, "noise": NOISE}, tuple(updates), 0.0)
    population = population_of(DATA, None, torch.Generator())
    return Experiment(plan, Sender(RELEASE), population, THREAT, metrics_for(DATA), seed)


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
    release = experiment().release_of(experiment().attacks["newton"], (3, 1))
    assert torch.equal(release.inputs, INPUTS[[3, 1]])
    assert release.labels.tolist() == [1, 1]
