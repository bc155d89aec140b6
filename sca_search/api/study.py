"""A study from Python, on objects as well as on names.

    result = sca.search(model, data, target_sparsity=0.5)
    result.front                              # a pandas table
    result.chosen.export("out/", formats=["c", "onnx"])

It is the command's study in every respect: the same run folder, page and files.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from sca_search.config.load import FLAGS, resolve
from sca_search.config.study import StudySpec
from sca_search.config.types import PYTHON_OBJECT
from sca_search.dashboard import PageWriter
from sca_search.errors import RunError, SpecError, unknown_name
from sca_search.export.folder import FORMATS, Exported, ExportOptions, parse_formats
from sca_search.export.run import export_run, found_network, trial_row
from sca_search.runs.candidates import read_table
from sca_search.runs.folder import RunFolder, new_run, resumed_run
from sca_search.runs.goal import chosen_trial, unmet
from sca_search.runs.provenance import note_command
from sca_search.runs.trials import read_csv
from sca_search.study.progress import StudyDisplay
from sca_search.study.run import Audience, make_task, prepare_budgets, run_study
from sca_search.study.workers import threads_of
from sca_search.system.console import SafeConsole
from sca_search.system.signals import stop_on_interrupt
from sca_search.training.source import OBJECTS, Source

# What `search` takes as an argument of its own.
_OWN = {"model", "data"}


def search(
    model: Any = "lenet-small",
    data: Any = "digits",
    *,
    study: str | Path | None = None,
    progress: bool = True,
    resume: bool = False,
    **settings: Any,
) -> "Result":
    """Searches ternary networks; `settings` are the command's flags: target_sparsity, trials, epochs, out, ….

    `model` is a torch module, which is copied; a function of the number of outputs and the input's shape; or a name as
    the command takes it. `data` is a LightningDataModule, a tuple of train, validation and test data sets, or a name.
    The settings `loss` and `metric` may be functions of (outputs, targets).
    `study` is a study file that the settings overrule.
    """
    for name in settings:
        if name not in FLAGS or name in _OWN:
            raise SpecError(f"search: {unknown_name('setting', name, FLAGS.keys() - _OWN)}")
    given = settings | {"model": model, "data": data}
    source = Source(**{name: given[name] for name in OBJECTS if not isinstance(given.get(name), str | None)})
    flags = given | {name: _name_of(given[name]) for name in OBJECTS if given.get(name) is not None}
    spec = resolve(Path(study) if study is not None else None, flags)
    if source.has_objects and spec.search.workers > 1:
        raise SpecError(
            f"search: workers must be 1 with objects made in Python, got {spec.search.workers}: "
            "other processes can only make what has a name (file.py:function)"
        )
    return _run(spec, source, progress, resume)


def _name_of(given: Any) -> str:
    if isinstance(given, str):
        return given
    return f"{PYTHON_OBJECT}{getattr(given, '__name__', type(given).__name__)}"


def _run(spec: StudySpec, source: Source, progress: bool, resume: bool) -> "Result":
    console = SafeConsole(quiet=not progress)
    task = make_task(spec, source)
    for note in task.data.notes:
        console.print(f"{task.data.name}: {note}", highlight=False, markup=False)
    known = resumed_run(spec, training_is_whole=task.data.training_is_whole) if resume else None
    if known is None:
        task.start_model()  # weights that do not fit are refused before anything is written
    prepared = prepare_budgets(spec, task, known.latency_file if known else None, console.print)
    run = known or new_run(spec)
    note_command(run, ["(from Python)"], threads_of(spec, task))
    display = StudyDisplay(spec, console, task.metric.name)
    with _stops_on_interrupt() as stop, display.shown():
        audience = display.audience(Audience(stop_requested=stop, page=PageWriter))
        finished = run_study(run, spec, task, audience, prepared.calibration)
    if finished.stopped:
        raise KeyboardInterrupt(f"{run.path}: stopped as asked; the same call with resume=True goes on")
    return Result(run.path, source)


def _stops_on_interrupt() -> AbstractContextManager[Callable[[], bool]]:
    """Only the main thread may handle signals; elsewhere nobody can press Ctrl-C."""
    if threading.current_thread() is threading.main_thread():
        return stop_on_interrupt()
    return nullcontext(lambda: False)


@dataclass(frozen=True)
class Result:
    """A finished study: its tables, its page, its networks."""

    path: Path  # the run folder
    source: Source

    @cached_property
    def trials(self) -> pd.DataFrame:
        """A row a trial."""
        return read_csv(RunFolder(self.path).trials_file)

    @cached_property
    def front(self) -> pd.DataFrame:
        """The Pareto front of accuracy against sparsity."""
        return read_csv(RunFolder(self.path).front_file)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What summary.json says."""
        return read_table(RunFolder(self.path).summary_file)

    @property
    def dashboard(self) -> Path:
        """The page."""
        return RunFolder(self.path).dashboard_file

    @property
    def chosen(self) -> "Found":
        """The network that the goal picks; RunError where no trial meets it."""
        spec = RunFolder(self.path).spec()
        metric = RunFolder(self.path).metric
        number = chosen_trial(self.trials, spec.goal, metric)
        if number is None:
            raise RunError(f"{self.path}: {unmet(self.trials, spec.goal, metric)}")
        return self.trial(number)

    def trial(self, number: int) -> "Found":
        """Any trial's network."""
        run = RunFolder(self.path)
        return Found(self, number, trial_row(run, run.spec(), number))


@dataclass(frozen=True)
class Found:
    """One network that a study found."""

    result: Result
    trial: int
    row: dict[str, Any]  # of the table of trials

    @property
    def sparsity(self) -> float:
        """The share of zeros, counted in its file."""
        return float(self.row["sparsity"])

    @property
    def accuracy(self) -> float:
        """The study's metric on the validation split."""
        return float(self.row["metric"])

    @property
    def test_accuracy(self) -> float | None:
        """The same on the test split, which is read for the chosen one only, and at the end of a study."""
        chosen = self.result.summary.get("chosen")
        return chosen.get("test_metric") if chosen and chosen["trial"] == self.trial else None

    def export(
        self, out: str | Path, formats: Sequence[str] = FORMATS, *, replace: bool = False, **options: Any
    ) -> Exported:
        """Writes files to use elsewhere, and verifies them; `options` are those of the command."""
        chosen = ExportOptions(parse_formats(",".join(formats)), replace=replace, **options)
        return export_run(self.result.path, self.trial, Path(out), chosen, self.result.source)

    def model(self) -> nn.Module:
        """The network itself, with its trits, as a torch module that takes inputs as they are and normalises them."""
        run = RunFolder(self.result.path)
        return found_network(run, run.spec(), self.row, self.result.source).normalised()
