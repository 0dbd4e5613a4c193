import math

import numpy as np
import pytest
import torch
from torch import nn

from reconrisk.accounting.subsampled_fisher import guo2022_factor, subsampled_information
from reconrisk.core.errors import InvalidFile, InvalidInput
from reconrisk.integrations.fisher_accountant import accountant as fisher_accountant
from reconrisk.integrations.fisher_accountant import state as fisher_state
from reconrisk.integrations.fisher_accountant.account import average_accounts
from reconrisk.integrations.fisher_accountant.accountant import FisherAccountant
from reconrisk.releases.updates.clipped_gradient import ClippedProbes
from tests.integrations.fisher_accountant.clipped_linear import (
    STEP,
    across,
    clipped_linear_trace,
    half_square,
    linear_task,
)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def network_task(records=10):
    rng = torch.Generator().manual_seed(1)
    return torch.randn(records, 5, generator=rng, dtype=torch.float64), torch.randint(0, 3, (records,), generator=rng)


def exact_parts(model, values, inputs, labels, clip_norm):
    """Squared norm of the Jacobian of each record's clipped gradient, that along the gradient, and its own norm."""

    def clipped(record, label):
        def loss(weights):
            output = torch.func.functional_call(model, weights, (record[None],))
            return nn.functional.cross_entropy(output, label[None])

        gradient = torch.cat([part.flatten() for part in torch.func.grad(loss)(values).values()])
        return gradient * (clip_norm / gradient.norm()).clamp(max=1)

    gradients = torch.func.vmap(clipped)(inputs, labels)
    jacobians = torch.func.vmap(torch.func.jacrev(clipped))(inputs, labels)
    unit = gradients / gradients.norm(dim=1, keepdim=True)
    radial = torch.einsum("npd,np->nd", jacobians, unit).square().sum(1)
    return jacobians.square().sum((1, 2)), radial, gradients.norm(dim=1)


def exact_step(model, inputs, labels, *, noise_multiplier, clip_norm, sampling_probability):
    """The information of one step by torch.func alone."""
    values = {name: value.detach() for name, value in model.named_parameters()}
    whole, radial, norms = exact_parts(model, values, inputs, labels, clip_norm)
    noise_std = noise_multiplier * clip_norm
    factors = subsampled_information((norms / noise_std).numpy(), sampling_probability)
    h, k = (torch.from_numpy(factor) for factor in factors)
    return sampling_probability / noise_std**2 * (h * whole + (k - h) * radial)


@pytest.mark.parametrize("subsampling", ["exact", "none", "guo2022"])
def test_a_linear_model_has_its_closed_form(subsampling):
    model, inputs, labels = linear_task()
    delta = 1e-5 if subsampling == "guo2022" else None
    printed = guo2022_factor(
        noise_multiplier=STEP["noise_multiplier"], sampling_probability=STEP["sampling_probability"], delta=1e-5
    )
    accountant = FisherAccountant(
        model, inputs, labels, loss_fn=half_square, probes=50, records=range(12), subsampling=subsampling, delta=delta
    )
    for _ in range(4):
        accountant.step(**STEP)
    factor = {"exact": across(), "none": 1.0, "guo2022": printed}[subsampling]
    exact = 4 * clipped_linear_trace(inputs, factor)
    # 200 draws of chi-square with 19 degrees, shared by the records: relative error sqrt(2/19/200) = .023
    torch.testing.assert_close(accountant.traces(), exact, rtol=5 * 0.023, atol=0)
    assert (accountant.standard_errors() / exact).median() == pytest.approx(0.023, rel=0.3)


def without_probes(model, loss_fn, inputs, labels, *, clip, probes, rng, state):
    """The engine with its samples replaced by what they estimate."""
    values = {name: state[name].detach() for name, _ in model.named_parameters()}
    whole, radial, norms = exact_parts(model, values, inputs, labels, clip.norm)
    return ClippedProbes(whole.expand(probes, -1), radial, norms)


