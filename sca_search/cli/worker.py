"""`worker`: takes part in a study that machines share."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sca_search.config.storage_url import STORAGE_VARIABLE, Shared, shared_by
from sca_search.config.types import MAX_PROCESSES
from sca_search.errors import RunError, SpecError, nearest_name
from sca_search.system.console import answer, errors, remarks, results, say
from sca_search.system.signals import stop_on_interrupt

if TYPE_CHECKING:
    from sca_search.config.study import StudySpec


def worker_command(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="The study's name, as --name gave it.")],
    storage: Annotated[
        str | None,
        typer.Option(
            help=f"The database: postgresql://USER@HOST/DATABASE; or in {STORAGE_VARIABLE}.", show_default=False
        ),
    ] = None,
    artifacts: Annotated[
        str | None,
        typer.Option(help="Where the machines share files: file:///FOLDER or s3://BUCKET/PREFIX.", show_default=False),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes here. Default 1.", min=1, max=MAX_PROCESSES, show_default=False)
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads a process.", min=1, max=MAX_PROCESSES, show_default=False)
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with this machine's copies of the data sets.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Where run folders lie.")] = Path("runs"),
) -> None:
    """Trains trials of a study that machines share, until none is left.

    The study's settings are those that it was begun with; a network or data of your own must be found here under the
    same name. Tables, page and export are made by the command that began the study.

    **Example**

    `sca-search worker digits-front --storage postgresql://me@db/studies --artifacts s3://bucket/studies`
    """
    shared = shared_by(storage, artifacts)
    if shared is None:
        raise SpecError(f"--storage must be given, or {STORAGE_VARIABLE} be set: a worker joins a shared study")
    say("loading torch")
    spec = _spec(study, shared, out)
    own = {name: value for name, value in (("workers", workers), ("threads", threads)) if value is not None}
    search = spec.search.model_copy(update=own)
    data = spec.data if data_dir is None else spec.data.model_copy(update={"dir": data_dir.expanduser()})
    _join(spec.model_copy(update={"search": search, "data": data}), shared)


def _spec(name: str, shared: Shared, out: Path) -> "StudySpec":
    """Of the study as it was begun."""
    import optuna

    from sca_search.runs.folder import RunFolder
    from sca_search.study.queue import shared_spec
    from sca_search.study.storage import open_storage, storage_errors

    run = RunFolder(out / name, shared)
    with contextlib.closing(open_storage(run, at_once=True)) as storage, storage_errors(run):
        known = [each.study_name for each in storage.get_all_studies()]
        if name not in known:
            raise RunError(f"--storage holds no study named {name!r}{nearest_name(name, known)}")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        spec = shared_spec(optuna.load_study(study_name=name, storage=storage))
    return spec.model_copy(update={"out": out.expanduser()})


def _join(spec: "StudySpec", shared: Shared) -> None:
    from sca_search.runs.provenance import note_command
    from sca_search.study.events import TrialCounter
    from sca_search.study.progress import StudyDisplay
    from sca_search.study.queue import join
    from sca_search.study.run import join_study
    from sca_search.study.setup import make_task
    from sca_search.study.workers import threads_of

    task = make_task(spec)
    run = join(spec, shared)
    note_command(run, sys.argv[1:], threads_of(spec, task))
    counter = TrialCounter()
    with stop_on_interrupt() as stop, StudyDisplay(remarks()) as display:
        finished = join_study(run, spec, task, [counter, display], stop)
    results().print(f"{len(counter.trials)} trials of {run.study_name} were trained here.", highlight=False)
    answer({"study": run.study_name, "run": run.path, "trials": counter.trials, "stopped": finished.stopped})
    if finished.stopped:
        errors().print("Stopped as asked. What was under way is put back.")
        raise typer.Exit(stop.exit_code)
