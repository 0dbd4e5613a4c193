from dataclasses import dataclass

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.core.columns import CategoricalColumn, NumericColumn
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows
from reconrisk.data.dataset import Dataset
from reconrisk.studies.rebuild.updates import rebuild

TABLE = Dataset("toy", torch.rand(12, 5, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def mlp(rng=rng):
    generator = rng()
    layers = nn.Sequential(nn.Linear(5, 8), nn.Sigmoid(), nn.Linear(8, 3))
    for value in layers.parameters():
        nn.init.uniform_(value, -1, 1, generator=generator)
    return layers.eval()


@dataclass(frozen=True)
class Recorder:
    """An attack that keeps what it sees and answers with fixed estimates, last record first."""

    seen: list
    answer: torch.Tensor | None = None
    interrupt_at: int | None = None
    raise_at: int | None = None
    needs: object = HONEST_BUT_CURIOUS

    def __call__(self, observation, *, rng):
        if len(self.seen) == self.raise_at:
            raise KeyboardInterrupt
        self.seen.append(observation)
        size = observation.batch_size
        values = torch.full((size, *observation.input_shape), 0.5) if self.answer is None else self.answer.flip(0)
        interrupted = len(self.seen) - 1 == self.interrupt_at
        status = Status(Ending.INTERRUPTED, "stopped", "Again") if interrupted else Status(Ending.CONVERGED, "done")
        objective = tuple(float(number) for number in range(size))
        return Reconstruction(
            values, AttackReport("Recorder(x=1)", status, objective, Cost(0.5, 2), tuple(range(size)))
        )


def test_records_share_updates_and_estimates_come_back_in_their_order():
    targets = TABLE.inputs[[4, 7, 9]]
    seen = []
    result = rebuild(
        Recorder(seen, targets), mlp(), TABLE, records=[4, 7, 9], update=rr.UpdateRecipe(batch_size=3), rng=rng()
    )
    assert torch.equal(result.estimates, targets)
    assert torch.equal(result.targets, targets)
    report = result.report
    assert (report.records, report.updates, report.labels) == ((4, 7, 9), (0, 0, 0), ("1", "1", "0"))
    assert report.inferred == ("2", "1", "0")
    assert report.objective == (2.0, 1.0, 0.0)
    assert [score.name for score in report.scores] == ["psnr", "mse"]
    assert report.scores[1].values == (0.0, 0.0, 0.0)
    expected = (targets - 0.5).square().mean(1).tolist()
    assert report.scores[1].guess == pytest.approx(expected, rel=1e-6)  # float32 records
    assert seen[0].labels is None
    assert (report.attack, report.settings) == ("Recorder", "Recorder(x=1)")


def test_the_last_update_has_what_is_left():
    seen = []
    report = rebuild(
        Recorder(seen), mlp(), TABLE, records=range(5), update=rr.UpdateRecipe(batch_size=2), rng=rng()
    ).report
    assert [observation.batch_size for observation in seen] == [2, 2, 1]
    assert report.updates == (0, 0, 1, 1, 2)
    assert report.is_complete
    assert not report.failed_reports


def test_an_update_is_that_of_its_records():
    seen = []
    rebuild(Recorder(seen), mlp(), TABLE, records=[3, 4], rng=rng())
    gradient = rr.releases.GradientMap(mlp())(TABLE.inputs[4:5], TABLE.labels[4:5])
    torch.testing.assert_close(seen[1].released["0.weight"], gradient["0.weight"])
    local = []
    rebuild(
        Recorder(local),
        mlp(),
        TABLE,
        records=[4],
        update=rr.UpdateRecipe(local_steps=1, local_learning_rate=0.5),
        rng=rng(),
    )
    torch.testing.assert_close(local[0].released["0.weight"], -0.5 * gradient["0.weight"])


def test_the_adversary_is_told_what_was_stated_and_no_more():
    seen = []
    known = [Knows.LABELS, Knows.RECORD_NORM]
    report = rebuild(Recorder(seen), mlp(), TABLE, records=[4], knows=known, rng=rng()).report
    assert seen[0].labels.tolist() == [1]
    assert float(seen[0].record_norms) == pytest.approx(float(TABLE.inputs[4].norm()))
    assert report.threat == HONEST_BUT_CURIOUS.with_knowledge(*known)
    noise = rr.defenses.clip_and_noise(noise_multiplier=0.1, clip_norm=1.0)
    for more in ((), (Knows.DEFENSE,)):
        rebuild(Recorder(seen), mlp(), TABLE, defense=noise, knows=more, rng=rng())
    assert seen[1].noise_std is None
    assert float(seen[2].noise_std["0.bias"][0]) == pytest.approx(0.1)


def test_two_attacks_with_one_seed_meet_the_same_noise():
    noise = rr.defenses.clip_and_noise(noise_multiplier=0.5, clip_norm=1.0)
    first, second, third = [], [], []
    rebuild(Recorder(first), mlp(), TABLE, records=[0, 1], defense=noise, rng=rng())

    def drawing(observation, *, rng):
        torch.rand(7, generator=rng)
        return Recorder(second)(observation, rng=rng)

    drawing.needs = HONEST_BUT_CURIOUS
    rebuild(drawing, mlp(), TABLE, records=[0, 1], defense=noise, rng=rng())
    rebuild(Recorder(third), mlp(), TABLE, records=[0, 1], defense=noise, rng=rng(1))
    for number in (0, 1):
        assert torch.equal(first[number].released["0.weight"], second[number].released["0.weight"])
        assert not torch.equal(first[number].released["0.weight"], third[number].released["0.weight"])
    assert not torch.equal(first[0].released["0.weight"], first[1].released["0.weight"])


def test_an_interrupted_attack_is_the_last():
    calls = []
    result = rebuild(
        Recorder([], interrupt_at=1),
        mlp(),
        TABLE,
        records=range(6),
        update=rr.UpdateRecipe(batch_size=2),
        progress=lambda done, total: calls.append((done, total)),
        rng=rng(),
    )
    assert result.report.records == (0, 1, 2, 3)
    assert len(result.estimates) == len(result.targets) == 4
    assert not result.report.is_complete
    assert "INTERRUPTED: 4 of 6 records were reached." in repr(result)
    assert calls == [(1, 3), (2, 3)]


def test_an_interruption_between_attacks_keeps_what_is_done():
    result = rebuild(Recorder([], raise_at=2), mlp(), TABLE, records=range(6), rng=rng())
    assert result.report.records == (0, 1)
    assert not result.report.is_complete
    with pytest.raises(KeyboardInterrupt):
        rebuild(Recorder([], raise_at=0), mlp(), TABLE, records=range(6), rng=rng())


def test_a_name_stands_for_the_attack_and_public_records_for_its_beliefs():
    result = rebuild("prior_mean", mlp(), TABLE, records=[0, 1], rng=rng())
    torch.testing.assert_close(result.estimates[0], TABLE.inputs[2:].mean(0))
    assert Knows.PRIOR in result.report.threat.knows
    public = Dataset("public", torch.full((3, 5), 0.25), torch.zeros(3, dtype=torch.int64))
    result = rebuild("prior_mean", mlp(), TABLE, public=public, rng=rng())
    assert result.estimates.tolist() == [[0.25] * 5]


@pytest.mark.parametrize(("name", "size"), [("imprint", 3), ("trap_weights", 3), ("optimal_analytic", 1)])
def test_a_malicious_server_plants_its_layer_first(name, size):
    result = rebuild(
        name, mlp(), TABLE, records=[1, 2, 3], update=rr.UpdateRecipe(batch_size=size), knows=[Knows.LABELS], rng=rng()
    )
    assert result.report.threat.controls
    if name == "imprint":  # twelve public records, of which the normal law makes bins that separate these three
        torch.testing.assert_close(result.estimates, result.targets)
    assert "planted" in result.report.accounts[0].status.cause or "recovered" in result.report.accounts[0].status.cause


def test_without_labels_and_model_a_planted_layer_is_trained_alone():
    bare = Dataset("bare", TABLE.inputs)
    result = rebuild("optimal_analytic", None, bare, records=[5], rng=rng())
    torch.testing.assert_close(result.estimates, TABLE.inputs[5:6])
    assert (result.report.model, result.report.labels) == ("none", ("none",))


def test_the_same_seed_gives_the_same_result():
    settings = {"steps": 3}
    first, second = (rebuild("dlg", mlp(), TABLE, settings=settings, rng=rng(3)) for _ in range(2))
    assert torch.equal(first.estimates, second.estimates)
    assert first.report.seed == 3


def test_the_report_comes_back_from_json():
    for name in ("class_mean", "analytic"):  # objective inf, and scores inf
        report = rebuild(name, mlp(), TABLE, records=[0, 3], rng=rng()).report
        assert rr.from_json(rr.to_json(report)) == report


def test_images_have_a_similarity():
    images = Dataset("images", torch.rand(3, 1, 4, 4, generator=rng()), torch.tensor([0, 1, 0]))
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2)).eval()
    scores = {score.name: score for score in rebuild("analytic", model, images, rng=rng()).report.scores}
    assert list(scores) == ["psnr", "ssim", "mse"]
    assert scores["ssim"].values[0] == pytest.approx(1, abs=1e-4)
    assert scores["ssim"].guess[0] < 0.5


