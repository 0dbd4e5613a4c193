import io
import math
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.integrations.fisher_accountant.accountant import FisherAccountant
from reconrisk.integrations.opacus.step import plain_copy

opacus = pytest.importorskip("opacus", reason="opacus is not installed: the Opacus integration is NOT tested here")
from opacus.schedulers import ExponentialGradClip, ExponentialNoise  # noqa: E402 - after the check that it is there
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:.*loss_reduction.*"),
]

RECORDS = 40
INPUTS = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (RECORDS,), generator=torch.Generator().manual_seed(1))


class Scaled(nn.Module):
    """A layer of its own kind: Opacus handles it by functorch."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, inputs):
        return torch.tanh(self.scale * inputs)


class Training:
    """A small private training, ready to go."""

    def __init__(self, batch_size=4, before=None, **private):
        torch.manual_seed(7)
        self.plain = nn.Sequential(nn.Linear(4, 5), Scaled(), nn.Linear(5, 3))
        self.engine = opacus.PrivacyEngine(accountant="rdp")
        loader = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=batch_size, shuffle=True)
        if before is not None:
            before(self.plain)
        settings = {"noise_multiplier": 1.1, "max_grad_norm": 0.7, **private}
        self.model, self.optimizer, *_, self.loader = self.engine.make_private(
            module=self.plain,
            optimizer=torch.optim.SGD(self.plain.parameters(), lr=0.5),
            data_loader=loader,
            **settings,
        )
        self.callable = self.model if isinstance(self.model, nn.Module) else self.plain
        self.sizes = []

    def one(self, inputs, labels):
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.callable(inputs), labels).backward()
        self.optimizer.step()

    def run(self, epochs=2, loader=None):
        torch.manual_seed(11)
        for _ in range(epochs):
            for inputs, labels in self.loader if loader is None else loader:
                self.sizes.append(len(inputs))
                self.one(inputs, labels)
        return [value.detach().clone() for value in self.plain.parameters()]


def accountant_of(model, **settings):
    return FisherAccountant(model, INPUTS, LABELS, **{"probes": 2, **settings})


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("private", [{}, {"poisson_sampling": False}, {"wrap_model": False}])
@pytest.mark.parametrize("when", ["before", "after", "plain after"])
def test_training_is_bit_identical_with_and_without_the_account(private, when):
    bare = Training(**private).run()
    made = []
    training = Training(
        before=(lambda model: made.append(accountant_of(model))) if when == "before" else None, **private
    )
    if when != "before":
        made.append(accountant_of(training.plain if when == "plain after" else training.callable))
    (accountant,) = made
    accountant.attach(training.optimizer, training.loader)
    assert same(training.run(), bare)
    assert accountant.steps == 20
    assert (accountant.traces() > 0).all()


def test_the_engine_s_own_accountant_goes_on_counting():
    alone, together = Training(), Training()
    alone.run()
    accountant_of(together.model).attach(together.optimizer, together.loader)
    together.run()
    assert together.engine.accountant.history == alone.engine.accountant.history == [(1.1, 0.1, 20)]
    assert together.engine.get_epsilon(1e-5) == alone.engine.get_epsilon(1e-5)


def test_hooked_account_equals_one_stepped_by_hand_before_each_update():
    training = Training()
    hooked, by_hand = accountant_of(training.model), accountant_of(training.model)
    hooked.attach(training.optimizer, training.loader)
    update = training.optimizer.original_optimizer.step

    def stepped_first():
        # Opacus has run its hooks by now; the parameters have not moved yet
        by_hand.step(noise_multiplier=1.1, clip_norm=0.7, sampling_probability=0.1)
        before = [value.detach().clone() for value in training.plain.parameters()]
        update()
        assert not same(before, training.plain.parameters())

    training.optimizer.original_optimizer.step = stepped_first
    training.run()
    assert torch.equal(hooked.traces(), by_hand.traces())
    assert hooked.account().phases == by_hand.account().phases


def test_only_real_steps_count_under_the_batch_memory_manager():
    whole, split = Training(batch_size=10), Training(batch_size=10)
    accounts = []
    for training in (whole, split):
        accountant = accountant_of(training.model)
        with BatchMemoryManager(
            data_loader=training.loader, max_physical_batch_size=3, optimizer=training.optimizer
        ) as pieces:
            accountant.attach(training.optimizer, pieces if training is split else training.loader)
            training.run(loader=pieces if training is split else None)
        accounts.append(accountant)
    assert len(split.sizes) > len(whole.sizes) == 8
    assert accounts[1].steps == 8
    assert accounts[0].account().phases == accounts[1].account().phases
    torch.testing.assert_close(accounts[0].traces(), accounts[1].traces(), rtol=1e-4, atol=0)  # sums in other order


def test_empty_batches_are_steps_like_any_other():
    training = Training(batch_size=1)
    accountant = accountant_of(training.model)
    accountant.attach(training.optimizer, training.loader)
    training.run(epochs=1)
    assert 0 in training.sizes
    assert accountant.steps == len(training.sizes) == 40
    assert accountant.account().phases[0].sampling_probability == 1 / 40


def test_schedules_of_noise_and_clip_norm_are_followed():
    training = Training()
    noise = ExponentialNoise(training.optimizer, gamma=0.9)
    clip = ExponentialGradClip(training.optimizer, gamma=2.0)
    accountant = accountant_of(training.model)
    accountant.attach(training.optimizer, training.loader)
    for _ in range(3):
        training.run(epochs=1)
        noise.step()
        clip.step()
    phases = accountant.account().phases
    assert [phase.steps for phase in phases] == [10, 10, 10]
    assert [phase.noise_multiplier / phases[0].noise_multiplier for phase in phases] == pytest.approx([1, 0.9, 0.81])
    assert [phase.clip_norm / phases[0].clip_norm for phase in phases] == pytest.approx([1, 2, 4])


def test_without_poisson_sampling_there_is_no_amplification():
    training = Training(poisson_sampling=False)
    accountant = accountant_of(training.model)
    accountant.attach(training.optimizer, training.loader)
    training.run(epochs=3)
    phase = accountant.account().phases[0]
    assert (phase.sampling_probability, phase.poisson, phase.steps) == (0.1, False, 30)
    assert accountant.account().mechanism().steps == 3
    assert "not Poisson samples" in str(accountant.summary())


def test_accumulated_batches_add_up_when_shuffled_and_are_refused_for_poisson_samples():
    for poisson in (False, True):
        training = Training(poisson_sampling=poisson)
        training.model.allow_grad_accumulation()
        accountant = accountant_of(training.model)
        accountant.attach(training.optimizer, training.loader)
        batches = iter([(INPUTS[:4], LABELS[:4]), (INPUTS[4:8], LABELS[4:8])])
        for inputs, labels in batches:
            nn.functional.cross_entropy(training.callable(inputs), labels).backward()
        if poisson:
            with pytest.raises(InvalidInput, match="BatchMemoryManager"):
                training.optimizer.step()
        else:
            training.optimizer.step()
            assert accountant.account().phases[0].sampling_probability == 0.2


def test_a_checkpoint_of_the_engine_carries_the_account(tmp_path):
    def batches():
        rng = torch.Generator().manual_seed(2)
        return [torch.rand(RECORDS, generator=rng) < 0.1 for _ in range(13)]

    def go(training, chosen):
        for mask in chosen:
            training.one(INPUTS[mask], LABELS[mask])

    whole = Training()
    account = accountant_of(whole.model, records_per_step=9)
    account.attach(whole.optimizer, whole.loader)
    torch.manual_seed(3)
    go(whole, batches()[:7])  # cycles of 5 steps
    whole.engine.save_checkpoint(
        path=tmp_path / "run.pt",
        module=whole.model,
        optimizer=whole.optimizer,
        checkpoint_dict={"fisher": account.state_dict()},
    )
    randomness = torch.get_rng_state()
    go(whole, batches()[7:])

    resumed = Training()
    again = accountant_of(resumed.model, records_per_step=9)
    checkpoint = resumed.engine.load_checkpoint(
        path=tmp_path / "run.pt", module=resumed.model, optimizer=resumed.optimizer
    )
    again.load_state_dict(checkpoint["fisher"])
    again.attach(resumed.optimizer, resumed.loader)
    torch.set_rng_state(randomness)
    go(resumed, batches()[7:])
    assert torch.equal(again.traces(), account.traces())
    assert torch.equal(again.standard_errors(), account.standard_errors())
    assert again.account().phases == account.account().phases
    assert again.steps == 13


@pytest.mark.parametrize(
    ("private", "name"),
    [
        ({"clipping": "per_layer", "max_grad_norm": [0.5] * 5}, "DPPerLayerOptimizer"),
        (
            {
                "clipping": "adaptive",
                "target_unclipped_quantile": 0.5,
                "clipbound_learning_rate": 0.1,
                "max_clipbound": 10.0,
                "min_clipbound": 0.1,
                "unclipped_num_std": 2.0,
            },
            "AdaClipDPOptimizer",
        ),
        ({"grad_sample_mode": "ghost"}, "DPOptimizerFastGradientClipping"),
    ],
)
def test_other_clippings_are_refused_by_name_with_the_remedy(private, name):
    training = Training(**private)
    with pytest.raises(InvalidInput, match=f"{name}.*clipping='flat'"):
        accountant_of(training.plain).attach(training.optimizer, training.loader)


def test_what_is_not_a_private_training_is_refused():
    training = Training()
    accountant = accountant_of(training.model)
    with pytest.raises(InvalidInput, match="make_private"):
        accountant.attach(training.optimizer.original_optimizer, training.loader)
    with pytest.raises(InvalidInput, match="a fixed order amplifies nothing"):
        accountant.attach(training.optimizer, DataLoader(TensorDataset(INPUTS, LABELS), batch_size=4))
    with pytest.raises(InvalidInput, match=r"but 0.weight requires gradients and is missing"):
        accountant_of(Training().plain).attach(training.optimizer, training.loader)
    with pytest.raises(InvalidInput, match="Opacus clips hard"):
        accountant_of(training.model, clip="smooth").attach(training.optimizer, training.loader)
    training.optimizer.noise_multiplier = 0.0
    with pytest.raises(InvalidInput, match=r"noise_multiplier=0\.0 > 0"):
        accountant.attach(training.optimizer, training.loader)


def test_frozen_parameters_are_no_part_of_the_release():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    trained = [value for value in model.parameters() if value.requires_grad]
    private, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(trained, lr=0.1),
        data_loader=DataLoader(TensorDataset(INPUTS, LABELS), batch_size=4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    accountant = accountant_of(private, records=[0])
    accountant.attach(optimizer, loader)
    nn.functional.cross_entropy(private(INPUTS[:4]), LABELS[:4]).backward()
    optimizer.step()
    assert accountant.steps == 1


def test_attaching_twice_is_refused_and_detaching_restores_the_hook():
    training = Training()
    accountant, hook = accountant_of(training.model), training.optimizer.step_hook
    accountant.attach(training.optimizer, training.loader, total_steps=20)
    with pytest.raises(InvalidInput, match="detach"):
        accountant.attach(training.optimizer, training.loader)
    accountant.detach()
    assert training.optimizer.step_hook is hook
    training.run(epochs=1)
    assert accountant.steps == 0
    accountant.attach(training.optimizer, training.loader)
    training.optimizer.attach_step_hook(hook)
    with pytest.raises(InvalidInput, match="replaced this one"):
        accountant.detach()


def test_a_copy_of_a_wrapped_module_is_plain_and_leaves_it_hooked():
    training = Training()
    training.one(INPUTS[:4], LABELS[:4])
    copied = plain_copy(training.model)
    assert all(not layer._forward_hooks and not layer._backward_hooks for layer in copied.modules())
    assert all(not hasattr(value, "grad_sample") for value in copied.parameters())
    assert any(layer._forward_hooks for layer in training.plain.modules())
    torch.testing.assert_close(copied(INPUTS), training.plain(INPUTS))


def test_cost_reads_the_rate_of_the_attached_loader():
    training = Training()
    accountant = accountant_of(training.model)
    accountant.attach(training.optimizer, training.loader)
    cost = accountant.cost(steps=5)
    assert (cost.records_per_step, cost.cycle_steps) == (14, 3)
    assert math.isfinite(cost.seconds)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_the_cost_is_told_at_a_terminal_before_training_starts(monkeypatch, stream):
    training = Training()
    accountant = accountant_of(training.model)
    monkeypatch.setattr(sys, "stderr", stream)
    accountant.attach(training.optimizer, training.loader, total_steps=20)
    accountant.detach()
    if stream.isatty():
        assert "for 20 steps" in stream.getvalue()
        assert stream.getvalue().count("\n") == 1
    else:
        assert stream.getvalue() == ""
    assert accountant.steps == 0


@pytest.mark.parametrize(("expected", "given"), [("mean", "sum"), ("sum", "mean")])
def test_a_loss_reduced_otherwise_than_opacus_expects_is_refused(expected, given):
    training = Training(loss_reduction=expected)
    right, wrong = (accountant_of(training.model, loss_fn=nn.CrossEntropyLoss(reduction=r)) for r in (expected, given))
    with pytest.raises(InvalidInput, match=f"loss_reduction='{given}'"):
        wrong.attach(training.optimizer, training.loader)
    right.attach(training.optimizer, training.loader)


def test_without_opacus_the_extra_is_named(monkeypatch):
    training = Training()
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(MissingExtra, match=r"reconrisk\[dp\]"):
        accountant_of(training.plain).attach(training.optimizer, training.loader)
