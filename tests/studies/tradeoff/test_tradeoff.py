"""The frontier on problems whose answer is known, resumed, interrupted, and refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks.registry import attack_by_name
from reconrisk.core.errors import InvalidInput
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.defenses.clipping import clip
from reconrisk.defenses.noise import clip_and_noise, gaussian_noise
from reconrisk.defenses.pruning import random_pruning
from reconrisk.defenses.refreshed import refreshed
from reconrisk.defenses.registry import defense_by_name
from reconrisk.studies.common.defended_training import TrainingRecipe, train_defended
from reconrisk.studies.common.subjects.subject import UpdateRecipe
from reconrisk.studies.tradeoff import study as tradeoff_study
from reconrisk.studies.tradeoff.result import ATTACKERS, AttackScore, TradeoffCell, TradeoffResult
from reconrisk.studies.tradeoff.tradeoff import tradeoff

_WITH_LABELS = ThreatModel(Sees.ONE_UPDATE, knows=frozenset({Knows.LABELS}))


def _data(count: int = 80, seed: int = 1) -> Dataset:
    inputs = torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))
    return Dataset("toy", inputs, (inputs[:, 0] > inputs[:, 1]).long())


def _model(classes: int = 2) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Linear(4, classes)


def _frontier(defenses: Any = None, **changed: Any) -> TradeoffResult:
    stated: dict[str, Any] = {"attacks": ["analytic"], "steps": 4, "repeat": 2, "trials": 2, **changed}
    training = TrainingRecipe(
        **{each.name: stated.pop(each.name) for each in fields(TrainingRecipe) if each.name in stated}
    )
    update = UpdateRecipe(loss_fn=stated.pop("loss_fn", None))
    options = rr.TradeoffOptions(
        **{each.name: stated.pop(each.name) for each in fields(rr.TradeoffOptions) if each.name in stated}
    )
    noise = {"noise": {0.1: gaussian_noise(0.1)}} if defenses is None else defenses
    model, data = stated.pop("model", _model()), stated.pop("data", _data())
    return tradeoff(model, data, noise, training=training, update=update, options=options, **stated)


def test_a_defense_without_effect_is_the_undefended_run() -> None:
    result = _frontier({"clip": {1e9: clip(1e9)}}, steps=10)
    for seed in range(2):
        none, clipped = (next(c for c in result.cells if (c.family, c.seed) == (f, seed)) for f in ("none", "clip"))
        for name in ("training_loss", "test_loss", "test_accuracy", "utility_1", "utility_2"):
            assert getattr(none, name) == pytest.approx(getattr(clipped, name), abs=1e-9), name
        for attacker in ("unaware", "aware"):
            errors = [cell.score(attacker, "analytic").mse for cell in (none, clipped)]
            assert errors == pytest.approx([0.0, 0.0], abs=1e-9)


def test_utility_is_that_of_training_on_the_split() -> None:
    """The training loss of a cell is what training by itself on the records of that seed gives."""
    study = _study()
    split = study.split(0)
    rows = [{tuple(row.tolist()) for row in part.inputs} for part in (split.attacked, split.training, split.test)]
    assert [len(each) for each in rows] == [2, 62, 16]
    assert len(rows[0] | rows[1] | rows[2]) == 80
    cell = study.cell(tradeoff_study.Variant("none", None, None), 0)
    rng = tradeoff_study._rng(0, "training")
    alone = train_defended(study.model, split.training, steps=4, test=split.test, rng=rng)
    assert (cell.training_loss, cell.test_accuracy) == (alone.training_loss, alone.test_accuracy)


def _study() -> tradeoff_study.TradeoffStudy:
    training = TrainingRecipe(steps=4, clients=1, batch_size=16, optimizer="sgd", learning_rate=0.1)
    return tradeoff_study.TradeoffStudy(
        model=_model(),
        dataset=_data(),
        test=None,
        test_share=0.2,
        threat=_WITH_LABELS,
        attacks=("analytic",),
        training=training,
        loss_fn=nn.functional.cross_entropy,
        trials=2,
        attacked_batch_size=1,
        attack_trained=False,
    )


def test_the_arguments_in_the_signature_are_those_of_the_function() -> None:
    study, variants = _study(), (tradeoff_study.Variant("none", None, None), tradeoff_study.Variant("n", 1.0, None))
    written = replace(study, attacked_batch_size=2, attacks="quick").signature(variants, range(3, 5))
    captured: dict[str, Any] = {}

    def keep(*positional: Any, **named: Any) -> None:
        captured.update(inspect.signature(rr.tradeoff).bind(*positional, **named).arguments)

    names = SimpleNamespace(
        tradeoff=keep,
        TrainingRecipe=rr.TrainingRecipe,
        UpdateRecipe=rr.UpdateRecipe,
        TradeoffOptions=rr.TradeoffOptions,
    )
    eval(written, {"rr": names, "model": study.model, "data": study.dataset})  # noqa: S307 - the call as it is written
    assert captured["training"] == study.training
    assert captured["update"] == rr.UpdateRecipe(batch_size=2)
    assert captured["options"] == rr.TradeoffOptions(repeat=2, seed=3)
    assert (captured["attacks"], captured["trials"]) == ("quick", 2)


def test_noise_protects_and_costs() -> None:
    """From no noise to noise a hundred times the gradient: the error rises to that of a guess, U2 and the trace fall
    with the square of the noise, and the bound rises."""
    stds = (0.01, 0.1, 10.0)
    result = _frontier({"noise": {std: gaussian_noise(std) for std in stds}}, trials=4)
    for attacker in ("unaware", "aware"):
        rows = result.rows_for(attacker)
        errors = [row.mse.value for row in rows]
        assert errors == sorted(errors)
        assert errors[0] < 1e-9
        assert (rows[0].attack, rows[-1].is_guess) == ("analytic", True)
        bounds = [row.mse_bound for row in rows]
        assert bounds == sorted(bounds)
        assert bounds[0] == 0.0
    first, second = (result.rows_for("aware", "noise")[place] for place in (0, 1))
    assert second.utility_2.value == pytest.approx(100 * first.utility_2.value, rel=1e-4)
    assert first.fisher_trace.value == pytest.approx(100 * second.fisher_trace.value, rel=1e-4)  # the same directions
    assert result.rows_for("aware")[0].fisher_trace.value == float("inf")


def test_who_knows_the_mask_of_a_linear_model_rebuilds_the_record() -> None:
    """Half of the gradient of a linear model with five outputs: more equations than unknowns remain, and who knows
    which are missing solves them, while who takes zeros for values cannot."""
    model = _model(5)
    mask = random_pruning(0.5, seed=1)
    result = _frontier({"mask": {0.5: mask}}, model=model, attacks=["gauss_newton"], threat=_WITH_LABELS)
    unaware, aware = (result.rows_for(attacker, "mask")[0] for attacker in ("unaware", "aware"))
    assert aware.mse.value < 1e-6
    assert unaware.mse.value > 1e-3
    assert unaware.fisher_trace.value == float("inf")
    assert aware.utility_1.value == unaware.utility_1.value < 1


class _Spoiled:
    """Reads the record off the gradient, but for who knows the defense, and is misled by it."""

    needs = ThreatModel(Sees.ONE_UPDATE)

    def __call__(self, observation: Any, *, rng: torch.Generator) -> Any:
        found = attack_by_name("analytic")(observation, rng=rng)
        if Knows.DEFENSE not in observation.threat.knows:
            return found
        return replace(found, estimates=torch.ones_like(found.estimates))


def test_who_knows_the_defense_may_ignore_it() -> None:
    result = _frontier({"clip": {1e9: clip(1e9)}}, attacks=[_Spoiled()], repeat=2)
    unaware, aware = (result.rows_for(attacker, "clip")[0] for attacker in ("unaware", "aware"))
    assert unaware.mse.value < 1e-9
    assert aware.mse.value == unaware.mse.value
    assert aware.attack.endswith("defense ignored")
    assert result.dominates("clip", "clip").dominated == 1


def test_only_who_knows_the_defense_knows_where_it_clips() -> None:
    study = _study()
    defense, seen = clip_and_noise(clip_norm=0.7, noise_multiplier=1.0), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tradeoff_study, "plan_attacks", lambda *given, **stated: seen.append(given[2].clip_norm) or ())
        for attacker in ATTACKERS:
            study.plan_attacks(attacker, study.split(0), defense)
    assert seen == [None, 0.7]


def test_resumed_is_the_same_and_trains_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = {"noise": {0.1: gaussian_noise(0.1), 1.0: gaussian_noise(1.0)}}
    whole = _frontier(noise)
    trained: list[str] = []

    def counted(kept: Callable[..., Any]) -> Callable[..., Any]:
        def cell(self: Any, variant: Any, seed: int) -> Any:
            trained.append(variant.label)
            if len(trained) == 4:
                raise KeyboardInterrupt
            return kept(self, variant, seed)

        return cell

    monkeypatch.setattr(tradeoff_study.TradeoffStudy, "cell", counted(tradeoff_study.TradeoffStudy.cell))
    part = _frontier(noise, store=tmp_path)
    assert not part.is_complete
    assert len(part.cells) == 3
    assert "Not complete" in str(part)
    resumed = _frontier(noise, store=tmp_path)
    assert len(trained) == 4 + 3
    assert resumed.is_complete
    assert [_timeless(row) for row in resumed.rows] == [_timeless(row) for row in whole.rows]
    again = _frontier(noise, store=tmp_path)
    assert len(trained) == 7
    assert again == resumed
    assert from_json(to_json(again)) == again


def _timeless(row: Any) -> Any:
    return to_json(row).partition('"seconds"')[0]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that are not computed: where only the store is looked at."""

    def cell(self: Any, variant: Any, seed: int) -> TradeoffCell:
        scores = tuple(AttackScore(attacker, "guess", True, 0.1, 10.0) for attacker in ATTACKERS)
        numbers = (0.1, 0.1, 0.5, False, 1.0, 0.0, 1.0, 0.0)
        return TradeoffCell(variant.family, variant.strength, seed, *numbers, scores, 1.0)

    monkeypatch.setattr(tradeoff_study.TradeoffStudy, "cell", cell)


