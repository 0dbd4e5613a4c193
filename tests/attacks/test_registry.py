import math

import pytest
import torch

import reconrisk as rr
from reconrisk.attacks.registry import (
    ATTACKS,
    PORTFOLIOS,
    attack_by_name,
    attack_settings,
    settings_from_text,
)
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.threat import Knows
from tests.offered_plugins import offer_plugins

ESTIMATES = {
    "average_observations",
    "james_stein",
    "known_norm",
    "known_scale",
    "least_squares",
    "neurons_for_clipping",
    "posterior_mean",
    "ratio",
    "total_least_squares",
    "tabular",
}
GAUSSIAN = rr.priors.gaussian(torch.full((2,), 0.5), 0.01 * torch.eye(2))
GENERATOR = rr.priors.generator(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()), (2,), 2)
BELIEFS = {
    "best_candidate": {"candidates": torch.zeros(1, 2)},
    "low_bits": {"candidates": torch.zeros(1, 2)},
    "class_mean": {"means": torch.zeros(1, 2)},
    "prior_mean": {"mean": torch.zeros(2)},
    "prior_alone": {"prior": GAUSSIAN},
    "plug_and_play": {"prior": GAUSSIAN},
    "gaussian_posterior": {"prior": GAUSSIAN},
    "ggss_r": {"prior": GAUSSIAN},
    "finetuned_diffusion": {"prior": rr.priors.denoiser(torch.nn.Bilinear(2, 1, 2), (2,))},
    "gias": {"prior": GENERATOR},
    "ggl": {"prior": GENERATOR},
    "gifd": {"prior": GENERATOR},
}


INFORMED = {
    "balle2022_reconstructor",
    "fine_tune_reconstructor",
    "glm",
    "glm_attributes",
    "glm_candidates",
    "glm_observed",
    "informed_membership",
    "linear_reconstructor",
    "load_reconstructor",
    "match_candidates",
    "reconstructor",
    "residual_reconstructor",
    "save_reconstructor",
}
"""Attacks on a trained model, which take more than settings; by name, glm reads an observation."""


def test_every_public_attack_has_its_name():
    callables = {name for name in rr.attacks.__all__ if callable(getattr(rr.attacks, name)) and name[0].islower()}
    assert callables - ESTIMATES - INFORMED <= set(ATTACKS)


@pytest.mark.parametrize("name", ATTACKS)
def test_each_is_configured_by_its_own_function(name):
    settings = BELIEFS.get(name, {})
    assert repr(attack_by_name(name, **settings)) == repr(ATTACKS[name].load()(**settings))
    assert ATTACKS[name].summary.endswith(".")
    assert "\n" not in ATTACKS[name].summary


def test_settings_reach_the_attack():
    attack = attack_by_name("inverting_gradients", steps=7, restarts=3, seconds=1.5)
    assert (attack.steps, attack.restarts, attack.seconds) == (7, 3, 1.5)


def test_steps_are_the_iterations_of_attacks_that_count_these():
    assert "steps" not in attack_settings("gauss_newton")
    assert attack_by_name("gauss_newton", steps=7).iterations == 7


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("dlgg", {}, r"Expected attack='dlgg' to be one of dlg, .* Did you mean dlg\?"),
        ("dlg", {"step": 3}, r"Expected step=3 to be left out for dlg. It takes .* Did you mean steps\?"),
        ("analytic", {"seconds": 3.0}, "Expected seconds=3.0 to be left out for analytic"),
        ("dlg", {"steps": 0}, "Expected steps=0 >= 1"),
        ("class_mean", {}, "Expected means for class_mean. Pass the knowledge of the adversary."),
    ],
)
def test_what_does_not_fit_is_refused(name, settings, message):
    with pytest.raises(InvalidInput, match=message):
        attack_by_name(name, **settings)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("dlg", "steps=12", 12),
        ("dlg", "seconds=none", None),
        ("dlg", "seconds=2", 2.0),
        ("imprint", "isolated=False", False),
        ("imprint", "measurement=random", "random"),
        ("constant_guess", "value=-1e-3", -1e-3),
    ],
)
def test_text_is_read_as_what_the_setting_is(name, text, value):
    ((_, read),) = settings_from_text(name, [text]).items()
    assert read == value
    assert type(read) is type(value)


def test_estimates_are_read_by_their_names():
    assert settings_from_text("analytic", ["estimate=known_norm"]) == {"estimate": rr.attacks.known_norm()}


