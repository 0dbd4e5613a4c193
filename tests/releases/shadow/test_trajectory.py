"""Every step of a private training as a release."""

import itertools

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks import DpSgdSettings, match_candidates
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.shadow.trajectory import PrivateTrajectoryRelease
from reconrisk.releases.training.optimizers import sgd

RNG = torch.Generator().manual_seed(0)
FIXED = (torch.rand(5, 16, generator=RNG), torch.arange(5) % 2)
RECORDS, LABELS = torch.rand(12, 16, generator=RNG), torch.arange(12) % 2
EVERY = rr.ThreatModel(sees="every-update", knows={"defense", "prior", "other-records", "initialisation"})


def training(sigma=1.0, rule=None, **settings):
    torch.manual_seed(0)
    options = {"steps": 6, "private": Gaussian(sigma, 1.0), **settings}
    return ShadowTraining(nn.Linear(16, 2), *FIXED, rule or sgd(0.5), **options)


def release(row=0, seed=0, **settings):
    return PrivateTrajectoryRelease(training(**settings), RECORDS[[row]].double(), LABELS[[row]], seed)


def flat(tensors):
    return torch.cat([value.double().flatten() for value in tensors.values()])


@pytest.mark.parametrize("batches", [None, [[0, 5], [1, 2, 5], [5], [3, 4], [5, 0]]])
def test_the_release_differs_from_its_forward_map_by_the_noise_of_every_step(batches):
    settings = {} if batches is None else {"steps": None, "batches": batches}
    sizes = [6] * 6 if batches is None else [len(rows) for rows in batches]
    squares = 0.0
    for seed in range(30):
        made = release(seed=seed, **settings)
        mean = made.forward(made.inputs, made.labels)
        for place, size in enumerate(sizes):
            mine = {name: value for name, value in made.value().items() if name.startswith(f"step {place + 1}:")}
            residual = flat(mine) - flat({name: mean[name] for name in mine})
            squares += float((residual / (0.5 / size)).square().mean()) / len(sizes) / 30
    assert squares == pytest.approx(1.0, abs=4 * (2 / (30 * 34 * len(sizes))) ** 0.5)


def test_the_nearest_candidate_is_that_of_the_likelihood_summed_over_steps():
    settings = DpSgdSettings(learning_rate=0.5, clip_norm=1.0, noise_multiplier=1.0)
    for seed in range(4):
        made = release(row=seed, seed=seed)
        model = training().model
        names = list(made.training.names)
        rows = [made.training.unflatten(row) for row in made._iterates]
        known = {"known_inputs": FIXED[0].double(), "known_labels": FIXED[1], "settings": settings}
        loss = nn.functional.cross_entropy
        expected = match_candidates(
            model.double(), loss, [{n: r[n] for n in names} for r in rows], RECORDS.double(), LABELS, **known
        )
        gaps = [
            float((flat(made.forward(x[None].double(), y[None])) - flat(made.value())).square().sum())
            for x, y in zip(RECORDS, LABELS, strict=True)
        ]
        ratios = torch.tensor(gaps).double() / (-2 * (0.5 / 6) ** 2)
        for one, other in itertools.pairwise(range(12)):
            difference = expected.log_ratios[one] - expected.log_ratios[other]
            assert float(ratios[one] - ratios[other]) == pytest.approx(float(difference), abs=1e-3)


def test_an_audit_of_every_update_finds_more_than_one_of_the_final_model_and_no_more_than_its_bound():
    data, found = rr.data.Dataset("toy", RECORDS, LABELS), {}
    for sees in ("final-model", "every-update"):
        threat = rr.ThreatModel(sees=sees, knows=EVERY.knows)
        options = {"attacks": ["best_candidate"], "trials": 24, "goals": ["mse<=0.001"], "budget": None}
        found[sees] = rr.audit(training(), data, threat=threat, **options)
    line = found["every-update"].lines[0]
    assert line.comparisons[0].is_compared
    assert found["every-update"].sentence.startswith("From every update of the training")
    assert found["every-update"].subject.release.startswith("every update of 6 steps of SGD")
    assert found["final-model"].lines[0].success.value <= line.success.value <= line.bound.value


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        (lambda: training(private=None), "Expected training with noise"),
        (lambda: training(rule=sgd(0.5, 0.9)), "Expected SGD without momentum"),
        (lambda: nn.Linear(16, 2), "threat.sees='every-update' to be one-update"),
    ],
)
def test_other_subjects_are_refused(subject, message):
    with pytest.raises(InvalidInput, match=message):
        rr.audit(subject(), rr.data.Dataset("toy", RECORDS, LABELS), threat=EVERY, trials=2)
