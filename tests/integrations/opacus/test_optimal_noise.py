"""Noise that differs between parameters under Opacus: what a record can add is computed, not trusted."""

import math
import sys
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from reconrisk.core.errors import InvalidInput, MissingExtra
from reconrisk.defenses import clip, gaussian_noise, optimal_noise
from reconrisk.defenses.clipping import NoiseScales
from reconrisk.defenses.local import local_optimal_noise
from reconrisk.defenses.noise import ParameterNoise
from reconrisk.defenses.refreshed import RefreshedDefense
from reconrisk.integrations.fisher_accountant.accountant import FisherAccountant
from reconrisk.integrations.opacus.optimal_noise import with_optimal_noise
from reconrisk.releases.sensitivity.moments import reference_moments
from reconrisk.statistics.intervals import clopper_pearson

opacus = pytest.importorskip("opacus", reason="opacus is not installed: the Opacus integration is NOT tested here")
from opacus.optimizers import DPOptimizer  # noqa: E402 - after the check that it is there
from opacus.schedulers import ExponentialNoise  # noqa: E402
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402

from reconrisk.integrations.opacus import noise_optimizer  # noqa: E402 - imports opacus
from reconrisk.integrations.opacus.noise_optimizer import ParameterNoiseOptimizer  # noqa: E402
from reconrisk.releases.float_safe_noise import lattice_step  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:The noise is drawn from a seeded generator"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:.*loss_reduction.*"),
]

RECORDS = 40
INPUTS = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (RECORDS,), generator=torch.Generator().manual_seed(1))
SIGMA, CLIP = 1.3, 0.7


def small_model(seed=7):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def wide(model, seed=0):
    """Scales over some orders of magnitude."""
    rng = torch.Generator().manual_seed(seed)
    stds = {name: torch.exp(2 * torch.randn(v.shape, generator=rng)) for name, v in model.named_parameters()}
    return ParameterNoise(NoiseScales(stds), "wide")


def equal(model):
    return ParameterNoise(
        NoiseScales({name: torch.full(v.shape, 0.3) for name, v in model.named_parameters()}), "equal"
    )


class Training:
    """A small private training, with another noise if ``noise`` makes one of the model."""

    def __init__(self, noise=None, batch_size=4, accountant="rdp", **private):
        self.plain = small_model()
        self.engine = opacus.PrivacyEngine(accountant=accountant)
        settings = {"noise_multiplier": SIGMA, "max_grad_norm": CLIP, **private}
        self.model, self.optimizer, *_, self.loader = self.engine.make_private(
            module=self.plain,
            optimizer=torch.optim.SGD(self.plain.parameters(), lr=0.5, momentum=0.5),
            data_loader=DataLoader(TensorDataset(INPUTS, LABELS), batch_size=batch_size, shuffle=True),
            **settings,
        )
        if noise is not None:
            self.optimizer = with_optimal_noise(self.optimizer, self.model, noise(self.plain))

    def run(self, epochs=2, loader=None, after=None):
        torch.manual_seed(11)
        for _ in range(epochs):
            for inputs, labels in self.loader if loader is None else loader:
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(inputs), labels).backward()
                self.optimizer.step()
                if after is not None:
                    after()
        return [value.detach().clone() for value in self.plain.parameters()]


def bare(stds, noise_multiplier=SIGMA, clip_norm=CLIP, generator=None, kind=None):
    """An optimizer of one parameter whose per-sample gradients a test sets by hand, and that parameter."""
    model = nn.Linear(stds.numel(), 1, bias=False, dtype=stds.dtype)
    plain = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=noise_multiplier,
        max_grad_norm=clip_norm,
        expected_batch_size=None,
        loss_reduction="sum",
        generator=generator,
    )
    noise = ParameterNoise(NoiseScales({"weight": stds[None]}), "by hand")
    made = with_optimal_noise(plain, model, noise)
    if kind is not None:
        made.__class__ = kind
    return made, model.weight


