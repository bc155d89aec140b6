"""What a study tries: the plan, the space, the sampler, and the queue of waiting trials."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count, islice

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)
from optuna.trial import TrialState

from sca_search.candidate import Candidate
from sca_search.errors import StorageError
from sca_search.goal import GRID, planned_ahead
from sca_search.results import trial_frame
from sca_search.run_folder import RunFolder
from sca_search.sampler import ReseededSampler, derived_seed
from sca_search.schedule import FromPrior, Ramp, Tracked
from sca_search.search import Clock, fill_queue, open_study, put_back, rows, storage_errors
from sca_search.space import STRENGTH, candidate_of, first_guess, ranges, sample
from sca_search.spec import GoalSpec, SpaceSpec, StudySpec

quick = settings(max_examples=100, deadline=None, derandomize=True)


def spec_of(target=0.5, seed=0, **search):
    return StudySpec.model_validate({"seed": seed, "goal": {"target_sparsity": target}, "search": search})


# The plan


def planned_sparsities(target: float) -> Iterator[float]:
    goal = GoalSpec(target_sparsity=target)
    return (planned_ahead(goal, candidate) for candidate in count())


@pytest.mark.parametrize(
    ("target", "first"),
    [
        (0.5, [0.5, 0.9, 0.5, 0.0, 0.5, 0.97, 0.5, 0.7, 0.5, 0.3]),
        (0.9, [0.9, 0.0, 0.9, 0.97, 0.9, 0.7, 0.9, 0.3, 0.9, 0.99]),
        (0.0, [0.0, 0.9, 0.0, 0.97, 0.0, 0.7, 0.0, 0.3, 0.0, 0.99]),
        (0.123, [0.123, 0.9, 0.123, 0.0]),
    ],
)
def test_plan_by_hand(target, first):
    assert list(islice(planned_sparsities(target), len(first))) == first


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
def test_a_target_beside_a_grid_point_takes_its_place(target):
    assert 0.9 not in list(islice(planned_sparsities(target), 60))[1::2]


# The space


class Asked:
    """A trial that answers by a function of the range, and remembers what it was asked."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = {}

    def suggest_float(self, name, low, high, *, log):
        self.asked[name] = (low, high, log)
        return self.answer(low, high)


def test_ranges_depend_on_the_form():
    assert ranges(spec_of(form="paper"))["strength"] == STRENGTH["paper"]
    assert ranges(spec_of(form="sharpened"))["strength"] == STRENGTH["sharpened"]
    assert "sharpness" not in ranges(spec_of(form="paper"))
    assert ranges(spec_of(form="sharpened"))["sharpness"] == SpaceSpec().sharpness


def test_everything_is_sampled_on_a_log_scale_but_the_start_of_the_pull():
    trial = Asked(lambda low, _high: low)
    spec = spec_of()
    sample(trial, spec, 0.5, 0)
    assert {name: (low, high) for name, (low, high, _) in trial.asked.items()} == ranges(spec)
    assert {name for name, (*_, log) in trial.asked.items() if not log} == {"pull_start"}


def values_of(candidate):
    values = {name: getattr(candidate, name) for name in ("spread", "learning_rate", "latent_learning_rate")}
    values |= {"frozen_learning_rate": candidate.frozen_learning_rate}
    values |= {"strength": candidate.strength.last, "pull_start": candidate.strength.start}
    return values | ({"sharpness": candidate.sharpness.last} if candidate.form == "sharpened" else {})


@pytest.mark.parametrize("form", ["paper", "sharpened"])
def test_sampled_candidates_lie_in_the_ranges(form):
    spec = spec_of(form=form)
    study = optuna.create_study(directions=["maximize"] * 2, sampler=ReseededSampler(0))
    seen = []
    for number in range(12):
        trial = study.ask()
        candidate = sample(trial, spec, 0.7, seed=number)
        values = values_of(candidate)
        assert values == trial.params
        assert all(low <= values[name] <= high for name, (low, high) in ranges(spec).items())
        assert (candidate.sparsity, candidate.seed, candidate.form) == (0.7, number, form)
        seen.append(tuple(values.values()))
        study.tell(trial, (number / 12, 0.7))
    assert len(set(seen)) == 12


