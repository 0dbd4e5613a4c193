"""A trained model and an adversary who knows every training record but one.

Read ``network.py`` (``rr.rebuild_informed`` for networks) and ``linear.py`` (linear models), then ``split.py`` (known
and unknown records, and the bound under known noise) and ``result.py``.
"""
