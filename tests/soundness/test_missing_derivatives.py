"""A derivative that is missing or wrong is refused, and never reported as safety; healthy models pass."""

import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.functional import cross_entropy

import reconrisk as rr
from reconrisk.core.observation import Attack
from reconrisk.data.dataset import Dataset
from reconrisk.models.registry import MODELS, model_by_name
from reconrisk.releases.release import ForwardRelease, Release
from reconrisk.releases.updates.clipped_gradient import probe_clipped_gradients
from reconrisk.releases.updates.gradient import GradientRelease
from reconrisk.releases.updates.local_update import LocalUpdateRelease

SIDE = 6


def records(count: int = 3, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, SIDE, SIDE, generator=rng).to(dtype), torch.arange(count) % 4


def run_no_grad(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return model.backbone(inputs)


def run_inference_mode(model: nn.Module, inputs: Tensor) -> Tensor:
    with torch.inference_mode():
        features = model.backbone(inputs)
    return features.clone()


def round_to(values: Tensor, levels: int) -> Tensor:
    return (levels * values).round() / levels


FEATURES: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "nothing": lambda model, x: model.backbone(x),
    "no_grad": run_no_grad,
    "inference_mode": run_inference_mode,
    "detach": lambda model, x: model.backbone(x).detach(),
    "data": lambda model, x: model.backbone(x).data,
    "rounded records": lambda model, x: model.backbone(round_to(x, 255)),
    "rounded features": lambda model, x: round_to(model.backbone(x), 50),
    "integers": lambda model, x: model.backbone((255 * x).long().to(x.dtype) / 255),
    "straight through": lambda model, x: model.backbone(x + (round_to(x, 255) - x).detach()),
    "one branch": lambda model, x: (f := model.backbone(x)) + f.sin().detach(),
    "rounded branch": lambda model, x: (f := model.backbone(x)) + round_to(f, 20),
}


