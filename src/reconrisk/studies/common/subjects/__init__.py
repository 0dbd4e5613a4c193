"""Kinds of audited objects, one file each: read ``subject`` first, then the kind of interest.

``subject`` holds the base class and the factory :func:`~reconrisk.studies.common.subjects.subject.subject_of`. The
kinds are ``model_updates`` (updates of clients who train a model, and their loss), ``given_release``,
``trained_network`` and ``fitted_estimator``. A new kind is a new file and its row in ``subject``.
"""