def summed(optimizer, weight, rows):
    """The clipped sum of per-sample gradients, in the parameter's own units."""
    optimizer.zero_grad()
    weight.grad_sample = rows[:, None, :].clone()
    optimizer.clip_and_accumulate()
    return (weight.summed_grad * optimizer._units[id(weight)])[0].detach()


numbers = st.floats(-1e6, 1e6, allow_nan=False, width=32)


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.lists(numbers, min_size=5, max_size=5), min_size=1, max_size=4),
    spread=st.lists(st.floats(-3, 3), min_size=5, max_size=5),
    noise_multiplier=st.floats(0.1, 10),
    clip_norm=st.floats(0.01, 100),
)
def test_no_record_adds_more_than_one_over_the_noise_multiplier(rows, spread, noise_multiplier, clip_norm):
    stds = 10 ** torch.tensor(spread, dtype=torch.float64)
    rows = torch.tensor(rows, dtype=torch.float64)
    optimizer, weight = bare(stds, noise_multiplier, clip_norm)
    together, rest = summed(optimizer, weight, rows), summed(optimizer, weight, rows[1:])
    added = (together - rest) / optimizer.noise_std["weight"][0]
    # sums of doubles cancel: their rounding is relative to the terms, each at most clip_norm in units
    assert float(added.norm()) <= (1 + 1e-9 * len(rows)) / noise_multiplier


def test_long_gradients_attain_it_in_every_direction():
    stds = torch.tensor([0.01, 1.0, 30.0], dtype=torch.float64)
    optimizer, weight = bare(stds)
    for row in torch.eye(3, dtype=torch.float64):
        added = summed(optimizer, weight, 1e5 * row[None]) / optimizer.noise_std["weight"][0]
        # the margin of the clip for sums of 65,536 records is 1e-6
        assert 1 - 2e-6 < float(added.norm()) * SIGMA <= 1


def test_all_parameters_of_a_record_are_clipped_together():
    training = Training(noise=wide)
    rng = torch.Generator().manual_seed(4)
    for value in training.plain.parameters():
        value.grad_sample = 1e4 * torch.randn(1, *value.shape, generator=rng)
    training.optimizer.clip_and_accumulate()
    stds = training.optimizer.noise_std
    added = [
        value.summed_grad * training.optimizer._units[id(value)] / stds[name]
        for name, value in training.plain.named_parameters()
    ]
    # single precision; Opacus adds 1e-6 to a norm of more than 1e4
    assert float(torch.cat([each.flatten() for each in added]).norm()) == pytest.approx(1 / SIGMA, rel=1e-5)


def test_short_gradients_are_left_alone():
    optimizer, weight = bare(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    row = torch.tensor([[0.01, 0.02, -0.03]], dtype=torch.float64)
    torch.testing.assert_close(summed(optimizer, weight, row)[None], row)


def test_noise_has_the_stated_covariance():
    stds = torch.tensor([0.1, 1.0, 3.0])
    optimizer, weight = bare(stds, generator=torch.Generator().manual_seed(5))
    draws = 4000
    samples = []
    for _ in range(draws):
        optimizer.zero_grad()
        weight.grad_sample = torch.zeros(1, 1, 3)
        optimizer.clip_and_accumulate()
        optimizer.add_noise()
        samples.append(weight.grad[0].clone())
    found = torch.stack(samples) / optimizer.noise_std["weight"]
    wanted = stds / stds.double().square().reciprocal().mean().rsqrt().float() * SIGMA * CLIP
    torch.testing.assert_close(optimizer.noise_std["weight"][0], wanted)
    # a sample variance has standard error sqrt(2/n), a covariance sqrt(1/n); five of them
    assert float((found.T @ found / draws - torch.eye(3)).abs().max()) < 5 * math.sqrt(2 / draws)


def test_units_keep_the_norm_of_a_gradient_on_average_over_directions():
    optimizer, weight = bare(torch.tensor([0.1, 1.0, 3.0], dtype=torch.float64))
    assert float(optimizer._units[id(weight)].square().reciprocal().mean()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "private", [{}, {"poisson_sampling": False}, {"loss_reduction": "sum"}, {"grad_sample_mode": "functorch"}]
)
def test_equal_scales_are_opacus_itself_up_to_the_draw_of_the_noise(private):
    # noise of 1e-8 leaves the clipped sums visible; Poisson batches are drawn by the same global generator
    quiet = {"noise_multiplier": 1e-8, **private}
    loader = [(INPUTS[:4], LABELS[:4]), (INPUTS[4:8], LABELS[4:8])]
    ours, theirs = (Training(noise=noise, **quiet).run(loader=loader) for noise in (equal, None))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=2e-5)  # Opacus adds 1e-6 to norms


