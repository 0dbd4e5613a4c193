"""Kinds of priors by rows, and those that other distributions offer."""

import subprocess
import sys

import pytest
import torch

import reconrisk as rr
from reconrisk.attacks.knowledge import PublicKnowledge, attack_from_knowledge
from reconrisk.attacks.prior_choice import is_prior_name, prior_by_name
from reconrisk.attacks.registry import ATTACKS
from reconrisk.data.dataset import Dataset
from reconrisk.priors.registry import PRIORS
from tests.offered_plugins import offer_plugins

SOURCE = '''
import torch
from reconrisk.priors.gaussian import gaussian, fit_gaussian

def ready():
    """Two values, near a half."""
    return gaussian(torch.full((2,), 0.5), 0.01 * torch.eye(2), name="ready")

def learned(records, *, data_range):
    """Fitted to records."""
    return fit_gaussian(records, data_range=data_range, floor=0.1, name="learned")

def stored(path, *, data_range):
    """Read from a folder."""
    return gaussian(torch.load(path / "mean.pt"), torch.eye(2), data_range=data_range, name=path.name)

def nothing():
    return None

def not_learned(records, *, data_range):
    return None

def raising():
    raise RuntimeError("not today")
'''


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    names = ("ready", "learned", "stored", "nothing", "not_learned", "raising")
    points = {f"our_{name}": f"stand_in_plugin:{name}" for name in names}
    offer_plugins(tmp_path, monkeypatch, {"reconrisk.priors": points}, SOURCE)
    yield
    vars(PRIORS).pop("_plugins", None)


@pytest.mark.parametrize("kind", PRIORS)
def test_every_row_names_code_that_exists(kind):
    row = PRIORS[kind]
    assert callable(row.load())
    assert row.summary.endswith(".")
    assert not row.wrapper or callable(getattr(rr.priors, row.wrapper))


def test_attacks_take_kinds_that_have_a_row_or_fit_them_themselves():
    public = PublicKnowledge((4,), public=Dataset("toy", torch.rand(40, 4), torch.arange(40) % 2))
    for row in ATTACKS.values():
        for kind in set(row.priors) - set(PRIORS):
            for settings in ({}, {"prior": kind}):
                found = public.prior_used_by(attack_from_knowledge(row.name, settings, public)[0])
                assert (found.value.kind, found.source) == (kind, "fitted to 40 public records")


def test_listing_kinds_needs_no_torch():
    code = "import sys; from reconrisk.priors.registry import PRIORS; list(PRIORS); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_a_plugin_is_made_from_is_read_from_its_function(plugins):
    assert "our_ready" in PRIORS
    assert "stand_in_plugin" not in sys.modules  # listing imports nothing
    assert [PRIORS[f"our_{name}"].source for name in ("ready", "learned", "stored")] == ["nothing", "records", "folder"]
    assert PRIORS["our_ready"].summary == "Two values, near a half."


def test_a_ready_prior_is_stated_by_its_name(plugins):
    assert is_prior_name("our_ready")
    found = prior_by_name("our_ready", ("gaussian",), (0.0, 2.0))
    assert found.value.data_range == (0.0, 2.0)
    assert found.said == "ready (provided by a plugin as our_ready, scaled from [0, 1] to [0, 2])"
    attack = rr.attacks.ggss_r(found.value)
    assert found.is_used_by(attack)
    with pytest.raises(rr.InvalidInput, match=r"a kind that the attack takes \(gan\), not gaussian"):
        prior_by_name("our_ready", ("gan",))
    with pytest.raises(rr.InvalidInput, match="its function returned a NoneType"):
        prior_by_name("our_nothing", ("gaussian",))


def test_a_kind_that_is_fitted_takes_public_records(plugins):
    data = Dataset("toy", torch.rand(40, 2, generator=torch.Generator().manual_seed(0)))
    found = PublicKnowledge(data.shape, public=data).prior("our_learned", ("gaussian",))
    assert found.said == "learned (fitted to 40 public records)"
    with pytest.raises(rr.InvalidInput, match="to need no public records"):
        prior_by_name("our_learned", ("gaussian",))
    with pytest.raises(rr.InvalidInput, match="public records for the prior our_learned, other than the attacked ones"):
        PublicKnowledge(data.shape).prior("our_learned", ("gaussian",))


