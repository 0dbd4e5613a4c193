"""Attacks on trained models by an adversary who knows every training record but one.

Start with ``glm/`` (exact for linear models), then ``invert_training/`` (Gauss-Newton through the training of a
network) and ``reconstructor/`` (learned from shadow models). ``match_candidates.py`` picks the most likely of given
candidates under DP-SGD; ``membership.py`` turns a reconstruction into a membership test.
"""