@pytest.mark.parametrize("form", ["paper", "sharpened"])
def test_fixed_values_are_fixed(form):
    fixed = {"strength": 0.3, "pull_start": 0.0, "spread": 0.5, "latent_learning_rate": 0.04}
    spec = spec_of(form=form, space=fixed)
    study = optuna.create_study(directions=["maximize"] * 2, sampler=ReseededSampler(0))
    for number in range(10):
        trial = study.ask()
        values = values_of(sample(trial, spec, 0.5, seed=0))
        assert {name: values[name] for name in fixed} == fixed
        study.tell(trial, (number / 12, 0.5))


@pytest.mark.parametrize("form", ["paper", "sharpened"])
@pytest.mark.parametrize(
    "space",
    [{}, {"spread": [0.7, 0.9], "strength": [20, 30]}, {"learning_rate": 1e-5, "pull_start": [0.2, 0.3]}],
    ids=["default", "above", "below"],
)
def test_first_guess_lies_in_the_ranges(form, space):
    spec = spec_of(form=form, space=space)
    guess = first_guess(spec)
    assert guess.keys() == ranges(spec).keys()
    assert all(low <= guess[name] <= high for name, (low, high) in ranges(spec).items())


def test_first_guess_moves_to_the_nearest_end():
    space = {"spread": [0.7, 0.9], "learning_rate": [0.001, 0.004], "pull_start": [0.2, 0.3]}
    guess = first_guess(spec_of(space=space))
    assert (guess["spread"], guess["learning_rate"], guess["pull_start"]) == (0.7, 0.004, 0.2)
    assert guess["latent_learning_rate"] == 0.02


@pytest.mark.parametrize(("form", "alpha"), [("paper", FromPrior()), ("sharpened", Tracked())])
def test_candidate_takes_what_the_spec_fixes(form, alpha):
    train = {"epochs": 7, "frozen_epochs": 3, "distillation": 0.4, "temperature": 2.5}
    spec = StudySpec.model_validate({"train": train, "search": {"form": form}})
    candidate = candidate_of(first_guess(spec), spec, 0.37, seed=11)
    assert {name: getattr(candidate, name) for name in train} == train
    assert candidate.alpha == alpha
    assert candidate.strength == Ramp(first=0.0, last=10.0 if form == "paper" else 0.001, start=0.0)
    assert candidate.sharpness.at(7, 7) == (1.0 if form == "paper" else 100.0)
    assert (candidate.sparsity, candidate.seed, candidate.split) == (0.37, 11, {})
    assert Candidate.model_validate(candidate.model_dump(mode="json")) == candidate


def test_an_alpha_of_the_spec_overrules_the_forms_own():
    spec = spec_of(form="sharpened", alpha={"kind": "prior"})
    assert candidate_of(first_guess(spec), spec, 0.5, seed=0).alpha == FromPrior()


# The sampler

X, Y = FloatDistribution(0, 1), FloatDistribution(1e-3, 1, log=True)


def proposals(trials, sampler_of, study=None):
    """What is proposed for each of some trials; the sampler may be another object for each."""
    study = study or optuna.create_study(directions=["maximize"] * 2)
    proposed = []
    for number in range(trials):
        study.sampler = sampler_of(number)
        trial = study.ask({"x": X, "y": Y})
        proposed.append((trial.params["x"], trial.params["y"]))
        study.tell(trial, (1 - trial.params["x"], trial.params["y"]))
    return proposed


def test_same_seed_and_number_give_the_same_proposal_in_a_new_object():
    """12 trials, so that the last four come out of the fitted model and not of pure chance."""
    one = ReseededSampler(5)
    assert proposals(12, lambda _: one) == proposals(12, lambda _: ReseededSampler(5))


