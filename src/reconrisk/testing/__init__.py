"""Contract checks for attacks, defenses, priors and metrics of third parties.

Each kind has a file with its rules: small functions whose docstring states the rule in one sentence. Read
``contract.py`` first; it runs the rules and reports the broken ones. The tests of this package use the same functions.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
