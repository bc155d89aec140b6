"""A study: its plan, the queue of waiting trials, rungs and promotion, what it keeps, and its clock."""

import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, count, islice

import numpy as np
import optuna
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState, create_trial
from safetensors.torch import load_file, save_file

from sca_search.config.candidate import Candidate
from sca_search.config.study import GoalSpec, StudySpec
from sca_search.errors import CodeError, StorageError
from sca_search.runs.candidates import read_history
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import GRID, planned_ahead
from sca_search.runs.trials import trial_frame
from sca_search.study import objective, queue
from sca_search.study.events import Note, TrialEpoch, TrialStarted, ignore
from sca_search.study.halving import RungScore
from sca_search.study.objective import Clock, Objective, work
from sca_search.study.queue import (
    fill_queue,
    has_waiting,
    open_study,
    promote,
    requeue,
    requeue_damaged,
    requeue_lost,
    rows,
    rung_scores,
    storage_errors,
)
from sca_search.study.sampler import PlannedSampler
from sca_search.study.setup import StudyContext, make_task
from sca_search.study.space import Space
from sca_search.system.files import stamp_of
from sca_search.system.signals import StopWhen
from sca_search.training.fit import StopRequestedError
from sca_search.training.train import train_candidate, train_dense

quick = settings(max_examples=100, deadline=None, derandomize=True)


def space_of(target=0.5, seed=0, **search):
    return Space(StudySpec.model_validate({"seed": seed, "goal": {"target_sparsity": target}, "search": search}))


# The plan


def planned_sparsities(target: float) -> Iterator[float]:
    goal = GoalSpec(target_sparsity=target)
    return (planned_ahead(goal, candidate) for candidate in count())


@pytest.mark.parametrize("target", [0.5, 0.9, 0.0, 0.123])
def test_plan_by_hand(target):
    """Every other one at the target, the others along the grid without it."""
    others = [sparsity for sparsity in GRID if sparsity != target]
    assert list(islice(planned_sparsities(target), 8)) == [
        *(target, others[0], target, others[1]),
        *(target, others[2], target, others[3]),
    ]


def test_plan_visits_the_whole_grid_and_then_again():
    others = list(islice(planned_sparsities(0.123), 1, 4 * len(GRID) + 1, 2))
    assert others == [*GRID, *GRID]


@quick
@given(st.floats(0, 1, exclude_max=True))
def test_half_of_the_plan_is_the_target_and_no_grid_point_is_next_to_it(target):
    plan = list(islice(planned_sparsities(target), 60))
    assert plan[::2] == [target] * 30
    assert all(abs(sparsity - target) >= 0.005 for sparsity in plan[1::2])
    assert all(0 <= sparsity < 1 for sparsity in plan)
    assert set(plan[1::2]) <= set(GRID)


@pytest.mark.parametrize("target", [0.896, 0.9, 0.904])
def test_a_target_next_to_a_grid_point_takes_its_place(target):
    assert 0.9 not in list(islice(planned_sparsities(target), 60))[1::2]


# The queue


@pytest.fixture
def study():
    return optuna.create_study(directions=["maximize"] * 2, sampler=PlannedSampler(0))


@pytest.fixture
def stored(tmp_path):
    """The same in a file, as a run has it: slower, so not for every test."""
    return open_study(RunFolder(tmp_path), space_of())


def by_state(study, state):
    return [trial.user_attrs["candidate"] for trial in study.get_trials(states=(state,))]


def waiting(study):
    return by_state(study, TrialState.WAITING)


def finish(study, space, accuracy=0.9):
    """Takes the next waiting trial and ends it well."""
    trial = study.ask()
    space.sample(trial, trial.user_attrs["planned_sparsity"], seed=0)
    study.tell(trial, (accuracy, trial.user_attrs["planned_sparsity"]))
    return trial


