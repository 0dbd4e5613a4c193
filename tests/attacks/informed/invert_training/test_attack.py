"""The training map inverted: known answers, independent oracles, honesty where the adversary is wrong, bad input."""

import dataclasses

import pytest
import torch
from scipy.optimize import lsq_linear
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import reconrisk as rr
from reconrisk.attacks.informed.invert_training.problem import MapProblem, ShadowProblem, private_noise_std, problem_for
from reconrisk.attacks.informed.invert_training.tangents import Tangents
from reconrisk.attacks.informed.invert_training.weighted import WeightedProblem, minimise_within_range
from reconrisk.core.reconstruction import Ending
from reconrisk.core.threat import INFORMED, Knows
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.trained_model import TrainingMap

RNG = torch.Generator()


def uniform(*shape, seed):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def network(features=8, classes=3, activation=nn.ELU, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(features, 6), activation(), nn.Linear(6, classes))


def trained(features=8, fixed=20, steps=15, **given):
    labels = torch.arange(fixed) % 3
    settings = {"optimizer": rr.releases.sgd(0.2, 0.9), "steps": steps} | given
    model = settings.pop("model", None) or network(features)
    return ShadowTraining(model, uniform(fixed, features, seed=1), labels, **settings)


def targets(count=6, features=8):
    return uniform(count, features, seed=2), torch.arange(count) % 3


def errors(found, inputs):
    return (found.estimates - inputs).square().flatten(1).mean(1)


def test_one_step_of_linear_regression_is_solved_in_closed_form():
    # from w = 0 one step leads to w = 2 lr / (m + 1) (sum_j y_j x_j + y x), so x follows by hand
    fixed, answers = uniform(9, 4, seed=3), uniform(9, 1, seed=4)
    model = nn.Linear(4, 1, bias=False)
    model.weight.data.zero_()
    training = ShadowTraining(model, fixed, answers, rr.releases.sgd(0.25), steps=1, loss_fn=mse_loss)
    record, answer = uniform(1, 4, seed=5).double(), torch.tensor([[0.7]])
    weight = 0.5 / 10 * (answers.double().T @ fixed.double() + 0.7 * record)
    found = rr.attacks.invert_training(training).rebuild(weight, labels=answer)
    by_hand = (weight * 10 / 0.5 - answers.double().T @ fixed.double()) / 0.7
    assert torch.allclose(found.estimates.double(), by_hand, atol=1e-6)
    assert found.status.ending is Ending.EXACT


def test_linear_regression_trained_long_is_exact():
    fixed, answers = uniform(12, 5, seed=6), uniform(12, 1, seed=7)
    model = nn.Linear(5, 1)
    model.weight.data, model.bias.data = torch.full((1, 5), 0.1), torch.zeros(1)
    training = ShadowTraining(model, fixed, answers, rr.releases.sgd(0.1, 0.5), steps=60, loss_fn=mse_loss)
    record, answer = uniform(3, 5, seed=8), torch.tensor([[0.1], [0.5], [2.0]])
    found = rr.attacks.invert_training(training).rebuild(
        training.train(record.double(), answer.double()), labels=answer
    )
    assert found.status.ending is Ending.EXACT
    assert float(errors(found, record).max()) < 1e-12  # estimates are float32: 1e-14


@pytest.mark.parametrize("directions", [3, 64])
def test_victims_in_float32_are_rebuilt_with_their_labels(directions):
    training = trained()
    inputs, labels = targets()
    victims = training.train(inputs, labels)
    found = rr.attacks.invert_training(training, directions=directions).rebuild(victims)
    assert found.labels == tuple(labels.tolist())
    assert float(errors(found, inputs).max()) < 1e-8
    assert found.status.ending is Ending.EXACT
    assert max(found.account.objective) < 3


def test_a_double_precision_victim_is_rebuilt_to_double_precision():
    training = trained()
    inputs, labels = targets(2)
    with_doubles = rr.attacks.invert_training(training)
    torch.set_default_dtype(torch.float64)
    try:
        found = with_doubles.rebuild(training.train(inputs.double(), labels), labels=labels)
    finally:
        torch.set_default_dtype(torch.float32)
    assert float(errors(found, inputs.double()).max()) < 1e-20


@pytest.mark.parametrize(
    "rule", [rr.releases.sgd(0.3), rr.releases.sgd(0.1, 0.9, weight_decay=0.01, nesterov=True), rr.releases.adam(0.02)]
)
def test_every_known_optimizer_and_order_can_be_inverted(rule):
    batches = [torch.randperm(21, generator=torch.Generator().manual_seed(step))[:9] for step in range(12)]
    training = trained(optimizer=rule, steps=None, batches=batches)
    inputs, labels = targets(3)
    found = rr.attacks.invert_training(training).rebuild(training.train(inputs.double(), labels))
    assert float(errors(found, inputs).max()) < 1e-8, found.status


