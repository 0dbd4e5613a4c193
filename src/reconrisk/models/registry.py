"""A model by name: one of the papers' architectures, or whatever a function of the user's own code returns."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import refuse
from reconrisk.models.balle2022 import balle2022_cnn, balle2022_mlp
from reconrisk.models.chen2025 import chen2025_cifar10, chen2025_mnist
from reconrisk.models.guo2022 import guo2022_cifar10, guo2022_mnist
from reconrisk.models.lenet import lenet, lenet5
from reconrisk.models.linear import linear, logistic
from reconrisk.models.meng2025 import meng2025_cnn, meng2025_mlp
from reconrisk.models.resnet import resnet18, resnet101
from reconrisk.models.vgg import vgg16

_OF_SHAPE = {
    build.__name__: build
    for build in (
        balle2022_cnn,
        balle2022_mlp,
        chen2025_cifar10,
        chen2025_mnist,
        guo2022_cifar10,
        guo2022_mnist,
        lenet,
        lenet5,
        meng2025_cnn,
        meng2025_mlp,
        resnet18,
        resnet101,
        vgg16,
    )
}
NAMES = (*_OF_SHAPE, "linear", "logistic")
"""Networks that have a name."""


def model_by_name(name: str, *, shape: Sequence[int], classes: int | None) -> nn.Module:
    """The model that ``name`` stands for: a function of this package, or ``package.module:function``.

    Functions of this package are called with the ``shape`` of a record and the number of ``classes``; others without
    arguments. None stands for real labels, which only ``linear`` and functions of the user can fit.

    Guarantee: whatever goes wrong is refused with the part of the name that is at fault.
    Edge cases: a dotted path after the colon reaches into classes; the module is imported, so its code runs.

    >>> model_by_name("logistic", shape=(30,), classes=2)[-1]
    Linear(in_features=30, out_features=2, bias=True)
    >>> model_by_name("torch.nn:Identity", shape=(30,), classes=2)
    Identity()
    """
    if ":" in name:
        return _built(name, _found(name))
    if name == "linear":
        return linear(math.prod(shape))
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        known = f"to be package.module:function or one of {', '.join(NAMES)}"
        raise refuse("model", name, known, f"Write the colon between module and function.{hint}")
    if classes is None:
        raise refuse("model", name, "to fit real labels", "It has an output per class; use linear or a model of yours.")
    return logistic(math.prod(shape), classes) if name == "logistic" else _OF_SHAPE[name](shape, classes)


def _found(name: str) -> Any:
    """The object after the colon."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise refuse("model", name, "to be package.module:function", "Both sides of the colon are needed.")
    found: Any = _module(name, module)
    for part in path.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), n=1)
            hint = f"Did you mean {close[0]}?" if close else "Check the name after the colon."
            raise refuse("model", name, f"to name something in {module}, which has no {part!r}", hint)
        found = getattr(found, part)
    return found


def _module(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise InvalidInput(f"Expected model={name!r} to be importable. {module} needs {error.name}.") from error
        remedy = "Check the name before the colon; the current folder and installed packages are searched."
        raise refuse("model", name, f"to be importable, there is no module {error.name!r}", remedy) from error
    except Exception as error:  # code of the user runs here
        raise refuse("model", name, "to be importable", f"{module} raised {_said(error)}") from error


def _built(name: str, build: Any) -> nn.Module:
    if isinstance(build, nn.Module):
        raise refuse("model", name, "to be a function that returns a module", "It is a module; wrap it in a function.")
    if not callable(build):
        kind = type(build).__name__
        raise refuse("model", name, f"to be callable, it is of type {kind}", "Name a function that returns the model.")
    try:
        model = build()
    except Exception as error:  # code of the user runs here
        raise refuse("model", name, "to build a model when called without arguments", _said(error)) from error
    if not isinstance(model, nn.Module):
        raise refuse("model", name, f"to return an nn.Module, it returned {type(model).__name__}", "Return the model.")
    return model


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"