def test_other_scales_are_not():
    ours, theirs = Training(noise=wide).run(epochs=1), Training().run(epochs=1)
    assert not any(torch.allclose(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_epsilon_is_that_of_equal_noise(accountant):
    ours, theirs = Training(noise=wide, accountant=accountant), Training(accountant=accountant)
    ours.run()
    theirs.run()
    assert ours.engine.accountant.history == theirs.engine.accountant.history == [(SIGMA, 0.1, 20)]
    assert ours.engine.get_epsilon(1e-5) == theirs.engine.get_epsilon(1e-5)


def test_schedulers_of_the_noise_are_followed_and_accounted():
    training = Training(noise=wide)
    scheduler = ExponentialNoise(training.optimizer, gamma=0.9)
    before = training.optimizer.noise_std["0.weight"]
    training.run(epochs=1, after=scheduler.step)
    torch.testing.assert_close(training.optimizer.noise_std["0.weight"], before * 0.9**10)
    assert [each[0] for each in training.engine.accountant.history] == pytest.approx(
        [SIGMA * 0.9**i for i in range(10)]
    )


def test_batches_in_parts_are_the_whole_batch():
    quiet = {"noise": wide, "batch_size": 10, "noise_multiplier": 1e-12}  # the two runs draw different noise
    whole, split = Training(**quiet), Training(**quiet)
    with BatchMemoryManager(data_loader=split.loader, max_physical_batch_size=3, optimizer=split.optimizer) as pieces:
        found = split.run(loader=pieces)
    for a, b in zip(found, whole.run(), strict=True):
        torch.testing.assert_close(a, b)
    assert split.engine.accountant.history == whole.engine.accountant.history


class Following(RefreshedDefense):
    """RefreshedDefense noise that remembers for which weights it was asked."""

    def __init__(self, every=1):
        loss = nn.functional.cross_entropy
        super().__init__(self.chosen, loss, INPUTS[:5], LABELS[:5], every=every, probes=2, by_layer=False)
        self.models = []

    @staticmethod
    def chosen(moments):
        return optimal_noise(moments, like=1.0)

    def for_model(self, model):
        self.models.append(model)
        return super().for_model(model)


def test_refreshed_noise_is_asked_once_for_each_step_with_the_weights_of_that_step():
    followed = Following()
    training = Training(noise=lambda _: followed)
    states, stds = [[value.detach().clone() for value in training.plain.parameters()]], []

    def remember():
        states.append([value.detach().clone() for value in training.plain.parameters()])
        stds.append(training.optimizer.noise_std["0.weight"])

    training.run(epochs=1, after=remember)
    assert len(followed.models) == followed.refreshes == 10
    for model, state in zip(followed.models, states, strict=False):
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), state, strict=True))
    assert not any(torch.allclose(a, b) for a, b in pairwise(stds))
    assert training.engine.accountant.history == [(SIGMA, 0.1, 10)]


def test_noise_is_refreshed_every_so_many_steps():
    followed = Following(every=4)
    stds = []
    training = Training(noise=lambda _: followed)
    training.run(epochs=1, after=lambda: stds.append(training.optimizer.noise_std["0.weight"]))
    assert followed.refreshes == 3
    same = [torch.equal(a, b) for a, b in pairwise(stds)]
    assert same == [True, True, True, False, True, True, True, False, True]


def test_noise_is_not_renewed_between_the_parts_of_a_batch():
    followed = Following()
    training = Training(noise=lambda _: followed, batch_size=10)
    with BatchMemoryManager(
        data_loader=training.loader, max_physical_batch_size=3, optimizer=training.optimizer
    ) as pieces:
        training.run(epochs=2, loader=pieces)
    assert len(followed.models) == 8


