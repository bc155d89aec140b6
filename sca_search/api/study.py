"""A study from Python; network and data are Python objects or names.

    result = sca.search(model, data, target_sparsity=0.5)
    result.front                              # a pandas table
    result.chosen.export("out/", formats=["c", "onnx"])

It runs the same search as the command, with the same run folder, dashboard and files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from sca_search.config.load import FLAGS, resolve
from sca_search.config.references import PYTHON_OBJECT
from sca_search.config.study import StudySpec
from sca_search.dashboard import PageWriter
from sca_search.errors import SpecError, unknown_name
from sca_search.export.folder import FORMATS, Exported, ExportOptions, parse_formats
from sca_search.export.run import export_run, found_network, trial_row
from sca_search.runs.candidates import exported_model, read_table, records_of
from sca_search.runs.folder import RunFolder
from sca_search.runs.trials import read_csv
from sca_search.study.process_state import process_state_restored
from sca_search.study.progress import StudyDisplay
from sca_search.study.session import run_search
from sca_search.system.console import SafeConsole
from sca_search.training.task import OBJECTS, Source

# Settings that are separate arguments of `search`.
_ARGUMENTS = {"model", "data"}


@process_state_restored()
def search(
    model: Any = "lenet-small",
    data: Any = "digits",
    *,
    study: str | Path | None = None,
    trust: bool = False,
    progress: bool = True,
    resume: bool = False,
    **settings: Any,
) -> "Result":
    """Search ternary networks. `settings` are the command's flags: target_sparsity, trials, epochs, out, ….

    `model` is a torch module, which is copied, a function of the number of outputs and the input shape, or a name as
    in the command. `data` is a LightningDataModule, a tuple of train, validation and test data sets, or a name. The
    settings `loss` and `metric` may be functions of (outputs, targets). `study` is a study file; settings override it.
    Code that the file names runs only with `trust`.
    Random states, the number of torch's threads, Optuna's verbosity and signal handlers are restored at the end.
    """
    for name in settings:
        if name not in FLAGS or name in _ARGUMENTS:
            raise SpecError(f"search: {unknown_name('setting', name, FLAGS.keys() - _ARGUMENTS)}")
    values = settings | {"model": model, "data": data}
    source = Source(**{name: values[name] for name in OBJECTS if not isinstance(values.get(name), str | None)})
    flags = values | {name: _name_of(values[name]) for name in OBJECTS if values.get(name) is not None}
    spec = resolve(Path(study) if study is not None else None, flags, trust=trust)
    if source.has_objects and spec.search.workers > 1:
        raise SpecError(
            f"search: workers must be 1 with objects made in Python, got {spec.search.workers}: "
            "other processes can only load what has a name (file.py:function)"
        )
    console = SafeConsole(quiet=not progress)
    with StudyDisplay(console) as display:
        listeners = (PageWriter(), display)
        finished = run_search(spec, ["(from Python)"], listeners, source, resume=resume, say=console.print)
    if finished.stopped:
        raise KeyboardInterrupt(f"{finished.run.path}: stopped; the same call with resume=True continues")
    return Result(finished.run.path, source, trust=True)


def _name_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{PYTHON_OBJECT}{getattr(value, '__name__', type(value).__name__)}"


@dataclass(frozen=True)
class Result:
    """A finished study: tables, dashboard, networks."""

    path: Path  # the run folder
    source: Source
    trust: bool = False  # whether code that the study names may run

    @property
    def _spec(self) -> StudySpec:
        return RunFolder(self.path).spec(trust=self.trust)

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row per trial."""
        return read_csv(RunFolder(self.path).trials_file)

    @cached_property
    def front(self) -> pd.DataFrame:
        """The Pareto front of accuracy against sparsity."""
        return read_csv(RunFolder(self.path).front_file)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        return read_table(RunFolder(self.path).summary_file)

    @property
    def dashboard(self) -> Path:
        """The path of the dashboard page."""
        return RunFolder(self.path).dashboard_file

    @property
    def chosen(self) -> "TrialModel":
        """The network of the chosen trial; RunError where no trial meets the goal."""
        return self.trial(None)

    def trial(self, number: int | None) -> "TrialModel":
        """The network of any trial; None: of the chosen one."""
        run = RunFolder(self.path)
        row = trial_row(run, self._spec, number)
        return TrialModel(self, int(row["trial"]), row)


@dataclass(frozen=True)
class TrialModel:
    """A trained network of a study: of a trial, or of its refit if the study's rule selects that one."""

    result: Result
    trial: int
    row: dict[str, Any]  # of the table of trials

    @cached_property
    def _record(self) -> dict[str, Any]:
        run = RunFolder(self.result.path)
        goal = self.result._spec.goal
        return exported_model(records_of(run, int(self.row["candidate"])), self.row, goal, run.metric)

    @property
    def refit(self) -> int | None:
        """The number of the refit; None for the trial itself."""
        refit: int | None = self._record["refit"]
        return refit

    @property
    def reason(self) -> str:
        """Why the goal selects this trial; empty for the others."""
        return str(self.row["chosen_reason"])

    @property
    def sparsity(self) -> float:
        """The fraction of zeros, counted in its file."""
        return float(self._record["sparsity"])

    @property
    def metric(self) -> float:
        """The study's metric on the validation split."""
        return float(self._record["metric"])

    @property
    def test_metric(self) -> float | None:
        """The metric on the test split, which is evaluated for the chosen trial only, at the end of a study."""
        chosen = self.result.summary.get("chosen") or {}
        is_same = (chosen.get("trial"), chosen.get("refit")) == (self.trial, self.refit)
        return chosen.get("test_metric") if is_same else None

    @process_state_restored()
    def export(
        self, out: str | Path, formats: Sequence[str] = FORMATS, *, replace: bool = False, **options: Any
    ) -> Exported:
        """Write the files of an export and verify them; `options` are those of the command."""
        chosen = ExportOptions(parse_formats(",".join(formats)), replace=replace, **options)
        result = self.result
        return export_run(result.path, self.trial, Path(out), chosen, result.source, trust=result.trust)

    @process_state_restored()
    def model(self) -> nn.Module:
        """The network with its trits, as a torch module that normalizes its inputs itself."""
        run = RunFolder(self.result.path)
        return found_network(run, self.result._spec, self.row, self.result.source).normalized()
