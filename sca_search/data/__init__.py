"""Data sets by name, from files, or from the user's objects, as normalized splits."""

from sca_search.config.names import Kind
from sca_search.data.dataset import AnySplit, DataSet, TrainingSplit, checksum
from sca_search.data.input_spec import InputSpec
from sca_search.data.registry import DATA_NAMES, IMAGE_FILES, check_data_name, load_data, load_study_data
from sca_search.data.splits import Batch, Batches, LazySplit, Split, TeacherSplit
from sca_search.data.user import from_objects

__all__ = [
    "DATA_NAMES",
    "IMAGE_FILES",
    "AnySplit",
    "Batch",
    "Batches",
    "DataSet",
    "InputSpec",
    "Kind",
    "LazySplit",
    "Split",
    "TeacherSplit",
    "TrainingSplit",
    "check_data_name",
    "checksum",
    "from_objects",
    "load_data",
    "load_study_data",
]