def test_moments_alone_give_the_optimal_proportions():
    moments = reference_moments(small_model(), nn.functional.cross_entropy, INPUTS[:5], LABELS[:5])
    by_moments = Training(noise=lambda _: moments).optimizer.noise_std
    by_noise = Training(noise=lambda _: optimal_noise(moments, noise_norm=3.0)).optimizer.noise_std
    for name, std in by_moments.items():
        torch.testing.assert_close(std, by_noise[name])


# A distinguishing test: the most powerful one there is for known noise, on gradients made to be told apart

TRIALS = 500
CONFIDENCE = 1 - 1e-6  # of each of the two rates: no sound claim fails by chance


class ClippedInTheWrongNorm(ParameterNoiseOptimizer):
    """A deliberately broken copy: it clips in the Euclidean norm."""

    def _get_flat_grad_sample(self, p):
        return DPOptimizer._get_flat_grad_sample(self, p)

    def add_noise(self):
        weight = self.params[0]
        weight.summed_grad = weight.summed_grad / self._units[id(weight)]
        super().add_noise()


def power(kind, row, seed):
    """Lower limit on how far apart the test puts a batch of that record and an empty one, as two normal laws."""
    stds = torch.exp(2 * torch.randn(len(row), generator=torch.Generator().manual_seed(3)))
    optimizer, weight = bare(stds, generator=torch.Generator().manual_seed(seed), kind=kind)
    std = optimizer.noise_std["weight"][0]
    optimizer.noise_multiplier, sigma = 1e-30, optimizer.noise_multiplier
    mean = _step(optimizer, weight, row[None])
    optimizer.noise_multiplier = sigma
    weights = mean / std.square()
    sent = [torch.stack([_step(optimizer, weight, rows) for _ in range(TRIALS)]) @ weights for rows in _batches(row)]
    level = float(mean @ weights) / 2
    hits, alarms = (clopper_pearson(int((each > level).sum()), TRIALS, CONFIDENCE) for each in sent)
    return float(norm.ppf(hits.low) - norm.ppf(alarms.high))


def _batches(row):
    return row[None], torch.zeros(0, len(row))


def _step(optimizer, weight, rows):
    optimizer.zero_grad()
    weight.grad_sample = rows[:, None, :].clone()
    optimizer.clip_and_accumulate()
    optimizer.add_noise()
    return weight.grad[0].detach().clone()  # zero_grad writes into it


def worst_rows():
    rng = torch.Generator().manual_seed(2)
    return [*(1e4 * torch.eye(6)), 1e4 * torch.randn(6, generator=rng)]


def test_no_record_is_told_from_none_better_than_the_accountant_assumes():
    found = [power(None, row, seed) for seed, row in enumerate(worst_rows())]
    assert max(found) <= 1 / SIGMA
    assert min(found) > 0.1 / SIGMA  # far from idle: it tells each record from none


def test_a_clip_in_the_wrong_norm_is_caught():
    assert max(power(ClippedInTheWrongNorm, row, seed) for seed, row in enumerate(worst_rows())) > 1 / SIGMA


# What is refused


@pytest.mark.parametrize(
    ("private", "said"),
    [
        ({"clipping": "per_layer", "max_grad_norm": [1.0] * 4}, "DPPerLayerOptimizer"),
        (
            {
                "clipping": "adaptive",
                "target_unclipped_quantile": 0.5,
                "clipbound_learning_rate": 0.2,
                "max_clipbound": 10.0,
                "min_clipbound": 0.1,
                "unclipped_num_std": 2.0,
            },
            "AdaClipDPOptimizer",
        ),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
    ],
)
def test_other_kinds_of_private_training_are_refused(private, said):
    with pytest.raises(InvalidInput, match=said):
        Training(noise=wide, **private)


