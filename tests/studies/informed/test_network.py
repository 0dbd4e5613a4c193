"""Networks met by who knows every training record but one: exact where training is known, and honest where not."""

import math

import pytest
import torch
from torch import nn

import reconrisk as rr
import reconrisk.studies.informed.network as informed_module
from reconrisk.attacks.informed.invert_training.attack import InvertTraining
from reconrisk.core.errors import InvalidInput
from reconrisk.core.reconstruction import Ending
from reconrisk.core.storage.serialization import from_json, to_json
from reconrisk.data.dataset import Dataset
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import adam, sgd
from reconrisk.studies.informed.network import rebuild_informed

RULE = sgd(0.2, 0.9)


@pytest.fixture
def toy():
    rng = torch.Generator().manual_seed(1)
    inputs = torch.rand(60, 5, generator=rng)
    return Dataset("toy", inputs, (inputs.sum(1) > 2.5).long() + (inputs[:, 0] > 0.7).long(), classes=("a", "b", "c"))


@pytest.fixture
def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.ELU(), nn.Linear(8, 3))


def run(net, data, targets, **settings):
    stated = {"steps": 15, **settings}
    options = rr.InformedOptions(**{key: stated.pop(key) for key in ("seconds", "shadows", "store") if key in stated})
    return rebuild_informed(net, data, targets, rng=torch.Generator().manual_seed(0), options=options, **stated)


def trained(net, data, rows, steps=15, rule=RULE):
    """The network by a plain loop over all rows, by name of parameter."""
    training = ShadowTraining(net, data.inputs[rows[:-1]], data.labels[rows[:-1]], rule, steps)
    last = rows[-1:]
    return training.unflatten(training.train(data.inputs[last], data.labels[last])[0])


def test_targets_come_back_exactly_with_their_labels_beside_the_nearest_known_record(toy, net):
    found = run(net, toy, [7, 19, 33])
    report = found.report
    assert [target.record for target in report.targets] == [7, 19, 33]
    torch.testing.assert_close(found.estimates, toy.inputs[[7, 19, 33]], rtol=0, atol=1e-3)
    assert [target.found for target in report.targets] == [target.label for target in report.targets]
    assert report.targets[0].label == toy.classes[int(toy.labels[7])]
    assert report.accounts[0].status.ending is Ending.EXACT
    known = torch.tensor([row for row in range(60) if row not in (7, 19, 33)])
    distances = (toy.inputs[known] - toy.inputs[7]).square().mean(1)
    assert report.known == 57
    assert report.targets[0].neighbour == int(known[distances.argmin()])
    assert report.targets[0].neighbour_mse == pytest.approx(float(distances.min()), rel=1e-5)
    alike = known[toy.labels[known] == toy.labels[7]]
    mean = (toy.inputs[alike].mean(0) - toy.inputs[7]).square().mean()
    assert report.targets[0].class_mean_mse == pytest.approx(float(mean), rel=1e-5)
    torch.testing.assert_close(found.neighbours[0], toy.inputs[report.targets[0].neighbour])
    assert all(target.beats_neighbour for target in report.targets)
    assert report.is_complete
    assert not report.failed_reports


def test_a_report_survives_the_round_trip(toy, net):
    report = run(net, toy, [7], membership=True, noise_std=1e-6).report
    assert from_json(to_json(report)) == report


def test_a_released_model_gives_each_of_its_records_to_who_knows_the_others(toy, net):
    rows = [*range(20), 40, 41]
    released = trained(net, toy, rows)
    found = run(net, toy, [40, 41], fixed=20, released=released, membership=True)
    torch.testing.assert_close(found.estimates, toy.inputs[[40, 41]], rtol=0, atol=1e-3)
    assert found.report.known == 21
    assert [target.membership for target in found.report.targets] == ["in", "in"]
    assert len(found.report.accounts) == 2


def test_a_record_that_was_not_trained_on_is_told_by_what_was_rebuilt_instead(toy, net):
    released = trained(net, toy, [*range(20), 40])
    found = run(net, toy, [50], fixed=20, released=released, membership=True)
    torch.testing.assert_close(found.estimates[0], toy.inputs[40], rtol=0, atol=1e-3)
    assert found.report.targets[0].membership == "not in"


@pytest.mark.parametrize("wrong", ["start", "steps", "fixed records"])
def test_a_training_known_wrongly_is_said_and_decides_nothing(toy, net, wrong):
    released = trained(net, toy, [*range(20), 40])
    settings = {"fixed": 20, "released": released, "membership": True, "seconds": 0.5}
    if wrong == "start":
        torch.manual_seed(4)
        net = nn.Sequential(nn.Linear(5, 8), nn.ELU(), nn.Linear(8, 3))
    settings |= {"steps": 25} if wrong == "steps" else {"fixed": 22} if wrong == "fixed records" else {}
    report = run(net, toy, [40], **settings).report
    assert report.accounts[0].status.ending in (Ending.CONVERGED, Ending.BUDGET_SPENT)
    assert "Check initialisation" in str(report)
    assert report.targets[0].membership == "undecided"


