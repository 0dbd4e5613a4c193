"""Settings are told apart by what they do, in this process and in another."""

import subprocess
import sys
import types
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.releases.content_hash import described
from reconrisk.releases.training.optimizers import UpdateRule, adam, sgd


def scaled(factor):
    return lambda values: factor * values


def module_with(source):
    """What a script defines that was edited between two runs."""
    made = types.ModuleType("script")
    exec(source, vars(made))  # noqa: S102  # two scripts in which the same names mean something else
    return made


PAIRS = {
    "closure": (scaled(1.0), scaled(2.0)),
    "closure over a tensor": (scaled(torch.zeros(2)), scaled(torch.ones(2))),
    "partial": (partial(scaled, 1.0), partial(scaled, 2.0)),
    "named partial": (partial(scaled, factor=1.0), partial(scaled, factor=2.0)),
    "dataclass": (sgd(0.1), sgd(0.1, 0.9)),
    "class of dataclass": (sgd(0.1), adam(0.1)),
    "mechanism": (Gaussian(1.0), Gaussian(2.0)),
    "tensor": (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
    "array": (np.zeros(2), np.zeros((1, 2))),
    "nothing and its name": (None, "None"),
    "number and flag": (1, True),
    "loss of torch": (nn.functional.mse_loss, nn.functional.l1_loss),
    "builtin": (torch.tanh, torch.sin),
    "setting of a module": (nn.SmoothL1Loss(beta=1.0), nn.SmoothL1Loss(beta=0.5)),
    "weight of a module": (nn.CrossEntropyLoss(torch.ones(2)), nn.CrossEntropyLoss(torch.zeros(2))),
    "generator": (scaled(torch.Generator().manual_seed(0)), scaled(torch.Generator().manual_seed(1))),
    "numpy generator": (scaled(np.random.default_rng(0)), scaled(np.random.default_rng(1))),
    "method": ([1].count, [2].count),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_does_something_else_is_described_otherwise(name):
    first, second = PAIRS[name]
    assert described(first) == described(first)
    assert described(first) != described(second)


SCRIPTS = {
    "constant": ("f = lambda x: {} * x", 2, 3),
    "operation": ("f = lambda x: x {} x", "+", "-"),
    "method that is called": ("f = lambda x: x.{}()", "sin", "cos"),
    "default": ("f = lambda x, y={}: x", 1, 2),
    "lambda inside": ("f = lambda x: (lambda y: y + {})(x)", 1, 2),
    "set": ("f = lambda x: x in set(('a', 'b', {}))", 1, 2),
    "global value": ("scale = {}\ndef f(x): return scale * x", 1, 2),
    "global function": ("def g(x): return {} * x\ndef f(x): return g(x)", 1, 2),
    "global function of an inner one": ("def g(x): return {} * x\ndef f(x): return (lambda: g(x))()", 1, 2),
    "class that is built": ("class Net:\n def __init__(self): self.width = {}\ndef f(x): return Net()", 1, 2),
    "call of an object": ("class F:\n def __call__(self, x): return {} * x\nf = F()", 1, 2),
    "method that is inherited": ("class A:\n def g(self): return {}\nclass B(A): pass\nf = B()", 1, 2),
    "static method": ("class A:\n @staticmethod\n def g(): return {}\nf = A()", 1, 2),
    "value of a class": ("class A:\n scale = {}\nf = A()", 1, 2),
    "function that calls itself": ("def f(x): return f(x - {})", 1, 2),
    "functions that call each other": ("def g(x): return f(x)\ndef f(x): return g(x - {})", 1, 2),
    "forward of a module": (
        "import torch\nclass N(torch.nn.Module):\n def forward(self, x): return {} * x\nf = N()",
        1,
        2,
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_was_edited_is_another(name):
    source, before, after = SCRIPTS[name]
    first, again, edited = (described(module_with(source.format(value)).f) for value in (before, before, after))
    assert first == again
    assert first != edited


def test_a_rule_of_ones_own_is_told_by_its_step():
    def rule(rate):
        class Rule(UpdateRule):
            def step(self, parameters, gradients, state):
                return {name: value - rate * gradients[name] for name, value in parameters.items()}, state

        return Rule()

    assert described(rule(0.1)) == described(rule(0.1))
    assert described(rule(0.1)) != described(rule(0.2))


@dataclass(frozen=True, slots=True)
class Weights:
    values: torch.Tensor


def test_long_tensors_are_told_apart_where_their_text_is_not():
    first, second = torch.zeros(2, 5000)
    second[2500] = 1
    assert repr(Weights(first)) == repr(Weights(second))
    assert described(Weights(first)) != described(Weights(second))


@dataclass(frozen=True)
class Settings:
    width: int
    names: frozenset[str]

    def network(self, stream):
        return nn.Linear(self.width, len(self.names))


def several():
    return [Settings(3, frozenset({"a", "b", "c"})), Settings(3, frozenset("ab")).network, scaled(2.0), {1: nn.ELU()}]


def test_another_process_says_the_same():
    words = "from tests.releases.test_content_hash import *; print(described(several()))"
    command = [sys.executable, "-c", words]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == described(several())


def test_what_has_only_an_address_is_refused():
    with pytest.raises(InvalidInput, match="settings='generator' to be told from others of its kind"):
        described(scaled(value for value in (1, 2)))
    endless = []
    for _ in range(60):
        endless = [endless]
    with pytest.raises(InvalidInput, match="nested at most"):
        described(endless)
