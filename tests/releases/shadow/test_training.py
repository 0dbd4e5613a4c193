import copy
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.releases.float_safe_noise import add_noise
from reconrisk.releases.shadow import tiles as shadow_tiles
from reconrisk.releases.shadow.checks import RandomBatches
from reconrisk.releases.shadow.training import ShadowTraining
from reconrisk.releases.training.optimizers import UpdateRule, adam, sgd
from reconrisk.releases.training.trained_model import TrainingMap

DOUBLE = torch.float64
CLOSE = 1e-10  # float64 sums of hundreds of terms in another order, over a dozen steps


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def records(count, shape=(6,), classes=3, seed=0, dtype=DOUBLE):
    inputs = torch.rand(count, *shape, generator=rng(seed), dtype=dtype)
    inputs[:, ..., 1] = 0.0 if seed == 0 else inputs[:, ..., 1]  # a feature that only targets have
    return inputs, torch.randint(classes, (count,), generator=rng(seed + 1))


def seeded(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def perceptron(activation=nn.ELU, hidden=(5,), bias=True, seed=0):
    def build():
        widths, layers = [6, *hidden, 3], [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out, bias=bias), activation()]
        return nn.Sequential(*layers[:-1])

    return seeded(build, seed)


def convolutional(seed=0):
    layers = [nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 3, 2, padding=1), nn.Softplus(), nn.Flatten()]
    return seeded(lambda: nn.Sequential(*layers, nn.Linear(36, 3)), seed)


def layer_normed(seed=0):
    return seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)), seed)


def training(model=None, fixed=9, dtype=DOUBLE, **chosen):
    inputs, labels = records(fixed, dtype=dtype)
    if "batches" not in chosen or isinstance(chosen["batches"], RandomBatches):
        chosen = {"steps": 12, **chosen}
    return ShadowTraining(model or perceptron(), inputs, labels, **chosen)