class Broken(nn.Module):
    """A backbone and a head, with a step next to the backbone that breaks the derivative."""

    def __init__(self, step: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.step = step
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 12), nn.ReLU(), nn.Linear(12, 12), nn.Tanh())
        self.head = nn.Linear(12, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(FEATURES[self.step](self, inputs))
        return outputs


BREAKS = {
    "no_grad": "layer 'backbone' (Sequential), which is called without gradients",
    "inference_mode": "layer 'backbone' (Sequential), which is called without gradients",
    "detach": "the model itself (Broken), in its own code between 'backbone' and 'head'",
    "data": "the model itself (Broken), in its own code between 'backbone' and 'head'",
    "rounded records": "the model itself (Broken), in its own code before 'backbone'",
    "rounded features": "the model itself (Broken), in its own code between 'backbone' and 'head'",
    "integers": "the model itself (Broken), in its own code before 'backbone'",
    "straight through": "the model itself (Broken), in its own code before 'backbone'",
    "one branch": "the model itself (Broken), in its own code between 'backbone' and 'head'",
    "rounded branch": "the model itself (Broken), in its own code between 'backbone' and 'head'",
}


def assert_refused(call: Callable[[], object], place: str) -> None:
    with pytest.raises(rr.InvalidInput, match="agrees with finite differences") as caught:
        call()
    assert place in str(caught.value)
    assert "does not mean that records are safe" in str(caught.value)


@pytest.mark.parametrize(("dtype", "reduction"), [(torch.float32, "sum"), (torch.float64, None)])
@pytest.mark.parametrize("step", BREAKS)
def test_fisher_trace_refuses_a_cut_graph_and_names_the_place(
    step: str, dtype: torch.dtype, reduction: Literal["sum"] | None
) -> None:
    inputs, labels = records(dtype=dtype)
    release = GradientRelease(Broken(step), cross_entropy, inputs, labels, reduction=reduction)
    assert_refused(lambda: rr.sensitivity.fisher_trace(release), BREAKS[step])


CONSUMERS: dict[str, Callable[[nn.Module, Tensor, Tensor], object]] = {
    "fisher_diagonal": lambda m, x, y: rr.sensitivity.fisher_diagonal(GradientRelease(m, cross_entropy, x, y)),
    "estimated trace": lambda m, x, y: rr.sensitivity.fisher_trace(
        GradientRelease(m, cross_entropy, x, y, reduction="sum"), relative_error=0.3
    ),
    "fisher_matrix": lambda m, x, y: rr.sensitivity.fisher_matrix(GradientRelease(m, cross_entropy, x, y), record=0),
    "jacobian": lambda m, x, y: rr.sensitivity.jacobian(GradientRelease(m, cross_entropy, x, y)),
    "parameter_sensitivity": lambda m, x, y: rr.sensitivity.parameter_sensitivity(
        GradientRelease(m, cross_entropy, x, y)
    ),
    "reference_moments": lambda m, x, y: rr.sensitivity.reference_moments(m, cross_entropy, x, y),
    "spectral_norm": lambda m, x, y: rr.sensitivity.spectral_norm(GradientRelease(m, cross_entropy, x, y)),
    "top_directions": lambda m, x, y: rr.sensitivity.top_directions(GradientRelease(m, cross_entropy, x, y), 1),
    "vulnerability": lambda m, x, y: rr.sensitivity.reconstruction_vulnerability(m, cross_entropy, x, y),
    "exact vulnerability": lambda m, x, y: rr.sensitivity.reconstruction_vulnerability(
        m, cross_entropy, x, y, method="exact"
    ),
    "linearize": lambda m, x, y: GradientRelease(m, cross_entropy, x, y).linearize(),
    "local update": lambda m, x, y: rr.sensitivity.fisher_trace(
        LocalUpdateRelease(m, cross_entropy, x, y, learning_rate=0.1, steps=2)
    ),
    "trained model": lambda m, x, y: rr.releases.TrainedModelRelease(
        m, cross_entropy, x[:1], y[:1], fixed_inputs=x[1:], fixed_labels=y[1:], optimizer=rr.releases.sgd(0.1), steps=2
    ).linearize(),
    "accountant": lambda m, x, y: probe_clipped_gradients(
        m, cross_entropy, x, y, clip=rr.releases.HardClip(1.0), probes=2, rng=torch.Generator().manual_seed(0)
    ),
    "leakage": lambda m, x, y: rr.leakage(
        m,
        Dataset("toy", x, y, classes=tuple("abcd")),
        noise_multiplier=1.0,
        clip_norm=1.0,
        rng=torch.Generator().manual_seed(0),
    ),
}


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("step", ["detach", "no_grad", "rounded records"])
def test_every_use_of_the_derivative_refuses(step: str, consumer: str) -> None:
    inputs, labels = records()
    assert_refused(lambda: CONSUMERS[consumer](Broken(step), inputs, labels), BREAKS[step])


class _Tanh(torch.autograd.Function):
    """A hyperbolic tangent whose backward is right, but constant for a second derivative."""

    @staticmethod
    def forward(ctx: FunctionCtx, inputs: Tensor) -> Tensor:
        outputs = inputs.tanh()
        ctx.save_for_backward(outputs)
        return outputs

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        (outputs,) = ctx.saved_tensors
        return gradient * (1 - outputs.square()).detach()


class _OnceTanh(_Tanh):
    """A hyperbolic tangent that can be differentiated once."""

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        (outputs,) = ctx.saved_tensors
        return gradient * (1 - outputs.square())


class _WrongTanh(_Tanh):
    """A hyperbolic tangent with the backward of another function."""

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        return gradient * 0.5


class _RightTanh(_Tanh):
    """A hyperbolic tangent with a backward that is right and differentiable."""

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        (outputs,) = ctx.saved_tensors
        return gradient * (1 - outputs.square())


class Activation(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.function.apply(inputs)
        return outputs


def with_activation(function: type[torch.autograd.Function]) -> nn.Module:
    torch.manual_seed(0)
    width = SIDE * SIDE
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 8), Activation(function), nn.Linear(8, 8), nn.Linear(8, 4))


@pytest.mark.parametrize("reduction", ["sum", None])
@pytest.mark.parametrize("function", [_Tanh, _OnceTanh, _WrongTanh])
def test_an_autograd_function_with_a_wrong_or_constant_backward_is_named(
    function: type[torch.autograd.Function], reduction: str | None
) -> None:
    release = GradientRelease(with_activation(function), cross_entropy, *records(), reduction=reduction)
    assert_refused(lambda: rr.sensitivity.fisher_trace(release), "layer '2' (Activation)")


def test_an_autograd_function_with_a_right_backward_passes() -> None:
    inputs, labels = records(dtype=torch.float64)
    model = with_activation(_RightTanh)
    plain = nn.Sequential(*(nn.Tanh() if isinstance(layer, Activation) else layer for layer in model))
    found, expected = (
        rr.sensitivity.fisher_trace(GradientRelease(each, cross_entropy, inputs, labels)).values
        for each in (model, plain)
    )
    torch.testing.assert_close(found, expected)