def test_noise_is_met_by_maximum_likelihood_beside_its_bound(toy, net):
    quiet, loud = (run(net, toy, list(range(4)), noise_std=std, known_labels=True).report for std in (1e-6, 1e-4))
    for quieter, louder in zip(quiet.targets, loud.targets, strict=True):
        # the information does not depend on the noise, so the bound grows by its square
        assert louder.cramer_rao_mse == pytest.approx(1e4 * quieter.cramer_rao_mse, rel=1e-6)
    # 4 targets of 5 values: a mean of 20 squares in units of their bound is within a factor 4 but once in 10^3
    ratio = sum(target.mse for target in quiet.targets) / sum(target.cramer_rao_mse for target in quiet.targets)
    assert 1 / 4 < ratio < 4
    assert all(target.found == "" for target in quiet.targets)
    assert "1e-06 on every value, known" in str(quiet)
    assert run(net, toy, [7], noise_std=1.0, membership=True).report.targets[0].membership == "undecided"


def test_the_bound_is_that_of_the_jacobian_of_training(toy, net):
    target = run(net, toy, [7], noise_std=1e-3, known_labels=True).report.targets[0]
    rows = torch.tensor([row for row in range(60) if row != 7])
    training = ShadowTraining(net, toy.inputs[rows], toy.labels[rows], RULE, 15)

    def value(shift):
        return training.train((toy.inputs[7].double() + shift)[None], toy.labels[7:8])[0]

    step = 1e-5  # central differences in double precision: relative error about 1e-9
    jacobian = torch.stack([(value(step * e) - value(-step * e)) / (2 * step) for e in torch.eye(5).double()], 1)
    expected = 1e-6 * float(torch.linalg.inv(jacobian.T @ jacobian).trace()) / 5
    assert target.cramer_rao_mse == pytest.approx(expected, rel=1e-5)


def test_a_reconstructor_learns_from_records_left_over(toy, net, tmp_path):
    settings = {"attack": "reconstructor", "fixed": 15, "known_labels": False}
    found = run(net, toy, [50, 51], store=tmp_path / "shadows", **settings)
    assert found.report.attack == "reconstructor with 43 shadow models"
    assert len(found.report.accounts) == 2
    assert all(target.beats_neighbour for target in found.report.targets)
    assert (tmp_path / "shadows").is_dir()
    # shadow targets are known too: the nearest record is sought among all others
    others = torch.tensor([row for row in range(60) if row not in (50, 51)])
    nearest = (toy.inputs[others] - toy.inputs[50]).square().mean(1)
    assert found.report.targets[0].neighbour_mse == pytest.approx(float(nearest.min()), rel=1e-5)
    assert found.report.accounts[0].cost.evaluations == 43
    again = run(net, toy, [50, 51], store=tmp_path / "shadows", **settings)
    torch.testing.assert_close(again.estimates, found.estimates, rtol=0, atol=0)
    fewer = run(net, toy, [50, 51], shadows=20, noise_std=1e-4, **settings)
    assert fewer.report.attack == "reconstructor with 20 shadow models"


def test_options_are_of_their_class(toy, net):
    with pytest.raises(InvalidInput, match="to be InformedOptions"):
        rebuild_informed(net, toy, [7], options={"seconds": 1}, rng=torch.Generator())


def test_other_optimizers_are_inverted_too(toy, net):
    found = run(net, toy, [7], optimizer=adam(0.01), steps=4)
    torch.testing.assert_close(found.estimates, toy.inputs[[7]], rtol=0, atol=1e-2)


def test_real_labels_must_be_known(toy):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    data = Dataset("real", toy.inputs, toy.inputs.sum(1))
    with pytest.raises(InvalidInput, match="Pass known_labels=True"):
        run(net, data, [7])
    found = run(net, data, [7], known_labels=True, optimizer=sgd(0.05, 0.5))
    torch.testing.assert_close(found.estimates, data.inputs[[7]], rtol=0, atol=1e-2)


def test_ctrl_c_gives_what_is_done(toy, net, monkeypatch):
    rows = [*range(20), 40, 41]
    released, rebuild, calls = trained(net, toy, rows), InvertTraining.rebuild, []

    def rebuilding(*words, **settings):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return rebuild(*words, **settings)

    monkeypatch.setattr(InvertTraining, "rebuild", rebuilding)
    report = run(net, toy, [40, 41], fixed=20, released=released).report
    assert (len(report.targets), report.requested, report.is_complete) == (1, 2, False)
    assert "INTERRUPTED: 1 of 2 targets were reached." in str(report)


def test_the_attack_never_gets_the_target(toy, net, monkeypatch):
    seen = []
    made = informed_module.ShadowTraining

    def watched(model, inputs, labels, *rest):
        seen.append(inputs)
        return made(model, inputs, labels, *rest)

    monkeypatch.setattr(informed_module, "ShadowTraining", watched)
    run(net, toy, [7], released=trained(net, toy, [*(row for row in range(60) if row != 7), 7]))
    assert seen
    assert not any(bool((inputs == toy.inputs[7]).all(1).any()) for inputs in seen)


