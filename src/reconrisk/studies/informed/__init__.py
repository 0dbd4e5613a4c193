"""Attacks on a trained model by an adversary who knows every training record but one.

Read ``network.py`` (``rr.rebuild_informed`` for networks) and ``linear.py`` (``rr.rebuild_informed_linear``), then
``split.py`` (known and unknown records, and the bound under known noise) and ``result.py``.
"""
