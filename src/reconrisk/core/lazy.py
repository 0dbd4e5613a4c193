"""Namespaces whose names are imported on first use.

The public names of a package are listed once, in its ``__init__.pyi``: type checkers read the list, and
:func:`lazy_names` imports each name when somebody asks for it. Importing the package stays fast.
"""

from __future__ import annotations

import sys
import types

import lazy_loader

TYPE_CHECKING = False  # as in typing, whose import takes half of the time of importing the package
if TYPE_CHECKING:
    from collections.abc import Callable


class _Namespace(types.ModuleType):
    """A package in which a public name wins over a sub-module of the same name.

    Importing ``reconrisk.attacks.best_candidate`` would bind the module to that name in ``reconrisk.attacks``. There
    the name belongs to the function, so the binding is not made; ``sys.modules`` has the module all the same.
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
    """
    load, list_names, names = lazy_loader.attach_stub(package, file)
    module = sys.modules[package]
    stub = file.removesuffix(".py") + ".pyi"
    module.__dict__["_public_objects"] = frozenset(names) - _submodules(stub)
    module.__class__ = _Namespace
    return load, list_names, names


def _submodules(stub: str) -> frozenset[str]:
    """Return the names that a stub imports as modules: ``from . import name as name``."""
    with open(stub, encoding="utf-8") as file:  # noqa: PTH123 - importing pathlib takes longer than all of this
        lines = file.read().splitlines()
    return frozenset(line.split()[3] for line in lines if line.startswith("from . import "))
