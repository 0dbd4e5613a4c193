"""DefenseSearch a defense: a known answer, confirmation on fresh records, and nothing private in what is chosen."""

import math
import re
from dataclasses import dataclass, fields, replace

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.core.metric import Limit
from reconrisk.core.observation import Observation
from reconrisk.core.progress import CancelToken
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.studies.common import experiment
from reconrisk.studies.common.population import Population
from reconrisk.studies.common.subjects.model_updates import ModelUpdates
from reconrisk.studies.common.subjects.subject import DEFAULT_THREAT
from reconrisk.studies.recommend import public_part, recommend
from reconrisk.studies.recommend import search as recommendation_search
from reconrisk.studies.recommend.attacked_share import AttackEnsemble, OutOfTime
from reconrisk.studies.recommend.recommend import recommend_defense
from reconrisk.studies.recommend.result import TargetStatus
from reconrisk.studies.recommend.search import TrainingCostEstimator

WIDTH = 16
INPUTS = torch.rand(240, WIDTH, generator=torch.Generator().manual_seed(0))
DATA = Dataset("toy", INPUTS, torch.arange(240) % 2)


def sum_of_outputs(outputs: Tensor, labels: Tensor) -> Tensor:
    """A loss whose gradient by the weights of a linear model is the record."""
    return outputs.mean() + 0.0 * labels.sum()


def reader_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(WIDTH, 1)


@dataclass(eq=False)
class Reader:
    """Reads the record off the gradient, which is the record plus noise; interrupted or slow where a test asks."""

    needs: ThreatModel = HONEST_BUT_CURIOUS
    stops_at: int | None = None
    says: float | None = None
    silent: tuple[int, ...] = ()
    is_misled: bool = False
    calls: int = 0

    @property
    def name(self) -> str:
        return "reader"

    def __repr__(self) -> str:
        return f"reader({self.says}, {self.silent})"

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        self.calls += 1
        if self.calls == self.stops_at:
            raise KeyboardInterrupt
        found = observation.released["weight"]
        if self.is_misled and Knows.DEFENSE in observation.threat.knows:
            found = torch.full_like(found, 0.9)
        if self.says is not None:
            found = torch.full_like(found, self.says)
        status = Status(Ending.CONVERGED, "read")
        if self.calls in self.silent:
            found, status = torch.full_like(found, math.nan), Status(Ending.NOT_APPLICABLE, "silent", "Attack others")
        return Reconstruction(found.detach(), AttackReport(repr(self), status, (0.0,), Cost(0.0, 1)))


def choose(**settings):
    given = {"accept": "mse<=0.001: 20%", "families": ["gaussian_noise"], "attacks": [Reader()], "budget": None}
    given |= {"update": rr.UpdateRecipe(loss_fn=sum_of_outputs), "training_steps": 0, "finalists": 1}
    given |= settings
    stated = {each.name: given.pop(each.name) for each in fields(rr.RecommendOptions) if each.name in given}
    return recommend_defense(reader_model(), DATA, options=rr.RecommendOptions(**stated), **given)


@pytest.fixture(scope="module")
def usual():
    return choose()


def test_the_noise_found_is_that_of_the_closed_form():
    """The error is std^2 chi^2_d / d: the std at which P(error <= t) is accepted is known.

    40 trials know the share at the threshold to 0.08, which is 4 % of the std; confirmation on 60 more asks for up to
    three steps of the resolution beyond it.
    """
    t, accepted, resolution = 0.001, 0.5, 1.1
    exact = math.sqrt(t * WIDTH / stats.chi2.ppf(accepted, WIDTH))
    settings = {"accept": f"mse<={t}: {accepted}", "search_trials": 40, "confirm_trials": 60, "resolution": resolution}
    found = choose(**settings)
    option = found.option("gaussian_noise")
    assert found.best == "gaussian_noise"
    assert exact * math.exp(-3 * 0.04) <= option.strength <= exact * math.exp(3 * 0.04) * resolution**4
    assert option.met is TargetStatus.CONFIRMED
    assert option.risks[0].high <= accepted
    assert found.defense.std == option.strength


def test_the_measured_share_is_the_law_of_the_attack(usual):
    found, option = usual, usual.option("gaussian_noise")
    law = stats.chi2.cdf(0.001 * WIDTH / option.strength**2, WIDTH)
    assert option.risks[0].low <= law <= option.risks[0].high
    assert option.risks[0].samples == found.confirm_trials
    assert found.option("none").met is TargetStatus.NEVER


