"""Study files and flags: the validated settings of a study, its candidates and schedules. Needs no torch."""

from sca_search.config.candidate import Candidate, Schedule
from sca_search.config.load import FLAGS, differences, read_toml, resolve
from sca_search.config.study import RecipeSpec, StudySpec

__all__ = ["FLAGS", "Candidate", "RecipeSpec", "Schedule", "StudySpec", "differences", "read_toml", "resolve"]
