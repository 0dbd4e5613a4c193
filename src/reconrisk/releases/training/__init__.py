"""A whole training as a differentiable map from some of its records to the trained network.

Read ``optimizers.py`` (update rules as pure functions), then ``unrolled.py`` (single steps, and reverse mode in little
memory), then ``trained_model.py`` (the release that attacks and audits use).
"""
