"""Shared vocabulary: frozen values, enums and protocols. No algorithm, no torch at run time.

Read ``mechanism.py``, ``threat.py``, ``observation.py``, ``reconstruction.py`` and ``guarantee.py`` first, then
``metric.py``, ``defense.py`` and ``columns.py``. ``validation.py`` and ``errors.py`` hold the one
vocabulary of error messages, ``registry.py`` finds entries and plugins by name, ``executor.py`` and ``progress.py`` run
tasks that people wait for, ``lazy.py`` loads public names on first use, ``papers.py`` has the references. ``storage/``
reads and writes files, JSON and results.
"""

VERSION = "0.1.0"
"""The version of the package: the one place that states it."""
