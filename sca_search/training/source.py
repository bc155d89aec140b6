"""Where a study's data and network come from: by the names in its spec, or objects that were made in Python."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sca_search.config.study import DataSpec, StudySpec
from sca_search.config.types import PYTHON_OBJECT
from sca_search.data import DataSet, from_objects, load_study_data
from sca_search.errors import DataError, ModelError
from sca_search.models import Maker, find_maker, maker_of

# What may be an object instead of a name.
OBJECTS = ("model", "data", "loss", "metric")


@dataclass(frozen=True)
class Source:
    """Objects that stand instead of names; None where the spec's name is meant."""

    model: Any = None
    data: Any = None
    loss: Any = None  # functions of (outputs, targets), as is the metric
    metric: Any = None

    @property
    def has_objects(self) -> bool:
        return any(getattr(self, name) is not None for name in OBJECTS)

    def load(self, spec: StudySpec, *, check_test: bool = True) -> DataSet:
        """The data set."""
        data, seed = spec.data, spec.seed
        if self.data is not None:
            if data.skip_unreadable:
                raise DataError(f"data set {data.name!r}: unreadable files are left out where we read them, not here")
            made = from_objects(data.name, self.data, seed=seed, train_limit=data.train_limit, normalise=data.normalise)
            return made.augmented_by(data.augment)
        if data.name.startswith(PYTHON_OBJECT):
            raise DataError(f"data set {data.name!r} was made in Python: only there can it be read again")
        return load_study_data(data, seed, check_test=check_test)

    def maker(self, spec: StudySpec, outputs: int, input_shape: Sequence[int]) -> Maker:
        """What makes the network."""
        name, shape = spec.model.name, tuple(input_shape)
        if self.model is not None:
            return maker_of(self.model, outputs, shape, name)
        if name.startswith(PYTHON_OBJECT):
            raise ModelError(
                f"model {name!r} was made in Python: only there can it be made again (result.chosen.export); "
                "a network of file.py:function can be made anywhere"
            )
        return find_maker(name, num_classes=outputs, input_shape=shape, dropout=spec.model.dropout)


@dataclass(frozen=True)
class OnceRead(Source):
    """Studies that share their data: it is read once."""

    kept: dict[tuple[DataSpec, int], DataSet] = field(default_factory=dict)

    def load(self, spec: StudySpec, *, check_test: bool = True) -> DataSet:
        key = (spec.data, spec.seed)
        if key not in self.kept:
            self.kept.clear()  # another data set takes its place in memory
            self.kept[key] = super().load(spec, check_test=check_test)
        return self.kept[key]


BY_NAME = Source()