def test_intervals_hold_together_for_everything_that_might_be_shown(usual):
    """One family and none, four attempts, and each limit: the union bound over all of them."""
    assert usual.option("gaussian_noise").risks[0].confidence == pytest.approx(1 - 0.05 / (2 * 4))
    two = choose(accept=("mse<=0.001: 40%", "mse<=0.002: 50%"), families=["gaussian_noise", "laplace_noise"])
    option = two.option(two.best)
    assert [risk.confidence for risk in option.risks] == pytest.approx([1 - 0.05 / (3 * 4 * 2)] * 2)


def test_what_was_stopped_early_or_only_searched_has_no_interval(usual):
    (risk,) = usual.option("none").risks
    assert (risk.low, risk.high, risk.value) == (0.0, 1.0, 1.0)
    assert "searched, no interval" in usual.table()
    failed = choose(attacks=[Reader(silent=tuple(range(1, 9))), Reader(says=0.9)])
    (risk,) = failed.option("none").risks
    assert risk.samples < failed.confirm_trials
    assert (risk.low, risk.high) == (0.0, 1.0)
    assert "stopped early, no interval" in failed.table()


def test_confirmation_catches_what_the_search_took_for_enough(monkeypatch):
    """Noise that a single lucky trial of the search lets pass is not recommended."""
    search = recommendation_search.DefenseSearch._search_family

    def too_weak(self, family, start, deadline, tried):
        search(self, family, start, deadline, tried)
        defense, code = family.defense(self.problem.public.reference, 0.01)
        tried.append(recommendation_search.Candidate(family.name, 0.01, defense, code, TargetStatus.SEARCHED))

    monkeypatch.setattr(recommendation_search.DefenseSearch, "_search_family", too_weak)
    option = choose(resolution=2.0).option("gaussian_noise")
    assert option.met is TargetStatus.CONFIRMED
    assert option.strength > 0.01
    assert "fresh records did not confirm" in option.remark
    monkeypatch.setattr(recommendation_search, "ATTEMPTS", 1)
    refused = choose(resolution=2.0)
    assert refused.option("gaussian_noise").met is TargetStatus.FAILED
    assert not refused.meets


def test_records_of_the_search_public_ones_and_fresh_ones_are_apart(monkeypatch):
    """No private record enters moments, updates or bounds, and none of the search confirms."""
    seen, asked = [], []
    moments, trial = public_part.reference_moments, experiment.Experiment.trial
    monkeypatch.setattr(
        public_part, "reference_moments", lambda *given, **named: seen.append(given[2]) or moments(*given, **named)
    )
    part = recommend.compute_public_part

    def spied(subject, **named):
        seen.append(subject.dataset.inputs)
        return part(subject, **named)

    monkeypatch.setattr(recommend, "compute_public_part", spied)
    original = recommendation_search.DefenseSearch._confirm

    def confirm(self, bar):
        asked.append(None)
        original(self, bar)

    monkeypatch.setattr(recommendation_search.DefenseSearch, "_confirm", confirm)
    monkeypatch.setattr(
        experiment.Experiment,
        "trial",
        lambda self, key: (
            asked.append((self.population.dataset.inputs, self.plan.updates[key.draw])) or trial(self, key)
        ),
    )
    choose(families=["gaussian_noise", "optimal_noise"], finalists=2)
    public = {tuple(row.tolist()) for inputs in seen for row in inputs}
    border = asked.index(None)
    parts = [
        {tuple(inputs[row].tolist()) for inputs, rows in part for row in rows} - public
        for part in (asked[:border], asked[border + 1 :])
    ]
    assert len(seen) >= 2
    assert len(public) == len(DATA) // 4
    assert all(parts)
    assert not parts[0] & parts[1]
    attacked = [rows for part in (asked[:border], asked[border + 1 :]) for inputs, rows in part if len(inputs) == 240]
    assert not {tuple(INPUTS[row].tolist()) for rows in attacked for row in rows} & public


