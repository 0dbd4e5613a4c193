"""Trainings with Opacus: an honest run is consistent, broken ones are contradicted."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import reconrisk as rr
from reconrisk.core.errors import InvalidInput
from reconrisk.integrations.opacus.optimal_noise import with_optimal_noise
from reconrisk.integrations.opacus.step import plain_copy
from reconrisk.studies.verify_mechanism.evidence import BLOCKS, CONTRIBUTION
from reconrisk.studies.verify_mechanism.result import Verdict

opacus = pytest.importorskip("opacus", reason="opacus is not installed: the Opacus integration is NOT tested here")
from opacus.optimizers import DPOptimizer  # noqa: E402 - after the check that it is there

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:.*loss_reduction.*"),
]

INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(1))


class Adapted(nn.Module):
    """A layer with an adapter and a head."""

    def __init__(self):
        super().__init__()
        self.base, self.adapter, self.head = nn.Linear(4, 16), nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, inputs):
        return self.head(torch.tanh(self.base(inputs) + self.adapter(inputs)))


def private(kind=None, model=None, **settings):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 16), nn.Linear(16, 3))
    plain = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.5, momentum=0.5)
    made = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=plain,
        data_loader=DataLoader(TensorDataset(INPUTS, LABELS), batch_size=8, shuffle=True),
        **{"noise_multiplier": 1.0, "max_grad_norm": 0.5, **settings},
    )
    model, optimizer, loader = made[0], made[1], made[-1]
    if kind is not None:
        optimizer.__class__ = kind
    return model, optimizer, loader


def verify(model, optimizer, data=(INPUTS, LABELS), **given):
    return rr.verify_mechanism(optimizer, data, model=model, rng=torch.Generator().manual_seed(1), **given)


class LessNoise(DPOptimizer):
    """Noise of a share of the stated one."""

    share = 0.5

    def add_noise(self):
        stated = self.noise_multiplier
        self.noise_multiplier = stated * self.share
        try:
            super().add_noise()
        finally:
            self.noise_multiplier = stated


class NoiseOnAdapterOnly(DPOptimizer):
    """Only the adapter gets noise, the other trained parameters get none."""

    def add_noise(self):
        super().add_noise()
        for value in (*self.params[:2], *self.params[4:]):
            value.grad = value.summed_grad.clone()


class NoiseOnFrozenAdapter(DPOptimizer):
    """All noise goes to a frozen adapter, which is not released."""

    def add_noise(self):
        for value in self.params:
            value.grad = value.summed_grad.clone()
            value.summed_grad._processed = True  # Opacus checks that every sum is used once


class UnscaledMean(LessNoise):
    """The noise is divided by the batch size, the sum is not."""

    share = 1 / 8

    def scale_grad(self):
        pass


class NoiseOfMeanOnSum(LessNoise):
    """Noise for a mean is added to the sum, then both are divided."""

    share = 1 / 8


class LayersClippedAlone(DPOptimizer):
    """Each parameter is clipped to the norm that is accounted for all together."""

    def clip_and_accumulate(self):
        for value in self.params:
            rows = self._get_flat_grad_sample(value)
            norms = rows.flatten(1).norm(dim=1)
            value.summed_grad = torch.einsum("i,i...", (self.max_grad_norm / (norms + 1e-6)).clamp(max=1), rows)


@pytest.mark.parametrize("settings", [{}, {"noise_multiplier": 5.0}, {"loss_reduction": "sum"}])
def test_an_honest_run_is_consistent(settings):
    model, optimizer, _ = private(**settings)
    loss = nn.CrossEntropyLoss(reduction=settings.get("loss_reduction", "mean"))
    found = verify(model, optimizer, loss_fn=loss)
    assert found.verdict is Verdict.CONSISTENT, found.reason
    assert found.noise_ratio_low > 0.9
    assert found.epsilon_within_family < found.epsilon_claimed


@pytest.mark.parametrize(
    "kind",
    [
        LessNoise,
        NoiseOnAdapterOnly,
        NoiseOnFrozenAdapter,
        UnscaledMean,
        NoiseOfMeanOnSum,
        LayersClippedAlone,
    ],
)
def test_broken_runs_are_contradicted(kind):
    model = Adapted()
    model.adapter.requires_grad_(kind is not NoiseOnFrozenAdapter)
    model, optimizer, _ = private(kind, model)
    found = verify(model, optimizer)
    assert found.is_contradicted, found.reason
    strongest = max(found.tests, key=lambda test: test.evidence).name
    expected = {NoiseOnAdapterOnly: BLOCKS, UnscaledMean: CONTRIBUTION, LayersClippedAlone: CONTRIBUTION}
    assert strongest == expected.get(kind, strongest)


def test_clipping_per_layer_that_is_accounted_as_such_is_consistent():
    model, optimizer, _ = private(clipping="per_layer", max_grad_norm=[0.2] * 6)
    assert verify(model, optimizer).verdict is Verdict.CONSISTENT


def test_a_trained_parameter_that_the_optimizer_lacks_has_no_noise():
    model = Adapted()
    trained = [*model.adapter.parameters(), *model.head.parameters()]
    wrapped = opacus.GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(trained, lr=0.1), noise_multiplier=1.0, max_grad_norm=0.5, expected_batch_size=8
    )
    found = verify(wrapped, optimizer)
    assert found.is_contradicted
    assert any("base" in test.weakest for test in found.tests)
    model.base.requires_grad_(False)
    assert verify(wrapped, optimizer).verdict is Verdict.CONSISTENT


def test_optimal_noise_is_verified_in_its_own_units():
    model, optimizer, _ = private(model=nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)))
    public = (torch.rand(20, 4), torch.randint(0, 3, (20,)))
    moments = rr.sensitivity.reference_moments(plain_copy(model).eval(), nn.functional.cross_entropy, *public)
    optimizer = with_optimal_noise(optimizer, model, moments)
    assert verify(model, optimizer).verdict is Verdict.CONSISTENT


def test_the_training_continues_as_if_nothing_had_happened():
    model, optimizer, loader = private()
    calls = []
    optimizer.attach_step_hook(calls.append)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.eval()
    verify(model, optimizer, loader)
    assert calls == []
    assert optimizer.step_hook == calls.append
    assert not model.training
    assert all(value.grad is None for value in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert optimizer.original_optimizer.state_dict()["state"] == {}


def test_other_models_and_optimizers_are_refused():
    model, optimizer, _ = private()
    with pytest.raises(InvalidInput, match="wrapped by Opacus"):
        verify(plain_copy(model), optimizer)
    with pytest.raises(InvalidInput, match="trained model"):
        verify(None, optimizer)
    optimizer.noise_multiplier = 0.0
    with pytest.raises(InvalidInput, match="noise_multiplier"):
        verify(model, optimizer)