@pytest.mark.usefixtures("at_once")
def test_more_seeds_and_strengths_add_to_what_is_there(tmp_path: Path) -> None:
    _frontier(store=tmp_path)
    assert len(list(tmp_path.glob("cell-*.json"))) == 4
    _frontier({"noise": {0.1: gaussian_noise(0.1), 0.2: gaussian_noise(0.2)}}, repeat=3, store=tmp_path)
    assert len(list(tmp_path.glob("cell-*.json"))) == 9


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": 5},
        {"learning_rate": 0.2},
        {"optimizer": "adam"},
        {"trials": 3},
        {"attack_trained": True},
        {"attacks": ["analytic", "constant_guess"]},
        {"threat": _WITH_LABELS},
        {"data": _data(seed=2)},
        {"model": nn.Linear(4, 2)},
        {"loss_fn": nn.functional.multi_margin_loss},
        {"test": _data(seed=3)},
        {"defenses": {"noise": {0.1: gaussian_noise(0.2)}}},
    ],
    ids=lambda changed: next(iter(changed)),
)
@pytest.mark.usefixtures("at_once")
def test_changed_settings_share_no_cell(tmp_path: Path, changed: dict[str, Any]) -> None:
    noise = {"noise": {0.1: gaussian_noise(0.1)}}
    _frontier(noise, repeat=1, store=tmp_path)
    before = len(list(tmp_path.glob("cell-*.json")))
    _frontier(**{"defenses": noise, "repeat": 1, "store": tmp_path, **changed})
    shared = 1 if "defenses" in changed else 0  # the undefended run is the same under any defense
    assert len(list(tmp_path.glob("cell-*.json"))) == 2 * before - shared


