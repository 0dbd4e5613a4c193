"""Studies: the only layer that holds target, attack and bound together. One folder per question.

Start with ``audit/`` (how much do attacks rebuild, compared with guarantees). ``recommend/`` chooses a defense,
``tradeoff/`` measures leakage against utility, ``rebuild/`` runs one attack, ``informed/`` attacks a trained model,
``leakage/`` computes Fisher leakage per record, ``prior_value/`` tells leakage from plausible guesses of a prior,
``verify_mechanism/`` tests if a training adds the noise that it claims.
Studies share ``common/`` and do not import each other.
"""
