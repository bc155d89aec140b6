"""Trainings on augmented images: who sees them, that pauses change nothing, and what is kept of the dense network."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate, Ramp, Tracked
from sca_search.config.study import StudySpec
from sca_search.data import TeacherSplit
from sca_search.runs.folder import RunFolder
from sca_search.study.setup import make_task, warm_start
from sca_search.training.sensitivity import measure_sensitivity
from sca_search.training.task import PausedError, Rungs, Task, WarmStart
from sca_search.training.train import CandidateTraining, train_candidate, train_dense

SPEC = StudySpec.model_validate({"data": {"train_limit": 200, "augment": "crop-flip"}, "train": {"dense_epochs": 1}})


@pytest.fixture(scope="module")
def task() -> Task:
    """200 digits: 4 batches per epoch."""
    return make_task(SPEC)


@pytest.fixture(scope="module")
def start(task: Task) -> WarmStart:
    return train_dense(task, epochs=1, learning_rate=0.01, seed=0)


def candidate(**changes: object) -> Candidate:
    settings: dict[str, object] = {
        "sparsity": 0.9,
        "alpha": Tracked(),
        "strength": Ramp(first=1.0, last=20.0),
        "learning_rate": 0.01,
        "latent_learning_rate": 0.02,
        "epochs": 2,
        "frozen_epochs": 1,
        "frozen_learning_rate": 0.005,
    }
    return Candidate(**settings | changes)


class Seen:
    """The images that networks of a task were shown, by what they were to take from them."""

    def __init__(self, task: Task) -> None:
        self.learning: set[bytes] = set()
        self.statistics: set[bytes] = set()
        self.else_: set[bytes] = set()
        self.task = replace(task, make_model=self._watched, make_start=None)
        self._make = task.make_model

    def _watched(self) -> nn.Module:
        model = self._make()
        model.register_forward_pre_hook(self._look)
        return model

    def _look(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if torch.is_grad_enabled():
            into = self.learning if model.training else self.else_
        else:
            into = self.statistics if any(part.training for part in model.modules()) else self.else_
        into.update(_bytes(inputs[0]))


def _bytes(images: Tensor) -> Iterator[bytes]:
    return (image.contiguous().numpy().tobytes() for image in images)


def as_they_are(task: Task) -> set[bytes]:
    return {*_bytes(task.data.train.images), *_bytes(task.data.val.images)}  # type: ignore[union-attr]


def test_weights_and_statistics_come_from_augmented_images_scores_from_plain_ones(
    task: Task, start: WarmStart, tmp_path: Path
) -> None:
    plain, seen = as_they_are(task), Seen(task)
    dense = train_dense(seen.task, epochs=2, learning_rate=0.01, seed=0)
    measure_sensitivity(seen.task, dense)
    assert seen.else_ <= plain
    assert len(seen.statistics - plain) > 150
    # 200 images, 9 corners, mirrored or not: one in 18 stays as it is, twice.
    assert len(seen.learning - plain) > 300
    seen = Seen(task)
    rungs = Rungs((1,), lambda _epoch, _score: False, tmp_path / "checkpoint.safetensors")
    with pytest.raises(PausedError):
        train_candidate(candidate(), seen.task, start, rungs=rungs)
    assert len(seen.statistics - plain) > 150  # the look at the rung
    seen.statistics.clear()
    train_candidate(candidate(), seen.task, start)
    assert seen.else_ <= plain
    assert len(seen.statistics - plain) > 150
    assert len(seen.learning - plain) > 400


def test_the_dense_network_is_asked_at_every_step(task: Task, start: WarmStart) -> None:
    assert start.teacher_logits.numel() == 0  # answers to the images as they are would be of no use
    training = CandidateTraining(candidate(distillation=0.9), task, start)
    assert isinstance(training.train_split, TeacherSplit)
    teacher = task.model_with(start.state).eval()
    images, _, answers = next(iter(training.train_split.batches(50, seed=0)))
    with torch.no_grad():
        torch.testing.assert_close(answers, teacher(images))
    assert not set(_bytes(images)) <= as_they_are(task)


@pytest.mark.parametrize("distillation", [0.0, 0.9])
def test_a_paused_training_goes_on_with_the_images_that_it_would_have_seen(
    task: Task, start: WarmStart, tmp_path: Path, distillation: float
) -> None:
    chosen = candidate(distillation=distillation, seed=3)
    whole = train_candidate(chosen, task, start)
    place = tmp_path / "checkpoint.safetensors"
    with pytest.raises(PausedError):
        train_candidate(chosen, task, start, rungs=Rungs((1,), lambda _epoch, _score: False, place))
    paused = train_candidate(chosen, task, start, rungs=Rungs((), checkpoint=place))
    ours, theirs = paused.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert paused.score == whole.score


def test_a_warm_start_without_outputs_is_read_back(task: Task, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    first = warm_start(run, SPEC, task)
    again = warm_start(run, SPEC, task)
    assert first.teacher_logits.numel() == again.teacher_logits.numel() == 0
    assert first.score == again.score
    assert all(torch.equal(first.state[name], again.state[name]) for name in first.state)
