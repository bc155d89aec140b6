"""How a command with several studies shows the one that is running."""

from collections.abc import Iterator
from contextlib import contextmanager

from sca_search.display import StudyDisplay
from sca_search.screen import remarks
from sca_search.shortening import told
from sca_search.spec import StudySpec
from sca_search.study import Audience
from sca_search.task import Task


@contextmanager
def watched(spec: StudySpec, task: Task) -> Iterator[Audience]:
    """Prints what is to be known of a study, then follows it on the screen."""
    for note in task.data.notes:
        remarks().print(f"{task.data.name}: {note}", highlight=False, soft_wrap=True, markup=False)
    if spec.recipe is not None:
        remarks().print(told(spec), style="dim", highlight=False, soft_wrap=True, markup=False)
    display = StudyDisplay(spec, remarks(), task.metric.name)
    with display.shown():
        yield display.audience(Audience())
