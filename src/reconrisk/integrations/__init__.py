"""Adapters to other libraries, each imported when it is used.

Start with ``training_loop.py``: a defense in a plain PyTorch loop. ``opacus/`` has optimal noise for Opacus,
``fisher_accountant/`` tracks the leakage of a training with Opacus, ``flower/`` defends federated clients, and
``linear_models.py`` reads estimators of scikit-learn and linear models of torch.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
