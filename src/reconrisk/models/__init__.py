"""Network architectures used in the papers; no other code depends on a particular one.

``registry.py`` finds a model by name, and ``building.py`` holds the shared parts. One file per source: ``linear.py``,
``lenet.py``, ``balle2022.py``, ``guo2022.py``, ``chen2025.py``, ``meng2025.py``, ``resnet.py``, ``vgg.py``.
``weights.py`` loads trained weights and checks them name by name.

Each function takes the shape of a record (channels, height, width) and the number of classes. It returns a plain
``nn.Module`` from a batch of records to logits. No model works in place or branches on data, so all work with
``torch.func``. With ``rng`` the weights are reproducible and the global generator does not change.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
