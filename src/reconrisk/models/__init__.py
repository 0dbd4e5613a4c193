"""Architectures that the papers attack; no other code depends on a particular one.

``registry.py`` finds a model by name and ``building.py`` has the shared parts. One file per source: ``linear.py``,
``lenet.py``, ``balle2022.py``, ``guo2022.py``, ``chen2025.py``, ``meng2025.py``, ``resnet.py``, ``vgg.py``.
``weights.py`` loads trained weights, checked name by name.

Each is a function of the record's shape (channels, height, width) and the number of classes that returns a plain
``nn.Module`` from a batch of records to logits. None works in place or branches on data, so all go through
``torch.func``. With ``rng`` the weights are reproducible and the global generator stays as it was.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