@pytest.mark.parametrize("exactly", [True, False])
def test_it_follows_weights_noise_and_clip_norm_at_every_step(exactly, monkeypatch):
    """With exact squares to rounding, with drawn probes to five standard errors."""
    if exactly:
        monkeypatch.setattr(fisher_accountant, "probe_clipped_gradients", without_probes)
    model, (inputs, labels) = network(), network_task()
    accountant = FisherAccountant(model, inputs, labels, probes=60, records=range(10))
    exact = torch.zeros(10, dtype=torch.float64)
    for noise, clip in ((0.7, 0.5), (1.4, 1.0), (0.5, 20.0)):  # all clipped, some clipped, none clipped
        step = {"noise_multiplier": noise, "clip_norm": clip, "sampling_probability": 0.3}
        exact += exact_step(model, inputs, labels, **step)
        accountant.step(**step)
        with torch.no_grad():
            for value in model.parameters():
                value.mul_(1.3)
    if exactly:
        torch.testing.assert_close(accountant.traces(), exact, rtol=1e-12, atol=0)
    else:
        assert ((accountant.traces() - exact).abs() < 5 * accountant.standard_errors()).all()


@pytest.mark.parametrize("steps", [1, 5])
def test_tracking_all_records_is_unbiased_after_any_number_of_steps(steps):
    """Blocks of 2 of 5 records, cycles of 3 steps: 60 runs, five standard errors of their mean."""
    model, inputs, labels = linear_task(records=5)
    exact = steps * clipped_linear_trace(inputs, across())
    runs = []
    for seed in range(60):
        accountant = FisherAccountant(
            model,
            inputs,
            labels,
            loss_fn=half_square,
            probes=2,
            records_per_step=2,
            rng=torch.Generator().manual_seed(seed),
        )
        for _ in range(steps):
            accountant.step(**STEP)
        runs.append(accountant.traces())
    found = torch.stack(runs)
    assert ((found.mean(0) - exact).abs() < 5 * found.std(0) / math.sqrt(60)).all()


def test_default_block_brings_every_record_three_times_in_an_epoch_so_that_errors_are_known_within_it():
    model, (inputs, labels) = network(), network_task(40)
    accountant = FisherAccountant(model, inputs, labels, probes=2)
    for step in range(1, 11):
        accountant.step(noise_multiplier=1.0, clip_norm=1.0, sampling_probability=0.1)
        assert bool(accountant.standard_errors().isfinite().all()) == (step >= 9)


def test_the_pilot_keeps_the_error_of_an_evaluation_below_the_target():
    model, inputs, labels = linear_task(records=60)
    accountant = FisherAccountant(model, inputs, labels, loss_fn=half_square, relative_error=0.1, records=range(60))
    accountant.step(**STEP)
    truth = math.sqrt(2 / 19 / accountant.state_dict()["probes"])  # chi-square with 19 degrees
    assert 0.06 < truth < 0.1 * (1 + 2 / 8)  # the pilot knows the spread to an eighth


def test_later_cycles_use_fewer_probes_but_never_less_than_two(monkeypatch):
    used = []
    original = fisher_accountant.probe_clipped_gradients

    def spy(*args, probes, **kwargs):
        used.append(probes)
        return original(*args, probes=probes, **kwargs)

    monkeypatch.setattr(fisher_accountant, "probe_clipped_gradients", spy)
    model, inputs, labels = linear_task()
    accountant = FisherAccountant(model, inputs, labels, loss_fn=half_square, relative_error=0.1, records=range(12))
    for _ in range(12):
        accountant.step(**STEP)
    enough = int(accountant.state_dict()["probes"])
    assert used[1:] == [max(2, math.ceil(enough / max(3, cycle))) for cycle in range(1, 13)]  # used[0] is the pilot
    assert used[-1] == 2


def test_records_that_were_not_seen_three_times_have_no_bound_yet():
    model, inputs, labels = linear_task(records=8)
    accountant = FisherAccountant(model, inputs, labels, loss_fn=half_square, probes=2, records_per_step=4)
    for _ in range(5):
        accountant.step(**STEP)
    assert (accountant.mse_lower_bounds() == 0).all()
    assert accountant.summary().unsettled == 8
    accountant.step(**STEP)
    assert (accountant.mse_lower_bounds() > 0).all()


