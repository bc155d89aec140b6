"""Who looks on where several studies run one after the other, and how the screen follows the one that is running."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from sca_search.config.recipe import describe_scaling
from sca_search.config.study import StudySpec
from sca_search.runs.folder import RunFolder
from sca_search.study.events import Audience, NoPage, ResultsPage
from sca_search.study.progress import StudyDisplay
from sca_search.system.console import info
from sca_search.training.task import Task

Say = Callable[[str], None]


@contextmanager
def unwatched(_spec: StudySpec, _task: Task) -> Iterator[Audience]:
    """Nobody looks on."""
    yield Audience()


@contextmanager
def watched(spec: StudySpec, task: Task, page: Callable[[RunFolder], ResultsPage] = NoPage) -> Iterator[Audience]:
    """Prints what is to be known of a study, then follows it on the screen."""
    for note in task.data.notes:
        info().print(f"{task.data.name}: {note}", highlight=False, soft_wrap=True, markup=False)
    if spec.recipe is not None:
        info().print(describe_scaling(spec), style="dim", highlight=False, soft_wrap=True, markup=False)
    display = StudyDisplay(spec, info(), task.metric.name)
    with display.shown():
        yield display.audience(Audience(page=page))


@dataclass(frozen=True)
class Watcher:
    """Told of each study, asked whether to stop."""

    say: Say = field(default=lambda _line: None)
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    audience: Callable[[StudySpec, Task], AbstractContextManager[Audience]] = field(default=unwatched)