def test_columns_of_tables_are_scored_in_their_unit():
    columns = (NumericColumn("age", low=20, high=40, start=0), CategoricalColumn("sex", ("F", "M"), start=1))
    inputs = torch.tensor([[0.5, 1.0, 0.0], [0.0, 0.0, 1.0], [0.25, 0.0, 1.0], [0.25, 1.0, 0.0], [1.0, 0.0, 1.0]])
    table = Dataset("table", inputs, torch.tensor([0, 1, 0, 1, 0]), columns=columns)
    answer = torch.tensor([[0.5, 0.4, 0.6], [0.25, 0.2, 0.8]])
    result = rebuild(
        Recorder([], answer), nn.Linear(3, 2), table, records=[0, 1], update=rr.UpdateRecipe(batch_size=2), rng=rng()
    )
    age, sex = result.report.columns
    assert (age.name, age.right) == ("age", (True, False))
    assert age.error == pytest.approx((0.0, 5.0))
    assert (age.typical_right, age.typical_error) == (0.0, 5.0)  # the median of 0.25, 0.25 and 1 is off by a quarter
    assert (sex.name, sex.right, sex.error, sex.typical_right) == ("sex", (False, True), (), 0.5)
    assert rr.from_json(rr.to_json(result.report)) == result.report
    alone = rebuild(Recorder([]), nn.Linear(3, 2), table, records=range(5), rng=rng()).report
    assert alone.columns[0].typical_right is None


