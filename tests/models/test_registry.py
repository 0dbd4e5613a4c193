import inspect
import subprocess
import sys

import pytest
import torch

from reconrisk import models
from reconrisk.core.errors import InvalidInput
from reconrisk.models.registry import MODELS, model_by_name

CODE = """
from torch import nn

ready = nn.Linear(2, 2)
number = 7

def build():
    return nn.Linear(3, 2)

def needs(width):
    return nn.Linear(width, 2)

def nothing():
    return None

class Nets:
    small = staticmethod(build)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "their_nets.py").write_text(CODE)
    (tmp_path / "their_broken.py").write_text("import a_package_that_is_not_there")
    (tmp_path / "their_typo.py").write_text("def build(:")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("their_nets", "their_broken", "their_typo"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["their_nets:build", "their_nets:Nets.small"])
def test_a_function_of_the_user_is_called(package, name):
    assert model_by_name(name, shape=(3,), classes=2).in_features == 3


@pytest.mark.parametrize("name", MODELS)
def test_each_row_names_its_function(name):
    row, build = MODELS[name], getattr(models, name)
    assert row.load() is build
    first, second, *_ = inspect.signature(build).parameters
    assert first == ("features" if row.is_flat else "shape")
    assert (second == "classes") == row.is_per_class
    assert row.summary.endswith(".")


def test_names_load_no_torch():
    program = "import sys, reconrisk.models.registry as found; list(found.MODELS); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("name", ["guo2022_mnist", "lenet5", "meng2025_mlp", "balle2022_mlp"])
def test_models_of_the_papers_take_shape_and_classes_from_the_data(name):
    shape = (1, 32, 32)
    assert model_by_name(name, shape=shape, classes=4)(torch.zeros(2, *shape)).shape == (2, 4)
    assert hasattr(models, name)


def test_linear_models_take_the_number_of_values():
    assert model_by_name("linear", shape=(1, 2, 3), classes=None)(torch.zeros(2, 1, 2, 3)).shape == (2, 1)
    assert model_by_name("logistic", shape=(1, 2, 3), classes=3)(torch.zeros(2, 1, 2, 3)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("guo2022_minst", "to be package.module:function or one of .* Did you mean guo2022_mnist?"),
        ("their_nets.build", "Write the colon between module and function"),
        ("their_nets:", "Write a name on both sides of the colon"),
        (":build", "Write a name on both sides of the colon"),
        ("not_there:build", "to be importable, found no module 'not_there'"),
        ("their_nets.sub:build", "to be importable, found no module 'their_nets.sub'"),
        ("their_broken:build", "their_broken needs a_package_that_is_not_there"),
        ("their_typo:build", "to be importable, found SyntaxError"),
        ("their_nets:bild", "which has no 'bild'. Did you mean build?"),
        ("their_nets:number", "to be callable, found type int"),
        ("their_nets:ready", "found an nn.Module. Wrap it in a function"),
        ("their_nets:needs", "when called without arguments, found TypeError: needs.. missing 1 required"),
        ("their_nets:nothing", "to return an nn.Module, found NoneType"),
    ],
)
def test_each_way_to_go_wrong_has_its_sentence(package, name, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        model_by_name(name, shape=(1, 28, 28), classes=10)
    assert str(caught.value).startswith(f"Expected model={name!r}")


def test_classes_are_needed_where_there_is_an_output_for_each():
    with pytest.raises(InvalidInput, match="to predict real numbers: the labels are not classes"):
        model_by_name("logistic", shape=(3,), classes=None)
