"""Leakage of each record through one noisy step of DP-SGD (the dFIL of guo2022).

Read ``leakage.py`` (``rr.leakage``) first. ``report.py`` is the result that is printed and stored.
"""