def test_metrics_are_those_that_are_stated():
    result = rebuild("constant_guess", mlp(), TABLE, metrics=[rr.metrics.ncc(), rr.metrics.mse()], rng=rng())
    assert [score.metric for score in result.report.scores] == ["ncc()", "mse()"]
    assert len(rebuild("constant_guess", mlp(), TABLE, metrics=rr.metrics.mse(), rng=rng()).report.scores) == 1


def rebuild_with_recipe(attack="constant_guess", recipe=None, **words):
    return rebuild(attack, mlp(), TABLE, update=rr.UpdateRecipe(**(recipe or {})), rng=rng(), **words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"records": []}, "Expected records with at least one element"),
        ({"records": [12]}, "Expected records=12 to be from 0 to 11, the records of toy"),
        ({"records": [-1]}, "Expected records=-1 >= 0"),
        ({"recipe": {"batch_size": 0}}, "Expected batch_size=0 >= 1"),
        ({"attack": rr.attacks.dlg(), "settings": {"steps": 3}}, "left out for a configured attack"),
        ({"attack": "dlgg"}, r"Did you mean dlg\?"),
        ({"public": Dataset("p", torch.rand(3, 4))}, r"to hold records of shape \(5,\)"),
        ({"recipe": {"local_steps": 3}}, "Pass both for local training"),
        (
            {"records": range(12), "attack": "prior_mean"},
            "Expected public records for prior_mean, other than the attacked ones",
        ),
    ],
)
def test_bad_input_is_refused_before_the_work(words, message):
    with pytest.raises(InvalidInput, match=message):
        rebuild_with_recipe(**words)


def test_a_network_that_cannot_train_on_one_record_says_so():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).train()
    with pytest.raises(InvalidInput, match=r"can be trained on 1 records at once. Expected more than 1 value"):
        rebuild("constant_guess", model, TABLE, rng=rng())
    assert rebuild(
        "constant_guess", model, TABLE, records=[0, 1], update=rr.UpdateRecipe(batch_size=2), rng=rng()
    ).report.is_complete


def test_an_attack_with_a_prior_is_beside_what_the_prior_achieves_alone():
    prior = rr.priors.gaussian(torch.full((5,), 0.25), 0.05 * torch.eye(5))
    attack = rr.attacks.gaussian_posterior(prior)
    rebuilt = rebuild(attack, mlp(), TABLE, records=[0, 1], metrics=rr.metrics.mse(), rng=rng())
    expected = (TABLE.inputs[:2] - 0.25).square().mean(1)
    assert rebuilt.report.scores[0].guess == pytest.approx(expected.tolist(), rel=1e-5)
    assert "of the prior alone" in str(rebuilt)
    assert "prior     gaussian (configured by the caller)" in str(rebuilt)
    plain = rebuild("constant_guess", mlp(), TABLE, records=[0], rng=rng())
    assert "of a constant guess" in str(plain)


def test_the_oracles_step_of_a_guided_diffusion_is_beside_the_attackers_own():
    prior = rr.priors.gaussian(torch.full((5,), 0.25), 0.05 * torch.eye(5))
    attack = rr.attacks.ggss_r(prior, steps=20)
    settings = {"records": [0, 1, 2, 3], "knows": [rr.Knows.LABELS], "metrics": rr.metrics.mse()}
    settings["update"] = rr.UpdateRecipe(batch_size=2)
    rebuilt = rebuild(attack, mlp(), TABLE, defense=rr.defenses.gaussian_noise(0.3), rng=rng(), **settings)
    (found,) = rebuilt.report.scores
    for update in ((0, 1), (2, 3)):
        assert sum(found.oracle[place] for place in update) <= sum(found.values[place] for place in update) + 1e-7
    assert "which no attacker can choose" in str(rebuilt)
    assert rr.from_json(rr.to_json(rebuilt.report)) == rebuilt.report
    other = rebuild("constant_guess", mlp(), TABLE, records=[0], rng=rng())
    assert other.report.scores[0].oracle == ()
    assert "oracle" not in str(other)
