import inspect
import subprocess
import sys

import pytest
import torch

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Composed, Gaussian, GaussianDP, PoissonSampled, Repeated, dp_sgd
from reconrisk.defenses.registry import (
    DEFENSES,
    FAMILIES,
    defense_by_name,
    defense_of_one_step,
    family_by_name,
)
from reconrisk.releases.observe import resolve_defense
from reconrisk.releases.release import ForwardRelease
from tests.offered_plugins import offer_plugins

SETTINGS = {
    "gaussian_noise": {"std": 0.5},
    "laplace_noise": {"std": 0.5},
    "clip": {"norm": 2.0},
    "quantise": {"levels": 16},
    "sign": {},
    "clip_and_noise": {"noise_multiplier": 2.0, "clip_norm": 0.5},
    "dp_sgd_noise": {"noise_multiplier": 2.0, "clip_norm": 0.5},
    "prune": {"share": 0.9},
    "random_pruning": {"share": 0.9},
    "local_optimal_noise": {"noise_norm": 0.1},
    "local_optimal_pruning": {"share": 0.9},
}


NOT_BY_WORDS = {"TargetBound", "chain", "refreshed"}
"""Those that take more than numbers."""


def test_every_public_defense_has_its_name():
    assert set(rr.defenses.__all__) - NOT_BY_WORDS == set(DEFENSES)
    assert {name for name, row in DEFENSES.items() if not row.needs_moments} == set(SETTINGS)


@pytest.mark.parametrize("name", DEFENSES)
def test_each_row_names_its_function_its_sentence_and_its_strength(name):
    row = DEFENSES[name]
    build = row.load()
    assert build is getattr(rr.defenses, name)
    parameters = list(inspect.signature(build).parameters)
    assert row.needs_moments == (parameters[:1] == ["moments"])
    assert row.strength in parameters or name == "sign"
    assert row.summary.endswith(".")


def test_names_load_no_torch():
    program = "import sys, reconrisk.defenses.registry as found; list(found.DEFENSES); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("name", SETTINGS)
def test_each_is_configured_by_its_own_function_and_acts(name):
    defense = defense_by_name(name, **SETTINGS[name])
    assert repr(defense) == repr(getattr(rr.defenses, name)(**SETTINGS[name]))
    release = ForwardRelease(lambda inputs, labels: {"w": inputs[0] ** 2}, torch.ones(1, 4), torch.zeros(1))
    sent = resolve_defense(defense, release)({"w": torch.ones(4)}, rng=torch.Generator().manual_seed(0))
    assert sent["w"].shape == (4,)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_words_of_a_defense_are_the_call_that_configures_it(name):
    words = str(defense_by_name(name, **SETTINGS[name]))
    assert words.startswith({"dp_sgd_noise": "clip_and_noise"}.get(name, name))
    functions = {each: getattr(rr.defenses, each) for each in DEFENSES}
    assert repr(eval(words, {"__builtins__": {}}, functions)) == repr(defense_by_name(name, **SETTINGS[name]))  # noqa: S307  # our own words


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("clip_noise", {}, "Expected defense='clip_noise' to be one of .* Did you mean clip_and_noise?"),
        ("secrecy", {}, "Expected defense='secrecy' to be one of gaussian_noise, .*"),
        ("prune", {"shar": 0.9}, "Expected shar=0.9 to be left out .* Did you mean share?"),
        ("clip_and_noise", {"clip_norm": 1.0}, "Expected noise_multiplier for clip_and_noise."),
        ("clip_and_noise", {}, "Expected noise_multiplier and clip_norm for clip_and_noise."),
        ("gaussian_noise", {"std": -1.0}, "std"),
    ],
)
def test_unknown_names_and_settings_are_refused(name, settings, message):
    with pytest.raises(InvalidInput, match=message):
        defense_by_name(name, **settings)


