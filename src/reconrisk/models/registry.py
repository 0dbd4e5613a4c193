"""Registry of models by name, or by any function in the user's own code.

Importing this module loads no architecture and no torch. A new model is one file, one row here and one line in the
stub.
"""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reconrisk.core.errors import InvalidInput
from reconrisk.core.registry import Info, Registry
from reconrisk.core.validation import did_you_mean, invalid_input

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ModelInfo(Info):
    """Registry row of a model.

    Attributes:
        name: Name of the model.
        where: Function that builds it from the shape of a record and the number of classes, as "module:function".
        summary: One sentence in plain English.
        is_flat: True if the function takes the number of values in a record instead of its shape.
        is_per_class: True if there is an output for each class; otherwise the function is called without the number.
    """

    is_flat: bool = False
    is_per_class: bool = True


def _row(module: str, name: str, summary: str, **facts: bool) -> ModelInfo:
    return ModelInfo(name, f"reconrisk.models.{module}:{name}", summary, **facts)


MODELS: Registry[ModelInfo] = Registry(
    "model",
    (
        _row("balle2022", "balle2022_cnn", "The convolutional network of balle2022 for CIFAR-10, with ELU."),
        _row("balle2022", "balle2022_mlp", "The perceptron of balle2022 for MNIST, with ELU."),
        _row("chen2025", "chen2025_cifar10", "The convolutional network of chen2025 for CIFAR-10, 2.9M parameters."),
        _row("chen2025", "chen2025_mnist", "The convolutional network of chen2025 for MNIST."),
        _row("guo2022", "guo2022_cifar10", "The tanh network of guo2022 for CIFAR-10."),
        _row("guo2022", "guo2022_mnist", "The tanh network of guo2022 for MNIST."),
        _row("lenet", "lenet", "The sigmoid LeNet of Deep Leakage from Gradients."),
        _row("lenet", "lenet5", "LeNet-5 with ReLU and max-pooling."),
        _row("meng2025", "meng2025_cnn", "The convolutional network of meng2025."),
        _row("meng2025", "meng2025_mlp", "The perceptron MLP-3 of meng2025."),
        _row("resnet", "resnet18", "ResNet-18."),
        _row("resnet", "resnet101", "ResNet-101."),
        _row("vgg", "vgg16", "VGG-16."),
        _row("linear", "linear", "The linear map of a flattened record.", is_flat=True, is_per_class=False),
        _row("linear", "logistic", "Multinomial logistic regression of a flattened record.", is_flat=True),
    ),
)
"""Models by name."""


def model_by_name(name: str, *, shape: Sequence[int], classes: int | None) -> nn.Module:
    """Build the model of this name.

    Args:
        name: Name in :data:`MODELS`, or ``package.module:function``, a function without arguments. A dotted path after
            the colon reaches into classes. The module is imported, so its code runs.
        shape: Shape of a record.
        classes: Number of classes; None for real labels, which only ``linear`` and the user's own functions support.

    Returns:
        The model.

    Raises:
        InvalidInput: If the name is unknown, cannot be imported or does not build a model; the message names the part
            of the name that is at fault.

    >>> model_by_name("logistic", shape=(30,), classes=2)[-1]
    Linear(in_features=30, out_features=2, bias=True)
    >>> model_by_name("torch.nn:Identity", shape=(30,), classes=2)
    Identity()
    """
    if ":" in name:
        return _build(name, _find_object(name))
    if name not in MODELS:
        known = f"to be package.module:function or one of {', '.join(MODELS)}"
        raise invalid_input(
            "model", name, known, f"Write the colon between module and function.{did_you_mean(name, MODELS)}"
        )
    row = MODELS[name]
    size = math.prod(shape) if row.is_flat else shape
    if row.is_per_class and classes is None:
        raise invalid_input(
            "model",
            name,
            "to predict real numbers: the labels are not classes",
            "Use linear, or your own package.module:function.",
        )
    model: nn.Module = row.load()(size, classes) if row.is_per_class else row.load()(size)
    return model


def _find_object(name: str) -> Any:
    """Import the module before the colon and return the object after it."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise invalid_input("model", name, "to be package.module:function", "Write a name on both sides of the colon.")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        # The missing module is not the named one but a dependency of it.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            problem = f"{module} needs {error.name}, which is not installed"
            raise InvalidInput(f"Expected model={name!r} to be importable: {problem}. Install {error.name}.") from error
        remedy = "Check the name before the colon; the current folder and installed packages are searched."
        raise invalid_input("model", name, f"to be importable, found no module {error.name!r}", remedy) from error
    except Exception as error:  # importing runs the user's code, which may raise anything
        found_error = f"to be importable, found {_error_text(error)}"
        raise invalid_input("model", name, found_error, f"Correct {module}.") from error
    for part in path.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"Did you mean {close[0]}?" if close else "Check the name after the colon."
            raise invalid_input("model", name, f"to name something in {module}, which has no {part!r}", hint)
        found = getattr(found, part)
    return found


def _build(name: str, build: Any) -> nn.Module:
    """Call the user's function and check that it returns a module."""
    from torch import nn  # takes seconds to import; listing the names must not need it

    if isinstance(build, nn.Module):
        raise invalid_input(
            "model", name, "to be a function that returns an nn.Module, found an nn.Module", "Wrap it in a function."
        )
    if not callable(build):
        kind = type(build).__name__
        raise invalid_input(
            "model", name, f"to be callable, found type {kind}", "Name a function that returns the model."
        )
    try:
        model = build()
    except Exception as error:  # the user's code may raise anything
        raise invalid_input(
            "model",
            name,
            f"to build a model when called without arguments, found {_error_text(error)}",
            "Correct the function, or give its parameters defaults.",
        ) from error
    if not isinstance(model, nn.Module):
        raise invalid_input("model", name, f"to return an nn.Module, found {type(model).__name__}", "Return the model.")
    return model


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
