"""Writers of results: pages, pictures, text and JSON. They import no torch and compute nothing new.

``registry.py`` maps each kind of result and file suffix to its function. ``plain.py`` has the writers for any kind,
each other module the writers for one kind, and ``audit/`` the report of an audit. ``drawing.py`` is shared.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
