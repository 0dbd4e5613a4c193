import dataclasses
import signal

import pytest
import torch
from torch import nn

import reconrisk as rr
from reconrisk.attacks import ReconstructorSettings, ShadowKnowledge, balle2022_reconstructor, reconstructor
from reconrisk.attacks.informed.reconstructor.attack import fine_tune_reconstructor
from reconrisk.attacks.informed.reconstructor.features import extract_features
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import INFORMED, Knows
from reconrisk.metrics import nearest_neighbour_oracle
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import sgd
from reconrisk.releases.training.trained_model import TrainedModelRelease

SIDE = 3
CLASSES = 3
SMALL = ReconstructorSettings(start="none", network="dense", hidden=(32,), epochs=3, batch_size=16)


def drawn(seed):
    return torch.Generator().manual_seed(seed)


def records(count, seed):
    """Nine values in [0, 1] around one of three centres, which are the classes."""
    labels = torch.randint(CLASSES, (count,), generator=drawn(seed))
    centres = 0.3 + 0.4 * torch.rand(CLASSES, 1, SIDE, SIDE, generator=drawn(99))
    noise = 0.3 * torch.rand(count, 1, SIDE, SIDE, generator=drawn(seed + 1)) - 0.15
    return centres[labels] + noise, labels


def network(rng=None):
    rng = drawn(5) if rng is None else rng
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 4), nn.ELU(), nn.Linear(4, CLASSES))
    for value in model.parameters():
        nn.init.normal_(value, std=0.3, generator=rng)
    return model


def informed(shadows=120, seed=10, **settings):
    fixed = records(30, seed)
    training = ShadowTraining(network(), *fixed, **{"optimizer": sgd(0.2, 0.9), "steps": 20, **settings})
    return ShadowKnowledge(training, *records(shadows, seed + 2))


def victims(knowledge, count=40, seed=50):
    targets, labels = records(count, seed)
    return knowledge.training.train(targets, labels, rng=drawn(seed)), targets, labels


def mean_squared_error(estimates, targets):
    return float((estimates - targets).square().mean())


def observed(knowledge, row, threat=INFORMED):
    return rr.Observation(knowledge.training.unflatten(row), lambda inputs, labels: {}, threat, (1, 3, 3), (0.0, 1.0))


@pytest.fixture(scope="module")
def solved():
    knowledge = informed()
    return knowledge, reconstructor(knowledge, rng=drawn(0))