def test_an_audit_takes_the_prior_of_a_plugin_by_name(plugins):
    data = Dataset("toy", torch.rand(8, 2, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2)
    result = rr.audit(
        torch.nn.Linear(2, 2), data, attacks=["ggss_r(prior=our_ready, steps=2)"], trials=2, goals="mse<=0.01"
    )
    assert {row.prior.name for row in result.attacks if row.prior is not None} == {"ready"}
    assert "prior_alone(prior=ready)" in [row.label for row in result.attacks]


def test_a_folder_is_read_by_the_kind_that_the_attack_takes(plugins, tmp_path):
    (tmp_path / "mine").mkdir()
    torch.save(torch.tensor([0.25, 0.75]), tmp_path / "mine" / "mean.pt")
    found = prior_by_name(str(tmp_path / "mine"), ("our_stored",))
    assert (found.value.mean.tolist(), found.source) == ([0.25, 0.75], "read from a folder")
    with pytest.raises(rr.InvalidInput, match="such priors are not read from a folder"):
        prior_by_name(str(tmp_path / "mine"), ("gaussian",))


OWN_KIND = """
from dataclasses import dataclass
from reconrisk.attacks.baselines import prior_alone
from reconrisk.attacks.registry import AttackInfo
from reconrisk.priors.gaussian import GaussianPrior, fit_gaussian

class Mine(GaussianPrior):
    kind = "mine"

def fit_mine(records, *, data_range):
    fitted = fit_gaussian(records, data_range=data_range)
    return Mine(fitted.mean, fitted.directions, fitted.variances, data_range, name="mine")

@dataclass(frozen=True, eq=False)
class Draws:
    prior: object
    name = "draws"

    @property
    def needs(self):
        return prior_alone(self.prior).needs

    def __call__(self, observation, *, rng):
        return prior_alone(self.prior, guess="draw")(observation, rng=rng)

def draws(prior):
    return Draws(prior)

def settings(knowledge, given):
    return {} if "prior" in given else {"prior": knowledge.fit_own_prior("mine", fit_mine)}

DRAWS = AttackInfo(
    "draws", "stand_in_plugin:draws", "Draws.", priors=("mine",), from_knowledge="stand_in_plugin:settings"
)
"""


@pytest.fixture
def own_kind(tmp_path, monkeypatch):
    offer_plugins(tmp_path, monkeypatch, {"reconrisk.attacks": {"draws": "stand_in_plugin:DRAWS"}}, OWN_KIND)
    yield
    vars(ATTACKS).pop("_plugins", None)


def test_the_name_of_a_kind_without_a_row_states_what_its_attack_fits(own_kind):
    data = Dataset("toy", torch.rand(40, 2, generator=torch.Generator().manual_seed(0)))
    public = PublicKnowledge(data.shape, public=data)
    by_word, knows = attack_from_knowledge("draws", {"prior": "mine"}, public)
    assert by_word.prior.kind == "mine"
    assert knows == {rr.Knows.PRIOR}
    assert attack_from_knowledge("draws", {}, public)[0].prior is by_word.prior
    assert public.prior_used_by(by_word).said == "mine (fitted to 40 public records)"
    with pytest.raises(rr.InvalidInput, match="public records for the prior mine, other than the attacked ones"):
        attack_from_knowledge("draws", {"prior": "mine"}, PublicKnowledge(data.shape))


def test_the_prior_of_a_kind_without_a_row_is_a_guess_of_an_audit(own_kind):
    data = Dataset("toy", torch.rand(40, 2, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2)
    result = rr.audit(torch.nn.Linear(2, 2), data, attacks=["draws(prior=mine)"], trials=2, goals="mse<=0.01")
    assert "prior_alone(prior=mine)" in [row.label for row in result.attacks]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("our_not_learned", "prior='our_not_learned' to be a prior, but its function returned a NoneType"),
        ("our_raising", "the prior 'our_raising' of stand-in 1.5 to be configured, it raised RuntimeError: not today"),
    ],
)
def test_a_plugin_that_makes_no_prior_is_refused_by_its_name(plugins, word, message):
    data = Dataset("toy", torch.rand(40, 2), torch.arange(40) % 2)
    with pytest.raises(rr.InvalidInput, match=message):
        PublicKnowledge((2,), public=data).prior(word, ("gaussian",))
