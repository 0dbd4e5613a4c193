"""One row for each defense: what every one of them must do."""

import pytest
import torch
from torch import nn

from reconrisk import defenses
from reconrisk.core.errors import InvalidInput
from reconrisk.releases.release import ForwardRelease
from reconrisk.releases.sensitivity.moments import ReferenceMoments
from reconrisk.testing import check_defense

SHAPES = {"weight": (6, 5), "bias": (6,)}


def released(seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=rng) for name, shape in SHAPES.items()}


def moments():
    square = {name: value.square() + 0.1 for name, value in released(1).items()}
    sensitivity = {name: value.square() + 0.1 for name, value in released(2).items()}
    return ReferenceMoments(sensitivity, {name: 0 * value for name, value in square.items()}, square, 1, 10)


def private():
    """A release of these shapes that depends on its records."""
    rows = {name: torch.randn(*shape, 4, generator=torch.Generator().manual_seed(5)) for name, shape in SHAPES.items()}
    return ForwardRelease(
        lambda inputs, labels: {name: each @ inputs.sum(0).tanh() for name, each in rows.items()},
        torch.rand(2, 4, generator=torch.Generator().manual_seed(6)),
        torch.zeros(2),
    )


def refreshed():
    model, inputs = nn.Linear(5, 6), torch.rand(4, 5, generator=torch.Generator().manual_seed(7))
    defense = defenses.refreshed(
        lambda found: defenses.clip(1.0) >> defenses.optimal_noise(found, like=0.5),
        nn.functional.cross_entropy,
        inputs,
        torch.arange(4),
        probes=2,
    )
    defense.for_model(model)
    return defense


MECHANISM = True
ROWS = {
    "gaussian_noise": (lambda: defenses.gaussian_noise(0.5), not MECHANISM),
    "laplace_noise": (lambda: defenses.laplace_noise(0.5), not MECHANISM),
    "clip_and_noise": (lambda: defenses.clip_and_noise(noise_multiplier=0.5, clip_norm=1.0), MECHANISM),
    "dp_sgd_noise": (lambda: defenses.dp_sgd_noise(noise_multiplier=0.5, clip_norm=1.0), MECHANISM),
    "clip": (lambda: defenses.clip(1.0), not MECHANISM),
    "prune": (lambda: defenses.prune(0.5), not MECHANISM),
    "random_pruning": (lambda: defenses.random_pruning(0.5), not MECHANISM),
    "quantise": (lambda: defenses.quantise(16), not MECHANISM),
    "sign": (lambda: defenses.sign(), not MECHANISM),
    "optimal_noise": (lambda: defenses.optimal_noise(moments(), like=0.5), not MECHANISM),
    "optimal_pruning": (lambda: defenses.optimal_pruning(moments(), share=0.5), not MECHANISM),
    "optimal_pruning_and_noise": (
        lambda: defenses.optimal_pruning_and_noise(moments(), share=0.5, like=0.5),
        not MECHANISM,
    ),
    "equal_noise": (lambda: defenses.equal_noise(moments(), noise_norm=0.5), not MECHANISM),
    "local_optimal_noise": (lambda: defenses.local_optimal_noise(like=0.5).for_release(private()), not MECHANISM),
    "local_optimal_pruning": (lambda: defenses.local_optimal_pruning(share=0.5).for_release(private()), not MECHANISM),
    "refreshed": (refreshed, MECHANISM),
    "chain": (lambda: defenses.clip(1.0) >> defenses.optimal_noise(moments(), like=0.5), MECHANISM),
}


@pytest.fixture(params=ROWS)
def row(request):
    build, has_mechanism = ROWS[request.param]
    return build(), has_mechanism


def sent_by(defense, update=None, seed=0):
    return defense(released() if update is None else update, rng=torch.Generator().manual_seed(seed))


def test_every_public_defense_has_its_row():
    assert set(ROWS) == set(defenses.__all__) - {"TargetBound"}  # which is a budget


def test_it_keeps_the_rules_for_defenses(row):
    """The rules of reconrisk.testing.check_defense, on the update whose moments shape noise and masks."""
    report = check_defense(row[0], released())
    assert ("keeps_the_bound_of_its_mechanism" in report.passed) == row[1]


def test_it_names_its_mechanism_or_says_that_it_is_heuristic(row):
    assert (row[0].mechanism is not None) == row[1]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_or_sent_as_zero(row, wrong):
    update = released()
    update["bias"][2] = wrong
    if row[0].clips:
        zeros = {name: torch.zeros_like(value) for name, value in update.items()}
        with pytest.warns(UserWarning, match="replaced by zero"):
            sent = sent_by(row[0], update)
        assert all(torch.equal(value, sent_by(row[0], zeros)[name]) for name, value in sent.items())
        return
    with pytest.raises(InvalidInput, match=r"released\['bias'\].* to be finite"):
        sent_by(row[0], update)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([1.0], r"type\(released\)='list' to be a mapping"),
        ({"weight": [1.0]}, "to be a tensor"),
        ({"weight": torch.arange(3)}, "to be of a floating-point type"),
        ({"weight": torch.zeros(0)}, "at least one element"),
        ({"weight": torch.eye(2).to_sparse()}, "to be dense"),
    ],
)
def test_what_is_no_update_is_refused(row, wrong, message):
    with pytest.raises(InvalidInput, match=message):
        sent_by(row[0], wrong)


@pytest.mark.parametrize("size", [1e-4, 300.0])
@pytest.mark.parametrize("name", [name for name, (_, has_mechanism) in ROWS.items() if has_mechanism])
def test_the_mean_of_half_precision_is_as_short_as_the_mechanism_says(name, size):
    """Squares of half precision vanish or overflow."""
    defense = ROWS[name][0]()
    update = {key: torch.full(shape, size, dtype=torch.float16) for key, shape in SHAPES.items()}
    mean, std = defense.replay(update), defense.noise_std(update)
    length = torch.cat([(mean[key].double() / std[key].double()).flatten() for key in mean]).norm()
    assert float(length) <= 1.001 / defense.mechanism.noise_multiplier  # half precision rounds by one in two thousand
    assert size < 1 or float(length) >= 0.999 / defense.mechanism.noise_multiplier


def test_no_update_and_no_generator_are_refused(row):
    with pytest.raises(InvalidInput, match="released with at least one"):
        sent_by(row[0], {})
    with pytest.raises(InvalidInput, match=r"rng=7 to be a torch\.Generator"):
        row[0](released(), rng=7)


WORDS = {
    "chain": "clip(",
    "dp_sgd_noise": "clip_and_noise(",
    "equal_noise": "gaussian_noise(",
    "optimal_pruning_and_noise": "optimal_pruning(",
}


def test_its_words_say_what_it_is(row, request):
    name = request.node.callspec.params["row"]
    assert str(row[0]).startswith(WORDS.get(name, f"{name}("))
