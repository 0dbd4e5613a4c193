"""Checks that an attack, a defense, a prior or a metric of yours keeps the rules that this package relies on.

Each kind has a file with its rules: small functions, one sentence each. Read ``contract.py`` first: it runs the rules
and explains what is broken. The package's own tests use the same functions.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
