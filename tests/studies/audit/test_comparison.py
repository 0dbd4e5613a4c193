import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reconrisk.core.guarantee import Estimate
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.data.dataset import Dataset
from reconrisk.defenses import clip_and_noise
from reconrisk.metrics.goals import limit_from_text
from reconrisk.statistics.intervals import success_interval
from reconrisk.studies.audit.comparison import Change, SettingChange, compare
from reconrisk.studies.audit.result import LimitCheck, Outcome, Standing
from reconrisk.studies.audit.run import audit


def audited(**settings):
    torch.manual_seed(0)
    data = Dataset("toy", torch.rand(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2)
    return audit(nn.Linear(4, 2), data, **{"trials": 8, "attacks": ["analytic"], "budget": None} | settings)


@pytest.fixture(scope="module")
def open_update():
    return audited()


@pytest.fixture(scope="module")
def noisy_update():
    return audited(defenses=clip_and_noise(noise_multiplier=2.0, clip_norm=1.0))


def with_success(result, hits, samples, *, attacks=1, per_trial=1):
    """The result as if the best attack had reached every goal so often, of so many attacks."""
    success = success_interval(hits, trials=samples, per_trial=per_trial)
    outcomes = tuple(Outcome(f"attack{number}", False, success) for number in range(attacks))
    lines = tuple(replace(line, success=success, outcomes=outcomes) for line in result.lines)
    return replace(result, lines=lines, subject=replace(result.subject, batch_size=per_trial))


def choose(n, k):
    return math.comb(n, k)


def two_sided(k, n, hits, total):
    """Fisher's test from its definition: the tables with these margins that are no more likely."""
    chances = [
        choose(n, i) * choose(total - n, hits - i) / choose(total, hits)
        for i in range(max(0, hits - total + n), min(n, hits) + 1)
    ]
    mine = choose(n, k) * choose(total - n, hits - k) / choose(total, hits)
    return min(1.0, sum(chance for chance in chances if chance <= mine * (1 + 1e-7)))


@given(st.integers(1, 30), st.integers(1, 30), st.data())
def test_the_p_value_is_fishers_times_the_ways_in_which_it_may_stand_out(open_update, n, m, data):
    k, j = data.draw(st.integers(0, n)), data.draw(st.integers(0, m))
    before, after = with_success(open_update, k, n, attacks=2), with_success(open_update, j, m, attacks=3)
    ways = len(open_update.lines) * 2 * 3
    for line in compare(before, after).lines:
        assert line.p_value == pytest.approx(min(1.0, ways * two_sided(k, n, k + j, n + m)), rel=1e-6)
        expected = Change.CHANCE if line.p_value > 0.05 else Change.MORE if j / m > k / n else Change.LESS
        assert line.change is expected


@given(st.integers(1, 30), st.data())
def test_a_comparison_backwards_says_the_opposite(open_update, n, data):
    k, j = data.draw(st.integers(0, n)), data.draw(st.integers(0, n))
    one, other = with_success(open_update, k, n), with_success(open_update, j, n)
    opposite = {Change.MORE: Change.LESS, Change.LESS: Change.MORE, Change.CHANCE: Change.CHANCE}
    forth, back = compare(one, other), compare(other, one)
    assert [opposite[line.change] for line in forth.lines] == [line.change for line in back.lines]
    assert [line.p_value for line in forth.lines] == pytest.approx([line.p_value for line in back.lines])


def test_equal_releases_are_rarely_told_apart(open_update):
    """At most one comparison in twenty may be wrong: 200 of them have more than 24 with probability below 2e-5."""
    rng = torch.Generator().manual_seed(4)
    wrong = 0
    for _ in range(200):
        hits = torch.binomial(torch.full((2,), 16.0), torch.tensor([0.5, 0.5]), generator=rng).int().tolist()
        compared = compare(*(with_success(open_update, count, 16) for count in hits))
        wrong += any(line.change is not Change.CHANCE for line in compared.lines)
    assert wrong <= 24


@pytest.mark.parametrize(
    ("hits", "change"), [((0, 64), Change.MORE), ((64, 0), Change.LESS), ((28, 36), Change.CHANCE)]
)
def test_records_that_share_updates_are_told_apart_by_intervals(open_update, hits, change):
    before, after = (with_success(open_update, count, 16, per_trial=4) for count in hits)
    for line in compare(before, after).lines:
        assert line.p_value is None
        assert line.change is change


def test_what_was_not_run_is_not_compared(open_update):
    nothing = Estimate(0.0, 0.0, 1.0, 0.95, 0, "nothing was run")
    lines = tuple(replace(line, success=nothing, best_attack="", worst_record=-1) for line in open_update.lines)
    compared = compare(open_update, replace(open_update, lines=lines))
    assert {line.change for line in compared.lines} == {Change.NOT_RUN}
    assert "not run" in str(compared)


def test_the_same_audit_differs_in_nothing(open_update):
    compared = compare(open_update, open_update)
    assert (compared.settings, compared.only_before, compared.only_after) == ((), (), ())
    assert {line.change for line in compared.lines} == {Change.CHANCE}
    assert "no setting differs" in str(compared)


def test_a_defense_that_stops_the_attack_is_seen(open_update, noisy_update):
    compared = compare(open_update, noisy_update)
    assert [line.change for line in compared.lines] == [Change.LESS] * len(open_update.lines)
    assert (compared.before, compared.after) == (open_update.run, noisy_update.run)
    label = noisy_update.defenses[0].label
    text = str(compared)
    assert "defense none: only before" in text
    assert f"defense {label}: only after" in text
    assert f"less is rebuilt (psnr>=20 under none -> {label} 100% -> 0%" in compared.sentence
    assert from_json(to_json(compared)) == compared


def test_the_table_has_both_sides_of_each_line(open_update, noisy_update):
    text = str(compare(open_update, noisy_update))
    rows = [line.split() for line in text.splitlines() if line.startswith("psnr")]
    before, after = (next(row for row in rows if when in row) for when in ("before", "after"))
    assert before[:4] == ["psnr>=20", "none", "before", "100%"]
    assert "analytic" in before
    assert "<=" in after  # the bound that the noise gives, which the open update lacks


def test_settings_that_differ_are_named(open_update):
    other = replace(
        open_update,
        seed=5,
        subject=replace(open_update.subject, data="others", data_hash="ffff"),
        attacks=tuple(replace(attack, settings=f"{attack.label}(a=1, b=2)") for attack in open_update.attacks),
        environment=replace(open_update.environment, versions=(("reconrisk", "9"),)),
    )
    found = {change.name: change for change in compare(open_update, other).settings}
    assert {"seed", "data", "records", "attack analytic", "reconrisk", "torch"} <= set(found)
    assert not {"model", "weights", "threat", "goals", "defense none"} & set(found)
    assert (found["seed"].before, found["seed"].after) == ("0", "5")
    assert found["torch"].after == "absent"


def test_limits_are_settings_and_their_standings_part_of_the_table(open_update):
    check = LimitCheck(limit_from_text("psnr>=20: 1%"), Standing.ABOVE)
    limited = replace(open_update, lines=(replace(open_update.lines[0], limits=(check,)), *open_update.lines[1:]))
    compared = compare(open_update, limited)
    assert [(each.name, each.after) for each in compared.settings] == [("limits", "psnr>=20: 1%")]
    assert "above the limit" in str(compared)


def test_only_the_parts_that_differ_are_written():
    assert str(SettingChange("attack x", "X(a=1, b=2)", "X(a=1, b=3)")) == "attack x: b=2) -> b=3)"
    assert str(SettingChange("goals", "psnr>=20", "psnr>=20, mse<=1")) == "goals: psnr>=20 -> psnr>=20, mse<=1"


def test_goals_and_defenses_of_one_side_are_listed(open_update):
    both = audited(defenses={"none": None, "more": clip_and_noise(noise_multiplier=2.0, clip_norm=1.0)})
    fewer = replace(open_update, lines=open_update.lines[:1])
    compared = compare(fewer, both)
    assert len(compared.lines) == 1
    assert compared.only_before == ()
    assert compared.only_after == ("psnr>=20 under more", "mse<=0.05 under none", "mse<=0.05 under more")
    assert "only after: psnr>=20 under more" in str(compared)


def test_nothing_in_common_is_said(open_update):
    compared = compare(open_update, replace(open_update, lines=()))
    assert compared.lines == ()
    assert "no goal and defense is in both audits" in compared.sentence