def test_an_evaluation_that_is_not_finite_leaves_no_bound():
    model, (inputs, labels) = network(), network_task()
    accountant = FisherAccountant(model, inputs, labels, probes=2, records=range(10))
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    accountant.step(**STEP)
    assert accountant.traces().isinf().all()
    assert (accountant.mse_lower_bounds(data_range=(-5, 5)) == 0).all()


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4, 6])
@pytest.mark.parametrize("through_file", [False, True])
def test_a_resumed_account_is_identical_also_within_a_cycle(cut, through_file, tmp_path):
    model, (inputs, labels) = network(), network_task()

    def fresh():
        rng = torch.Generator().manual_seed(4)
        return FisherAccountant(model, inputs, labels, relative_error=0.5, records_per_step=4, rng=rng)

    def go(accountant, steps):
        for step in steps:
            accountant.step(noise_multiplier=1.0 + (step > 3), clip_norm=1.0, sampling_probability=0.2)

    whole, first, second = fresh(), fresh(), fresh()
    go(whole, range(7))
    go(first, range(cut))
    if through_file:
        first.save(tmp_path / "account.safetensors")
        second.load(tmp_path / "account.safetensors")
    else:
        second.load_state_dict(first.state_dict())
    go(second, range(cut, 7))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert second.account().phases == whole.account().phases


def test_the_state_of_another_version_is_refused():
    model, (inputs, labels) = network(), network_task()
    accountant = FisherAccountant(model, inputs, labels, probes=2)
    accountant.step(**STEP)
    state = accountant.state_dict()
    for old in (state["fingerprint"][1:], state["fingerprint"] - 1):
        with pytest.raises(InvalidInput, match="of this version of reconrisk, got one of another version"):
            accountant.load_state_dict({**state, "fingerprint": old})


def test_the_state_of_other_records_or_settings_is_refused():
    model, (inputs, labels) = network(), network_task()
    accountant = FisherAccountant(model, inputs, labels, probes=2)
    accountant.step(**STEP)
    state = accountant.state_dict()
    with pytest.raises(InvalidInput, match="Pass the records or labels of the saved account"):
        FisherAccountant(model, inputs + 1, labels, probes=2).load_state_dict(state)
    with pytest.raises(InvalidInput, match="Pass the records or labels of the saved account"):
        FisherAccountant(model, inputs, (labels + 1) % 3, probes=2).load_state_dict(state)
    with pytest.raises(InvalidInput, match="Pass the settings or number of records of the saved account"):
        FisherAccountant(model, inputs, labels, probes=2, records_per_step=3).load_state_dict(state)
    with pytest.raises(InvalidInput, match="Pass the settings or number of records of the saved account"):
        FisherAccountant(model, inputs, labels, probes=2, subsampling="none").load_state_dict(state)
    with pytest.raises(InvalidInput, match="to include 'rng'"):
        accountant.load_state_dict({name: value for name, value in state.items() if name != "rng"})


def test_a_failed_write_leaves_the_old_file_and_a_damaged_one_is_refused(tmp_path, monkeypatch):
    model, (inputs, labels) = network(), network_task()
    accountant, path = FisherAccountant(model, inputs, labels, probes=2), tmp_path / "account.safetensors"
    accountant.save(path)
    before = path.read_bytes()

    def fails(tensors, target):
        target.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(fisher_state, "save_file", fails)
    with pytest.raises(OSError, match="disk full"):
        accountant.save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(before[:-5])
    with pytest.raises(InvalidFile, match=r"account\.safetensors"):
        accountant.load(path)


@pytest.mark.parametrize("name", ["run.ckpt", "run", "run.npz"])
def test_a_file_is_read_again_whatever_its_suffix(name, tmp_path):
    model, (inputs, labels) = network(), network_task()
    first, second = (FisherAccountant(model, inputs, labels, probes=2) for _ in range(2))
    first.step(**STEP)
    first.save(tmp_path / name)
    second.load(tmp_path / name)
    assert torch.equal(second.traces(), first.traces())
    (tmp_path / name).write_bytes(b"damaged")
    with pytest.raises(InvalidFile, match=name):
        second.load(tmp_path / name)
    with pytest.raises(InvalidFile, match="no such file"):
        second.load(tmp_path / "other")


