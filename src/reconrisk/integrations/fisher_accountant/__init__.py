"""Fisher information of a DP-SGD training about each of its records, kept while it trains.

Read ``accountant.py`` (attached to the optimizer) and ``account.py`` (the result) first. ``ledger.py`` keeps running
estimates per record, ``checks.py`` refuses bad arguments and predicts the cost before training, ``state.py`` stores an
account, ``summary.py`` gives the numbers for reports.
"""
