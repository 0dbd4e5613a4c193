import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal

from reconrisk.attacks.knowledge import PublicKnowledge, attack_from_knowledge
from reconrisk.core.columns import CategoricalColumn
from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.core.threat import Knows
from reconrisk.data.dataset import Dataset
from tests.attacks.tiny_priors import SHAPE, ship

RECORDS = torch.rand(40, 1, 3, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 4
IMAGES = Dataset("images", RECORDS, LABELS, classes=tuple("abcdef"))
PRIOR = frozenset({Knows.PRIOR})


def configured(name, settings=None, *, public=IMAGES, data=IMAGES, batch_size=1, clip_norm=None):
    beliefs = PublicKnowledge(
        IMAGES.shape if data is None else data.shape, batch_size, public, data, clip_norm=clip_norm
    )
    return attack_from_knowledge(name, settings or {}, replace(beliefs, columns=None if data is None else data.columns))


def test_means_are_those_of_the_public_records():
    attack, knows = configured("prior_mean", public=IMAGES.subset([1, 3]))
    assert knows == PRIOR
    torch.testing.assert_close(attack.mean, (RECORDS[1] + RECORDS[3]) / 2)


def test_a_class_without_public_records_has_the_mean_of_all():
    attack, knows = configured("class_mean")
    assert knows == PRIOR
    assert attack.means.shape == (6, 1, 3, 3)
    for label in range(4):
        torch.testing.assert_close(attack.means[label], RECORDS[label::4].mean(0))
    torch.testing.assert_close(attack.means[5], RECORDS.mean(0))


def test_candidates_are_all_records_with_their_labels():
    attack, knows = configured("best_candidate", public=None)
    assert knows == PRIOR
    assert torch.equal(attack.candidates, RECORDS)
    assert torch.equal(attack.labels, LABELS)


def test_bins_come_from_the_records_or_their_moments():
    assert torch.equal(configured("imprint", {"bins": 40})[0].public, RECORDS)
    law = configured("imprint", {"bins": 41})[0].public
    assert isinstance(law, Normal)
    measured = RECORDS.flatten(1).mean(1)
    assert float(law.mean) == pytest.approx(float(measured.mean()), rel=1e-6)
    assert float(law.stddev) == pytest.approx(float(measured.std(correction=0)), rel=1e-6)


def test_records_that_measure_alike_give_a_normal_law():
    coarse = Dataset("coarse", (4 * RECORDS).round() / 4)
    assert isinstance(configured("imprint", {"bins": 30}, public=coarse)[0].public, Normal)
    assert configured("imprint", {"bins": 30, "measurement": "random"}, public=coarse)[0].public is coarse.inputs
    equal = Dataset("equal", torch.full((40, 1, 3, 3), 0.5))
    assert configured("imprint", public=equal)[1] == frozenset()


def test_no_beliefs_are_needed_where_the_attack_has_its_own():
    attack, knows = configured("imprint", public=None)
    assert (attack.bins, knows) == (256, frozenset())
    assert configured("imprint", {"bins": 41, "measurement": "random"})[1] == frozenset()
    assert configured("analytic")[1] == frozenset()


def test_what_is_stated_stays():
    law = Normal(0.5, 0.1)
    attack, knows = configured("imprint", {"public": law, "bins": 3})
    assert attack.public is law
    assert knows == frozenset()
    attack, knows = configured("trap_weights", {"scale": 0.5})
    assert (attack.scale, knows) == (0.5, frozenset())


def test_trap_weights_are_calibrated_on_public_records():
    attack, knows = configured("trap_weights", {"neurons": 50}, batch_size=8)
    assert knows == PRIOR
    inputs, plain = IMAGES.inputs, configured("trap_weights", {"neurons": 50, "scale": 0.95})[0]
    expected = [each.expected_recovered(8, inputs, trials=50).value for each in (attack, plain)]
    assert expected[0] > expected[1]
    assert configured("trap_weights", batch_size=41)[0].scale == 0.95


def test_as_many_neurons_as_let_clipping_bind():
    smallest = float(RECORDS.flatten(1).norm(dim=1).min())
    attack, knows = configured("optimal_analytic", clip_norm=5.0)
    assert attack.neurons == math.ceil((5 / smallest) ** 2) > 1
    assert knows == PRIOR
    assert configured("optimal_analytic")[0].neurons == 1
    assert configured("optimal_analytic", {"neurons": 2}, clip_norm=5.0)[0].neurons == 2
    assert configured("optimal_analytic", clip_norm=1e9)[0].neurons * 9 <= 2**26


def test_tables_are_searched_as_tables():
    columns = (CategoricalColumn("kind", ("x", "y"), start=0),)
    table = Dataset("table", torch.eye(2), torch.tensor([0, 1]), columns=columns)
    attack, knows = configured("inverting_gradients", public=None, data=table)
    assert "tabular" in repr(attack.parametrization)
    assert knows == frozenset()
    assert attack == configured("inverting_gradients", {"total_variation": 0.0}, public=None, data=table)[0]
    assert attack != configured("inverting_gradients", {"total_variation": 0.1}, public=None, data=table)[0]


def test_who_needs_other_records_says_so():
    with pytest.raises(
        InvalidInput, match=r"public records for class_mean, other than the attacked ones.*--records 0-9"
    ):
        configured("class_mean", public=None)
    with pytest.raises(InvalidInput, match="Expected candidate records for best_candidate"):
        configured("best_candidate", data=None)
    assert len(configured("class_mean", data=None)[0].means) == 6


def test_a_warm_start_by_name_is_configured_for_the_records_too():
    stated = {"warm_start": ("inverting_gradients", {"steps": 5})}
    for shape, variation in (((4,), 0.0), ((1, 8, 8), 0.1)):
        attack, known = attack_from_knowledge("gauss_newton", stated, PublicKnowledge(shape))
        assert attack.warm_start.regularizers[0].weight == variation
        assert attack.warm_start.steps == 5
        assert known == frozenset()


def test_a_shipped_prior_that_lacks_an_extra_is_an_error_that_names_it(tmp_path, monkeypatch):
    """Not a normal law in its place, which is a weaker attack, nor a complaint that records are too few for one."""
    pytest.importorskip("diffusers", reason="needs the extra diffusion to write one")
    ship(monkeypatch, tmp_path / "bundled")

    def missing(*given, **stated):
        raise MissingExtra("diffusers", "diffusion", "This prior")

    monkeypatch.setattr("reconrisk.priors.load.diffusers.diffusion", missing)
    for count in (20, 100):
        public = Dataset("pictures", torch.rand(count, *SHAPE))
        with pytest.raises(MissingExtra, match=r"pip install 'reconrisk\[diffusion\]'"):
            attack_from_knowledge("ggss_r", {}, PublicKnowledge(SHAPE, public=public))
    stated = attack_from_knowledge("ggss_r", {"prior": "gaussian"}, PublicKnowledge(SHAPE, public=public))[0]
    assert stated.prior.name == "gaussian"
