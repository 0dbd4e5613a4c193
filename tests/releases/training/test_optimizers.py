import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidInput
from reconrisk.releases.training.optimizers import OptimizerState, adam, sgd

RULES = {
    "sgd": (sgd(0.1), torch.optim.SGD, {"lr": 0.1}),
    "momentum": (sgd(0.1, 0.9), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "dampening": (
        sgd(0.1, 0.8, 0.02, dampening=0.3),
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.02, "dampening": 0.3},
    ),
    "nesterov": (
        sgd(0.05, 0.9, 0.01, nesterov=True),
        torch.optim.SGD,
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True},
    ),
    "adam": (adam(0.01), torch.optim.Adam, {"lr": 0.01}),
    "adam with decay": (
        adam(0.02, (0.8, 0.95), 1e-6, 0.03),
        torch.optim.Adam,
        {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.03},
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_two_hundred_steps_are_those_of_torch(name):
    rule, oracle, settings = RULES[name]
    rng = torch.Generator().manual_seed(1)
    start = torch.randn(7, generator=rng, dtype=torch.float64)
    scale = torch.logspace(-2, 1, 7, dtype=torch.float64)
    theirs = start.clone().requires_grad_()
    optimizer = oracle([theirs], **settings)
    ours, state = {"w": start}, OptimizerState()
    for _ in range(200):
        target = torch.randn(7, generator=rng, dtype=torch.float64)
        theirs.grad = scale * (theirs.detach() - target)
        optimizer.step()
        ours, state = rule.step(ours, {"w": scale * (ours["w"] - target)}, state)
    torch.testing.assert_close(ours["w"], theirs.detach(), rtol=1e-12, atol=1e-12)
    assert state.steps == 200


@pytest.mark.parametrize("name", RULES)
def test_steps_are_differentiable_in_parameters_and_gradients(name):
    rule = RULES[name][0]
    rng = torch.Generator().manual_seed(2)
    inputs = torch.randn(4, 3, generator=rng, dtype=torch.float64, requires_grad=True)

    def three_steps(values):
        parameters, state = {"w": values[0]}, OptimizerState()
        for gradient in values[1:]:
            parameters, state = rule.step(parameters, {"w": gradient}, state)
        return parameters["w"]

    assert torch.autograd.gradcheck(three_steps, inputs)


@given(steps=st.integers(1, 4))
def test_adam_at_zero_gradient_has_the_true_derivative(steps):
    rule, zero = adam(0.1, (0.9, 0.99), eps=1e-3), torch.zeros(2, dtype=torch.float64)

    def trained(gradient):
        parameters, state = {"w": torch.ones(2, dtype=torch.float64)}, OptimizerState()
        for _ in range(steps):
            parameters, state = rule.step(parameters, {"w": gradient}, state)
        return parameters["w"]

    # a constant gradient g moves by 0.1 g / (|g| + eps) per step: bias corrections undo both averages
    expected = -0.1 * steps / 1e-3 * torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(torch.func.jacfwd(trained)(zero), expected)
    torch.testing.assert_close(torch.func.jacrev(trained)(zero), expected)


def test_nothing_is_changed_in_place():
    parameters, gradients = {"w": torch.ones(2)}, {"w": torch.full((2,), 3.0)}
    for rule in (sgd(0.1, 0.9, 0.1), adam(0.1, weight_decay=0.1)):
        _, state = rule.step(parameters, gradients, OptimizerState())
        before = {name: average["w"].clone() for name, average in state.averages.items()}
        rule.step(parameters, gradients, state)
        assert torch.equal(parameters["w"], torch.ones(2))
        assert torch.equal(gradients["w"], torch.full((2,), 3.0))
        assert all(torch.equal(before[name], average["w"]) for name, average in state.averages.items())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sgd(0.0), r"learning_rate=0\.0 > 0"),
        (lambda: sgd(0.1, -1), r"momentum=-1\.0 >= 0"),
        (lambda: sgd(0.1, weight_decay=-1), r"weight_decay=-1\.0 >= 0"),
        (lambda: sgd(0.1, nesterov=True), r"\(0\.0, 0\.0\) to be \(> 0, 0\) for Nesterov"),
        (lambda: sgd(0.1, 0.9, nesterov=True, dampening=0.1), r"\(0\.9, 0\.1\) to be \(> 0, 0\) for Nesterov"),
        (lambda: sgd(0.1, dampening=float("nan")), "dampening=nan to be a number"),
        (lambda: adam(-1), r"learning_rate=-1\.0 > 0"),
        (lambda: adam(0.1, (0.9, 1.0)), r"betas=\(0\.9, 1\.0\) to be two numbers in \[0, 1\)"),
        (lambda: adam(0.1, (0.9,)), r"betas=\(0\.9,\) to be two"),
        (lambda: adam(0.1, eps=0.0), r"eps=0\.0 > 0\. Without it a parameter with zero gradient"),
        (lambda: adam(0.1, weight_decay=-0.1), r"weight_decay=-0\.1 >= 0"),
    ],
)
def test_settings_outside_their_domain_are_refused(build, message):
    with pytest.raises(InvalidInput, match=message):
        build()