def test_functional_code_is_refused_without_a_layer() -> None:
    inputs, labels = records()
    weight = torch.randn(5, SIDE * SIDE, generator=torch.Generator().manual_seed(0))

    def cut(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        flat = inputs.flatten(1)
        return {"y": flat.detach() @ weight.to(flat).T + 0.1 * flat[:, :5]}

    def rounded(inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"y": (100 * inputs.flatten(1)).round() / 100}

    for forward in (cut, rounded):
        release = ForwardRelease(forward, inputs, labels)
        assert_refused(lambda release=release: rr.sensitivity.fisher_trace(release), "no layer can be named")


def test_an_audit_refuses_a_cut_model() -> None:
    inputs, labels = records(8)
    data = Dataset("toy", inputs, labels, classes=tuple("abcd"))
    assert_refused(lambda: rr.audit(Broken("detach"), data, trials=1), BREAKS["detach"])


def test_no_defense_is_recommended_for_a_cut_model() -> None:
    inputs, labels = records(12)
    data = Dataset("toy", inputs, labels, classes=tuple("abcd"))
    assert_refused(lambda: rr.recommend_defense(Broken("no_grad"), data, accept="mse<=0.01: 5%"), BREAKS["no_grad"])


@pytest.mark.parametrize("attack", [rr.attacks.inverting_gradients(steps=5), rr.attacks.gauss_newton()])
def test_attacks_along_a_cut_derivative_refuse(attack: Attack) -> None:
    inputs, labels = records(1)
    release = GradientRelease(Broken("detach"), cross_entropy, inputs, labels)
    seen = rr.observe(release, threat=rr.ThreatModel("one-update", knows={"labels"}))
    assert_refused(lambda: attack(seen, rng=torch.Generator().manual_seed(0)), BREAKS["detach"])


def test_derivatives_in_inference_mode_are_refused() -> None:
    release = GradientRelease(Broken("nothing"), cross_entropy, *records())
    with torch.inference_mode(), pytest.raises(rr.InvalidInput, match="inference_mode"):
        release.linearize()


def test_tensors_of_inference_mode_in_a_model_do_not_change_the_derivative() -> None:
    inputs, labels = records()
    model = Broken("nothing")
    expected = rr.sensitivity.fisher_trace(GradientRelease(model, cross_entropy, inputs, labels)).values
    with torch.inference_mode():
        model.head.weight = nn.Parameter(model.head.weight.clone())
    torch.testing.assert_close(
        rr.sensitivity.fisher_trace(GradientRelease(model, cross_entropy, inputs, labels)).values, expected
    )


@pytest.mark.parametrize("consumer", ["estimated trace", "vulnerability", "leakage", "reference_moments"])
def test_models_with_nan_are_refused(consumer: str) -> None:
    model = Broken("nothing")
    with torch.no_grad():
        model.backbone[1].weight[0, 0] = math.nan
    with pytest.raises(rr.InvalidInput, match=r"parameter 'backbone.1.weight' to be finite"):
        CONSUMERS[consumer](model, *records())


def test_losses_and_outputs_that_are_not_numbers_are_refused() -> None:
    inputs, labels = records()

    def undefined(outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels) * math.nan

    class Divides(Broken):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) * (inputs.sum() * 0 / 0)

    with pytest.raises(rr.InvalidInput, match="loss of the model to be finite"):
        rr.sensitivity.fisher_trace(GradientRelease(Broken("nothing"), undefined, inputs, labels))
    with pytest.raises(rr.InvalidInput, match="output of the model"):
        rr.sensitivity.fisher_trace(GradientRelease(Divides("nothing"), cross_entropy, inputs, labels))


def test_models_without_information_pass_with_zero() -> None:
    """Finite differences agree with 0 for a constant head and for dead units."""
    inputs, labels = records()
    torch.manual_seed(0)
    dead = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 5), nn.ReLU(), nn.Linear(5, 4))
    constant = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 4))
    with torch.no_grad():
        dead[1].bias.fill_(-100.0)
    for model, parameters in ((dead, None), (constant, ["1.bias"])):
        release = GradientRelease(
            model,
            cross_entropy if model is dead else lambda outputs, labels: outputs.sum(),
            inputs,
            labels,
            parameters=parameters,
        )
        assert not rr.sensitivity.fisher_trace(release).values.any()