def test_cost_is_measured_without_touching_the_account():
    model, (inputs, labels) = network(), network_task(40)
    accountant, twin = (FisherAccountant(model, inputs, labels, relative_error=0.5) for _ in range(2))
    cost = accountant.cost(steps=100, sampling_probability=0.1)
    assert cost.records_per_step == 14
    assert cost.cycle_steps == 3
    assert cost.seconds == pytest.approx(100 * cost.seconds_per_step)
    assert "s per step" in str(cost)
    for each in (accountant, twin):
        each.step(noise_multiplier=1.0, clip_norm=1.0, sampling_probability=0.1)
    assert torch.equal(accountant.traces(), twin.traces())
    with pytest.raises(InvalidInput, match="sampling_probability"):
        FisherAccountant(model, inputs, labels, probes=2).cost(steps=3)


def test_the_global_generator_and_gradients_stay_as_they_are():
    model, (inputs, labels) = network(), network_task()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    accountant = FisherAccountant(model, inputs, labels, probes=2)
    before = torch.get_rng_state()
    accountant.step(**STEP)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[2].weight.grad is None


def test_a_state_can_stand_for_the_model():
    model, (inputs, labels) = network(), network_task()
    moved = {name: 2 * value.detach() for name, value in model.named_parameters()}
    by_state, by_model = (FisherAccountant(model, inputs, labels, probes=2, records=[1, 2]) for _ in range(2))
    by_state.step(moved, **STEP)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(moved[name])
    by_model.step(model, **STEP)
    assert torch.equal(by_state.traces(), by_model.traces())
    with pytest.raises(InvalidInput, match=r"to include '0.weight'"):
        by_state.step({"_module.0.weight": moved["0.weight"]}, **STEP)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"probes": 1}, "probes=1 >= 2"),
        ({"probes": 3, "relative_error": 0.1}, "Pass one of the two"),
        ({"subsampling": "poisson"}, "exact, none, guo2022"),
        ({"subsampling": "guo2022"}, "delta=None"),
        ({"delta": 1e-5}, "delta=1e-05"),
        ({"clip": "flat"}, "hard, smooth"),
        ({"records": [0, 0]}, "different indices"),
        ({"records": [12]}, "different indices"),
        ({"records": 3}, "whole numbers"),
        ({"records": [0.0, 1.7]}, "whole numbers"),
        ({"records": [True, False]}, "whole numbers"),
        ({"records": torch.arange(12) > 5}, "mask.nonzero"),
        ({"records": torch.tensor([0.0, 1.0])}, "whole numbers"),
        ({"records": np.arange(12) > 5}, "whole numbers"),
        ({"rng": np.random.default_rng(0)}, "torch.Generator"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    model, inputs, labels = linear_task()
    with pytest.raises(InvalidInput, match=message):
        FisherAccountant(model, inputs, labels, **arguments)


def test_layers_that_make_a_step_no_function_of_the_record_are_refused_by_name():
    inputs, labels = torch.ones(2, 3), torch.tensor([0, 1])
    with pytest.raises(InvalidInput, match=r"1.p=0.5 to be 0"):
        FisherAccountant(nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)), inputs, labels)
    with pytest.raises(InvalidInput, match="BatchNorm1d"):
        FisherAccountant(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), inputs, labels)


def test_bad_steps_and_questions_before_the_first_step_are_refused():
    model, inputs, labels = linear_task()
    accountant = FisherAccountant(model, inputs, labels, loss_fn=half_square, probes=2)
    with pytest.raises(InvalidInput, match=r"noise_multiplier=0\.0 > 0"):
        accountant.step(noise_multiplier=0.0, clip_norm=1.0, sampling_probability=0.1)
    with pytest.raises(InvalidInput, match="sampling_probability"):
        accountant.step(noise_multiplier=1.0, clip_norm=1.0, sampling_probability=1.5)
    with pytest.raises(InvalidInput, match="Expected at least one accounted step, got 0"):
        accountant.traces()


