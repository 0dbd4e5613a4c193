"""Settings are told apart by what they do, in this process and in another."""

import subprocess
import sys
import time
import types
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reconrisk as rr
from reconrisk.attacks.baselines import prior_mean
from reconrisk.attacks.best_candidate import best_candidate
from reconrisk.attacks.gauss_newton.attack import gauss_newton
from reconrisk.core.digest import (
    _origin,
    content_digest,
    describe_settings,
    identify_settings,
    network_digest,
    short_digest,
)
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import Gaussian
from reconrisk.core.threat import Knows
from reconrisk.defenses.noise import gaussian_noise
from reconrisk.defenses.refreshed import refreshed
from reconrisk.releases.training.optimizers import UpdateRule, adam, sgd


def scaled(factor):
    return lambda values: factor * values


class Plain:
    def __init__(self, value):
        self.value = value

    def method(self):
        return self.value


def refreshing(value):
    def build(moments):
        return gaussian_noise(value)

    return refreshed(build, nn.functional.mse_loss, torch.ones(1, 2), torch.ones(1))


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
    "one value of a long array": (np.zeros(2000), np.eye(1, 2000, 1000)[0]),
    "set": ({"a", "1"}, {"a", "2"}),
    "bound method": (Plain(1.0).method, Plain(2.0).method),
    "tensor deep inside": (Plain({"deep": [torch.tensor(1.0)]}), Plain({"deep": [torch.tensor(2.0)]})),
    "defense": (gaussian_noise(1.0), gaussian_noise(2.0)),
    "refreshed defense": (refreshing(1.0), refreshing(2.0)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_does_something_else_is_described_otherwise(name):
    first, second = PAIRS[name]
    assert content_digest(first) == content_digest(first)
    assert content_digest(first) != content_digest(second)


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
    first, again, edited = (content_digest(module_with(source.format(value)).f) for value in (before, before, after))
    assert first == again
    assert first != edited


def test_a_rule_of_ones_own_is_told_by_its_step():
    def rule(rate):
        class Rule(UpdateRule):
            def step(self, parameters, gradients, state):
                return {name: value - rate * gradients[name] for name, value in parameters.items()}, state

        return Rule()

    assert content_digest(rule(0.1)) == content_digest(rule(0.1))
    assert content_digest(rule(0.1)) != content_digest(rule(0.2))


@dataclass(frozen=True, slots=True)
class Weights:
    values: torch.Tensor


def test_long_tensors_are_told_apart_where_their_text_is_not():
    first, second = torch.zeros(2, 5000)
    second[2500] = 1
    assert repr(Weights(first)) == repr(Weights(second))
    assert content_digest(Weights(first)) != content_digest(Weights(second))


@dataclass(frozen=True)
class Settings:
    width: int
    names: frozenset[str]

    def network(self, stream):
        return nn.Linear(self.width, len(self.names))


def several():
    return [Settings(3, frozenset({"a", "b", "c"})), Settings(3, frozenset("ab")).network, scaled(2.0), {1: nn.ELU()}]


def test_another_process_says_the_same():
    words = "from tests.core.test_digest import *; print(content_digest(several()))"
    command = [sys.executable, "-c", words]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == content_digest(several())


def test_what_has_only_an_address_is_refused():
    with pytest.raises(InvalidInput, match="settings='generator' to be comparable by content, not by address"):
        content_digest(scaled(value for value in (1, 2)))
    endless = []
    for _ in range(60):
        endless = [endless]
    with pytest.raises(InvalidInput, match="nested at most"):
        content_digest(endless)


@given(st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=6), st.integers(0, 5), st.floats(0.5, 2, width=32))
def test_any_changed_value_changes_the_digest(values, place, change):
    tensor = torch.tensor(values)
    other = tensor.clone()
    other[place % len(values)] += change
    assert short_digest({"a": tensor}) == short_digest({"a": tensor.clone()})
    assert short_digest({"a": tensor}) != short_digest({"a": other})
    assert short_digest({"a": tensor}) != short_digest({"b": tensor})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_types_and_shapes_count_too(dtype):
    zeros = torch.zeros(4)
    assert short_digest(zeros) != short_digest(zeros.to(dtype))
    assert short_digest(zeros) != short_digest(zeros.reshape(2, 2))
    assert len(short_digest(torch.zeros(()).to(dtype))) == len(short_digest(torch.zeros(0, dtype=dtype))) == 12


def test_layout_in_memory_does_not_count():
    matrix = torch.arange(6.0).reshape(2, 3)
    assert short_digest(matrix.T) == short_digest(matrix.T.contiguous())
    assert short_digest(matrix.numpy()) == short_digest(matrix)