@pytest.mark.parametrize(
    ("mechanism", "step"),
    [
        (Gaussian(2.0, 0.5), Gaussian(2.0, 0.5)),
        (PoissonSampled(Gaussian(2.0, 0.5), 0.1), Gaussian(2.0, 0.5)),
        (Repeated(PoissonSampled(Gaussian(2.0, 0.5), 0.1), 9), Gaussian(2.0, 0.5)),
        (Composed((dp_sgd(noise_multiplier=3.0, steps=2), dp_sgd(noise_multiplier=0.5, steps=9))), Gaussian(0.5)),
    ],
)
def test_one_step_of_a_run_clips_and_adds_the_noise_of_its_most_telling_release(mechanism, step):
    assert defense_of_one_step(mechanism).mechanism == step


def test_stated_privacy_does_not_say_what_a_step_does():
    assert defense_of_one_step(GaussianDP(1.0)) is None


PLUGIN = """
from reconrisk.defenses.base import BaseDefense
from reconrisk.defenses.registry import DefenseInfo, FamilyInfo

class Halved(BaseDefense):
    mechanism = None
    def __init__(self, times): self.times = times
    def _apply(self, released, rng): return self.replay(released)
    def replay(self, released): return {name: value / 2**self.times for name, value in released.items()}
    def noise_std(self, sent): return None
    def kept(self, sent): return None
    def __repr__(self): return f"halved(times={self.times})"

def halved(times, verbose=False):
    \"\"\"Halve every value so many times.\"\"\"
    return Halved(times)

def halved_at(reference, level):
    return Halved(level), f"halved({level:g})"

ROW = DefenseInfo("halved", "stand_in_defense:halved", "Halve.", "times", family=FamilyInfo(
    "any", "stand_in_defense:halved_at", "Halve."))
"""


def test_a_plugin_is_configured_by_name_and_its_one_setting_is_its_strength(tmp_path, monkeypatch):
    points = {"reconrisk.defenses": {"halved_function": "stand_in_defense:halved"}}
    offer_plugins(tmp_path, monkeypatch, points, PLUGIN, module="stand_in_defense")
    assert str(defense_by_name("halved_function", times=3)) == "halved(times=3)"
    assert DEFENSES["halved_function"].strength == "times"
    assert DEFENSES["halved_function"].summary == "Halve every value so many times."
    with pytest.raises(InvalidInput, match="Expected times for halved_function"):
        defense_by_name("halved_function")
    with pytest.raises(InvalidInput, match=r"to have a strength that can be searched.*family=FamilyInfo"):
        family_by_name("halved_function")


def test_a_plugin_can_bring_its_family(tmp_path, monkeypatch):
    points = {"reconrisk.defenses": {"halved_row": "stand_in_defense:ROW"}}
    offer_plugins(tmp_path, monkeypatch, points, PLUGIN, module="stand_in_defense")
    family = family_by_name("halved_row")
    assert family.name == "halved_row"
    assert family.defense(None, 2.0)[1] == "halved(2)"
    assert "halved_row" not in FAMILIES  # searches by default choose from the package's own


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "def broken(): return None",
            r"Expected type\(broken\(\.\.\.\)\)='NoneType' to be a defense. Let stand_in_defense:broken",
        ),
        ("def broken(): return 1 / 0", "the defense 'broken' of stand-in 1.5 to be configured, it raised ZeroDivision"),
    ],
)
def test_a_plugin_that_returns_no_defense_does_not_pass_for_none(tmp_path, monkeypatch, source, message):
    """None would be the release without any defense."""
    points = {"reconrisk.defenses": {"broken": "stand_in_defense:broken"}}
    offer_plugins(tmp_path, monkeypatch, points, source, module="stand_in_defense")
    with pytest.raises(InvalidInput, match=message):
        defense_by_name("broken")
    del DEFENSES._plugins["broken"]


def test_a_plugin_may_take_settings_by_any_name(tmp_path, monkeypatch):
    points = {"reconrisk.defenses": {"halved_any": "stand_in_defense:halved_any"}}
    source = f"{PLUGIN}\ndef halved_any(**settings):\n    return Halved(settings['times'])\n"
    offer_plugins(tmp_path, monkeypatch, points, source, module="stand_in_defense")
    assert str(defense_by_name("halved_any", times=3)) == "halved(times=3)"
