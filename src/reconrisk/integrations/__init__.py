"""Adapters to other libraries, each imported at its use.

Start with ``training_loop.py``: a defense in a plain PyTorch loop. ``opacus/`` has optimal noise for Opacus,
``fisher_accountant/`` follows the leakage of an Opacus training, ``flower/`` defends federated clients, and
``linear_models.py`` reads estimators of scikit-learn and linear models of torch.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
