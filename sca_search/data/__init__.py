"""Data sets: by name, from folders of images, from .npz files; in splits that are normalised and ready."""

from sca_search.data.dataset import AnySplit, DataSet
from sca_search.data.lazy import LazySplit
from sca_search.data.names import DATA_NAMES, check_data_name, load_data, load_study_data
from sca_search.data.splits import Batch, Batches, Split, TaughtSplit

__all__ = [
    "DATA_NAMES",
    "AnySplit",
    "Batch",
    "Batches",
    "DataSet",
    "LazySplit",
    "Split",
    "TaughtSplit",
    "check_data_name",
    "load_data",
    "load_study_data",
]
