"""Run one attack on chosen records, with scores and pictures.

Read ``updates.py`` (``rr.rebuild``: updates are computed from known records), then ``captured.py``
(``rr.rebuild_captured``: an update whose records are unknown). ``report.py`` is the result that is printed and stored.
"""
