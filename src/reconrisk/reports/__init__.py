"""Results to pages, pictures, text and JSON. No torch, no recomputation.

``registry.py`` says which function writes which kind of result in which format; ``plain.py`` has those for any kind,
the other modules those of one kind each, ``audit/`` the report of an audit. ``drawing.py`` is shared.
"""
