"""Data sets: bundled ones, and loaders for common file formats.

Start with ``dataset.py`` (the type) and ``load.py`` (one call for every source, which detects the format).
``bundled_sets.py`` and ``data_folders.py`` find data sets by name. One reader per format: ``idx.py``, ``cifar.py``,
``image_folder.py``, ``npz.py``, ``csv_table.py``, ``adult.py``; ``safe_pickle.py`` reads pickled arrays without running
code. ``table.py``, ``columns.py`` and ``arrays.py`` turn cells and arrays into records; ``file_bytes.py`` reads files.
"""

from reconrisk.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
