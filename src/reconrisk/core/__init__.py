"""Types that all layers share: frozen values, enums and protocols. No algorithms, and no torch at run time.

Read ``mechanism.py``, ``threat.py``, ``observation.py``, ``reconstruction.py`` and ``guarantee.py`` first, then
``metric.py``, ``defense.py`` and ``columns.py``. ``validation.py`` and ``errors.py`` check arguments and word the error
messages. ``registry.py`` finds entries and plugins by name. ``executor.py`` and ``progress.py`` run long tasks.
``lazy.py`` imports public names on first use, ``papers.py`` lists the references, ``storage/`` reads and writes files,
JSON and results.
"""

VERSION = "0.1.0"
"""Version of the package. It is stated nowhere else."""