def test_what_a_sampler_drew_before_does_not_matter():
    used = ReseededSampler(5)
    proposals(7, lambda _: used)
    assert proposals(12, lambda _: used) == proposals(12, lambda _: ReseededSampler(5))


def test_same_seed_and_number_give_the_same_proposal_in_a_new_process():
    program = (
        "import json, optuna; from optuna.distributions import FloatDistribution as F;"
        "from sca_search.sampler import ReseededSampler;"
        "study = optuna.create_study(directions=['maximize'] * 2, sampler=ReseededSampler(5));"
        "trials = [study.ask({'x': F(0, 1), 'y': F(1e-3, 1, log=True)}).params for _ in range(3)];"
        "print(json.dumps([list(trial.values()) for trial in trials]))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert [tuple(values) for values in json.loads(done.stdout)] == proposals(3, lambda _: ReseededSampler(5))


def test_different_numbers_and_seeds_propose_different_points():
    many = [point for seed in range(4) for point in proposals(8, lambda _, seed=seed: ReseededSampler(seed))]
    assert len(set(many)) == 32


def test_a_sampler_seeded_once_would_repeat_itself_after_a_resumption():
    """Why there is one of our own: a plain one made anew for the third trial proposes the first point again."""
    plain = proposals(3, lambda _: TPESampler(seed=5))
    assert plain[0] == plain[2]
    ours = proposals(3, lambda _: ReseededSampler(5))
    assert ours[0] != ours[2]


def test_two_workers_on_one_study_propose_different_points():
    study = optuna.create_study(directions=["maximize"] * 2)
    asked = []
    for worker in (ReseededSampler(5), ReseededSampler(5)):
        study.sampler = worker
        asked.append(study.ask({"x": X}).params["x"])
    assert asked[0] != asked[1]


@quick
@given(st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=3))
def test_derived_seed_is_a_seed_and_depends_on_every_part(parts):
    seed = derived_seed(*parts)
    assert 0 <= seed < 2**31
    assert isinstance(seed, int)
    assert seed == derived_seed(*parts)
    for place in range(len(parts)):
        changed = [*parts[:place], parts[place] + 1, *parts[place + 1 :]]
        assert derived_seed(*changed) != seed


class Noting(BaseSampler):
    """Notes every call and answers with what was agreed."""

    def __init__(self, seed, notes):
        self.seed = seed
        self.notes = notes

    def infer_relative_search_space(self, _study, trial):
        self.notes.append(("infer", self.seed, trial.number))
        return {"x": X}

    def sample_relative(self, _study, trial, search_space):
        self.notes.append(("relative", self.seed, trial.number, search_space))
        return {"x": 0.25}

    def sample_independent(self, _study, trial, name, distribution):
        self.notes.append(("independent", self.seed, trial.number, name, distribution))
        return 0.5

    def before_trial(self, _study, trial):
        self.notes.append(("before", self.seed, trial.number))

    def after_trial(self, _study, trial, state, values):
        self.notes.append(("after", self.seed, trial.number, state, values))

    def reseed_rng(self):
        self.notes.append(("reseed", self.seed))


def test_sampler_forwards_every_question_to_the_inner_one_of_the_trial():
    notes = []
    sampler = ReseededSampler(3, make=lambda seed: Noting(seed, notes))
    study = optuna.create_study(sampler=sampler)
    study.tell(study.ask(), 1.0)
    notes.clear()
    trial = study.ask()
    assert (trial.suggest_float("x", 0, 1), trial.suggest_float("y", 1e-3, 1, log=True)) == (0.25, 0.5)
    study.tell(trial, 2.0)
    sampler.reseed_rng()
    seed = derived_seed(3, 1)
    assert notes == [
        ("before", seed, 1),
        ("infer", seed, 1),
        ("relative", seed, 1, {"x": X}),
        ("independent", seed, 1, "y", Y),
        ("after", seed, 1, TrialState.COMPLETE, [2.0]),
        ("reseed", seed),
    ]