def by_torch(shadow, record, label, build, *, batches=None, start=None):
    """Training with the modules, losses and optimizers of torch, one model by itself."""
    model = copy.deepcopy(shadow.model).to(record.dtype)
    if start is not None:
        model.load_state_dict(shadow.unflatten(start), strict=False)
    inputs = torch.cat([shadow.fixed_inputs.to(record.dtype), record[None]])
    labels = torch.cat([shadow.fixed_labels, label[None]])
    optimizer = build(model.parameters())
    everything = [torch.arange(len(inputs))] * (shadow.steps or 0)
    for rows in batches or everything:
        optimizer.zero_grad()
        shadow.loss_fn(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def assert_as_by_torch(shadow, build, targets=None, *, atol=CLOSE, **chosen):
    inputs, labels = targets or records(4, seed=7)
    expected = torch.stack([by_torch(shadow, *one, build, **chosen) for one in zip(inputs, labels, strict=True)])
    found = shadow.train(inputs, labels)
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    assert (found[0] - found[1]).norm() > 1e-3  # the target counts


RULES = {
    "descent": (sgd(0.3), lambda p: torch.optim.SGD(p, 0.3)),
    "momentum": (sgd(0.2, 0.9), lambda p: torch.optim.SGD(p, 0.2, 0.9)),
    "decay": (sgd(0.2, 0.9, 0.01), lambda p: torch.optim.SGD(p, 0.2, 0.9, weight_decay=0.01)),
    "dampened": (sgd(0.2, 0.9, dampening=0.3), lambda p: torch.optim.SGD(p, 0.2, 0.9, dampening=0.3)),
    "nesterov": (sgd(0.2, 0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.2, 0.9, nesterov=True)),
    "adam": (adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "adam decay": (adam(0.01, weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1)),
}
MOMENTUM = RULES["momentum"][1]


@pytest.mark.parametrize("name", RULES)
def test_each_rule_moves_models_as_torch_does(name):
    rule, build = RULES[name]
    shadow = training(optimizer=rule)
    assert shadow._dense is not None
    # Adam divides by roots of gradients that are zero for the absent feature of the first step: eps 1e-8 amplifies
    assert_as_by_torch(shadow, build, atol=1e-8 if "adam" in name else CLOSE)


@pytest.mark.parametrize(
    "activation",
    [nn.ELU, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus, nn.LeakyReLU, nn.SELU, nn.CELU, nn.Mish,
     nn.Hardtanh, nn.ReLU6, nn.LogSigmoid, nn.Softsign, nn.Hardswish, nn.Tanhshrink, lambda: nn.ELU(0.5)],
)  # fmt: skip
def test_each_activation_trains_as_in_torch(activation):
    shadow = training(perceptron(activation, (5, 4)))
    assert shadow._dense is not None
    assert_as_by_torch(shadow, MOMENTUM)


@pytest.mark.parametrize("hidden", [(), (5,), (4, 3, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_any_depth_with_and_without_bias(hidden, bias):
    assert_as_by_torch(training(perceptron(hidden=hidden, bias=bias)), MOMENTUM)


@settings(max_examples=25, deadline=None)
@given(
    hidden=st.lists(st.integers(1, 6), max_size=3),
    fixed=st.integers(1, 17),
    targets=st.integers(1, 5),
    bias=st.booleans(),
    rule=st.sampled_from([sgd(0.3), sgd(0.1, 0.9, 0.01), adam(0.01)]),
    data=st.data(),
)
def test_all_at_once_is_each_by_itself(hidden, fixed, targets, bias, rule, data):
    rows = st.lists(st.integers(0, fixed), min_size=1, max_size=6)
    batches = data.draw(st.none() | st.lists(rows, min_size=3, max_size=3))
    model, (inputs, labels) = perceptron(hidden=hidden, bias=bias), records(targets, seed=7)
    kept = records(fixed)
    shadow = ShadowTraining(model, *kept, rule, None if batches else 3, batches=batches)
    alone = TrainingMap(model, cross_entropy, rule, None if batches else 3, *kept, batches)
    expected = [shadow.flatten(alone(inputs[place, None], labels[place, None])) for place in range(targets)]
    # Adam divides by roots of squares that may be tiny: what rounding changes there grows by 1 / eps = 1e8
    close = 1e-6 if rule == adam(0.01) else CLOSE
    torch.testing.assert_close(shadow.train(inputs, labels), torch.stack(expected), rtol=0, atol=close)


def test_the_order_of_the_fixed_records_does_not_matter_to_full_batches():
    shadow, (inputs, labels) = training(), records(3, seed=7)
    turned = ShadowTraining(perceptron(), shadow.fixed_inputs.flip(0), shadow.fixed_labels.flip(0), steps=12)
    torch.testing.assert_close(shadow.train(inputs, labels), turned.train(inputs, labels), rtol=0, atol=CLOSE)


def test_images_are_flattened():
    inputs, labels = records(9, (1, 2, 3))
    shadow = ShadowTraining(perceptron(), inputs, labels, steps=12)
    assert_as_by_torch(shadow, MOMENTUM, records(4, (1, 2, 3), seed=7))


@pytest.mark.parametrize("loss_fn", [mse_loss, nn.MSELoss()])
def test_squared_loss(loss_fn):
    inputs, _ = records(9)
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2), nn.Sigmoid()))
    shadow = ShadowTraining(model, inputs, torch.rand(9, 2, generator=rng(), dtype=DOUBLE), steps=12, loss_fn=loss_fn)
    assert shadow._dense is not None
    targets = records(4, seed=7)[0], torch.rand(4, 2, generator=rng(5), dtype=DOUBLE)
    assert_as_by_torch(shadow, MOMENTUM, targets)


def test_labels_may_be_probabilities():
    inputs, _ = records(9)
    soft = torch.rand(13, 3, generator=rng(), dtype=DOUBLE).softmax(1)
    shadow = ShadowTraining(perceptron(), inputs, soft[:9], steps=12)
    assert_as_by_torch(shadow, MOMENTUM, (records(4, seed=7)[0], soft[9:]))


@pytest.mark.parametrize("model", [convolutional, layer_normed])
def test_other_architectures(model):
    shadow = training(model())
    assert shadow._dense is None
    assert_as_by_torch(shadow, MOMENTUM)


def test_other_losses_and_models_with_buffers_are_trained_one_by_one():
    def loss_fn(outputs, labels):
        return cross_entropy(outputs, labels, label_smoothing=0.1)

    model = nn.Sequential(perceptron(), nn.BatchNorm1d(3)).eval()
    shadow = training(model.to(DOUBLE), loss_fn=loss_fn)
    assert (shadow._dense, shadow._stacked) == (None, False)
    assert_as_by_torch(shadow, MOMENTUM)


def test_a_vectorised_gradient_that_is_wrong_is_not_used(monkeypatch):
    from reconrisk.releases.shadow import any_network as shadow_single

    right = shadow_single._gradients_vectorised
    assert training(convolutional())._stacked
    monkeypatch.setattr(
        shadow_single,
        "_gradients_vectorised",
        lambda *given: {name: 1.001 * value for name, value in right(*given).items()},
    )
    shadow = training(convolutional())
    assert not shadow._stacked
    assert_as_by_torch(shadow, MOMENTUM)


@pytest.mark.parametrize("model", [perceptron, convolutional])
def test_known_batches(model):
    batches = [[0, 1, 9], [9], [2, 3, 4], [5, 9, 9, 5], [6, 7, 8, 0, 1]]
    shadow = training(model(), batches=batches)
    assert_as_by_torch(shadow, MOMENTUM, batches=[torch.tensor(rows) for rows in batches])


@pytest.mark.parametrize("model", [perceptron, convolutional, layer_normed])
def test_each_model_may_meet_its_records_in_an_order_of_its_own(model):
    shadow = training(model(), batches=RandomBatches(4), steps=7)
    inputs, labels = records(3, seed=7)
    found = shadow.train(inputs, labels, rng=rng(3))
    seeds = shadow.seeds(3, rng(3))
    for place in range(3):
        orders = RandomBatches(4).orders(10, [rng(int(seeds[place]))])
        batches = [next(orders)[0] for _ in range(7)]
        assert sorted(torch.cat(batches[:3]).tolist()) == list(range(10))
        expected = by_torch(shadow, inputs[place], labels[place], MOMENTUM, batches=batches)
        torch.testing.assert_close(found[place], expected, rtol=0, atol=CLOSE)


def unstackable(seed=0):
    return nn.Sequential(perceptron(seed=seed), nn.BatchNorm1d(3, affine=False)).eval()


@pytest.mark.parametrize("model", [perceptron, convolutional, unstackable])
def test_starts_of_their_own(model):
    shadow, (inputs, labels) = training(model()), records(3, seed=7)
    assert (shadow._dense is not None, shadow._stacked) == (model is perceptron, model is convolutional)
    starts = torch.randn(3, shadow.size, generator=rng(), dtype=DOUBLE)
    expected = [
        by_torch(shadow, *one, MOMENTUM, start=start) for *one, start in zip(inputs, labels, starts, strict=True)
    ]
    torch.testing.assert_close(shadow.train(inputs, labels, starts=starts), torch.stack(expected), rtol=0, atol=CLOSE)
    same = shadow.train(inputs, labels, starts=shadow.start(DOUBLE))
    assert torch.equal(same, shadow.train(inputs, labels))


def test_an_unknown_start_is_drawn_for_each_model():
    def draw_start(stream):
        return perceptron(seed=int(torch.randint(1000, (), generator=stream)))

    shadow, (inputs, labels) = training(draw_start=draw_start), records(3, seed=7)
    found, seeds = shadow.train(inputs, labels, rng=rng(3)), shadow.seeds(3, rng(3))
    for place in range(3):
        start = shadow.flatten(dict(draw_start(rng(int(seeds[place]))).named_parameters())).to(DOUBLE)
        expected = by_torch(shadow, inputs[place], labels[place], MOMENTUM, start=start)
        torch.testing.assert_close(found[place], expected, rtol=0, atol=CLOSE)


def clipped_by_torch(shadow, record, label, private, stream):
    """Descent with momentum along the noisy mean of clipped gradients, record by record; infinite ones are zero."""
    model = copy.deepcopy(shadow.model).to(record.dtype)
    inputs = torch.cat([shadow.fixed_inputs, record[None]])
    labels = torch.cat([shadow.fixed_labels, label[None]])
    velocity = 0.0
    for _ in range(shadow.step_count):
        total = torch.zeros(shadow.size, dtype=record.dtype)
        for one in zip(inputs, labels, strict=True):
            model.zero_grad()
            shadow.loss_fn(model(one[0][None]), one[1][None]).backward()
            gradient = torch.cat([value.grad.flatten() for value in model.parameters()])
            factor = min(1.0, private.clip_norm / max(float(gradient.norm()), 1e-300))
            total += gradient * factor if bool(gradient.square().sum().isfinite()) else 0.0
        noisy = add_noise(total.double() / len(inputs), private.noise_std / len(inputs), stream)
        velocity = 0.9 * velocity + noisy
        row = nn.utils.parameters_to_vector(model.parameters()) - 0.2 * velocity
        nn.utils.vector_to_parameters(row.detach(), model.parameters())
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("model", [perceptron, convolutional, lambda: perceptron(hidden=(5, 4), bias=False)])
def test_clipped_gradients_with_noise(model):
    private = Gaussian(noise_multiplier=0.05, clip_norm=0.6)  # some gradients are longer, some are not
    shadow, (inputs, labels) = training(model(), private=private, steps=5), records(2, seed=7)
    found, seeds = shadow.train(inputs, labels, rng=rng(3)), shadow.seeds(2, rng(3))
    for place in range(2):
        expected = clipped_by_torch(shadow, inputs[place], labels[place], private, rng(int(seeds[place])))
        torch.testing.assert_close(found[place], expected, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("model", [perceptron, convolutional])
@pytest.mark.parametrize("value", [1e200, 1e308])  # squares of gradients overflow, and for the second the units too
def test_a_record_without_a_finite_gradient_contributes_nothing(model, value):
    private = Gaussian(noise_multiplier=0.05, clip_norm=0.6)
    shadow, (inputs, labels) = training(model(), private=private, steps=3), records(2, seed=7)
    inputs[1] = value
    found, seeds = shadow.train(inputs, labels, rng=rng(3)), shadow.seeds(2, rng(3))
    for place in range(2):
        expected = clipped_by_torch(shadow, inputs[place], labels[place], private, rng(int(seeds[place])))
        torch.testing.assert_close(found[place], expected, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("model", [perceptron, convolutional])
def test_private_training_in_single_precision_agrees_with_double_precision(model):
    private = Gaussian(noise_multiplier=1e-9, clip_norm=0.6)
    inputs, labels = records(2, seed=7)
    shadow = training(model(), private=private, steps=5)
    double, single = (shadow.train(given, labels, rng=rng()) for given in (inputs, inputs.float()))
    torch.testing.assert_close(single.double(), double, rtol=0, atol=1e-5)  # 5 steps of values below 1
    inputs[1] = 1e30  # squares of gradients overflow
    lost = shadow.train(inputs.float(), labels, rng=rng())
    assert torch.equal(lost[0], single[0])
    assert bool(lost[1].isfinite().all())


def test_noise_has_the_stated_deviation_and_differs_between_models():
    private = Gaussian(noise_multiplier=2.0, clip_norm=1.5)
    shadow = training(private=private, steps=1, optimizer=sgd(1.0))
    inputs, labels = records(1, seed=7)
    moved = shadow.train(inputs.expand(400, -1), labels.expand(400), rng=rng())
    noise = moved - moved.mean(0)
    expected, count = 3.0 / 10, noise.numel()  # one step over 9 + 1 records with rate 1
    assert (
        abs(float(noise.std()) / expected - 1) < 5 / math.sqrt(2 * count) + 1 / 400
    )  # five deviations, 1 / n of the mean
    correlation = torch.corrcoef(noise[:2])[0, 1]
    assert abs(float(correlation)) < 5 / math.sqrt(shadow.size)


def test_a_model_does_not_depend_on_those_trained_with_it():
    shadow = training(private=Gaussian(1.0), batches=RandomBatches(4), draw_start=lambda stream: perceptron())
    inputs, labels = records(5, seed=7)
    seeds = shadow.seeds(5, rng())
    together = shadow.train_seeded(inputs, labels, seeds=seeds)
    apart = shadow.train_seeded(inputs[3:4], labels[3:4], seeds=seeds[3:4])
    torch.testing.assert_close(together[3:4], apart, rtol=0, atol=CLOSE)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_many_models_are_trained_in_tiles(monkeypatch):
    shadow, (inputs, labels) = training(), records(11, seed=7)
    whole = shadow.train(inputs, labels)
    monkeypatch.setattr(shadow_tiles, "TILE_BYTES", 8_000)
    assert len(shadow_tiles.split_into_tiles(11, shadow._bytes_per_model(8))) > 2
    torch.testing.assert_close(shadow.train(inputs, labels), whole, rtol=0, atol=CLOSE)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("chosen", [{}, {"private": Gaussian(1.0), "batches": RandomBatches(4)}])
def test_threads_change_nothing(monkeypatch, chosen):
    monkeypatch.setattr(shadow_tiles, "TILE_BYTES", 8_000)
    shadow, (inputs, labels) = training(perceptron(nn.GELU), **chosen), records(40, seed=7)
    parallel = shadow.train(inputs.requires_grad_(), labels, rng=rng())
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert torch.equal(shadow.train(inputs, labels, rng=rng()), parallel)
    assert not parallel.requires_grad


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_thread_is_raised_and_the_threads_of_torch_are_as_before():
    def work(part):
        raise ZeroDivisionError(part)

    with pytest.raises(ZeroDivisionError):
        shadow_tiles.run_in_threads(work, [slice(0, 1), slice(1, 2)])
    assert torch.get_num_threads() == 2


def test_precision_is_that_of_the_targets():
    shadow, (inputs, labels) = training(), records(4, seed=7)
    single, double = shadow.train(inputs.float(), labels), shadow.train(inputs, labels)
    assert (single.dtype, double.dtype) == (torch.float32, DOUBLE)
    error = float((single - double).abs().max())
    assert 0 < error < 1e-4  # rounding 6e-8 of values of order one, grown over 12 steps


def test_rows_are_parameters_by_name():
    shadow, (inputs, labels) = training(), records(3, seed=7)
    rows = shadow.train(inputs, labels)
    named = shadow.unflatten(rows)
    assert {name: tuple(value.shape) for name, value in named.items()} == {
        name: (3, *shape) for name, shape in zip(shadow.names, shadow.shapes, strict=True)
    }
    assert torch.equal(shadow.flatten(named), rows)
    assert torch.equal(shadow.flatten(shadow.unflatten(rows[0])), rows[0])


class Foreign(UpdateRule):
    def step(self, parameters, gradients, state):
        return {name: value - 0.1 * gradients[name] for name, value in parameters.items()}, state


def test_a_rule_of_the_user_is_followed():
    assert_as_by_torch(training(optimizer=Foreign()), lambda p: torch.optim.SGD(p, 0.1))


def test_training_leaves_the_model_and_global_chance_alone():
    model = perceptron()
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    shadow = training(model, private=Gaussian(1.0), batches=RandomBatches(3))
    shadow.train(*records(2, seed=7), rng=rng())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fixed_inputs": torch.rand(9, 7)}, "fixed_inputs.shape"),
        ({"fixed_inputs": torch.full((9, 6), torch.nan)}, "fixed_inputs to be finite"),
        ({"fixed_labels": torch.zeros(8, dtype=torch.long)}, "one label per fixed record"),
        ({"fixed_labels": torch.full((9,), 3)}, "labels that loss_fn takes. It raises: Target 3"),
        ({"fixed_labels": torch.tensor([0] * 8 + [3])}, "max(fixed_labels)=3"),
        ({"fixed_labels": torch.full((9, 4), 0.25)}, "labels that loss_fn takes"),
        ({"fixed_labels": [0] * 9}, "type(fixed_labels)='list'"),
        ({"steps": None}, "steps=None"),
        ({"steps": 0}, "steps=0"),
        ({"private": 1.0}, "private=1.0"),
        ({"private": Gaussian(1.0), "optimizer": Foreign()}, "optimizer="),
        ({"batches": [[0, 1], []], "steps": None}, "batches"),
        (
            {"private": Gaussian(1.0), "loss_fn": lambda outputs, labels: outputs.mean(0).square().sum()},
            "mean or the sum",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(change, message):
    inputs, labels = records(9)
    chosen = {"fixed_inputs": inputs, "fixed_labels": labels, "steps": 3, **change}
    with pytest.raises(InvalidInput, match=message.replace("(", r"\(").replace(")", r"\)")):
        ShadowTraining(perceptron(), **chosen)


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (torch.rand(0, 6), torch.zeros(0, dtype=torch.long), "at least one"),
        (torch.full((2, 6), torch.nan), torch.zeros(2, dtype=torch.long), "inputs to be finite"),
        (torch.rand(2, 5), torch.zeros(2, dtype=torch.long), "inputs.shape"),
        (torch.rand(2, 6), torch.zeros(3, dtype=torch.long), "one label per target"),
        (torch.rand(2, 6), torch.tensor([0, 3]), r"max\(labels\)=3"),
        (torch.rand(2, 6), torch.tensor([-1, 0]), r"min\(labels\)=-1"),
        (torch.rand(2, 6), torch.rand(2, 3), "labels"),
        (torch.ones(2, 6, dtype=torch.long), torch.zeros(2, dtype=torch.long), "float32 or float64"),
        (torch.ones(2, 6, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.long), "float32 or float64"),
    ],
)
def test_targets_that_do_not_fit_are_refused(inputs, labels, message):
    with pytest.raises(InvalidInput, match=message):
        training().train(inputs, labels)


def test_batches_beyond_the_records_starts_of_another_size_and_draws_without_a_generator_are_refused():
    inputs, labels = records(2, seed=7)
    with pytest.raises(InvalidInput, match=r"max\(batches\)=10"):
        training(batches=[[0, 10]]).train(inputs, labels)
    with pytest.raises(InvalidInput, match="rng=None"):
        training(private=Gaussian(1.0)).train(inputs, labels)
    with pytest.raises(InvalidInput, match=r"starts\.shape"):
        training().train(inputs, labels, starts=torch.zeros(3, 5))


def test_there_may_be_no_fixed_records():
    shadow = ShadowTraining(perceptron(), torch.zeros(0, 6, dtype=DOUBLE), torch.zeros(0, dtype=torch.long), steps=3)
    assert_as_by_torch(shadow, MOMENTUM)


def test_probabilities_must_sum_to_one():
    inputs, _ = records(9)
    soft = torch.rand(9, 3, generator=rng(), dtype=DOUBLE).softmax(1)
    with pytest.raises(InvalidInput, match="sum to 1"):
        ShadowTraining(perceptron(), inputs, soft, steps=3).train(inputs, 2 * soft)
    with pytest.raises(InvalidInput, match="sum to 1"):
        ShadowTraining(perceptron(), inputs, 2 * soft, steps=3)