def test_no_defense_helps_against_who_knows_the_answer():
    alike = Dataset("alike", torch.full((60, WIDTH), 0.25), torch.arange(60) % 2)
    others = Dataset("others", torch.rand(20, WIDTH, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 2)
    found = recommend_defense(
        reader_model(),
        alike,
        options=rr.RecommendOptions(public=others),
        accept="mse<=0.001: 20%",
        families=["gaussian_noise", "prune"],
        attacks=[Reader(says=0.25)],
        update=rr.UpdateRecipe(loss_fn=sum_of_outputs),
        budget=None,
    )
    assert found.best is None
    assert not found.meets
    assert {option.met for option in found.options} == {TargetStatus.NEVER}
    assert "No defense was shown to meet mse<=0.001: 20%: the nearest is" in found.sentence


def test_what_guesses_reach_nobody_can_defend():
    found = choose(accept="mse<=0.2: 5%")
    assert found.guess[0] > 0.9
    assert not found.meets
    assert re.search(r"guesses alone reach mse<=0.2 for \d+%", found.sentence)


def test_an_update_that_is_harmless_needs_no_defense():
    found = choose(attacks=[Reader(says=0.9)], training_steps=2, training_seeds=2)
    assert found.best == "none"
    assert found.option("none").met is TargetStatus.CONFIRMED
    assert found.undefended is not None


def test_an_attack_that_does_not_apply_to_two_updates_still_rebuilds_the_others():
    """Silent at the first two updates: it rebuilds all the others, beside an attack that never does."""
    counts = _attackers(Reader(silent=(1, 2)), Reader(says=0.9)).count_successes(
        None, range(20), (20,), CancelToken(None)
    )
    assert (counts.updates, counts.reached, counts.unknown) == (20, (18,), 0)


def test_who_knows_the_defense_may_ignore_it():
    """A reader that knowledge of a clip without effect misleads rebuilds all the same."""
    counts = _attackers(Reader(is_misled=True)).count_successes(
        rr.defenses.clip(1e9), range(20), (20,), CancelToken(None)
    )
    assert counts.reached == (20,)


def _attackers(*readers):
    return AttackEnsemble(
        subject=ModelUpdates(reader_model(), DATA, rr.UpdateRecipe(loss_fn=sum_of_outputs)),
        population=Population(DATA, tuple(range(20))),
        public=DATA,
        threat=DEFAULT_THREAT,
        choice=readers,
        updates=tuple((row,) for row in range(20)),
        limits=(Limit(rr.goals.mse_at_most(1e-6), 0.5),),
        seed=0,
    )


def test_no_defense_that_passes_the_search_by_luck_fails_on_fresh_records():
    """The reader is silent while eight updates are searched: nothing stronger than nothing can be tried after it."""
    found = choose(attacks=[Reader(silent=tuple(range(1, 9))), Reader(says=0.9)])
    assert found.option("none").met is TargetStatus.FAILED
    assert found.best == "gaussian_noise"


def test_with_local_steps_training_is_on_local_updates():
    """One local step is the gradient times its rate: a defense of changes costs what it costs of gradients."""
    torch.manual_seed(0)
    data = Dataset("toy", INPUTS, (INPUTS[:, 0] > INPUTS[:, 1]).long())
    given = {"steps": 30, "seeds": 2, "learning_rate": 2.0, "recipe": rr.UpdateRecipe(), "seed": 0}
    gradients = TrainingCostEstimator(nn.Linear(WIDTH, 2), data, data, **given)
    changes = replace(gradients, learning_rate=0.1, recipe=rr.UpdateRecipe(local_steps=1, local_learning_rate=2.0))
    clipped = (rr.defenses.clip(0.1), rr.defenses.clip(0.2))
    losses = [each.measure(defense).loss.value for each, defense in zip((gradients, changes), clipped, strict=True)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] != pytest.approx(gradients.measure(None).loss.value, rel=1e-2)


def test_ctrl_c_returns_what_is_found():
    found = choose(attacks=[Reader(stops_at=40)], search_trials=16)
    assert found.ended == "interrupted"
    assert found.best is None
    assert found.option("gaussian_noise").met in (TargetStatus.SEARCHED, TargetStatus.UNSETTLED)
    assert found.sentence.endswith("interrupted.")
    first = choose(attacks=[Reader(stops_at=1)])
    assert [option.met for option in first.options] == [TargetStatus.UNTRIED, TargetStatus.UNTRIED]


def test_families_that_time_did_not_suffice_for_are_not_said_to_fail(monkeypatch):
    """After one strength of noise its time is over: what is stronger was not tried, and pruning not at all."""

    def short(self, family, start, deadline, tried):
        if family.name == "prune":
            raise OutOfTime
        built, code = family.defense(self.problem.public.reference, 0.01)
        tried.append(recommendation_search.Candidate(family.name, 0.01, built, code, TargetStatus.NEVER))
        raise OutOfTime

    monkeypatch.setattr(recommendation_search.DefenseSearch, "_search_family", short)
    found = choose(families=["gaussian_noise", "prune"])
    assert [option.met for option in found.options] == [
        TargetStatus.NEVER,
        TargetStatus.UNSETTLED,
        TargetStatus.UNTRIED,
    ]
    assert found.option("prune").remark == "the time for this family ran out"


def test_the_end_of_the_budget_returns_what_is_found():
    found = choose(budget=0.05)
    assert found.ended == "out of time" or found.best is None


def test_a_bound_is_met_by_an_estimate_without_any_attack():
    torch.manual_seed(0)
    model, reader = nn.Linear(WIDTH, 2), Reader()
    found = recommend_defense(
        model,
        DATA,
        mse_bound=0.01,
        families=["gaussian_noise", "prune"],
        attacks=[reader],
        options=rr.RecommendOptions(training_steps=0),
    )
    assert reader.calls == 0
    assert found.best == "gaussian_noise"
    assert found.option("gaussian_noise").mse_bound.low >= 0.01
    assert found.option("prune").met is TargetStatus.NEVER
    assert found.option("gaussian_noise").met is TargetStatus.ESTIMATED
    assert "estimated bound, not a proof: 64 draws" in found.sentence
    assert "proved" not in found.sentence
    assert "est. MSE bound" in found.table()


def test_a_limit_is_proved_by_a_mechanism_only():
    found = choose(evidence="proved", families=["gaussian_noise", "dp_sgd_noise"])
    assert found.best == "dp_sgd_noise"
    assert found.option("dp_sgd_noise").proved[0] <= 0.2
    assert found.option("gaussian_noise").met is TargetStatus.NEVER
    assert found.attacks == ()
    assert "chosen with private records" in found.sentence
    assert "private records" not in choose().sentence


def test_the_plan_is_shown_before_the_search():
    shown = []
    choose(show_plan=shown.append, evidence="proved", families=["dp_sgd_noise"])
    assert shown == ["Families: dp_sgd_noise. Updates: 8 at each strength of the search, 0 fresh ones to confirm."]


def test_options_are_of_their_class():
    with pytest.raises(InvalidInput, match="to be RecommendOptions"):
        recommend_defense(reader_model(), DATA, accept="mse<=0.001: 20%", options={"seed": 1})


def test_the_same_seed_gives_the_same(usual):
    assert choose().options == usual.options


def test_a_recommendation_survives_json_but_for_defenses(usual):
    found = usual
    read = rr.from_json(rr.to_json(found))
    assert read == found
    assert read.defense is None
    assert found.table().splitlines()[2].startswith("->")


def test_the_sentence_warns_where_the_bound_does_not_exclude_better_attacks(usual):
    option = usual.option("gaussian_noise")
    high, low = (
        replace(
            usual,
            options=(
                usual.options[0],
                replace(
                    option, mse_bound=replace(option.mse_bound, low=bound, value=max(bound, option.mse_bound.value))
                ),
            ),
        )
        for bound in (0.002, 0.0005)
    )
    assert "better attacks are not excluded" not in high.sentence
    assert "0.0005, is below the 0.001 of mse<=0.001, so better attacks are not excluded" in low.sentence


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"families": ["gausian_noise"]}, "Did you mean gaussian_noise"),
        ({"families": []}, "at least one family"),
        ({"families": "prune"}, "list of names"),
        ({"accept": ()}, "Expected a target"),
        ({"accept": "mse<=0.001: 0%"}, "above 0%"),
        ({"accept": "mse<=0.001: 1%"}, "they can show no less than"),
        ({"accept": "ssim>=0.5: 5%"}, "to use one of"),
        ({"mse_bound": 0.1}, "<= 0.02508"),
        ({"evidence": "guessed"}, "'measured' or 'proved'"),
        ({"evidence": "proved", "mse_bound": 0.01}, "the bound is an estimate"),
        ({"confidence": 1.0}, "in \\(0, 1\\)"),
        ({"resolution": 0.5}, "resolution=0.5 > 1"),
        ({"finalists": 0}, "finalists=0 >= 1"),
        ({"confirm_trials": 0}, "confirm_trials=0 >= 1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 > 0"),
        ({"training_steps": -1}, "training_steps=-1 >= 0"),
        ({"public": Dataset("other", torch.zeros(4, 3))}, "shape"),
    ],
)
def test_bad_input_is_refused(settings, words):
    with pytest.raises(InvalidInput, match=words):
        choose(**settings)


def test_models_with_kinks_have_no_proved_bound_and_empty_data_are_refused():
    kinked = nn.Sequential(nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(InvalidInput, match="ReLU or max-pooling"):
        recommend_defense(kinked, DATA, mse_bound=0.01)
    with pytest.raises(InvalidInput, match="empty"):
        recommend_defense(kinked, (torch.zeros(0, WIDTH), torch.zeros(0).long()), accept="mse<=0.001: 5%")
    with pytest.raises(InvalidInput, match="torch model"):
        recommend_defense("lenet", DATA, accept="mse<=0.001: 5%")