class Dropping(nn.Module):
    """Dropout by its function, which no layer shows; it follows the mode or always draws."""

    def __init__(self, always=False):
        super().__init__()
        self.always, self.layer = always, nn.Linear(5, 3)

    def forward(self, inputs):
        return self.layer(nn.functional.dropout(inputs, 0.5, self.always or self.training))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 4, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.head(self.lstm(inputs[:, None])[0][:, -1])


@pytest.mark.parametrize("made", [Dropping, Recurrent])
def test_a_model_that_computes_something_else_in_training_is_refused_and_stays_as_it_is(made):
    model, (inputs, labels) = made().double(), network_task()
    before = torch.get_rng_state()
    with pytest.raises(InvalidInput, match=r"model\.eval\(\)"):
        FisherAccountant(model, inputs, labels, probes=2)
    assert all(layer.training for layer in model.modules())
    accountant = FisherAccountant(model.eval(), inputs, labels, probes=2)
    accountant.step(**STEP)
    late = FisherAccountant(model, inputs, labels, probes=2)
    model.train()
    with pytest.raises(InvalidInput, match=r"model\.eval\(\)"):
        late.step(**STEP)
    assert torch.equal(torch.get_rng_state(), before)


def squared_mean(output, label):
    return nn.functional.mse_loss(output[:, 0], label.double())


def test_what_does_not_fit_is_refused_before_training():
    model, (inputs, labels) = network(), network_task()
    weights = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    for wrong, message in (
        ({"inputs": inputs[:, :4]}, r"takes records of shape \(4,\).*RuntimeError"),
        ({"labels": labels.double()}, r"loss_fn that takes outputs of shape \(4, 3\).*torch.float64"),
        ({"labels": labels + 1}, "labels=3 to be from 0 to 2"),
        ({"labels": labels - 1}, "labels=-1 to be from 0 to 2"),
        ({"loss_fn": nn.CrossEntropyLoss(weight=weights)}, "[Cc]lass weights"),
        ({"loss_fn": nn.CrossEntropyLoss(reduction="none")}, "one number per record"),
        ({"loss_fn": lambda output, label: {}[0]}, "KeyError"),
    ):
        with pytest.raises(InvalidInput, match=message):
            FisherAccountant(model, **{"inputs": inputs, "labels": labels, "probes": 2, **wrong})


def test_cross_entropy_of_one_output_is_refused_with_the_remedy():
    model, inputs, _ = linear_task()
    for loss_fn in (nn.functional.cross_entropy, nn.CrossEntropyLoss()):
        with pytest.raises(InvalidInput, match="binary_cross_entropy_with_logits"):
            FisherAccountant(model, inputs, torch.zeros(12, dtype=torch.int64), loss_fn=loss_fn, probes=2)


def test_the_reduction_of_a_loss_is_recognized():
    model, inputs, labels = linear_task()
    for loss_fn, reduction in ((half_square, "sum"), (squared_mean, "mean")):
        assert FisherAccountant(model, inputs, labels, loss_fn=loss_fn, probes=2)._reduction == reduction


def test_information_that_rounding_hides_is_no_infinite_safety():
    """Logits 200 apart: in single precision the gradient is exactly zero."""
    model, inputs, labels = nn.Linear(4, 2), torch.ones(3, 4), torch.zeros(3, dtype=torch.int64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[25.0], [-25.0]]).expand(2, 4))
    accountant = FisherAccountant(model, inputs, labels, probes=2, records=[0, 2])
    for _ in range(3):
        accountant.step(noise_multiplier=2.0, clip_norm=1.0, sampling_probability=0.5)
    assert (accountant.traces() == 0).all()
    expected = 1 / (3 * (0.5 * torch.finfo(torch.float32).eps / 2.0) ** 2)
    assert accountant.mse_lower_bounds().tolist() == pytest.approx([expected] * 2)
    assert average_accounts([accountant, accountant]).mse_lower_bounds().tolist() == pytest.approx([expected] * 2)
