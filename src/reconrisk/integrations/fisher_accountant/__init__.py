"""Fisher information about each training record of a DP-SGD run, accounted for while it trains.

Read ``accountant.py`` (attached to the optimizer) and ``account.py`` (the result) first. ``ledger.py`` keeps running
estimates per record, ``checks.py`` validates arguments and predicts the cost before training, ``state.py`` stores an
account, ``summary.py`` computes the numbers for reports.
"""