def test_interrupted_before_anything_is_done_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tradeoff_study.TradeoffStudy, "cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        _frontier()


def test_public_records_choose_optimal_noise_and_refreshed_defenses_start_anew() -> None:
    public, loss = _data(16, seed=5), nn.functional.cross_entropy
    again = refreshed(
        lambda moments: clip(1.0) >> gaussian_noise(0.1), loss, public.inputs, public.class_labels, every=2
    )
    families = {"optimal": {0.1: defense_by_name("optimal_noise", like=0.1)}, "refreshed": {0.1: again}}
    result = _frontier(families, public=public, repeat=1)
    assert again.sends == 0
    cells = {cell.family: cell for cell in result.cells}
    assert cells["refreshed"].defense_gradients is not None
    assert cells["refreshed"].defense_gradients > 0
    assert cells["optimal"].fisher_trace < float("inf")
    with pytest.raises(InvalidInput, match="Pass public="):
        _frontier({"optimal": {0.1: defense_by_name("optimal_noise", like=0.1)}})


def test_a_loss_without_second_derivative_is_told() -> None:
    """Attacks and information need it; torch's own words alone would not say the remedy."""
    with pytest.raises(InvalidInput, match=r"multi_margin_loss_backward.*a loss that torch differentiates twice"):
        _frontier(loss_fn=nn.functional.multi_margin_loss, attacks=["constant_guess"], repeat=1)


