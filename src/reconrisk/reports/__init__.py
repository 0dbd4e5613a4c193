"""Results as pages, pictures and text. No torch, and nothing is computed again.

Each file renders the result of one study, whose type it imports for type checking only: ``audit/`` (the page, JUnit,
model card), ``rebuild.py``, ``informed.py``, ``leakage.py``, ``tradeoff.py``, ``corridor.py``. ``drawing.py`` has the
shared drawing in SVG and matplotlib.
"""