def test_observations_of_trained_models_are_inverted_white_box_and_black_box():
    model, (inputs, labels) = network(), targets(1)
    fixed = {"fixed_inputs": uniform(10, 8, seed=1), "fixed_labels": torch.arange(10) % 3}
    settings = fixed | {"optimizer": rr.releases.sgd(0.2, 0.9), "steps": 6}
    for more in ({}, {"queries": uniform(30, 8, seed=9)}, {"parameters": ["2"]}):
        release = rr.releases.TrainedModelRelease(model, cross_entropy, inputs.double(), labels, **settings, **more)
        observation = rr.observe(release, threat=INFORMED.with_knowledge(Knows.LABELS) if more else INFORMED)
        found = rr.attacks.invert_training()(observation, rng=RNG)
        assert found.estimates.shape == (1, 8)
        assert found.labels == (int(labels[0]),)
        assert float(errors(found, inputs).max()) < 1e-8, (more, found.status)


def test_a_wrong_initialisation_is_not_called_exact():
    inputs, labels = targets(2)
    victims = trained().train(inputs, labels)
    found = rr.attacks.invert_training(trained(model=network(seed=1)), labels_tried=1).rebuild(victims)
    assert found.status.ending is Ending.BUDGET_SPENT
    assert "0 of 2" in found.status.cause
    assert found.status.remedy
    assert min(found.account.objective) > 1000
    assert bool(found.estimates.isfinite().all())


def test_weights_in_half_precision_are_not_called_exact():
    training = trained()
    inputs, labels = targets(3)
    found = rr.attacks.invert_training(training).rebuild(training.train(inputs, labels).half(), labels=labels)
    assert found.status.ending is Ending.CONVERGED
    assert "error of about" in found.status.cause
    assert float(errors(found, inputs).median()) > 1e-8


def test_the_error_told_is_that_of_the_records():
    training = trained()
    inputs, labels = targets(6)
    rounded = training.train(inputs.double(), labels).float()
    found = rr.attacks.invert_training(training).rebuild(rounded, labels=labels)
    told = float(found.status.cause.split("about ")[1].split(" ")[0])
    # the worst of six; rounding measured includes that of training, which this victim does not have
    assert float(errors(found, inputs).max().sqrt()) < 3 * told