def test_a_model_that_is_linear_in_its_record_gives_the_record_away():
    # one step of squared loss from zero: the weights are the mean of label times record, linear in the record
    inputs, labels = torch.rand(300, 6, generator=drawn(1)), torch.ones(300, 1)
    model = nn.Linear(6, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    training = ShadowTraining(model, inputs[:20], labels[:20], sgd(0.1), 1, nn.functional.mse_loss)
    attack = reconstructor(ShadowKnowledge(training, inputs[20:200], labels[20:200]), rng=drawn(0))
    rows = training.train(inputs[200:], labels[200:])
    # float32 weights of size 0.1 that move by 0.01 x / 21 leave a relative error of 1e-5 in x
    assert mean_squared_error(attack.estimates(rows), inputs[200:]) < 1e-7
    assert not attack.linear.by_direction


def test_estimates_are_far_nearer_than_any_known_record(solved):
    knowledge, attack = solved
    rows, targets, labels = victims(knowledge)
    estimates, inferred = attack.estimates_and_labels(rows)
    known = torch.cat([knowledge.targets, knowledge.training.fixed_inputs])
    oracle = float(nearest_neighbour_oracle(targets, known).scores.mean())
    assert mean_squared_error(estimates, targets) < oracle / 4
    assert sum(one == int(label) for one, label in zip(inferred, labels, strict=True)) >= 38


def test_the_error_it_expects_is_the_error_it_makes(solved):
    knowledge, attack = solved
    rows, targets, _ = victims(knowledge, count=200)
    found = mean_squared_error(attack.estimates(rows), targets)
    assert found / 2 < attack.error < found * 2  # means of 120 and 200 records


def test_one_observation_and_a_batch_of_models_agree(solved):
    knowledge, attack = solved
    rows, _, _ = victims(knowledge)
    found = attack(observed(knowledge, rows[3]), rng=drawn(0))
    # sums of different length round differently in float32
    assert torch.allclose(found.estimates, attack.estimates(rows)[3:4], atol=1e-4)
    assert found.status.ending is Ending.CONVERGED
    assert found.account.objective == (attack.error,)
    assert "reconstructor(" in found.account.attack


def test_a_release_of_the_package_is_read_as_shadow_models_are(solved):
    knowledge, attack = solved
    _, targets, labels = victims(knowledge)
    training = knowledge.training
    release = TrainedModelRelease(
        training.model, training.loss_fn, targets[:1], labels[:1], fixed_inputs=training.fixed_inputs,
        fixed_labels=training.fixed_labels, optimizer=training.optimizer, steps=training.steps,
    )  # fmt: skip
    found = attack(rr.observe(release, threat=INFORMED), rng=drawn(0))
    assert mean_squared_error(found.estimates, targets[:1]) < 10 * attack.error


def test_the_network_of_the_paper_learns():
    knowledge = informed(shadows=300)
    settings = dataclasses.replace(balle2022_reconstructor(), hidden=(64, 64), epochs=30)
    attack = reconstructor(knowledge, settings, rng=drawn(0))
    rows, targets, _ = victims(knowledge)
    mean_guess = mean_squared_error(knowledge.targets.mean(0).expand_as(targets), targets)
    assert mean_squared_error(attack.estimates(rows), targets) < mean_guess / 2
    assert attack.linear is None


def test_a_residual_network_is_no_worse_than_the_closed_form_on_held_out_targets():
    knowledge = informed()
    settings = ReconstructorSettings(network="dense", hidden=(32,), optimizer="adam", epochs=5, held_out=0.5)
    models = knowledge.shadow_models(rng=drawn(0))
    attack = reconstructor(knowledge, settings, shadow_models=models, rng=drawn(0))
    fit_error = reconstructor(knowledge, shadow_models=models, rng=drawn(0)).error
    assert attack.error < 1.5 * fit_error  # half of the targets are held out, their mean differs from that of all
    rows, targets, _ = victims(knowledge)
    assert mean_squared_error(attack.estimates(rows), targets) < 3 * fit_error


def test_chosen_layers_and_black_box_read_what_they_say():
    knowledge = informed(shadows=200)
    rows, targets, _ = victims(knowledge)
    guess = mean_squared_error(knowledge.targets.mean(0).expand_as(targets), targets)
    queries = records(20, 70)[0]
    for given in ({"parameters": ["3"]}, {"queries": queries}):
        attack = reconstructor(knowledge, rng=drawn(0), **given)
        read = extract_features(knowledge.training, rows, attack.reading, given.get("queries"))
        assert mean_squared_error(attack.estimates(read), targets) < guess, given
    assert attack.reading.names == ("logits",)
    with torch.no_grad():
        model = network()
        model.load_state_dict(knowledge.training.unflatten(rows[0]))
        logits = model(queries)
    assert torch.allclose(read[0], logits.flatten(), atol=1e-6)
    released = rr.Observation({"logits": logits}, lambda inputs, labels: {}, INFORMED, (1, 3, 3), (0.0, 1.0))
    found = attack(released, rng=drawn(0)).estimates
    assert torch.allclose(found, attack.estimates(read[:1]), atol=1e-4)


def test_unknown_initialisation_and_order_and_privacy_make_it_worse_and_are_named():
    known = informed()
    unknown = {
        "start": informed(draw_start=network),
        "order": informed(batches=rr.releases.RandomBatches(8)),
        "privacy": informed(private=rr.mechanisms.Gaussian(noise_multiplier=5.0, clip_norm=1.0), optimizer=sgd(0.2)),
    }
    best = reconstructor(known, rng=drawn(0)).error
    for knowledge in unknown.values():
        attack = reconstructor(knowledge, rng=drawn(0))
        rows, targets, _ = victims(knowledge)
        assert attack.error > 2 * best
        assert mean_squared_error(attack.estimates(rows), targets) > 2 * best
    assert Knows.INITIALISATION in known.threat.knows
    assert Knows.INITIALISATION not in unknown["start"].threat.knows
    assert "batch order" not in repr(unknown["order"])
    assert "Gaussian" in repr(unknown["privacy"])


def test_where_nothing_leaks_it_guesses_about_as_well_as_the_mean():
    knowledge = informed(private=rr.mechanisms.Gaussian(noise_multiplier=100.0, clip_norm=1.0), optimizer=sgd(0.2))
    rows, targets, _ = victims(knowledge, count=200)
    guess = mean_squared_error(knowledge.targets.mean(0).expand_as(targets), targets)
    found = mean_squared_error(reconstructor(knowledge, rng=drawn(0)).estimates(rows), targets)
    assert 0.9 * guess < found < 1.3 * guess


def test_nothing_of_the_victims_enters_scaling_or_estimates(solved):
    knowledge, attack = solved
    rows, _, _ = victims(knowledge)
    alone = attack.estimates(rows[:1])
    together = attack.estimates(torch.cat([rows[:1], 100 * rows[1:]]))[:1]
    assert torch.allclose(alone, together, atol=1e-4)
    models = knowledge.shadow_models(rng=drawn(0))
    assert torch.allclose(attack.scaling.mean, models.double().mean(0)[attack.scaling.kept])


def test_a_model_unlike_all_shadow_models_is_not_answered_with_confidence(solved):
    knowledge, attack = solved
    other = knowledge.training.flatten(dict(network(drawn(77)).named_parameters()))
    found = attack(observed(knowledge, other), rng=drawn(0))
    assert found.status.ending is Ending.NOT_APPLICABLE
    assert "as the released one was trained" in found.status.remedy


def test_a_network_is_taken_over_to_other_fixed_records():
    first, other = informed(shadows=300), informed(shadows=40, seed=200)
    settings = dataclasses.replace(SMALL, hidden=(64,), epochs=25)
    attack = reconstructor(first, settings, rng=drawn(0))
    rows, targets, _ = victims(other, count=100)
    scratch = reconstructor(other, settings, rng=drawn(0))
    tuned = fine_tune_reconstructor(attack, other, epochs=10, rng=drawn(0))
    assert mean_squared_error(tuned.estimates(rows), targets) < mean_squared_error(scratch.estimates(rows), targets)
    before = attack.network.state_dict()["0.weight"]
    assert not torch.equal(before, tuned.network.state_dict()["0.weight"])


def test_the_closed_form_is_not_fine_tuned(solved):
    with pytest.raises(rr.InvalidInput, match=r'to be "none", with a network'):
        fine_tune_reconstructor(solved[1], solved[0], rng=drawn(0))


def test_interrupted_it_keeps_the_best_epoch_and_says_so(monkeypatch):
    knowledge = informed()
    real, calls = torch.optim.RMSprop.step, 0

    def step(self, *given):
        nonlocal calls
        calls += 1
        if calls == 12:
            signal.raise_signal(signal.SIGINT)
        return real(self, *given)

    monkeypatch.setattr(torch.optim.RMSprop, "step", step)
    attack = reconstructor(knowledge, dataclasses.replace(SMALL, epochs=100), rng=drawn(0))
    rows, _, _ = victims(knowledge)
    assert calls < 100
    assert attack.interrupted
    assert attack(observed(knowledge, rows[0]), rng=drawn(0)).status.ending is Ending.INTERRUPTED
    assert attack.error < 1


def test_the_same_generator_gives_the_same_reconstructor():
    knowledge = informed()
    one, other = (reconstructor(knowledge, SMALL, rng=drawn(3)) for _ in range(2))
    rows, _, _ = victims(knowledge)
    assert torch.equal(one.estimates(rows), other.estimates(rows))


def test_shadow_models_in_a_folder_are_used_again(tmp_path):
    knowledge = informed()
    one = reconstructor(knowledge, rng=drawn(3), store=tmp_path / "shadows")
    again = reconstructor(knowledge, rng=drawn(3), store=tmp_path / "shadows")
    rows, _, _ = victims(knowledge)
    assert any((tmp_path / "shadows").iterdir())
    assert torch.equal(one.estimates(rows), again.estimates(rows))


def test_what_does_not_fit_is_refused(solved):
    knowledge, attack = solved
    training, rows = knowledge.training, victims(knowledge)[0]
    with pytest.raises(rr.InvalidInput, match=r"len\(labels\)=119 to be 120, the number of shadow targets"):
        ShadowKnowledge(training, knowledge.targets, knowledge.labels[:-1])
    with pytest.raises(rr.InvalidInput, match=r"targets.shape=\(120, 9\)"):
        ShadowKnowledge(training, knowledge.targets.flatten(1), knowledge.labels)
    with pytest.raises(rr.InvalidInput, match="within data_range"):
        reconstructor(knowledge, data_range=(0.0, 0.5), rng=drawn(0))
    with pytest.raises(rr.InvalidInput, match=r"shadow_models.shape=\(120, 3\)"):
        reconstructor(knowledge, shadow_models=torch.zeros(120, 3), rng=drawn(0))
    with pytest.raises(rr.InvalidInput, match=">= 10"):
        reconstructor(ShadowKnowledge(training, knowledge.targets[:5], knowledge.labels[:5]), rng=drawn(0))
    with pytest.raises(rr.InvalidInput, match="None with queries"):
        reconstructor(knowledge, parameters=["3"], queries=knowledge.targets, rng=drawn(0))
    with pytest.raises(rr.InvalidInput, match="to name one of"):
        reconstructor(knowledge, parameters=["head"], rng=drawn(0))
    with pytest.raises(rr.InvalidInput, match=r"rows.shape"):
        attack.estimates(rows[:, :5])
    with pytest.raises(rr.InvalidInput, match="finite"):
        attack.estimates(rows * torch.nan)


def test_observations_it_cannot_attack_are_refused(solved):
    knowledge, attack = solved
    row = victims(knowledge)[0][0]
    observation = observed(knowledge, row)
    weaker = dataclasses.replace(INFORMED, knows=INFORMED.knows - {Knows.INITIALISATION})
    bad = {
        "threat": dataclasses.replace(observation, threat=weaker),
        "batch_size": dataclasses.replace(observation, batch_size=2),
        "input_shape": dataclasses.replace(observation, input_shape=(9,)),
        "data_range": dataclasses.replace(observation, data_range=(0.0, 2.0)),
        "to contain '3.bias'": dataclasses.replace(
            observation, released={name: value for name, value in observation.released.items() if name != "3.bias"}
        ),
        "as in the shadow models": dataclasses.replace(
            observation, released={**observation.released, "3.bias": torch.zeros(5)}
        ),
    }
    for message, one in bad.items():
        with pytest.raises(rr.InvalidInput, match=message):
            attack(one, rng=drawn(0))


def test_shadow_targets_that_are_fixed_records_are_refused():
    knowledge = informed()
    training, targets = knowledge.training, knowledge.targets.clone()
    targets[[2, 4]] = training.fixed_inputs[:2]
    with pytest.raises(rr.InvalidInput, match=r"targets to contain no fixed record\. Remove the rows \[2, 4\]"):
        ShadowKnowledge(training, targets, knowledge.labels)