def test_no_release_bypasses_the_check() -> None:
    """Releases define ``_linearize`` and ``_blocks``; the public methods that check belong to the base class."""
    names = [name for name in dir(rr.releases) if name.endswith("Release") and name != "Release"]
    assert len(names) >= 7
    for name in names:
        kind = getattr(rr.releases, name)
        assert issubclass(kind, Release)
        assert not {"linearize", "blocks", "check_derivative"} & set(vars(kind)), name


class Attentive(nn.Module):
    """A transformer over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(SIDE, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(SIDE, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.layer(inputs[:, 0]).mean(1))
        return outputs


def perceptron(activation: type[nn.Module]) -> nn.Module:
    width = SIDE * SIDE
    return nn.Sequential(
        nn.Flatten(), nn.Linear(width, 20), activation(), nn.Linear(20, 20), activation(), nn.Linear(20, 4)
    )


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    **{
        kind.__name__: lambda kind=kind: perceptron(kind)
        for kind in (nn.ReLU, nn.GELU, nn.Sigmoid, nn.Hardtanh, nn.ELU)
    },
    "attentive": Attentive,
    "pooling": lambda: nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(54, 4),
    ),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24, 4)
    ),
    "spectral": lambda: nn.Sequential(
        nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(SIDE * SIDE, 8)), nn.Softplus(), nn.Linear(8, 4)
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_never_raise_an_alarm(name: str) -> None:
    """Black corners make ties of max-pooling and units at the kink of ReLU, as in pictures of digits."""
    for seed in range(4):
        torch.manual_seed(seed)
        model = HEALTHY[name]().eval()
        for dtype in (torch.float32, torch.float64):
            inputs, labels = records(2, seed=seed, dtype=dtype)
            inputs[..., :3, :3] = 0
            for reduction in ("sum", None):
                GradientRelease(model, cross_entropy, inputs, labels, reduction=reduction).check_derivative()


_LARGE = {"resnet18", "resnet101", "vgg16", "chen2025_cifar10", "guo2022_cifar10", "meng2025_cnn"}


@pytest.mark.parametrize("name", [name for name in MODELS if name not in _LARGE])
def test_models_of_the_package_never_raise_an_alarm(name: str) -> None:
    digits = rr.load_dataset("mnist", split="test")
    for seed, dtype in ((0, torch.float32), (1, torch.float32), (2, torch.float64)):
        torch.manual_seed(seed)
        shape = (3, 32, 32) if name == "balle2022_cnn" else (1, 28, 28)
        model = model_by_name(name, shape=shape, classes=None if name == "linear" else 10).eval()
        inputs = digits.inputs[2 * seed : 2 * seed + 2] if shape[0] == 1 else torch.rand(2, *shape)
        labels = digits.class_labels[2 * seed : 2 * seed + 2]
        loss = cross_entropy
        if name == "linear":
            loss, labels = lambda outputs, labels: (outputs.squeeze(-1) - labels).square().mean(), labels.to(dtype)
        GradientRelease(model, loss, inputs.to(dtype), labels, reduction="sum").check_derivative()


class Detached(nn.Module):
    """A layer whose outputs are detached."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        return outputs.detach()


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    widths=st.lists(st.integers(3, 12), min_size=1, max_size=3),
    smooth=st.sampled_from([nn.Tanh, nn.Sigmoid, nn.GELU, nn.Softplus, nn.SiLU]),
    seed=st.integers(0, 1000),
    place=st.integers(0, 100),
)
def test_random_smooth_networks_pass_and_a_detached_layer_is_named(
    widths: list[int], smooth: type[nn.Module], seed: int, place: int
) -> None:
    torch.manual_seed(seed)
    sizes = [SIDE * SIDE, *widths]
    pairs = [[nn.Linear(before, after), smooth()] for before, after in pairwise(sizes)]
    layers = [nn.Flatten(), *(layer for pair in pairs for layer in pair), nn.Linear(sizes[-1], 4)]
    inputs, labels = records(2, seed=seed)
    GradientRelease(nn.Sequential(*layers), cross_entropy, inputs, labels).check_derivative()
    # The outputs of the last layer reach the loss alone: without them there is no gradient that could leak.
    row = 1 + place % (len(layers) - 2)
    cut = nn.Sequential(*layers[:row], Detached(layers[row]), *layers[row + 1 :])
    release = GradientRelease(cut, cross_entropy, inputs, labels)
    assert_refused(release.check_derivative, f"layer '{row}' (Detached)")


def test_random_numbers_of_the_user_stay_the_same() -> None:
    release = GradientRelease(Broken("nothing"), cross_entropy, *records())
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        release.check_derivative()
    assert torch.equal(torch.rand(1), expected)