def test_error_under_noise_is_the_cramer_rao_bound():
    training = trained(features=4, fixed=12, steps=5)
    inputs, label = 0.3 + 0.4 * uniform(1, 4, seed=2).double(), torch.tensor([1])
    jacobian = problem_for(training).jacobian(inputs[0], label[0])
    bound = torch.linalg.inv(jacobian @ jacobian.T).diagonal().mean()
    std, draws = float(0.01 / bound.sqrt()), 40  # a bound of 0.01, root mean square
    noise = torch.randn(draws, training.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    victims = training.train(inputs, label) + std * noise
    found = rr.attacks.invert_training(training).rebuild(victims, labels=label.expand(draws), noise_std=std)
    ratio = errors(found, inputs) / 0.01**2
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / draws**0.5
    assert float(ratio.std()) / draws**0.5 < 0.2
    assert found.status.ending in (Ending.CONVERGED,)


def test_noise_of_a_known_defense_counts():
    inputs, labels = targets(1)
    fixed = {"fixed_inputs": uniform(20, 8, seed=1), "fixed_labels": torch.arange(20) % 3}
    release = rr.releases.TrainedModelRelease(
        network(), cross_entropy, inputs.double(), labels, **fixed, optimizer=rr.releases.sgd(0.2, 0.9), steps=6
    )
    threat = INFORMED.with_knowledge(Knows.DEFENSE, Knows.LABELS)
    noise = rr.defenses.gaussian_noise(1e-4)
    observation = rr.observe(release, defense=noise, threat=threat, rng=torch.Generator().manual_seed(0))
    found = rr.attacks.invert_training()(observation, rng=RNG)
    size = sum(value.numel() for value in observation.released.values())
    assert found.account.objective[0] == pytest.approx(size / 2, rel=0.5)  # half a chi-square of 75 values less 8
    uneven = {name: value * (1 + torch.rand_like(value)) for name, value in (observation.noise_std or {}).items()}
    again = rr.attacks.invert_training()(dataclasses.replace(observation, noise_std=uneven), rng=RNG)
    assert torch.allclose(found.estimates, again.estimates, atol=0.2)


def test_private_training_is_inverted_as_far_as_its_noise_allows():
    inputs, labels = targets(4)
    found, told = [], []
    for noise_multiplier in (1e-5, 1.0):
        training = trained(steps=6, private=rr.mechanisms.Gaussian(noise_multiplier, 0.5))
        victims = training.train(inputs.double(), labels, rng=torch.Generator().manual_seed(0))
        rebuilt = rr.attacks.invert_training(training).rebuild(victims, labels=labels)
        found.append(float(errors(rebuilt, inputs).mean()))
        told.append(float(rebuilt.status.cause.split("about ")[1].split(" ")[0]))
    # the mean of 4 records in 8 coordinates against the worst of them, with a margin of 3
    assert found[0] ** 0.5 < 3 * told[0] < 0.02
    assert found[1] > 0.02  # uniform records have variance 1/12


def test_clipped_training_is_differentiated_along_few_directions():
    # 20 fixed records and 6 rows of weights span less than the directions taken, so that nothing is left out
    training = trained(features=100, steps=6, private=rr.mechanisms.Gaussian(1.0, 0.5))
    problem = problem_for(training)
    record, label = uniform(100, seed=2).double(), torch.tensor(1)
    everything = problem.push(record, label, torch.eye(100, dtype=torch.float64))
    trainings = problem.trainings
    found = problem.jacobian(record, label)
    assert problem.trainings - trainings < 2 * 70
    # both are differences whose rounding and curvature are about 1e-8 of the derivative
    assert float((found - everything).norm()) < 1e-6 * float(everything.norm())


def test_noise_of_private_training_adds_up():
    # without momentum T steps add T draws: lr sigma C / (m + 1) sqrt(T)
    plain = trained(steps=16, optimizer=rr.releases.sgd(0.2), private=rr.mechanisms.Gaussian(2.0, 0.5))
    assert private_noise_std(plain) == pytest.approx(0.2 * 2.0 * 0.5 / 21 * 4)
    # with momentum the first of two draws lasts 1 + mu
    two = trained(steps=2, optimizer=rr.releases.sgd(0.2, 0.5), private=rr.mechanisms.Gaussian(2.0, 0.5))
    assert private_noise_std(two) == pytest.approx(0.2 / 21 * (1 + 1.5**2) ** 0.5)
    assert private_noise_std(trained(steps=2)) is None


def test_estimates_stay_in_the_range_under_large_noise():
    training = trained()
    inputs, labels = targets(2)
    victims = training.train(inputs.double(), labels)
    noise = torch.randn(victims.shape, generator=torch.Generator().manual_seed(0))
    found = rr.attacks.invert_training(training).rebuild(victims + 0.3 * noise, labels=labels, noise_std=0.3)
    assert 0 <= float(found.estimates.min()) <= float(found.estimates.max()) <= 1
    assert found.status.ending is Ending.CONVERGED


@pytest.mark.parametrize("seed", range(5))
def test_least_squares_within_the_range_agree_with_scipy(seed):
    jacobian, residual = uniform(7, 30, seed=seed).double() - 0.5, 3 * (uniform(30, seed=9 + seed).double() - 0.5)
    record = uniform(7, seed=20 + seed).double()
    found = minimise_within_range(jacobian, residual, record, (0.0, 1.0))
    bounds = ((0 - record).numpy(), (1 - record).numpy())
    expected = lsq_linear(jacobian.T.numpy(), residual.numpy(), bounds, tol=1e-14).x
    assert torch.allclose(found - record, torch.as_tensor(expected), atol=1e-6)


def test_tangents_solve_the_least_squares_problem_of_the_matrix_they_stand_for():
    d, k, units, begin = 6, 2, 3, 4
    basis = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(0)).double())[0][:k]
    size = begin + units * d + 2
    pushed, direct = uniform(2, k, size, seed=1).double(), uniform(2, units, seed=2).double()
    residuals = uniform(2, size, seed=3).double()
    tangents = Tangents(basis, pushed, direct, begin)
    for row in range(2):
        matrix = pushed[row].T @ basis
        others = torch.eye(d).double() - basis.T @ basis
        matrix[begin : begin + units * d] += torch.kron(direct[row][:, None], others)
        expected = torch.linalg.lstsq(matrix, residuals[row, :, None]).solution[:, 0]
        assert torch.allclose(tangents.solve(residuals)[row], expected, atol=1e-10)
        spread = torch.linalg.inv(matrix.T @ matrix).diagonal().mean().sqrt()
        assert float(tangents.spread()[row]) == pytest.approx(float(spread), rel=1e-8)