def test_queue_holds_each_planned_candidate_once(study):
    space = space_of(0.9, trials=5)
    assert fill_queue(study, space) == 5
    trials = study.get_trials(states=(TrialState.WAITING,))
    assert [trial.user_attrs["candidate"] for trial in trials] == [0, 1, 2, 3, 4]
    assert [trial.user_attrs["planned_sparsity"] for trial in trials] == [0.9, *islice(planned_sparsities(0.9), 1, 5)]


def test_filling_twice_adds_nothing(study):
    space = space_of(trials=4)
    assert fill_queue(study, space) == fill_queue(study, space) == 4
    assert waiting(study) == [0, 1, 2, 3]


def test_the_first_of_both_kinds_begin_with_the_known_guess(study):
    """One at the target and one on the grid; the others are left to the sampler."""
    space = space_of(trials=3)
    fill_queue(study, space)
    trials = [finish(study, space) for _ in range(3)]
    assert trials[0].params == trials[1].params == space.first_guess()
    assert trials[2].params != space.first_guess()


def test_finished_candidates_are_not_repeated(study):
    space = space_of(trials=4)
    fill_queue(study, space)
    for _ in range(2):
        finish(study, space)
    failed = study.ask()
    study.tell(failed, state=TrialState.FAIL)
    assert fill_queue(study, space) == 1
    assert waiting(study) == [3]
    assert sorted(row["candidate"] for row in rows(study)) == [0, 1, 2, 3]


def test_more_trials_can_be_added_later(study):
    fill_queue(study, space_of(trials=2))
    for _ in range(2):
        finish(study, space_of())
    more = space_of(trials=5)
    assert fill_queue(study, more) == 3
    assert waiting(study) == [2, 3, 4]
    planned = [trial.user_attrs["planned_sparsity"] for trial in study.get_trials(states=(TrialState.WAITING,))]
    assert planned == list(islice(planned_sparsities(0.5), 2, 5))


def test_a_running_trial_is_put_back_with_its_values(stored):
    """Who calls holds the run's lock: whatever still runs is dead."""
    space = space_of(trials=4)
    fill_queue(stored, space)
    for _ in range(2):
        finish(stored, space)
    dead = stored.ask()
    space.sample(dead, 0.5, seed=0)
    assert fill_queue(stored, space) == 2
    assert sorted(waiting(stored)) == [2, 3]
    assert by_state(stored, TrialState.RUNNING) == []
    assert by_state(stored, TrialState.FAIL) == [2]
    again = {trial.user_attrs["candidate"]: trial for trial in (finish(stored, space), finish(stored, space))}[2]
    assert again.number != dead.number
    assert again.params == dead.params
    assert again.user_attrs == {"candidate": 2, "planned_sparsity": 0.5, "resumes": True}


def test_a_trial_that_died_before_it_chose_its_values_keeps_those_it_was_queued_with(study):
    """Between being taken and its first suggestion a trial has no values yet, but the first guess is its own."""
    space = space_of(trials=1)
    fill_queue(study, space)
    study.ask()
    assert fill_queue(study, space) == 1
    assert finish(study, space).params == space.first_guess()


def test_a_trial_put_back_just_before_its_process_died_is_queued_once(study):
    """A stop puts its trial back and ends it after that; killed between the two, it must not be trained twice."""
    space = space_of(trials=2)
    fill_queue(study, space)
    dying = study.ask()
    space.sample(dying, 0.5, seed=0)
    requeue(study, dying)
    assert fill_queue(study, space) == 2
    assert sorted(waiting(study)) == [0, 1]


def test_what_was_cut_short_goes_on_before_anything_is_begun(tmp_path):
    space = space_of(trials=4)
    study = open_study(RunFolder(tmp_path), space)
    fill_queue(study, space)
    dying, other = study.ask(), study.ask()
    assert [trial.user_attrs["candidate"] for trial in (dying, other)] == [0, 1]
    requeue_lost(study, study.get_trials(deepcopy=False)[dying.number])
    assert [study.ask().user_attrs["candidate"] for _ in range(3)] == [0, 2, 3]
    assert waiting(study) == []


