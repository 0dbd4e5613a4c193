"""The architectures the papers attack; nothing else depends on a particular one.

Each is a function of the record's shape (channels, height, width) and the number of classes that returns a plain
``nn.Module`` from a batch of records to logits. None works in place or branches on data, so all go through
``torch.func``. With ``rng`` the weights are reproducible and the global generator stays as it was.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
