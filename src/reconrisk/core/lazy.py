"""Packages whose public names are imported on first use.

The stub ``__init__.pyi`` of a package lists its public names. Type checkers read the stub, and :func:`lazy_names`
imports each name when it is first accessed. Importing the package is therefore fast.
"""

from __future__ import annotations

import sys
import types

import lazy_loader

TYPE_CHECKING = False  # importing typing would take half of the import time of the package
if TYPE_CHECKING:
    from collections.abc import Callable


class _Namespace(types.ModuleType):
    """A package in which a public name takes precedence over a sub-module of the same name.

    Importing ``reconrisk.attacks.best_candidate`` would set the attribute ``best_candidate`` of ``reconrisk.attacks``
    to the module. The public name is the function, so the attribute is not set; ``sys.modules`` still has the module.
    """

    def __setattr__(self, name: str, value: object) -> None:
        is_own_module = isinstance(value, types.ModuleType) and value.__name__ == f"{self.__name__}.{name}"
        if not (is_own_module and name in self.__dict__["_public_objects"]):
            super().__setattr__(name, value)


def lazy_names(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package from the stub next to its ``__init__.py``.

    Args:
        package: ``__name__`` of the package.
        file: ``__file__`` of the package.

    Returns:
        The three objects, in this order.
    """
    load, list_names, names = lazy_loader.attach_stub(package, file)
    module = sys.modules[package]
    stub = file.removesuffix(".py") + ".pyi"
    module.__dict__["_public_objects"] = frozenset(names) - _submodules(stub)  # before the class, which reads it
    module.__class__ = _Namespace
    return load, list_names, names


def _submodules(stub: str) -> frozenset[str]:
    """Return the names that a stub imports as modules: ``from . import name as name``."""
    with open(stub, encoding="utf-8") as file:  # noqa: PTH123 - importing pathlib takes longer than reading the stub
        lines = file.read().splitlines()
    return frozenset(line.split()[3] for line in lines if line.startswith("from . import "))
