"""Datasets in the wheel, and loaders for the usual files on disk."""

from reconrisk.data.adult import read_adult, read_adult_folder
from reconrisk.data.cifar import read_cifar_binary, read_cifar_folder, read_cifar_python
from reconrisk.data.columns import CategoricalColumn, Column, NumericColumn, decode
from reconrisk.data.csv_file import read_csv
from reconrisk.data.dataset import Dataset
from reconrisk.data.folders import DataFolder, data_folders
from reconrisk.data.idx import read_idx, read_idx_folder
from reconrisk.data.image_folder import read_image_folder
from reconrisk.data.load import load_dataset
from reconrisk.data.npz import read_npz

__all__ = [
    "CategoricalColumn",
    "Column",
    "DataFolder",
    "Dataset",
    "NumericColumn",
    "data_folders",
    "decode",
    "load_dataset",
    "read_adult",
    "read_adult_folder",
    "read_cifar_binary",
    "read_cifar_folder",
    "read_cifar_python",
    "read_csv",
    "read_idx",
    "read_idx_folder",
    "read_image_folder",
    "read_npz",
]
