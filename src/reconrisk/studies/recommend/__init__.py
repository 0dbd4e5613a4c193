"""The cheapest defense that keeps the risk below a stated one.

Read ``recommend.py`` (``rr.recommend_defense``), then ``search.py`` (strengths that meet the target, confirmed on fresh
records, then trained with). ``public_part.py`` holds everything that may choose a defense: public records only.
``attacked_share.py`` counts the records that any attack rebuilds; ``result.py`` is the result with its sentence and
table.
"""
