"""Data sets: by name, from files, or from a user's own objects; in splits that are normalised and ready."""

from sca_search.data.dataset import AnySplit, DataSet, TrainingSplit
from sca_search.data.input_spec import InputSpec
from sca_search.data.lazy import LazySplit
from sca_search.data.registry import DATA_NAMES, IMAGE_FILES, check_data_name, load_data, load_study_data
from sca_search.data.splits import AskedSplit, Batch, Batches, Split, TaughtSplit
from sca_search.data.targets import Kind
from sca_search.data.user import from_objects

__all__ = [
    "DATA_NAMES",
    "IMAGE_FILES",
    "AnySplit",
    "AskedSplit",
    "Batch",
    "Batches",
    "DataSet",
    "InputSpec",
    "Kind",
    "LazySplit",
    "Split",
    "TaughtSplit",
    "TrainingSplit",
    "check_data_name",
    "from_objects",
    "load_data",
    "load_study_data",
]