def test_sampler_wraps_any_other():
    one = proposals(4, lambda _: ReseededSampler(1, make=lambda seed: RandomSampler(seed=seed)))
    assert one == proposals(4, lambda number: RandomSampler(seed=derived_seed(1, number)))


class TestReseededSampler(BasicSamplerTestCase, MultiObjectiveSamplerTestCase):
    """Optuna's own kit on the sampler that studies use."""

    @pytest.fixture
    def sampler(self):
        return lambda: ReseededSampler(0)


class TestReseededSamplerOfRelativeSampling(RelativeSamplerTestCase):
    """The kit asks for joint samples after one trial, so the inner sampler must not begin with random ones."""

    @pytest.fixture
    def sampler(self):
        return lambda: ReseededSampler(0, make=lambda seed: TPESampler(seed=seed, n_startup_trials=0))


# The queue


@pytest.fixture
def study():
    return optuna.create_study(directions=["maximize"] * 2, sampler=ReseededSampler(0))


@pytest.fixture
def stored(tmp_path):
    """The same in a file, as a run has it: slower, so not for every test."""
    return open_study(RunFolder(tmp_path), spec_of())


def by_state(study, state):
    return [trial.user_attrs["candidate"] for trial in study.get_trials(states=(state,))]


def waiting(study):
    return by_state(study, TrialState.WAITING)


def finish(study, spec, accuracy=0.9):
    """Takes the next waiting trial and ends it well."""
    trial = study.ask()
    sample(trial, spec, trial.user_attrs["planned_sparsity"], seed=0)
    study.tell(trial, (accuracy, trial.user_attrs["planned_sparsity"]))
    return trial


def test_queue_holds_each_planned_candidate_once(study):
    spec = spec_of(0.9, trials=5)
    assert fill_queue(study, spec) == 5
    trials = study.get_trials(states=(TrialState.WAITING,))
    assert [trial.user_attrs["candidate"] for trial in trials] == [0, 1, 2, 3, 4]
    assert [trial.user_attrs["planned_sparsity"] for trial in trials] == [0.9, 0.0, 0.9, 0.97, 0.9]


def test_filling_twice_adds_nothing(study):
    spec = spec_of(trials=4)
    assert fill_queue(study, spec) == fill_queue(study, spec) == 4
    assert waiting(study) == [0, 1, 2, 3]


def test_the_first_of_both_kinds_begin_with_the_known_guess(study):
    """One at the target and one on the grid; the others are left to the sampler."""
    spec = spec_of(trials=3)
    fill_queue(study, spec)
    trials = [finish(study, spec) for _ in range(3)]
    assert trials[0].params == trials[1].params == first_guess(spec)
    assert trials[2].params != first_guess(spec)


def test_finished_candidates_are_not_repeated(study):
    spec = spec_of(trials=4)
    fill_queue(study, spec)
    for _ in range(2):
        finish(study, spec)
    failed = study.ask()
    study.tell(failed, state=TrialState.FAIL)
    assert fill_queue(study, spec) == 1
    assert waiting(study) == [3]
    assert sorted(row["candidate"] for row in rows(study)) == [0, 1, 2, 3]


def test_more_trials_can_be_added_later(study):
    fill_queue(study, spec_of(trials=2))
    for _ in range(2):
        finish(study, spec_of())
    more = spec_of(trials=5)
    assert fill_queue(study, more) == 3
    assert waiting(study) == [2, 3, 4]
    planned = [trial.user_attrs["planned_sparsity"] for trial in study.get_trials(states=(TrialState.WAITING,))]
    assert planned == [0.5, 0.0, 0.5]


