"""The audit as a whole: the same trials whatever else is asked, kept in the store, within the budget."""

import json
import pickle
import re
import time
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Observation
from reconrisk.core.progress import check_cancelled
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import HONEST_BUT_CURIOUS, Knows, Sees, ThreatModel
from reconrisk.data.dataset import Dataset
from reconrisk.defenses import deferred as unchosen
from reconrisk.releases.release import ForwardRelease
from reconrisk.studies.audit.result import Standing, Verdict
from reconrisk.studies.audit.run import audit

INPUTS = torch.rand(12, 3, generator=torch.Generator().manual_seed(0))
DATA = Dataset("toy", INPUTS, torch.arange(12) % 2)
RELEASE = ForwardRelease(lambda inputs, labels: {"y": inputs.sum(0)}, INPUTS, DATA.labels)
NOISE = rr.defenses.gaussian_noise(0.05)


@dataclass(eq=False)
class Reader:
    """Reads the record off a release that is the record, counts its calls, and does what a test needs beyond it."""

    label: str = "reader"
    seconds: float = 0.0
    stops_at: int | None = None
    estimates: int = 1
    refuses: bool = False
    calls: int = 0
    needs: ThreatModel = HONEST_BUT_CURIOUS

    @property
    def name(self) -> str:
        return "reader"

    def __repr__(self) -> str:
        return f"{self.label}()"

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        if self.refuses:
            raise InvalidInput("Expected another update.")
        if self.calls == self.stops_at:
            raise KeyboardInterrupt
        self.calls += 1
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            check_cancelled()  # as the loops of attacks do
            time.sleep(0.002)
        noise = 0.02 * torch.randn(observation.input_shape, generator=rng)
        found = (observation.released["y"] + noise).expand(self.estimates, *observation.input_shape)
        status = Status(Ending.CONVERGED, "read")
        return Reconstruction(found, AttackReport(repr(self), status, (0.0,) * self.estimates, Cost(0.0, 1)))


def run(attack=None, **settings):
    options = {"attacks": [attack or Reader()], "goals": ["mse<=0.003"], "trials": 6, "budget": None}
    return audit(RELEASE, DATA, defenses=NOISE, **options | settings)


def outcome(result):
    """What must not depend on when and how trials were run: all but time."""
    plain = json.loads(rr.to_json(result))
    for name in ("created", "seconds", "signature", "run"):
        plain.pop(name, None)
    for attack in plain["attacks"]:
        attack["seconds"] = 0
    return plain


def test_the_same_seed_gives_the_same_result_and_another_does_not():
    assert outcome(run(options=rr.AuditOptions(seed=3))) == outcome(run(options=rr.AuditOptions(seed=3)))
    assert outcome(run(options=rr.AuditOptions(seed=3))) != outcome(run(options=rr.AuditOptions(seed=4)))


class LateReader(Reader):
    """Has nothing to read in the first two updates, as with no active neuron."""

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        found = super().__call__(observation, rng=rng)
        if self.calls > 2:
            return found
        status = Status(Ending.NOT_APPLICABLE, "no neuron is active", "Attack another update")
        return Reconstruction(torch.full_like(found.estimates, float("nan")), replace(found.account, status=status))


def test_an_attack_that_does_not_apply_to_two_updates_is_tried_on_the_others():
    reader = LateReader()
    audit(RELEASE, DATA, attacks=[reader], goals=["mse<=0.003"], trials=6, budget=None)
    assert reader.calls == 6


def test_trials_do_not_depend_on_how_many_there_are_or_which_other_attacks_run():
    few, many = run(trials=3), run(trials=6)
    scores = {(each.record, each.draw): each.score for each in many.exposures}
    assert all(scores[each.record, each.draw] == each.score for each in few.exposures)
    beside = run(attacks=[Reader(), ("constant_guess", {"value": 0.3})])
    assert [each.score for each in beside.exposures] == [each.score for each in many.exposures]