def test_records_that_are_too_large_have_no_bound(toy, net, monkeypatch):
    monkeypatch.setattr(informed_module, "LARGEST", 4)
    assert run(net, toy, [7], noise_std=1e-3).report.targets[0].cramer_rao_mse is None


def test_a_model_that_does_not_tell_all_values_has_an_infinite_bound(toy):
    torch.manual_seed(0)
    narrow = nn.Sequential(nn.Linear(5, 1, bias=False), nn.Linear(1, 3, bias=False))
    for value in narrow[0].parameters():
        value.requires_grad_(False)
    assert math.isinf(run(narrow, toy, [7], noise_std=1e-3, steps=2, seconds=0.1).report.targets[0].cramer_rao_mse)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": [60]}, r"Expected target_index=60 to be from 0 to 59, the records of toy\."),
        ({"targets": [-1]}, r"Expected target_index=-1 >= 0"),
        ({"targets": [3, 3]}, "to name each record once"),
        ({"targets": []}, "Choose at least one record"),
        ({"targets": list(range(60))}, "Leave records that are not targets"),
        ({"fixed": 60}, r"Expected fixed=60 <= 59, the records of toy that are not targets"),
        ({"fixed": 0}, "Expected fixed=0 >= 1"),
        ({"steps": 0}, "Expected steps=0 >= 1"),
        ({"noise_std": 0.0}, r"Expected noise_std=0\.0 > 0"),
        ({"attack": "guess"}, "Expected attack='guess' to be one of invert_training, reconstructor"),
        ({"shadows": 5}, "to be left out for invert_training"),
        ({"attack": "reconstructor"}, "Pass a smaller fixed, so that records are left over"),
        ({"attack": "reconstructor", "fixed": 20, "shadows": 50}, "Expected shadows=50 <= 39"),
        ({"optimizer": sgd(1e30)}, "Lower the learning rate"),
        ({"released": {"0.weight": torch.zeros(8, 5)}}, r"Expected released\['0.bias'\].shape=None to be \(8,\)"),
    ],
)
def test_what_is_wrong_is_named(toy, net, settings, message):
    with pytest.raises(InvalidInput, match=message):
        run(net, toy, **{"targets": [7], **settings})


def test_a_released_model_that_equals_the_start_is_refused(toy, net):
    start = {name: value.detach().clone() for name, value in net.named_parameters()}
    with pytest.raises(InvalidInput, match="Expected released weights after training, got the initial weights"):
        run(net, toy, [7], released=start)


def test_data_without_labels_and_models_of_one_output_are_refused(toy, net):
    with pytest.raises(InvalidInput, match="to have labels"):
        run(net, Dataset("bare", toy.inputs), [7])
    with pytest.raises(InvalidInput, match="Give the model two outputs"):
        run(nn.Linear(5, 1), Dataset("two", toy.inputs, toy.labels.clamp(max=1)), [7])


@pytest.fixture
def many():
    inputs = torch.rand(160, 5, generator=torch.Generator().manual_seed(1))
    return Dataset("many", inputs, (inputs.sum(1) > 2.5).long() + (inputs[:, 0] > 0.7).long())


def answers(found):
    return [target.membership for target in found.report.targets]


@pytest.mark.parametrize("shadows", [20, 40])
def test_members_whose_estimate_errs_more_than_is_typical_are_never_said_to_be_out(many, net, shadows):
    settings = {"attack": "reconstructor", "fixed": 15, "shadows": shadows, "membership": True}
    found = answers(run(net, many, list(range(100, 160)), **settings))
    assert "not in" not in found
    assert shadows == 20 or found.count("in") > 50


def test_under_noise_members_are_said_to_be_out_at_most_once_in_a_thousand(many, net):
    found = run(net, many, list(range(100, 112)), fixed=15, noise_std=1e-5, known_labels=True, membership=True)
    status = found.report.accounts[0].status
    # 75 values, whose residual is above 1.1 times the noise for one model in twenty
    assert (status.ending, status.remedy) == (Ending.CONVERGED, "")
    assert "not in" not in answers(found)
    assert answers(found).count("in") > 6


def test_shadow_targets_are_no_copies_of_targets_or_fixed_records(many, net):
    inputs = many.inputs.clone()
    inputs[70:75], inputs[75:80] = inputs[:5], inputs[150:155]
    copied = Dataset("copied", inputs, many.labels)
    settings = {"attack": "reconstructor", "fixed": 60, "steps": 3}
    found = run(net, copied, [*range(150, 155)], **settings)
    # 160 records, 60 fixed, 5 targets, 10 copies
    assert found.report.attack == "reconstructor with 85 shadow models"
    with pytest.raises(InvalidInput, match="Expected shadows=86 <= 85"):
        run(net, copied, [*range(150, 155)], shadows=86, **settings)
