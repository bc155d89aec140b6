"""The search behind the command line and the Python API: from a resolved study to its results."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from sca_search.config.storage_url import Shared
from sca_search.config.study import StudySpec
from sca_search.runs.folder import new_run, resumed_run
from sca_search.runs.provenance import note_command
from sca_search.study.events import StudyListener
from sca_search.study.queue import join
from sca_search.study.run import Finished, run_study
from sca_search.study.setup import make_task, prepare_costs
from sca_search.study.workers import threads_of
from sca_search.system.signals import stop_on_interrupt
from sca_search.training.task import BY_NAME, Source


def run_search(
    spec: StudySpec,
    command: Sequence[str],
    listeners: Sequence[StudyListener] = (),
    source: Source = BY_NAME,
    *,
    resume: bool = False,
    shared: Shared | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> Finished:
    """Run a study in a new or an existing run folder, which records the command.

    Mistakes of the user are raised before anything is written. Ctrl-C and SIGTERM stop the study and requeue the
    running trial.
    """
    task = make_task(spec, source)
    known = None
    if shared:
        known = join(spec, shared)
    elif resume:
        known = resumed_run(spec, training_is_whole=task.data.training_is_whole)
    if known is None:
        task.start_model()  # weights that do not fit are rejected before anything is written
    costs = prepare_costs(spec, task, known.latency_file if known else None, say)
    run = known or new_run(spec)
    note_command(run, command, threads_of(spec, task))
    with stop_on_interrupt() as stop:
        finished = run_study(run, spec, task, listeners, stop, costs)
        return replace(finished, exit_code=stop.exit_code)