def test_a_candidate_whose_files_are_lost_counts_by_the_trial_that_replaces_it(study, tmp_path):
    space, run = space_of(trials=2), RunFolder(tmp_path)
    fill_queue(study, space)
    first, _ = finish(study, space, accuracy=0.8), finish(study, space)
    for number in (0, 1):
        run.candidate(number).mkdir(parents=True)
        (run.candidate(number) / "candidate.json").write_text("{}")
        save_file({"weight": torch.zeros(2)}, run.candidate(number) / "model.safetensors")
    assert requeue_damaged(study, run) == []
    model = run.candidate(0) / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    assert requeue_damaged(study, run) == [f"{model} is damaged"]
    assert {row["candidate"]: row["state"] for row in rows(study)} == {0: "waiting", 1: "complete"}
    assert requeue_damaged(study, run) == []  # it is queued already
    again = study.ask()
    assert not queue.is_superseded(study, again)
    requeue_lost(study, study.get_trials()[again.number])
    again = finish(study, space)
    assert again.params == first.params
    assert [(row["candidate"], row["metric"]) for row in rows(study)] == [(1, 0.9), (0, 0.9)]


def test_a_study_goes_on_in_another_process(tmp_path):
    space = space_of(0.9, trials=4)
    fill_queue(open_study(RunFolder(tmp_path), space), space)
    first = open_study(RunFolder(tmp_path), space)
    finish(first, space)
    dead = first.ask()
    space.sample(dead, 0.0, seed=0)
    again = open_study(RunFolder(tmp_path), space)
    assert fill_queue(again, space) == 3
    assert sorted(waiting(again)) == [1, 2, 3]
    planned = dict(enumerate(islice(planned_sparsities(0.9), 4)))
    assert {row["candidate"]: row["planned_sparsity"] for row in rows(again)} == planned


# Rungs and promotion


def came(study, candidate, rungs, state=TrialState.PRUNED, sparsity=0.9):
    """A trial that came to some rungs, with its losses there."""
    told = {"candidate": candidate, "planned_sparsity": sparsity} | {f"rung.{n}": loss for n, loss in rungs.items()}
    values = (0.5, sparsity) if state == TrialState.COMPLETE else None
    study.add_trial(create_trial(state=state, values=values, user_attrs=told))


def test_rung_scores_are_those_of_each_candidates_newest_trial(study):
    came(study, 0, {5: 0.5})
    came(study, 1, {5: 0.4, 10: 0.3}, TrialState.COMPLETE)
    came(study, 2, {})
    came(study, 0, {5: 0.5, 10: 0.2}, sparsity=0.9)
    assert rung_scores(study, 5) == [RungScore(1, 0.9, 0.4), RungScore(0, 0.9, 0.5)]
    assert rung_scores(study, 10) == [RungScore(1, 0.9, 0.3), RungScore(0, 0.9, 0.2)]
    assert rung_scores(study, 7) == []


def halving(keep=0.5, **search):
    """Rungs at 5 and 10 of 20 epochs."""
    return space_of(0.9, keep=keep, rungs=[0.25, 0.5], **search).spec


def test_a_paused_candidate_is_queued_once_it_belongs_to_the_best(study, tmp_path):
    spec = halving()
    came(study, 0, {5: 0.1}, TrialState.COMPLETE)
    came(study, 1, {5: 0.2}, TrialState.COMPLETE)
    came(study, 2, {5: 0.3})
    came(study, 3, {5: 0.4})
    assert promote(study, spec) == 0  # two of four, and two have gone on
    came(study, 4, {5: 0.9})
    assert promote(study, spec) == 1  # three of five
    assert waiting(study) == [2]
    assert promote(study, spec) == 0  # it waits already
    came(study, 5, {5: 0.8})
    came(study, 6, {5: 0.7})
    assert promote(study, spec) == 1  # four of seven
    assert waiting(study) == [2, 3]


