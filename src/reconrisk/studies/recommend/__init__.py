"""Recommend the cheapest defense that keeps the reconstruction risk below a stated limit.

Read ``recommend.py`` first (``rr.recommend_defense``). ``search.py`` searches the weakest sufficient strength of each
family, confirms it on fresh records and trains with it. ``public_part.py`` configures and evaluates defenses with
public records only. ``attacked_share.py`` counts the records that any attack reconstructs. ``result.py`` is the result
with its sentence and table.
"""
