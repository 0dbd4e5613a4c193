"""How much of a private training record can be rebuilt from what you release, at most and in practice.

The public names are listed in ``__init__.pyi``, which type checkers read and from which they are loaded on first use:
importing the package stays fast, and torch is loaded only by the parts that need it.
"""

import importlib

import lazy_loader

from reconrisk.core import version

__version__ = version.VERSION

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    if name == "audit":  # function and package of one name: the package, which is called like the function
        return importlib.import_module("reconrisk.audit")
    return _load(name)