def test_attacks_on_one_draw_meet_the_same_noise_and_defenses_do_not_share_it():
    seen = {}

    @dataclass(eq=False)
    class Spy(Reader):
        def __call__(self, observation, *, rng):
            seen.setdefault(self.label, []).append(observation.released["y"].clone())
            return super().__call__(observation, rng=rng)

        @property
        def name(self):
            return self.label

    audit(RELEASE, DATA, defenses={"a": NOISE, "b": NOISE}, attacks=[Spy("one"), Spy("two")], trials=4, budget=None)
    assert all(torch.equal(one, two) for one, two in zip(seen["one"], seen["two"], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(seen["one"][::2], seen["one"][1::2], strict=True))


def test_a_run_that_was_interrupted_goes_on_to_the_same_result(tmp_path):
    store = tmp_path / "audit.db"
    first = run(Reader(stops_at=2), store=store)
    assert not first.is_complete
    assert first.lines[0].success.samples == 2
    again = Reader()
    assert outcome(run(again, store=store)) == outcome(run())
    assert again.calls == 4


def test_more_trials_add_to_those_that_are_there(tmp_path):
    store, more = tmp_path / "audit.db", Reader()
    run(trials=4, store=store)
    assert outcome(run(more, trials=7, store=store)) == outcome(run(trials=7))
    assert more.calls == 3


@pytest.mark.parametrize(
    "change",
    [
        {"goals": ["psnr>=10", "ncc>=0.5"]},
        {"options": rr.AuditOptions(confidence=0.5)},
        {"max_risk": "psnr>=10: 1%"},
        {"trials": 2},
    ],
)
def test_what_is_asked_of_trials_does_not_run_them_again(tmp_path, change):
    store, again = tmp_path / "audit.db", Reader()
    run(store=store)
    assert outcome(run(again, store=store, **change)) == outcome(run(**change))
    assert again.calls == 0


@pytest.mark.parametrize(
    "change",
    [
        {"options": rr.AuditOptions(seed=1)},
        {"options": rr.AuditOptions(records=[0, 1, 2, 3, 4, 5])},
        {"threat": ThreatModel(Sees.ONE_UPDATE)},
        {"update": rr.UpdateRecipe(2)},
    ],
)
def test_what_trials_depend_on_runs_them_again(tmp_path, change):
    store, again = tmp_path / "audit.db", Reader()
    run(store=store)
    run(again, store=store, **change)
    assert again.calls == 6


def test_attacks_and_data_with_other_settings_are_not_taken_from_the_store(tmp_path):
    store, other, moved = tmp_path / "audit.db", Reader("other reader"), Reader()
    run(store=store)
    run(other, store=store)
    assert other.calls == 6
    data = replace(DATA, inputs=DATA.inputs.flip(0))
    audit(RELEASE, data, defenses=NOISE, attacks=[moved], trials=6, budget=None, store=store)
    assert moved.calls == 6


def test_guesses_from_other_public_records_are_not_taken_from_the_store(tmp_path):
    store, results = tmp_path / "audit.db", []
    for value in (0.0, 1.0):
        public = Dataset("public", torch.full((4, 3), value), torch.zeros(4, dtype=torch.int64))
        results.append(run(options=rr.AuditOptions(public=public), store=store, goals=["mse<=0.2"]))
    assert outcome(results[1]) == outcome(run(options=rr.AuditOptions(public=public), goals=["mse<=0.2"]))


class Elsewhere:
    """Sends everything through pickle, as an executor of processes does, and the last task first."""

    def run(self, function, tasks, *, token):
        sent = pickle.dumps(function)
        for task in reversed(list(tasks)):
            yield task, pickle.loads(pickle.dumps(pickle.loads(sent)(pickle.loads(pickle.dumps(task)))))  # noqa: S301


def test_trials_may_run_in_other_processes_and_in_any_order():
    def here_or(**executor):
        settings = {"trials": 2, "attacks": ["analytic"], "defenses": NOISE, "budget": None}
        return outcome(audit(torch.nn.Linear(3, 2), DATA, **settings, **executor))

    torch.manual_seed(0)
    first = here_or(executor=Elsewhere())
    torch.manual_seed(0)
    assert here_or() == first


def test_what_is_no_executor_is_refused_before_anything_runs():
    with pytest.raises(InvalidInput, match=r"Pass Elsewhere\(\)"):
        run(executor=Elsewhere)


def test_ctrl_c_returns_what_is_done():
    result = run(Reader(stops_at=3))
    assert not result.is_complete
    assert result.lines[0].success.samples == 3
    guesses = [each.done for each in result.attacks if each.is_baseline]
    assert guesses == [4]  # the fourth was made before the attack that was interrupted
    assert result.done == 3 + 4
    assert "trials were not run" in str(result)


def test_interrupted_before_anything_is_done_nothing_is_claimed():
    result = run(Reader(stops_at=0))
    (line,) = result.lines
    assert line.verdict is Verdict.NOTHING_RUN
    assert (line.success.low, line.success.high, line.success.samples) == (0.0, 1.0, 0)
    assert "not run" in str(result)


def test_the_budget_is_kept_to_within_a_trial():
    begun = time.monotonic()
    result = run(Reader(seconds=0.25), trials=200, budget=1.5)
    assert time.monotonic() - begun < 1.5 + 3.0  # the conclusion, on a busy machine
    assert 0 < result.lines[0].success.samples < 200
    assert result.seconds < 1.5 + 3.0


def test_a_trial_longer_than_the_budget_is_interrupted():
    begun = time.monotonic()
    result = run(Reader(seconds=60.0), budget=3.0)
    assert time.monotonic() - begun < 20
    assert [each.done for each in result.attacks] == [0, 1]  # the guess takes no time


def test_a_chosen_attack_that_refuses_is_an_error_and_one_of_a_portfolio_is_listed_with_its_reason():
    with pytest.raises(InvalidInput, match="Expected another update"):
        run(Reader(refuses=True))
    result = audit(RELEASE, DATA, attacks="quick", trials=4, budget=None)
    (refused,) = (each for each in result.attacks if each.label == "analytic")
    assert refused.failed == refused.done == 4
    assert "Expected" in refused.remark
    assert result.is_complete
    assert "analytic" not in {each.attack for each in result.lines[0].outcomes}
    assert refused.remark in str(result)


def test_more_estimates_than_records_are_refused():
    with pytest.raises(InvalidInput, match=r"Expected number of estimates of .*=2 <= 1, the number of records"):
        run(Reader(estimates=2))


def test_a_limit_that_is_proved_is_not_exceeded_by_chance():
    guaranteed = rr.success_upper_bound(rr.mechanisms.GaussianDP(0.5), prior_success=0.2)
    assert guaranteed.value < 0.4
    run_known = rr.TrainingRun(guarantees=[lambda goal, label: guaranteed])
    settings = {"training": run_known, "trials": 2, "max_risk": "mse<=0.003: 40%"}
    result = run(goals=None, **settings)
    (line,) = (each for each in result.lines if each.limits)
    assert line.success.value > 0.4
    assert line.limits[0].standing is Standing.PROVED
    assert not result.exceeded_limits


def test_a_limit_that_attacks_pass_is_exceeded():
    result = run(max_risk=["mse<=0.003: 1%"])
    assert [check.standing for _, check in result.exceeded_limits] == [Standing.ABOVE]
    assert "mse<=0.003: 1%" in result.sentence


def test_attacks_of_one_kind_with_other_settings_are_numbered():
    result = audit(RELEASE, DATA, attacks=[Reader(), Reader("other"), Reader("third")], trials=2, budget=None)
    assert [attack.label for attack in result.attacks][:3] == ["reader", "reader #2", "reader #3"]


def test_the_plan_is_shown_before_anything_runs():
    shown, reader = [], Reader()
    run(reader, options=rr.AuditOptions(show_plan=lambda text: shown.append((text, reader.calls))))
    ((text, calls),) = shown
    assert calls == 0
    assert "6 updates of 1 record" in text


def test_the_package_is_the_function():
    result = rr.audit(RELEASE, DATA, attacks=[Reader()], trials=2, budget=None)
    assert result.done == 2 * len(result.attacks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attacks": "fast"}, "Expected attacks='fast' to be one of quick, thorough"),
        ({"attacks": []}, "Expected an attack that"),
        ({"attacks": ["best_candidate"]}, "to allow everything that best_candidate needs"),
        ({"attacks": [Reader(), Reader()]}, "to differ"),
        ({"goals": []}, "Expected goals with at least one element"),
        ({"goals": ["ssim>=0.5"]}, "to use one of psnr, mse, ncc for records of shape"),
        ({"goals": ["psnr>20"]}, "Expected goal='psnr>20'"),
        ({"max_risk": "psnr>=20"}, "Expected max_risk='psnr>=20' to be a goal and a share"),
        ({"trials": 0}, "Expected trials=0 >= 1"),
        ({"update": rr.UpdateRecipe(13)}, "Expected batch_size=13 <= 12"),
        ({"options": rr.AuditOptions(records=[12])}, "to be different rows from 0 to 11"),
        ({"options": {"seed": 1}}, r"Expected options=\{'seed': 1\} to be AuditOptions"),
        ({"training": "dp-sgd"}, "Expected mechanism='dp-sgd' to be the mechanism of a training run"),
        ({"budget": "soon"}, "Expected budget='soon' to be a time"),
        ({"defenses": {}}, "to have at least one entry"),
        ({"defenses": [NOISE, NOISE]}, "to differ"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(change, message):
    reader = Reader()
    with pytest.raises(InvalidInput, match=message):
        audit(RELEASE, DATA, **{"attacks": [reader], "budget": None, "trials": 2} | change)
    assert reader.calls == 0


def test_a_model_needs_data():
    with pytest.raises(InvalidInput, match="Expected data=None to hold records and labels"):
        audit(nn.Linear(2, 2))


def test_a_release_brings_its_own_records():
    result = audit(RELEASE, attacks=[Reader()], trials=2, budget=None)
    assert result.subject.population == 12


def test_tensors_are_data():
    result = audit(nn.Linear(3, 2), (INPUTS, DATA.labels), attacks=["analytic"], trials=2, budget=None)
    assert result.lines[0].success.value == 1.0


def test_known_labels_are_handed_over_and_shrink_what_is_left_to_guess():
    noisy = rr.defenses.clip_and_noise(noise_multiplier=4.0, clip_norm=1.0)
    settings = {"defenses": noisy, "attacks": [Reader()], "trials": 2, "budget": None, "goals": ["mse<=1e-6"]}
    bounds = []
    for knows in (set(), {Knows.LABELS}):
        result = audit(RELEASE, DATA, threat=ThreatModel(Sees.ONE_UPDATE, knows=knows), **settings)
        bounds += [each.guarantee.value for line in result.lines for each in line.comparisons if each.is_compared]
    assert bounds[0] < bounds[1]


def test_estimates_are_tensors_in_the_order_of_the_records():
    found: list[Tensor] = []
    inputs = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    release = ForwardRelease(lambda inputs, labels: {"y": inputs.sum(0)}, inputs, torch.zeros(4, dtype=torch.int64))
    result = audit(release, Dataset("pictures", inputs, release.labels), attacks=[Reader()], trials=4, budget=None)
    for picture in result.pictures:
        found.append(torch.from_numpy(picture.target - picture.estimate))
        assert picture.target.shape == (1, 8, 8)
    assert len(found) == 4
    assert max(float(each.abs().max()) for each in found) < 0.2  # ten standard deviations of its noise


class Halving(nn.Module):
    """A network whose records are halved or not; neither its layers nor its weights say which."""

    def __init__(self, halves):
        super().__init__()
        self.layer, self.halves = nn.Linear(3, 2), halves
        nn.init.ones_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)

    def forward(self, inputs):
        return self.layer(inputs / 2 if self.halves else inputs)


def test_a_network_that_computes_something_else_is_another_run(tmp_path):
    settings = {"attacks": ["analytic"], "trials": 4, "budget": None, "store": tmp_path / "trials.db"}
    halved = audit(Halving(True), DATA, **settings)
    bare = audit(Halving(False), DATA, **settings)
    assert halved.run != bare.run
    assert (halved.lines[0].success.value, bare.lines[0].success.value) == (0.0, 1.0)


def test_a_loss_that_weighs_otherwise_is_another_run():
    losses = [nn.CrossEntropyLoss(weight=torch.tensor([1.0, weight])) for weight in (1.0, 2.0)]
    runs = {
        audit(nn.Linear(3, 2), DATA, attacks=["analytic"], trials=1, update=rr.UpdateRecipe(loss_fn=loss)).run
        for loss in losses
    }
    assert len(runs) == 2


def test_losses_of_one_name_that_close_over_something_else_are_other_runs():
    """So near to each other that the norm of an update, which has four digits, does not tell them apart."""

    def loss_of(factor):
        return lambda outputs, labels: factor * nn.functional.cross_entropy(outputs, labels)

    model = nn.Linear(3, 2)
    factors = (1.0, 1.0, 1.000001)
    runs = [
        audit(model, DATA, attacks=["analytic"], trials=1, update=rr.UpdateRecipe(loss_fn=loss_of(factor))).run
        for factor in factors
    ]
    assert runs[0] == runs[1] != runs[2]


def test_a_record_is_no_guess_at_itself():
    """Of a single record the mean is the record: as a guess it would say that the attack gains nothing."""
    single = ForwardRelease(RELEASE.forward, INPUTS[:1], DATA.labels[:1])
    result = audit(single, attacks=[Reader()], goals=["mse<=0.003"], trials=3, budget=None)
    assert result.lines[0].verdict is Verdict.LEAKS


def test_without_time_a_limit_is_not_kept():
    result = run(budget=1e-6, max_risk="mse<=0.003: 50%")
    assert result.done == 0
    assert len(result.failures()) == 1
    assert "was not tested, because no attack worked" in result.failures()[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threat": ThreatModel(Sees.EVERY_UPDATE)}, "threat.sees='every-update' to be one-update"),
        ({"threat": "one-update"}, "threat='one-update' to be a ThreatModel"),
        ({"data": INPUTS}, r"type\(data\)='Tensor' to hold records and labels"),
        ({"data": ("a", "b")}, r"type\(records of data\)='str' to be a tensor or an array"),
        ({"goals": rr.goals.psnr_at_least(20), "attacks": []}, "Expected an attack that"),
        ({"goals": "psnr>20"}, "Expected goal='psnr>20'"),
        ({"defenses": "prune"}, "Expected share for prune"),
        ({"defenses": ["prun(share=0.5)"]}, "Did you mean prune"),
        ({"defenses": [rr.defenses.prune]}, "to be a configured defense"),
        ({"defenses": {"none": NOISE}}, "to be used for None only"),
        (
            {"subject": nn.Linear},
            r"type\(subject\)='the class Linear' to be a torch model, a release or a fitted estimator",
        ),
    ],
)
def test_what_an_audit_cannot_use_is_refused_in_words(change, message):
    settings = {"subject": nn.Linear(3, 2), "data": DATA, "attacks": ["analytic"], "trials": 1} | change
    subject, data = settings.pop("subject"), settings.pop("data")
    with pytest.raises(InvalidInput, match=message):
        audit(subject, data, **settings)


def test_arrays_will_do():
    result = audit(
        nn.Linear(3, 2), (INPUTS.numpy(), [0, 1] * 6), attacks=["analytic"], trials=2, goals=rr.goals.psnr_at_least(20)
    )
    assert result.lines[0].success.value == 1.0


@dataclass(frozen=True, eq=False)
class Remembers:
    """An attack that prints the records it has."""

    records: Tensor
    needs: ThreatModel = HONEST_BUT_CURIOUS

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        return Reader()(observation, rng=rng)


def test_no_value_of_a_record_enters_the_result_by_the_words_of_an_attack():
    result = run(Remembers(INPUTS))
    written = " ".join(re.findall(r'"(?:[^"\\]|\\.)*"', rr.to_json(result)))  # seconds may be like a record by chance
    assert "Remembers" in written
    assert f"{float(INPUTS[0, 0]):.4f}" in repr(Remembers(INPUTS))
    assert not any(f"{value:.4f}" in written for value in INPUTS.flatten().tolist())


def test_defenses_and_attacks_can_be_written():
    result = audit(nn.Linear(3, 2), DATA, attacks=["analytic(estimate=ratio)", "inverting_gradients(steps=2)"],
                   defenses=["none", "prune(share=0.5)"], trials=1)  # fmt: skip
    assert [defense.label for defense in result.defenses] == ["none", "prune(share=0.5)"]
    assert [attack.label for attack in result.attacks][:2] == [
        "analytic(estimate=ratio)",
        "inverting_gradients(steps=2)",
    ]


@pytest.mark.parametrize("chosen", [{}, {"records": [0, 2], "public": DATA.subset([3, 4])}])
def test_the_signature_repeats_the_trials(chosen):
    model = nn.Linear(3, 2)
    result = audit(
        model,
        DATA,
        attacks=["analytic"],
        defenses=["none", "gaussian_noise(std=0.5)"],
        trials=2,
        options=rr.AuditOptions(seed=5, **chosen),
    )
    known = {"rr": rr, "model": model, "data": DATA, "public": chosen.get("public")}
    again = eval(result.signature.partition("  #")[0], known)  # noqa: S307  # its own words
    assert again.run == result.run
    assert outcome(again) == outcome(result)


def test_the_signature_names_what_was_configured_in_python():
    defense = rr.defenses.prune(0.5) >> rr.defenses.gaussian_noise(0.1)
    recipe = rr.UpdateRecipe(loss_fn=nn.functional.cross_entropy)
    result = audit(nn.Linear(3, 2), DATA, attacks=[rr.attacks.analytic()], defenses=defense, update=recipe, trials=1)
    call, _, comment = result.signature.partition("  # ")
    assert "loss_fn=loss_fn" in call
    assert "loss_fn cross_entropy" in comment
    assert "prune(share=0.5) >> gaussian_noise(std=0.1) as configured in Python" in comment


def test_a_release_that_raises_is_refused_before_anything_runs():
    def broken(inputs, labels):
        raise RuntimeError("no such layer")

    with pytest.raises(InvalidInput, match="got RuntimeError: no such layer"):
        audit(ForwardRelease(broken, INPUTS, DATA.labels), DATA, attacks=[Reader()], trials=1)


def test_optimal_noise_by_words_is_chosen_by_records_that_are_not_attacked(monkeypatch):
    seen = []
    taken = unchosen.reference_moments

    def spy(model, loss_fn, inputs, labels):
        seen.append(inputs)
        return taken(model, loss_fn, inputs, labels)

    monkeypatch.setattr(unchosen, "reference_moments", spy)
    model, words = nn.Linear(3, 2), ["optimal_noise(noise_multiplier=1, clip_norm=1)", "optimal_pruning(share=0.5)"]
    options = {"attacks": ["analytic"], "goals": ["mse<=0.003"], "trials": 3, "budget": None, "defenses": words}
    result = audit(model, DATA, options=rr.AuditOptions(records=[0, 1, 2, 3]), **options)
    assert [each.label for each in result.defenses] == words
    assert all(torch.equal(inputs, INPUTS[4:]) for inputs in seen)
    assert seen
    assert result.line(words[0], result.goals[0]).bound is not None
    assert result.line(words[1], result.goals[0]).bound is None
    public = Dataset("public", 1 - INPUTS, DATA.labels)
    seen.clear()
    audit(model, DATA, options=rr.AuditOptions(public=public), **options)
    assert all(torch.equal(inputs, 1 - INPUTS) for inputs in seen)
    with pytest.raises(InvalidInput, match=r"public records that have labels\. Pass public= .* records= \(--records"):
        audit(model, DATA, **options)