def test_ghost_clipping_and_distributed_training_are_refused():
    model = small_model()
    for kind in (opacus.optimizers.DPOptimizerFastGradientClipping, opacus.optimizers.DistributedDPOptimizer):
        fake = kind.__new__(kind)
        with pytest.raises(InvalidInput, match=f"{kind.__name__}.*clips all parameters together"):
            with_optimal_noise(fake, model, wide(model))


def test_plain_optimizers_are_refused():
    model = small_model()
    with pytest.raises(InvalidInput, match="to be DPOptimizer"):
        with_optimal_noise(torch.optim.SGD(model.parameters(), lr=0.1), model, wide(model))


def test_noise_chosen_by_private_records_is_refused():
    def local(model):
        return ParameterNoise(wide(model).scales, "local", is_local=True)

    with pytest.raises(InvalidInput, match="public"):
        Training(noise=local)
    with pytest.raises(InvalidInput, match="public"):
        Training(noise=lambda _: local_optimal_noise(like=1.0))
    refreshed_to_local = Following()
    refreshed_to_local.build = lambda moments: local(small_model())
    with pytest.raises(InvalidInput, match="public"):
        Training(noise=lambda _: refreshed_to_local)


def test_other_defenses_are_refused():
    with pytest.raises(InvalidInput, match="max_grad_norm clips"):
        Training(noise=lambda model: clip(1.0) >> wide(model))
    with pytest.raises(InvalidInput, match="adds equal noise"):
        Training(noise=lambda _: gaussian_noise(1.0))


def test_scales_of_another_model_are_refused():
    with pytest.raises(InvalidInput, match=r"\.shape=None to be \(3, 4\)"):
        Training(noise=lambda _: wide(nn.Linear(4, 3)))


def test_a_record_whose_gradient_is_not_finite_contributes_nothing():
    optimizer, weight = bare(torch.ones(2))
    good, bad = torch.tensor([0.1, 0.2]), torch.tensor([1.0, math.inf])
    assert torch.equal(summed(optimizer, weight, torch.stack([good, bad])), summed(optimizer, weight, good[None]))


def test_the_noise_is_exact_and_a_seeded_generator_warns():
    with pytest.warns(UserWarning, match="seeded generator"):
        optimizer, weight = bare(torch.ones(2), generator=torch.Generator().manual_seed(0))
    weight.grad_sample = torch.tensor([[[0.1, 0.2]]])
    optimizer.clip_and_accumulate()
    optimizer.add_noise()
    steps = weight.grad.double() / lattice_step(torch.tensor(SIGMA * CLIP, dtype=torch.float64))
    assert torch.equal(steps, steps.round())


def test_a_batch_beyond_the_public_bound_is_refused(monkeypatch):
    monkeypatch.setattr(noise_optimizer, "_MOST_RECORDS", 3)
    optimizer, weight = bare(torch.ones(2))
    weight.grad_sample = torch.zeros(4, 1, 2)
    with pytest.raises(InvalidInput, match="records in a batch"):
        optimizer.clip_and_accumulate()


def test_gradients_used_twice_are_still_refused_by_opacus():
    optimizer, weight = bare(torch.ones(2))
    weight.grad_sample = torch.ones(1, 1, 2)
    optimizer.step()
    with pytest.raises(ValueError, match="haven't been cleared"):
        optimizer.step()


def test_the_fisher_account_of_equal_noise_is_refused_both_ways():
    training = Training(noise=wide)
    accountant = FisherAccountant(training.model, INPUTS, LABELS, probes=2)
    with pytest.raises(InvalidInput, match="equal noise"):
        accountant.attach(training.optimizer, training.loader)
    followed = Training()
    other = FisherAccountant(followed.model, INPUTS, LABELS, probes=2)
    other.attach(followed.optimizer, followed.loader)
    with pytest.raises(InvalidInput, match="detach"):
        with_optimal_noise(followed.optimizer, followed.model, wide(followed.plain))
    other.detach()
    with_optimal_noise(followed.optimizer, followed.model, wide(followed.plain))


def test_missing_opacus_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(MissingExtra, match=r"with_optimal_noise needs opacus.*reconrisk\[dp\]"):
        with_optimal_noise(object(), small_model(), wide(small_model()))