class _Fails:
    """An attack that raises every other time and finds the record otherwise."""

    needs = ThreatModel(Sees.ONE_UPDATE)

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, observation: Any, *, rng: torch.Generator) -> Any:
        self.calls += 1
        if self.calls % 2:
            raise RuntimeError("no luck")
        return attack_by_name("analytic")(observation, rng=rng)


def test_where_an_attack_fails_its_adversary_still_has_a_guess() -> None:
    """Half of the trials exact and half lost: the mean is finite, that of the guess on those that were lost."""
    result = _frontier(attacks=[_Fails()], repeat=1, trials=2)
    score = next(score for score in result.cells[0].scores if not score.is_guess)
    assert score.failures == 1
    assert 0 < score.mse < 0.5
    assert result.rows_for("aware", "none")[0].mse.value <= score.mse


def test_real_labels_have_no_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.rand(80, 4, generator=torch.Generator().manual_seed(1))
    given = {"model": nn.Linear(4, 1), "data": Dataset("real", inputs, inputs[:, 0]), "repeat": 1}
    result = _frontier(**given)
    assert all(row.test_accuracy is None for row in result.rows)
    assert result.utility == "test_loss"
    assert "by test loss and MSE" in str(result)
    monkeypatch.setattr(tradeoff_study.TradeoffStudy, "cell", lambda *_: pytest.fail("a cell was computed"))
    with pytest.raises(InvalidInput, match="utility='test_accuracy' to be defined for real-valued labels"):
        _frontier(**given, utility="test_accuracy")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"defenses": {}}, "defenses={} to map at least one family"),
        ({"defenses": {"noise": {}}}, "to have at least one strength"),
        ({"defenses": {"none": {1.0: gaussian_noise(1.0)}}}, "a name other than 'none'"),
        ({"defenses": {"noise": {1.0: gaussian_noise}}}, "to be a configured defense"),
        ({"defenses": {"noise": {"much": gaussian_noise(1.0)}}}, "strength of noise='much' to be a number"),
        ({"defenses": gaussian_noise(1.0)}, "to map at least one family"),
        ({"trials": 70}, "records=80 >= 102: 70 attacked, 16 to test on, 16 to train on"),
        ({"clients": 8}, "records=80 >= 146"),
        ({"test": 0.0}, "test=0.0 > 0"),
        ({"test": 1.5}, "test=1.5 in"),
        ({"test": True}, "test=True to be test records, or the share"),
        ({"attacks": ["analitic"]}, "Did you mean analytic"),
        ({"attacks": []}, "Expected an attack"),
        ({"steps": -3}, "steps=-3 >= 1"),
        ({"epochs": 1}, "to have exactly one number"),
        ({"optimizer": "lion"}, "to be one of sgd, adam"),
        ({"learning_rate": 0}, "learning_rate=0.0 > 0"),
        ({"data": Dataset("bare", torch.rand(80, 4))}, "data='bare' to have labels"),
        ({"test": Dataset("bare", torch.rand(80, 4))}, "test='bare' to have labels"),
        ({"model": nn.Linear}, "to be a torch model"),
        ({"repeat": 0}, "repeat=0 >= 1"),
        ({"attack_trained": "yes"}, "attack_trained='yes' to be True or False"),
        ({"confidence": 1.0}, "confidence=1.0 in"),
        ({"utility": "speed"}, "utility='speed' to be one of"),
        ({"leakage": "speed"}, "leakage='speed' to be one of"),
        ({"seed": -1}, "seed=-1 >= 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_trained(
    changed: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tradeoff_study.TradeoffStudy, "cell", lambda *_: pytest.fail("a cell was computed"))
    with pytest.raises(InvalidInput, match=said):
        _frontier(**changed)