@pytest.mark.parametrize(
    "array", [np.array(["a", "b"]), np.array([None, 1.0]), np.array(["2020-01-01"], dtype="M8[D]")]
)
def test_arrays_of_anything_have_a_digest(array):
    assert short_digest(array) == short_digest(array.copy())
    assert short_digest(array) != short_digest(array[:0])


def linear(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Linear(2, 3)


def test_weights_layers_and_mode_tell_networks_apart():
    assert network_digest(linear()) == network_digest(linear())
    assert network_digest(linear()) != network_digest(linear(seed=1))
    assert network_digest(linear()) != network_digest(linear().eval())
    assert network_digest(nn.Sequential(nn.ReLU())) != network_digest(nn.Sequential(nn.Tanh()))


def test_networks_of_any_content_have_a_digest():
    network = linear()
    network.values = (value for value in (1, 2))  # nothing but an address tells it from others
    assert network_digest(network) == network_digest(linear())


def test_attacks_with_other_tensors_are_other_attacks_though_they_print_alike():
    one, other = torch.zeros(3, 2), torch.ones(3, 2)
    assert repr(best_candidate(one)) == repr(best_candidate(other))
    assert identify_settings(best_candidate(one)) != identify_settings(best_candidate(other))
    assert identify_settings(best_candidate(one)) == identify_settings(best_candidate(one.clone()))
    warm = [gauss_newton(warm_start=prior_mean(mean)) for mean in (one[0], other[0])]
    assert identify_settings(warm[0]) != identify_settings(warm[1])


def test_tensors_within_tables_and_chains_are_told_apart():
    def masked(seed):
        like = {"w": torch.zeros(5000)}
        mask = rr.defenses.random_pruning(0.5, seed=seed).masked(like)
        return rr.defenses.clip(1.0) >> mask

    assert identify_settings(masked(0)) == identify_settings(masked(0))
    assert identify_settings(masked(0)) != identify_settings(masked(1))


def test_words_hold_no_value_of_a_tensor_and_no_address():
    assert "7.5" not in describe_settings(Weights(torch.tensor([7.5])))
    assert "0x" not in identify_settings(scaled(1.0))
    assert identify_settings(scaled(1.0)) == identify_settings(scaled(1.0))
    assert identify_settings(scaled(1.0)) != identify_settings(scaled(2.0))


def test_settings_without_a_digest_are_told_by_their_address():
    opaque = [scaled(value for value in (1, 2)) for _ in range(2)]
    assert identify_settings(opaque[0]) == identify_settings(opaque[0])
    assert identify_settings(opaque[0]) != identify_settings(opaque[1])


@dataclass
class Counted:
    label: str
    calls: int = 0

    def __repr__(self):
        return f"counted({self.label})"


def test_an_attack_that_counts_its_calls_stays_itself():
    before, later = Counted("a"), Counted("a", calls=3)
    assert identify_settings(before) == identify_settings(later) == "counted(a)"
    assert identify_settings(Counted("b")) != identify_settings(before)


def test_objects_that_write_only_their_address_are_told_by_their_content():
    assert identify_settings(Plain(1)) == identify_settings(Plain(1))
    assert identify_settings(Plain(1)) != identify_settings(Plain(2))


def test_names_types_and_code_count():
    assert content_digest(lambda x: x + 1) != content_digest(lambda x: x - 1)
    assert content_digest(Weights(1.0)) != content_digest(Settings(1.0, frozenset()))
    assert content_digest(Knows.LABELS) != content_digest(Knows.PRIOR)
    assert content_digest(nn.Linear(1, 1)) != content_digest(nn.Linear(1, 2))


def test_a_list_that_holds_itself_has_a_digest():
    endless, other = [1], [2]
    endless.append(endless)
    other.append(other)
    assert content_digest(endless) != content_digest(other)


def test_functions_that_name_each_other_often_are_read_once():
    calls = [f"def f{place}(x): return f{place + 1}(x) + f{place + 1}(x + 1) + f{place + 2}(x)" for place in range(28)]
    source = "\n".join([*calls, "def f28(x): return {}", "def f29(x): return x"])
    begun = time.monotonic()
    assert content_digest(module_with(source.format(1)).f0) != content_digest(module_with(source.format(2)).f0)
    assert time.monotonic() - begun < 5  # without a memory of what was read it takes 2^30 steps


def test_code_of_installed_packages_is_known_by_its_name():
    assert _origin(given) == f"hypothesis {hypothesis.__version__}"
    assert _origin(nn.Linear) == ""
    assert _origin(scaled) is None