def test_a_candidate_is_compared_at_the_rung_where_it_paused(study, tmp_path):
    """At rung 5 it is the best; at rung 10, where it stands, the third of three."""
    came(study, 0, {5: 0.5, 10: 0.1}, TrialState.COMPLETE)
    came(study, 1, {5: 0.4, 10: 0.2}, TrialState.COMPLETE)
    came(study, 2, {5: 0.1, 10: 0.3})
    assert promote(study, halving()) == 0
    came(study, 3, {5: 0.3, 10: 0.4}, TrialState.COMPLETE)
    came(study, 4, {5: 0.3, 10: 0.5}, TrialState.COMPLETE)
    assert promote(study, halving()) == 1
    assert waiting(study) == [2]


def test_where_all_go_on_nobody_is_promoted(study, tmp_path):
    for candidate, loss in enumerate((0.1, 0.2, 0.3, 0.4)):
        came(study, candidate, {5: loss})
    assert promote(study, halving(keep=1.0)) == 0


def test_a_candidate_is_put_back_with_its_values_rungs_and_split(study):
    space = space_of(trials=1)
    fill_queue(study, space)
    trial = study.ask()
    space.sample(trial, 0.5, seed=0)
    for name, value in {"rung.5": 0.25, "allocation": {"fc1": 0.6}, "epochs": 5, "loss": 1.0}.items():
        trial.set_user_attr(name, value)
    requeue(study, trial)
    (queued,) = study.get_trials(states=(TrialState.WAITING,))
    kept = {"candidate": 0, "planned_sparsity": 0.5, "rung.5": 0.25, "allocation": {"fc1": 0.6}}
    assert queued.user_attrs == kept | {"resumes": True}
    assert queued.system_attrs["fixed_params"] == trial.params


# Studies that train for real: 100 digits, 2 epochs and a rung between them

TRAIN = {"epochs": 2, "frozen_epochs": 1, "dense_epochs": 1}


def digits_spec(form="decoupled", **search):
    tables = {
        "rungs": [0.5],
        "form": form,
        "space": {"allocation": 0.0, "group_strength": 0.0, "group_rise": 0.0},
    } | search
    goal = {"target_sparsity": 0.9, "grid": False}
    return StudySpec.model_validate({"goal": goal, "data": {"train_limit": 100}, "train": TRAIN, "search": tables})


@pytest.fixture(scope="module")
def task():
    return make_task(digits_spec())


@pytest.fixture(scope="module")
def start(task):
    return train_dense(task, epochs=1, learning_rate=0.01, seed=0)


class Studio:
    """A run folder with its study, ready to work; every epoch that it hears of is noted."""

    def __init__(self, folder, task, start, spec, fails_at=None, study=None):
        self.run, self.space = RunFolder(folder), Space(spec, task.layer_shapes)
        sampler = PlannedSampler(spec.seed, self.space.first_guess())
        self.study = study or optuna.create_study(directions=["maximize"] * 2, sampler=sampler)
        self.epochs, self.notes, self.fails_at = [], [], fails_at
        context = StudyContext(self.run, task, start, self.space)
        self.objective = Objective(context, self.on_event)

    def on_event(self, event):
        match event:
            case Note(text):
                self.notes.append(text)
            case TrialEpoch(_, epoch):
                self.epochs.append((epoch.phase, epoch.epoch))
                if self.epochs[-1] == self.fails_at:
                    raise KilledError

    def work(self):
        fill_queue(self.study, self.space)
        work(self.study, self.objective, lambda: has_waiting(self.study))

    def states(self):
        return {row["candidate"]: row["state"] for row in rows(self.study)}

    def record(self, number):
        return json.loads((self.run.candidate(number) / "candidate.json").read_text())

    def model(self, number):
        return load_file(self.run.candidate(number) / "model.safetensors")


class KilledError(BaseException):
    """Stands for a process that ends without a word."""


