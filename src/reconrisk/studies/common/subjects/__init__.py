"""What is audited, one file per kind: read ``subject`` first, then the kind you care about.

``subject`` has the base class and the factory :func:`~reconrisk.studies.common.subjects.subject.subject_of`. The kinds:
``model_updates`` (updates that clients make of a model, and the loss they train with), ``given_release``,
``trained_network`` and ``fitted_estimator``. A new kind is a new file and its row in ``subject``.
"""
