"""One attack on chosen records, with scores and pictures.

Read ``updates.py`` (``rr.rebuild``: updates are made of known records), then ``captured.py`` (``rr.rebuild_captured``:
an update without its records). ``report.py`` is the result that is printed and stored.
"""
