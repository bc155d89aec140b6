"""`worker`: joins a study that several machines share."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sca_search.cli.options import TrustOption, option
from sca_search.config.load import require_trust
from sca_search.config.references import expand_home
from sca_search.config.storage_url import STORAGE_VARIABLE, Shared, shared_by
from sca_search.config.types import MAX_PROCESSES
from sca_search.errors import RunError, SpecError, nearest_name
from sca_search.system.console import errors, info, print_json, results, say
from sca_search.system.signals import stop_on_interrupt

if TYPE_CHECKING:
    from sca_search.config.study import StudySpec


def worker_command(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Name of the study (its --name).")],
    storage: Annotated[
        str | None, option(f"Database of the study: postgresql://USER@HOST/DATABASE; or set {STORAGE_VARIABLE}.")
    ] = None,
    artifacts: Annotated[
        str | None, option("Artifact store of the machines: file:///FOLDER or s3://BUCKET/PREFIX.")
    ] = None,
    workers: Annotated[
        int | None, option("Worker processes on this machine. Default 1.", min=1, max=MAX_PROCESSES)
    ] = None,
    threads: Annotated[int | None, option("Threads per process.", min=1, max=MAX_PROCESSES)] = None,
    data_dir: Annotated[Path | None, option("Folder with this machine's copies of the data sets.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run folders.")] = Path("runs"),
    trust: TrustOption = False,
) -> None:
    """Train trials of a shared study until none is left.

    The settings are those of the command that started the study. Files with your own model or data must have the same
    path here. Tables, dashboard and export are written by the command that started the study.

    **Example**

    `sca-search worker digits-front --storage postgresql://me@db/studies --artifacts s3://bucket/studies`
    """
    shared = shared_by(storage, artifacts)
    if shared is None:
        raise SpecError(f"--storage must be given, or {STORAGE_VARIABLE} be set: a worker joins a shared study")
    say("loading torch")
    spec = _spec(study, shared, out)
    if not trust:
        require_trust(f"--storage: study {study!r}", spec.references)
    own = {"workers": workers, "threads": threads}
    search = spec.search.model_copy(update={name: value for name, value in own.items() if value is not None})
    data = spec.data if data_dir is None else spec.data.model_copy(update={"dir": expand_home(data_dir)})
    _join(spec.model_copy(update={"search": search, "data": data}), shared)


def _spec(name: str, shared: Shared, out: Path) -> "StudySpec":
    """The spec of the study in the database."""
    import optuna

    from sca_search.runs.folder import RunFolder
    from sca_search.study.queue import shared_spec
    from sca_search.study.storage import open_storage, storage_errors

    run = RunFolder(out / name, shared)
    with contextlib.closing(open_storage(run, at_once=True)) as storage, storage_errors(run):
        known = [each.study_name for each in storage.get_all_studies()]
        if name not in known:
            raise RunError(f"--storage has no study named {name!r}{nearest_name(name, known)}")
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        spec = shared_spec(optuna.load_study(study_name=name, storage=storage))
    return spec.model_copy(update={"out": expand_home(out)})


def _join(spec: "StudySpec", shared: Shared) -> None:
    from sca_search.runs.log import note_command
    from sca_search.study.events import TrialCounter
    from sca_search.study.progress import StudyDisplay
    from sca_search.study.queue import join
    from sca_search.study.session import join_study
    from sca_search.study.setup import inputs_of, make_task, threads_of

    task = make_task(spec)
    inputs = inputs_of(spec, task)
    run = join(spec, shared, inputs)
    note_command(run, sys.argv[1:], threads_of(spec, task), inputs)
    counter = TrialCounter()
    with stop_on_interrupt() as stop, StudyDisplay(info()) as display:
        finished = join_study(run, spec, task, [counter, display], stop)
    results().print(f"{len(counter.trials)} trials of {run.study_name} were trained on this machine.")
    print_json({"study": run.study_name, "run": run.path, "trials": counter.trials, "stopped": finished.stopped})
    if finished.stopped:
        errors().print("Interrupted. The running trial was returned to the queue.")
        raise typer.Exit(stop.exit_code)
