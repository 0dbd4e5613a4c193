"""What every model promises, one row per model: shapes, torch.func, reproducibility, clear refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from reconrisk import models
from reconrisk.core.errors import InvalidInput

# torch builds parts of its forward mode with its own deprecated torch.jit.script on first use.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")

Build = Callable[..., nn.Module]

IMAGE_MODELS: dict[str, tuple[Build, tuple[int, int, int]]] = {
    "balle2022_cnn": (models.balle2022_cnn, (3, 12, 10)),
    "balle2022_mlp": (models.balle2022_mlp, (1, 6, 5)),
    "chen2025_cifar10": (lambda *a, **k: models.chen2025_cifar10(*a, width=4, **k), (3, 9, 12)),
    "chen2025_cifar10 without norm": (lambda *a, **k: models.chen2025_cifar10(*a, width=4, norm=None, **k), (3, 9, 9)),
    "chen2025_mnist": (models.chen2025_mnist, (1, 8, 9)),
    "guo2022_cifar10": (models.guo2022_cifar10, (3, 8, 9)),
    "guo2022_mnist": (models.guo2022_mnist, (1, 16, 19)),
    "lenet": (models.lenet, (1, 6, 7)),
    "lenet, wide": (lambda *a, **k: models.lenet(*a, initial_limit=0.5, **k), (3, 8, 8)),
    "lenet5": (models.lenet5, (1, 9, 40)),
    "meng2025_cnn": (models.meng2025_cnn, (3, 4, 5)),
    "meng2025_mlp": (lambda *a, **k: models.meng2025_mlp(*a, layers=5, **k), (3, 2, 2)),
    "resnet18": (models.resnet18, (3, 8, 8)),
    "resnet18 with group norm": (lambda *a, **k: models.resnet18(*a, norm=models.group_norm, **k), (1, 8, 8)),
    "resnet18 without norm": (lambda *a, **k: models.resnet18(*a, norm=None, activation=nn.GELU, **k), (1, 8, 8)),
    "resnet101": (models.resnet101, (1, 2, 2)),
    "vgg16": (lambda *a, **k: models.vgg16(*a, pooled_side=1, **k), (3, 32, 32)),
}
FLAT_MODELS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "linear": (lambda **k: models.linear(4, 3, **k), (4,)),
    "linear without bias": (lambda **k: models.linear(4, 3, bias=False, **k), (2, 2)),
    "logistic": (lambda **k: models.logistic(4, 3, **k), (1, 2, 2)),
    "mlp": (lambda **k: models.mlp(4, (5, 2), 3, **k), (4,)),
}
CLASSES = 3
EVERY = sorted([*IMAGE_MODELS, *FLAT_MODELS])


def built(name: str, **options: object) -> tuple[nn.Module, tuple[int, ...]]:
    if name in FLAT_MODELS:
        build, shape = FLAT_MODELS[name]
        return build(**options), shape
    build, image = IMAGE_MODELS[name]
    return build(image, CLASSES, **options), image


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def records(shape: tuple[int, ...], count: int) -> Tensor:
    return torch.rand(count, *shape, generator=seeded(1))


def test_every_public_model_has_a_row() -> None:
    builders = set(models.__all__) - {"group_norm", "judge_lenet", "load_weights", "parameter_count"}
    assert {name.replace(",", " ").split()[0] for name in EVERY} == builders


@pytest.mark.parametrize("name", EVERY)
def test_one_row_of_logits_per_record_each_by_itself(name: str) -> None:
    model, shape = built(name, rng=seeded(0))
    inputs = records(shape, 3)
    outputs = model.eval()(inputs)
    assert outputs.shape == (3, CLASSES)
    # Other batch sizes sum in other orders: float32 rounding in nets of up to a hundred layers.
    torch.testing.assert_close(model(inputs[:1]), outputs[:1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_directional_derivative_of_per_record_gradients(name: str) -> None:
    """vmap of jvp of grad, which rejects in-place work and branches on data, agrees with two autograd passes.

    Large weights are held fixed to save time: the way back to the first layer passes through all of them.
    """
    model, shape = built(name, rng=seeded(0))
    model = model.eval().double()
    parameters = {key: value for key, value in model.named_parameters() if value.numel() <= 10_000}
    fixed = {key: value.detach() for key, value in model.state_dict().items() if key not in parameters}
    inputs, labels = records(shape, 2).double(), torch.tensor([0, 2])
    tangents = torch.rand(inputs.shape, generator=seeded(2), dtype=torch.float64)

    def gradient(record: Tensor, label: Tensor) -> dict[str, Tensor]:
        def loss(values: dict[str, Tensor]) -> Tensor:
            logits = functional_call(model, (values, fixed), record[None])
            return nn.functional.cross_entropy(logits, label[None])

        return grad(loss)(parameters)

    def along(record: Tensor, label: Tensor, tangent: Tensor) -> dict[str, Tensor]:
        return jvp(lambda moved: gradient(moved, label), (record,), (tangent,))[1]

    directional = vmap(along)(inputs, labels, tangents)
    # Oracle: u . d(gradient)/dx t = t . grad_x <gradient, u>, by reverse mode twice and no torch.func.
    record = inputs[1:].clone().requires_grad_()
    loss = nn.functional.cross_entropy(model(record), labels[1:])
    gradients = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    probes = [torch.rand(value.shape, generator=seeded(3), dtype=torch.float64) for value in gradients]
    inner = sum((value * probe).sum() for value, probe in zip(gradients, probes, strict=True))
    assert isinstance(inner, Tensor)
    (slope,) = torch.autograd.grad(inner, record)
    forward = sum((directional[key][1] * probe).sum() for key, probe in zip(parameters, probes, strict=True))
    torch.testing.assert_close(forward, (slope * tangents[1:]).sum(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", EVERY)
def test_weights_follow_the_generator_and_leave_the_global_one_alone(name: str) -> None:
    before = torch.get_rng_state()
    first, _ = built(name, rng=seeded(5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    again, _ = built(name, rng=seeded(5))
    other, _ = built(name, rng=seeded(6))
    weights, same, differing = (dict(model.state_dict()) for model in (first, again, other))
    assert all(torch.equal(value, same[key]) for key, value in weights.items())
    assert any(not torch.equal(value, differing[key]) for key, value in weights.items())
    torch.set_rng_state(before)


@pytest.mark.parametrize("name", EVERY)
def test_no_layer_works_in_place_and_copies_are_independent(name: str) -> None:
    model, shape = built(name, rng=seeded(0))
    assert not any(getattr(layer, "inplace", False) for layer in model.modules())
    inputs = records(shape, 2)
    kept = inputs.clone()
    copy.deepcopy(model).eval()(inputs)
    assert torch.equal(inputs, kept)


@pytest.mark.parametrize("name", sorted(IMAGE_MODELS))
@pytest.mark.parametrize(
    ("shape", "classes", "message"),
    [
        ((2.5, 32, 32), 10, "Expected channels=2.5 to be a whole number"),
        ((0, 32, 32), 10, "Expected channels=0 >= 1"),
        ((3, 32, float("nan")), 10, "Expected width=nan to be a whole number"),
        ((3, 0, 32), 10, "Expected height=0 >= "),
        ((32, 32), 10, r"Expected shape=\(32, 32\) to be \(channels, height, width\)"),
        (32, 10, r"Expected shape=32 to be \(channels, height, width\)"),
        ((3, 32, 32), 1, "Expected classes=1 >= 2. Cross-entropy over one class has no gradient."),
        ((3, 32, 32), 2.5, "Expected classes=2.5 to be a whole number"),
        ((3, 32, 32), True, "Expected classes=True to be a whole number"),
    ],
)
def test_shapes_and_counts_that_make_no_sense_are_refused(
    name: str, shape: object, classes: object, message: str
) -> None:
    build, _ = IMAGE_MODELS[name]
    with pytest.raises(InvalidInput, match=message):
        build(shape, classes)


@pytest.mark.parametrize(
    ("name", "smallest"),
    [
        ("balle2022_cnn", 10),
        ("chen2025_cifar10", 9),
        ("chen2025_mnist", 4),
        ("guo2022_cifar10", 8),
        ("guo2022_mnist", 16),
        ("meng2025_cnn", 4),
        ("vgg16", 32),
    ],
)
def test_the_smallest_image_works_and_the_next_smaller_is_refused_by_name(name: str, smallest: int) -> None:
    build, _ = IMAGE_MODELS[name]
    model = build((1, smallest, smallest), 2, rng=seeded(0)).eval()
    assert model(torch.zeros(1, 1, smallest, smallest)).shape == (1, 2)
    message = f"Expected width={smallest - 1} >= {smallest}. Pass images of at least {smallest} x {smallest}"
    with pytest.raises(InvalidInput, match=message):
        build((1, smallest, smallest - 1), 2)