def test_a_running_trial_is_put_back_with_its_values(stored):
    """Who calls holds the run's lock: whatever still runs is dead."""
    spec = spec_of(trials=4)
    fill_queue(stored, spec)
    for _ in range(2):
        finish(stored, spec)
    dead = stored.ask()
    sample(dead, spec, 0.5, seed=0)
    assert fill_queue(stored, spec) == 2
    assert sorted(waiting(stored)) == [2, 3]
    assert by_state(stored, TrialState.RUNNING) == []
    assert by_state(stored, TrialState.FAIL) == [2]
    again = {trial.user_attrs["candidate"]: trial for trial in (finish(stored, spec), finish(stored, spec))}[2]
    assert again.number != dead.number
    assert again.params == dead.params
    assert again.user_attrs == {"candidate": 2, "planned_sparsity": 0.5}


def test_a_trial_that_died_before_it_chose_its_values_keeps_those_it_was_queued_with(study):
    """Between being taken and its first suggestion a trial has no values yet, but the first guess is its own."""
    spec = spec_of(trials=1)
    fill_queue(study, spec)
    study.ask()
    assert fill_queue(study, spec) == 1
    assert finish(study, spec).params == first_guess(spec)


def test_a_trial_put_back_just_before_its_process_died_is_queued_once(study):
    """A stop puts its trial back and ends it after that; killed between the two, it must not be trained twice."""
    spec = spec_of(trials=2)
    fill_queue(study, spec)
    dying = study.ask()
    sample(dying, spec, 0.5, seed=0)
    put_back(study, dying)
    assert fill_queue(study, spec) == 2
    assert sorted(waiting(study)) == [0, 1]


def test_a_study_goes_on_in_another_process(tmp_path):
    spec = spec_of(0.9, trials=4)
    fill_queue(open_study(RunFolder(tmp_path), spec), spec)
    first = open_study(RunFolder(tmp_path), spec)
    finish(first, spec)
    dead = first.ask()
    sample(dead, spec, 0.0, seed=0)
    again = open_study(RunFolder(tmp_path), spec)
    assert fill_queue(again, spec) == 3
    assert sorted(waiting(again)) == [1, 2, 3]
    assert {row["candidate"]: row["planned_sparsity"] for row in rows(again)} == {0: 0.9, 1: 0.0, 2: 0.9, 3: 0.97}


# Rows


def test_rows_show_each_candidate_once_by_its_newest_trial(study):
    spec = spec_of(trials=3)
    fill_queue(study, spec)
    finish(study, spec, accuracy=0.75)
    for _ in range(2):  # candidate 1 dies, is put back behind candidate 2, and dies again
        trial = study.ask()
        while trial.user_attrs["candidate"] != 1:
            study.tell(trial, (0.5, 0.5))
            trial = study.ask()
        sample(trial, spec, 0.9, seed=0)
        fill_queue(study, spec)
    shown = rows(study)
    assert [(row["candidate"], row["state"]) for row in shown] == [(0, "complete"), (2, "complete"), (1, "waiting")]
    assert len(study.trials) == 5
    assert shown[0]["accuracy"] == 0.75
    assert shown[0]["strength"] == first_guess(spec)["strength"]
    assert shown[0]["seconds"] >= 0
    assert (shown[2]["accuracy"], shown[2]["sparsity"], shown[2]["seconds"]) == (None, None, None)


def test_rows_tell_why_a_trial_failed(study):
    fill_queue(study, spec_of(trials=1))
    trial = study.ask()
    trial.set_user_attr("reason", "the loss became nan in epoch 3")
    study.tell(trial, state=TrialState.FAIL)
    (row,) = rows(study)
    assert (row["state"], row["reason"]) == ("failed", "the loss became nan in epoch 3")


def test_rows_make_the_table_of_trials(study):
    spec = spec_of(trials=3)
    fill_queue(study, spec)
    finish(study, spec)
    study.ask()
    frame = trial_frame(rows(study))
    assert list(frame["state"]) == ["complete", "running", "waiting"]
    np.testing.assert_array_equal(frame["accuracy"], [0.9, np.nan, np.nan])
    assert set(ranges(spec)) <= set(frame.columns)


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