def test_who_trains_looks_after_others_meanwhile(tmp_path, task, start):
    """A trial whose worker is gone is put back while this one is in the middle of its own."""
    studio = Studio(tmp_path, task, start, digits_spec(trials=1, heartbeat=0.05, refits=0))
    came(studio.study, 7, {})
    studio.study.enqueue_trial({}, user_attrs={"candidate": 8, "planned_sparsity": 0.9})
    lost, seen = studio.study.ask(), []

    def on_event(event):
        if not isinstance(event, TrialEpoch):
            return
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and studio.study.get_trials()[lost.number].state == TrialState.RUNNING:
            time.sleep(0.01)
        seen.append(studio.study.get_trials()[lost.number].state)

    fill_queue(studio.study, studio.space, is_alone=False)
    work(studio.study, replace(studio.objective, emit=on_event), lambda: not seen, is_alone=False)
    assert seen[0] == TrialState.FAIL
    assert waiting(studio.study) == [8]


def test_a_trial_that_ends_while_it_is_requeued_costs_nobody_a_candidate(tmp_path, task, start, monkeypatch):
    """Its worker was only suspended, and reports the result between the new trial and the end of the old one."""
    studio = Studio(tmp_path, task, start, digits_spec(trials=1, heartbeat=0.05, refits=0))
    studio.study.enqueue_trial({}, user_attrs={"candidate": 8, "planned_sparsity": 0.9})
    suspended, enqueue, told = studio.study.ask(), queue._enqueue, []

    def enqueued(study, trial, more=None):
        enqueue(study, trial, more)
        study.tell(trial.number, (0.5, 0.9))
        told.append(trial.number)

    def on_event(event):
        until = time.monotonic() + 20
        while isinstance(event, TrialEpoch) and not told and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)  # the heartbeats after the race

    fill_queue(studio.study, studio.space, is_alone=False)
    with monkeypatch.context() as patched:
        patched.setattr(queue, "_enqueue", enqueued)
        work(studio.study, replace(studio.objective, emit=on_event), is_alone=False)
    assert told == [suspended.number]
    assert studio.states() == {8: "complete", 0: "complete"}
    assert by_state(studio.study, TrialState.COMPLETE) == [8, 0]