def test_the_last_of_two_equal_names_counts():
    assert settings_from_text("dlg", ["steps=1", "steps=2"]) == {"steps": 2}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("dlg", "steps", "to be name=value with a setting of dlg"),
        ("dlg", "stps=2", r"Did you mean steps\?"),
        ("dlg", "steps=2.5", "Expected setting='steps=2.5' to be a whole number."),
        ("dlg", "seconds=soon", "to be a number or none."),
        ("imprint", "measurement=median", "to be mean or random."),
        ("imprint", "isolated=1", "to be true or false."),
        ("imprint", "public=mnist", "to be a setting that can be written as text. Set it in Python instead."),
        ("inverting_gradients", "parametrization=tabular", "Set it in Python instead."),
        ("analytic", "estimate=best", "to be one of least_squares, ratio, .* or none."),
    ],
)
def test_text_that_cannot_be_read_is_refused(name, text, message):
    with pytest.raises(InvalidInput, match=message):
        settings_from_text(name, [text])


def test_not_a_number_is_refused_by_the_attack():
    assert math.isnan(settings_from_text("constant_guess", ["value=nan"])["value"])
    with pytest.raises(InvalidInput, match="not NaN"):
        attack_by_name("constant_guess", **settings_from_text("constant_guess", ["value=nan"]))


def believing(name, settings):
    """Settings with what has to be known, also of attacks that begin for others."""
    nested = {key: (value[0], believing(*value)) for key, value in settings.items() if isinstance(value, tuple)}
    return {**settings, **nested, **BELIEFS.get(name, {})}


@pytest.mark.parametrize("portfolio", PORTFOLIOS)
def test_portfolios_hold_attacks_that_can_be_configured_cheapest_first(portfolio):
    entries = PORTFOLIOS[portfolio]
    for entry in entries:
        attack_by_name(entry.name, **believing(entry.name, entry.settings))
        assert entry.evaluations > 0
    assert len({(entry.name, str(entry.settings)) for entry in entries}) == len(entries)
    assert [entry.evaluations for entry in entries] == sorted(entry.evaluations for entry in entries)
    assert not {entry.name for entry in entries} & {name for name, info in ATTACKS.items() if info.is_baseline}


def test_a_warm_start_is_stated_by_name_and_settings():
    stated = attack_by_name("gauss_newton", warm_start=("inverting_gradients", {"steps": 7}))
    assert stated.warm_start == attack_by_name("inverting_gradients", steps=7)
    with pytest.raises(InvalidInput, match="stepz"):
        attack_by_name("gauss_newton", warm_start=("inverting_gradients", {"stepz": 7}))


def test_the_thorough_portfolio_tries_all_that_the_quick_one_does_and_no_less():
    quick, thorough = ({entry.name: entry.evaluations for entry in PORTFOLIOS[name]} for name in ("quick", "thorough"))
    assert quick.keys() <= thorough.keys()
    assert all(thorough[name] >= evaluations for name, evaluations in quick.items())


def observation_of(released, threat, labels=None):
    forward = torch.nn.Linear(2, 2)  # nothing that guesses may use
    return Observation({"w": released}, forward, threat, (2,), (0.0, 1.0), labels=labels)


@pytest.mark.parametrize("name", [name for name, info in ATTACKS.items() if info.is_baseline])
def test_guesses_do_not_look_at_the_update(name):
    attack = attack_by_name(name, **BELIEFS.get(name, {}))
    known = ATTACKS[name].guess_for
    threat = attack.needs.with_knowledge(*known)
    labels = torch.tensor([0]) if Knows.LABELS in known else None
    one, other = (
        attack(observation_of(released, threat, labels), rng=torch.Generator()).estimates
        for released in (torch.zeros(3), torch.ones(3))
    )
    assert torch.equal(one, other)


PLUGIN = """
import torch

def middle(observation, *, rng):
    return torch.full((observation.batch_size, *observation.input_shape), 0.5)

def configured(level=0.5):
    \"\"\"Guess a level.\"\"\"
    def guess(observation, *, rng):
        return torch.full((observation.batch_size, *observation.input_shape), level)
    return guess

def nothing():
    return None
"""


@pytest.fixture
def offered(tmp_path, monkeypatch):
    points = {name: f"stand_in_attack:{name}" for name in ("middle", "configured", "nothing")}
    offer_plugins(tmp_path, monkeypatch, {"reconrisk.attacks": points}, PLUGIN, module="stand_in_attack")


def test_a_plugin_may_configure_a_plain_function(offered):
    attack = attack_by_name("configured", level=0.25)
    assert attack.name == "guess"
    assert ATTACKS["configured"].summary == "Guess a level."
    assert repr(attack) != repr(attack_by_name("configured"))
    with pytest.raises(InvalidInput, match=r"steps=3 to be left out for configured\. It takes level"):
        attack_by_name("configured", steps=3)


def test_a_plugin_that_configures_no_attack_is_refused(offered):
    with pytest.raises(
        InvalidInput, match=r"to be a function that configures an attack\. Let the entry point name a function"
    ):
        attack_by_name("middle")
    with pytest.raises(InvalidInput, match="attack='NoneType' to be callable"):
        attack_by_name("nothing")
