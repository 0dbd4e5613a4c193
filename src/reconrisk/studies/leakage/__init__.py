"""Leakage of each record through one noisy step of DP-SGD (guo2022's dFIL).

Read ``leakage.py`` (``rr.leakage``) first; ``report.py`` is the result that is printed and stored.
"""
