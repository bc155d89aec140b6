"""Running a study: refits that fail, stops in the middle of a whole split."""

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sca_search.config.study import StudySpec
from sca_search.errors import LimitError
from sca_search.runs.folder import new_run
from sca_search.study.events import Note, TrialEnded
from sca_search.study.results import within
from sca_search.study.session import run_study
from sca_search.study.setup import make_task
from sca_search.system.signals import NEVER, StopWhen
from sca_search.training.fit import StopRequestedError
from sca_search.training.train import until_stopped


def short_study(tmp_path, **search) -> StudySpec:
    train = {"epochs": 1, "dense_epochs": 1, "frozen_epochs": 0}
    return StudySpec.model_validate(
        {
            **{"name": "short", "out": tmp_path, "data": {"train_limit": 200}, "train": train},
            "search": {"trials": 1, "threads": 1, **search},
        }
    )


class FailingLoss:
    """Cross entropy, until it is told to fail."""

    def __init__(self, how):
        self.how, self.fails = how, False

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.fails and outputs.requires_grad:
            return self.how(outputs)
        return functional.cross_entropy(outputs, targets)


def no_memory(_outputs: Tensor) -> Tensor:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 10 bytes")


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (lambda outputs: outputs.sum() * torch.nan, "diverged: the loss became nan in epoch 1"),
        (no_memory, "ran out of memory: DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["diverged", "memory"],
)
def test_a_refit_that_fails_is_told_and_left_out(tmp_path, how, reason) -> None:
    spec, loss, notes = short_study(tmp_path, refits=2), FailingLoss(how), []

    class Listener:
        def on_event(self, event) -> None:
            match event:
                case TrialEnded():
                    loss.fails = True  # from now on, which is the first refit
                case Note(text):
                    notes.append(text)
                    loss.fails = False

    run = new_run(spec)
    task = replace(make_task(spec), loss=loss)
    finished = run_study(run, spec, task, [Listener()])
    assert len(notes) == 1
    assert notes[0].startswith(f"refit 1 of candidate 0 failed and is left out: {reason}")
    assert not finished.stopped
    assert json.loads(run.summary_file.read_text())["chosen"]["refits"] == 1  # the second one
    assert not run.candidate(0, 1).exists()
    assert (run.candidate(0, 2) / "candidate.json").is_file()


def test_a_refit_has_the_time_of_a_trial() -> None:
    assert within(60.0, StopWhen(lambda: True)).is_set()
    assert not within(None, NEVER).is_set()
    with pytest.raises(LimitError, match=r"took longer than its 0 s"):
        within(0.0, NEVER).is_set()


def test_a_stop_in_the_midst_of_a_split_is_answered_before_the_next_batch() -> None:
    given = []

    def batches():
        for number in range(100):
            given.append(number)
            yield (torch.tensor(number),)

    with pytest.raises(StopRequestedError):
        list(until_stopped(batches(), StopWhen(lambda: len(given) == 4)))
    assert given == [0, 1, 2, 3]
    assert len(list(until_stopped([(torch.zeros(1),)] * 5, NEVER))) == 5


@pytest.mark.e2e
def test_a_stop_while_the_test_images_are_read_leaves_them_for_later(tmp_path) -> None:
    spec = short_study(tmp_path, refits=0)
    run, stops = new_run(spec), []
    task = make_task(spec)

    def read_test():
        stops.append(None)
        return task.data.read_test()

    slow = replace(task, data=replace(task.data, read_test=read_test))
    stopped = run_study(run, spec, slow, stop=StopWhen(lambda: bool(stops)))
    assert stopped.stopped
    assert "test_metric" not in json.loads(run.summary_file.read_text())["chosen"]
    again = run_study(run, spec, task)
    assert not again.stopped
    assert "test_metric" in json.loads(run.summary_file.read_text())["chosen"]