@pytest.mark.parametrize("where", ["sca_search.study.objective.write_candidate", "optuna.Trial.set_user_attr"])
def test_a_candidate_that_cannot_be_kept_is_put_back_and_goes_on_from_its_checkpoint(
    tmp_path, task, start, where, monkeypatch
):
    """A disk or a database that fails when all is trained: before the files are written, and before the end is told."""
    studio = Studio(tmp_path, task, start, digits_spec(trials=1, checkpoint_every=0.001, refits=0))

    set_user_attr = optuna.Trial.set_user_attr

    def fails(*arguments, **_options):
        if where.endswith("write_candidate") or arguments[1] == "images":
            raise StorageError("no room")
        set_user_attr(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(where, fails)
        with pytest.raises(StorageError):
            studio.work()
    assert studio.run.checkpoint(0).exists()
    assert [trial.state for trial in studio.study.get_trials()] == [TrialState.FAIL, TrialState.WAITING]
    trained = len(studio.epochs)
    studio.work()
    assert studio.states() == {0: "complete"}
    assert not studio.run.checkpoint(0).exists()
    assert ("ternary", 1) not in studio.epochs[trained:]


def test_a_worker_that_was_suspended_before_it_writes_overwrites_nothing(tmp_path, task, start, monkeypatch):
    """Meanwhile another worker took the trial over and completed the candidate."""
    spec = digits_spec(trials=1, refits=0)
    ours, theirs = (
        Studio(tmp_path, task, start, spec, study=open_study(RunFolder(tmp_path), Space(spec, task.layer_shapes)))
        for _ in range(2)
    )
    write, stamps = objective.write_candidate, {}

    def suspended(*arguments, **options):
        if not stamps:
            stamps[tmp_path] = ()  # the other worker is not suspended
            requeue_lost(theirs.study, theirs.study.get_trials()[0])
            work(theirs.study, theirs.objective)
            stamps.update({path: stamp_of(path) for path in ours.run.candidate(0).iterdir()})
        return write(*arguments, **options)

    monkeypatch.setattr(objective, "write_candidate", suspended)
    ours.work()
    names = {"candidate.json", "distribution.json", "history.csv", "model.safetensors"}
    assert {path.name for path in stamps} - {tmp_path.name} == names
    assert {path: stamp_of(path) for path in ours.run.candidate(0).iterdir()} == {
        path: stamp for path, stamp in stamps.items() if path != tmp_path
    }
    assert [trial.state for trial in ours.study.get_trials()] == [TrialState.FAIL, TrialState.COMPLETE]


def assert_trained_in_one_go(studio, number, task, start):
    """What the study kept of a candidate is what training it without any rung gives."""
    record = studio.record(number)
    whole = train_candidate(Candidate.model_validate(record["candidate"]), task, start)
    assert (record["metric"], record["loss"]) == (whole.score.accuracy, whole.score.loss)
    kept = studio.model(number)
    assert kept.keys() == whole.model.state_dict().keys()
    assert all(torch.equal(kept[name].to(value.dtype), value) for name, value in whole.model.state_dict().items())


@pytest.mark.parametrize("form", ["paper", "decoupled"])
def test_a_candidate_pauses_is_promoted_and_goes_on_from_its_checkpoint(tmp_path, task, start, form):
    studio = Studio(tmp_path, task, start, digits_spec(form, keep=0.5, trials=1))
    for other in (10, 11, 12):  # better than any network can be
        came(studio.study, other, {1: 0.0}, TrialState.COMPLETE)
    studio.work()
    assert studio.states()[0] == "paused"
    assert studio.run.checkpoint(0).exists()
    assert not (studio.run.candidate(0) / "candidate.json").exists()
    assert studio.epochs == [("ternary", 1)]
    studio.work()  # nothing waits: nothing is done again
    assert studio.epochs == [("ternary", 1)]
    for other in (13, 14, 15, 16):  # and worse than any
        came(studio.study, other, {1: 1e9})
    assert promote(studio.study, studio.space.spec) == 1
    studio.work()
    assert studio.states()[0] == "complete"
    assert studio.epochs == [("ternary", 1), ("ternary", 2), ("frozen", 1)]
    assert not studio.run.checkpoint(0).exists()
    assert_trained_in_one_go(studio, 0, task, start)
    mine = [row for row in rows(studio.study) if row["candidate"] == 0]
    assert len(mine) == 1
    assert mine[0]["rung.1"] > 0
    assert mine[0]["metric"] == studio.record(0)["metric"]


def expected_states(losses, keep):
    """Who is complete in the end, if candidates come to their only rung one after the other."""
    complete = set()
    for seen in range(1, len(losses) + 1):
        ranked = sorted(range(seen), key=losses.__getitem__)
        best = ranked[: math.ceil(keep * seen)]
        complete |= {seen - 1} if seen < 3 else set(best)  # those promoted among them
    return {number: "complete" if number in complete else "paused" for number in range(len(losses))}


def test_a_study_that_halves_counts_each_candidate_once_and_pauses_no_good_one(tmp_path, task, start):
    studio = Studio(tmp_path, task, start, digits_spec(keep=0.2, trials=5))
    studio.work()
    states = studio.states()
    frame = trial_frame(rows(studio.study)).set_index("candidate").sort_index()
    assert states == expected_states(frame["rung.1"].tolist(), 0.2)
    assert sorted(states) == [0, 1, 2, 3, 4]
    assert "paused" in states.values()
    for candidate, state in states.items():
        assert np.isnan(frame["metric"][candidate]) == (state == "paused")
        assert studio.run.checkpoint(candidate).exists() == (state == "paused")
        assert (studio.run.candidate(candidate) / "candidate.json").exists() == (state == "complete")
    assert (frame.loc[frame["state"] == "paused", "epochs"] == 1).all()


def test_a_study_that_keeps_all_pauses_nobody_and_tells_its_rungs(tmp_path, task, start):
    studio = Studio(tmp_path, task, start, digits_spec(trials=2))
    studio.work()
    assert studio.states() == {0: "complete", 1: "complete"}
    assert studio.epochs == [("ternary", 1), ("ternary", 2), ("frozen", 1)] * 2
    assert all(row["rung.1"] > 0 for row in rows(studio.study))
    assert not list(tmp_path.rglob("checkpoint*"))
    for number in range(2):
        assert_trained_in_one_go(studio, number, task, start)


def test_trials_of_a_study_train_with_schedules_of_their_own(tmp_path, task, start):
    """λ and α differ between trials, and after the first guess between layers, in the plan and in the training."""
    studio = Studio(tmp_path, task, start, digits_spec(trials=3, space={"allocation": 0.0}))
    studio.work()
    candidates = [Candidate.model_validate(studio.record(number)["candidate"]) for number in range(3)]
    histories = [read_history(studio.run.candidate(number)) for number in range(3)]
    for one, other in combinations(range(3), 2):
        assert candidates[one].strength != candidates[other].strength
        assert candidates[one].alpha != candidates[other].alpha
        assert histories[one][0]["strength"] != histories[other][0]["strength"]
        assert histories[one][0]["alpha"] != histories[other][0]["alpha"]
    assert all(each.layer_strength and each.layer_alpha for each in candidates[1:])
    frame = trial_frame(rows(studio.study))
    searched = {f"param.{row['parameter']}" for row in studio.space.searched()}
    assert searched == {name for name in frame.columns if name.startswith("param.")}
    assert frame["param.strength"].tolist() == pytest.approx([each.strength_of("", 2) for each in candidates])


@pytest.mark.parametrize(
    "killed_at",
    [
        ("ternary", 2),
        *(pytest.param(when, marks=pytest.mark.e2e) for when in (("ternary", 1), ("frozen", 1))),
    ],
    ids=["second", "first", "frozen"],
)
def test_a_killed_study_goes_on_from_its_checkpoint_and_repeats_no_finished_candidate(tmp_path, task, start, killed_at):
    """Before the rung all is lost, after it only what came since."""
    spec = digits_spec(trials=2)
    dying = Studio(tmp_path, task, start, spec, study=open_study(RunFolder(tmp_path), Space(spec, task.layer_shapes)))
    fill_queue(dying.study, dying.space)
    dying.study.optimize(dying.objective, n_trials=1)
    record = dying.record(0)
    dying.fails_at = killed_at
    with pytest.raises(KilledError):
        dying.objective(dying.study.ask())  # not under `optimize`, which would mark it as failed
    assert dying.states() == {0: "complete", 1: "waiting"}
    again = Studio(tmp_path, task, start, spec, study=open_study(RunFolder(tmp_path), dying.space))
    again.work()
    assert again.states() == {0: "complete", 1: "complete"}
    whole = [("ternary", 1), ("ternary", 2), ("frozen", 1)]
    assert again.epochs == (whole if killed_at == ("ternary", 1) else whole[1:])
    assert again.record(0) == record
    assert_trained_in_one_go(again, 1, task, start)


def test_a_damaged_checkpoint_is_told_and_its_training_starts_again(tmp_path, task, start):
    studio = Studio(tmp_path, task, start, digits_spec(trials=1))
    studio.run.candidate(0).mkdir(parents=True)
    studio.run.checkpoint(0).write_bytes(b"half a file")
    studio.work()
    (note,) = studio.notes
    assert re.search(
        r"checkpoint\.safetensors: must be a readable checkpoint, got: .*; training starts from the beginning$", note
    )
    assert studio.states() == {0: "complete"}
    assert_trained_in_one_go(studio, 0, task, start)


def test_what_code_of_a_users_own_says_is_kept_without_passwords(tmp_path, task, start):
    studio = Studio(tmp_path, task, start, digits_spec(trials=1))

    def on_event(event):
        if isinstance(event, TrialEpoch):
            raise CodeError("own.py: failed at postgresql://me:hunter-2@db/x")

    objective = replace(studio.objective, emit=on_event)
    fill_queue(studio.study, studio.space)
    work(studio.study, objective, lambda: has_waiting(studio.study))
    (row,) = rows(studio.study)
    assert (row["state"], row["reason"]) == ("failed", "own.py: failed at postgresql://me:***@db/x")


# Rows


def test_rows_show_each_candidate_once_by_its_newest_trial(study):
    space = space_of(trials=3)
    fill_queue(study, space)
    finish(study, space, accuracy=0.75)
    for _ in range(2):  # candidate 1 dies, is put back behind candidate 2, and dies again
        trial = study.ask()
        while trial.user_attrs["candidate"] != 1:
            study.tell(trial, (0.5, 0.5))
            trial = study.ask()
        space.sample(trial, 0.9, seed=0)
        fill_queue(study, space)
    shown = rows(study)
    assert [(row["candidate"], row["state"]) for row in shown] == [(0, "complete"), (2, "complete"), (1, "waiting")]
    assert len(study.trials) == 5
    assert shown[0]["metric"] == 0.75
    assert shown[0]["param.spread"] == space.first_guess()["spread"]
    assert shown[0]["seconds"] >= 0
    assert (shown[2]["metric"], shown[2]["sparsity"], shown[2]["seconds"]) == (None, None, None)


def test_rows_tell_why_a_trial_failed(study):
    fill_queue(study, space_of(trials=1))
    trial = study.ask()
    trial.set_user_attr("reason", "the loss became nan in epoch 3")
    study.tell(trial, state=TrialState.FAIL)
    (row,) = rows(study)
    assert (row["state"], row["reason"]) == ("failed", "the loss became nan in epoch 3")


def test_rows_make_the_table_of_trials(study):
    space = space_of(trials=3)
    fill_queue(study, space)
    finish(study, space)
    study.ask()
    frame = trial_frame(rows(study))
    assert list(frame["state"]) == ["complete", "running", "waiting"]
    np.testing.assert_array_equal(frame["metric"], [0.9, np.nan, np.nan])
    assert {f"param.{name}" for name in space.ranges()} <= set(frame.columns)


def test_a_study_that_cannot_be_stored_is_the_machines_fault(tmp_path):
    run = RunFolder(tmp_path)
    cause = OSError("disk is full")
    with pytest.raises(StorageError, match=r"study\.db cannot be written: disk is full"), storage_errors(run):
        raise optuna.exceptions.StorageInternalError("deep inside") from cause


# The clock


def test_without_a_budget_every_trial_fits():
    clock = Clock(None, refits=100)
    assert all(clock.trial_fits() for _ in range(3))


def test_a_trial_fits_while_one_as_long_as_the_longest_would_end_in_time():
    roomy, tight, spent = Clock(4.0, refits=0), Clock(4.0, refits=19), Clock(0.1, refits=0)
    assert [clock.trial_fits() for clock in (roomy, tight, spent)] == [True] * 3
    time.sleep(0.2)
    # 0.2 s are gone and the next takes 0.2 s; with its 19 refits it takes 4 s.
    assert [clock.trial_fits() for clock in (roomy, tight, spent)] == [True, False, False]
    # A short trial does not make the long one forgotten.
    assert [clock.trial_fits() for clock in (roomy, tight, spent)] == [True, False, False]


def test_clock_leaves_out_of_a_trial_what_comes_before_the_first():
    """0.3 s of starting processes, then a trial of no time: four of those fit into half a second, not four of these."""
    with_start, without = Clock(0.5, refits=3), Clock(0.5, refits=3)
    time.sleep(0.3)
    without.on_event(TrialStarted(0, 0.5))
    assert without.trial_fits()
    assert not with_start.trial_fits()


def test_stop_between_two_trials_is_a_stop_unless_none_is_left(tmp_path, task, start):
    studio = Studio(tmp_path, task, start, digits_spec(trials=1))
    stopping = replace(studio.objective, emit=ignore, stop=StopWhen(lambda: True))
    work(studio.study, stopping)
    fill_queue(studio.study, studio.space)
    with pytest.raises(StopRequestedError):
        work(studio.study, stopping)
    assert studio.states() == {0: "waiting"}
    work(studio.study, stopping, lambda: False)
