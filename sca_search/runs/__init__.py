"""The run folder on disk: paths, trials.csv, goal and chosen trial, candidates, provenance. Needs no torch."""

from sca_search.runs.folder import RunFolder, new_run, resumed_run
from sca_search.runs.goal import chosen_trial, limits_of
from sca_search.runs.trials import pareto_front, read_csv, trial_frame

__all__ = [
    "RunFolder",
    "chosen_trial",
    "limits_of",
    "new_run",
    "pareto_front",
    "read_csv",
    "resumed_run",
    "trial_frame",
]
