"""Results to pages, pictures, text and JSON. No torch, no recomputation.

``registry.py`` says which function writes which kind of result in which format; ``plain.py`` has those for any kind,
the other modules those of one kind each, ``audit/`` the report of an audit. ``drawing.py`` is shared.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
