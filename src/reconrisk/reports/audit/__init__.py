"""The result of an audit as files.

Start with ``page.py``: one HTML file from ``page.html.jinja``, ``page.css`` and ``page.js`` that loads nothing else.
``figures.py`` draws its figures as SVG, ``words.py`` writes numbers and names, ``junit.py`` writes limits as test
results for build servers, ``model_card.py`` a paragraph for the card of a model.
"""
