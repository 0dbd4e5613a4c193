"""Check of a mechanism: does a training add the noise that it claims?

Read ``verify.py`` (``rr.verify_mechanism``) first, then ``evidence.py`` (tests) and ``conclusion.py`` (verdict).
``sources.py`` makes releases of a defense or a training step, ``iterates.py`` reads them from a finished run, and
``trainings.py`` guesses canaries from final models. ``claims.py`` computes with the claimed mechanism, and
``noise_fit.py`` compares the noise with its description. ``result.py`` is
the result that is printed and stored.
"""