def test_few_directions_give_the_whole_derivative_where_fixed_records_span_few():
    fixed = uniform(20, 2, seed=1) @ uniform(2, 12, seed=2) / 2
    model = network(features=12)
    model[0].weight.data.zero_()
    training = ShadowTraining(model, fixed, torch.arange(20) % 3, rr.releases.sgd(0.2, 0.9), steps=10)
    record, label = (0.5 * fixed[0] + 0.5 * fixed[1])[None].double(), torch.tensor([1])
    problem = ShadowProblem(training)
    few = problem.tangents(record, label, 3)
    assert few.pushed.shape[1] == 3
    whole = Tangents(torch.eye(12).double(), problem.jacobian(record[0], label[0])[None])
    residuals = uniform(1, training.size, seed=4).double()
    assert torch.allclose(few.solve(residuals), whole.solve(residuals), rtol=1e-6, atol=1e-8)


def test_both_problems_agree_on_values_and_derivatives():
    training = trained(steps=8)
    shadow = ShadowProblem(training)
    settings = (training.model, cross_entropy, training.optimizer, 8, training.fixed_inputs, training.fixed_labels)
    plain = MapProblem(TrainingMap(*settings), (8,))
    inputs, labels = targets(2)
    assert torch.allclose(shadow.values(inputs.double(), labels), plain.values(inputs.double(), labels), atol=1e-12)
    one, other = shadow.jacobian(inputs[0], labels[0]), plain.jacobian(inputs[0], labels[0])
    assert torch.allclose(one, other, atol=1e-12)
    uneven = torch.linspace(0.5, 2, shadow.size)
    assert torch.allclose(WeightedProblem(shadow, uneven).jacobian(inputs[0], labels[0]), one * uneven, atol=1e-12)


def test_time_and_interruption_leave_the_best_so_far(monkeypatch):
    training = trained()
    inputs, labels = targets(2)
    victims = training.train(inputs, labels)
    quick = rr.attacks.invert_training(training, seconds=1e-6).rebuild(victims)
    assert quick.status.ending is Ending.BUDGET_SPENT
    calls = 0
    original = ShadowProblem.values

    def values(self, records, classes):
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return original(self, records, classes)

    monkeypatch.setattr(ShadowProblem, "values", values)
    found = rr.attacks.invert_training(training).rebuild(victims)
    assert found.status.ending is Ending.INTERRUPTED
    assert found.estimates.shape == inputs.shape
    assert bool(found.estimates.isfinite().all())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"released": torch.zeros(2, 5)}, "released.shape"),
        ({"released": torch.full((1, 75), torch.nan)}, "released to be finite"),
        ({"released": torch.zeros(0, 75)}, "empty"),
        ({"labels": torch.tensor([0, 1])}, "labels"),
        ({"labels": torch.tensor([7])}, "labels"),
        ({"noise_std": 0.0}, "noise_std"),
        ({"data_range": (1.0, 0.0)}, "data_range"),
        ({"data_range": (0.0, 0.5)}, "fixed records"),
    ],
)
def test_bad_data_is_refused(change, words):
    given = {"released": torch.zeros(1, 75)} | change
    with pytest.raises(rr.InvalidInput, match=words):
        rr.attacks.invert_training(trained(steps=2)).rebuild(given.pop("released"), **given)


@pytest.mark.parametrize("name", ["iterations", "directions", "memory", "labels_tried", "seconds"])
def test_bad_settings_are_refused(name):
    with pytest.raises(rr.InvalidInput, match=name):
        rr.attacks.invert_training(**{name: 0})


def test_bad_trainings_are_refused():
    with pytest.raises(rr.InvalidInput, match="training"):
        rr.attacks.invert_training(nn.Linear(2, 2))
    with pytest.raises(rr.InvalidInput, match="training"):
        rr.attacks.invert_training().rebuild(torch.zeros(1, 75))
    with pytest.raises(rr.InvalidInput, match="starts"):
        rr.attacks.invert_training(trained(steps=2), starts=torch.zeros(2, 8)).rebuild(torch.zeros(1, 75))
    drawn = trained(steps=2, draw_start=lambda rng: network(seed=int(torch.randint(9, (), generator=rng))))
    with pytest.raises(rr.InvalidInput, match="function of the record"):
        rr.attacks.invert_training(drawn).rebuild(torch.zeros(1, 75))
