"""The sampler: its random state, what the inner one is shown, and where values are drawn at the start."""

import json
import math
import subprocess
import sys

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)
from optuna.trial import TrialState, create_trial

from sca_search.study.sampler import (
    INNER,
    MAX_BEST,
    MAX_NEWEST,
    STARTUP,
    PlannedSampler,
    around,
    derived_seed,
    select_trials,
    view_of,
)

quick = settings(max_examples=100, deadline=None, derandomize=True)
X, Y = FloatDistribution(0, 1), FloatDistribution(1e-3, 1, log=True)
CENTER = {"x": 0.3, "y": 0.1}


def two_objectives(sampler=None):
    return optuna.create_study(directions=["maximize"] * 2, sampler=sampler)


def proposals(trials, sampler_of, study=None):
    """What is proposed for each of some trials; the sampler may be another object for each."""
    study = study or two_objectives()
    proposed = []
    for number in range(trials):
        study.sampler = sampler_of(number)
        trial = study.ask({"x": X, "y": Y})
        proposed.append((trial.params["x"], trial.params["y"]))
        trial.set_user_attr("planned_sparsity", 0.9)
        trial.set_user_attr("loss", 1 + trial.params["x"])
        study.tell(trial, (1 - trial.params["x"], trial.params["y"]))
    return proposed


def both(seed):
    """The sampler with and without a center."""
    return [lambda _number: PlannedSampler(seed), lambda _number: PlannedSampler(seed, CENTER)]


# Random state: 12 trials, so that the last four come out of the fitted model and not of pure chance


@pytest.mark.parametrize("make", both(5), ids=["plain", "centered"])
def test_same_seed_and_number_give_the_same_proposal_in_a_new_object(make):
    one = make(0)
    assert proposals(12, lambda _: one) == proposals(12, make)


@pytest.mark.parametrize("make", both(5), ids=["plain", "centered"])
def test_earlier_draws_do_not_matter(make):
    used = make(0)
    proposals(7, lambda _: used)
    assert proposals(12, lambda _: used) == proposals(12, make)


def test_same_seed_and_number_give_the_same_proposal_in_a_new_process():
    program = (
        "import json, optuna; from optuna.distributions import CategoricalDistribution, FloatDistribution as F;"
        "from sca_search.study.sampler import PlannedSampler;\n"
        "for center in (None, {'x': 0.3, 'y': 0.1}):\n"
        " study = optuna.create_study(directions=['maximize'] * 2, sampler=PlannedSampler(5, center))\n"
        " trials = [study.ask({'x': F(0, 1), 'y': F(1e-3, 1, log=True)}).params for _ in range(3)]\n"
        " print(json.dumps([[trial['x'], trial['y']] for trial in trials]))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    for values, make in zip(printed, both(5), strict=True):
        assert [tuple(each) for each in values] == proposals(3, make)


@pytest.mark.parametrize("center", [None, CENTER], ids=["plain", "centered"])
def test_different_numbers_and_seeds_propose_different_points(center):
    many = [point for seed in range(4) for point in proposals(8, lambda _, seed=seed: PlannedSampler(seed, center))]
    assert len(set(many)) == 32


def test_a_sampler_seeded_once_would_repeat_itself_after_a_resumption():
    """Why there is one of our own: a plain one made anew for the third trial proposes the first point again."""
    plain = proposals(3, lambda _: TPESampler(seed=5))
    assert plain[0] == plain[2]
    ours = proposals(3, lambda _: PlannedSampler(5))
    assert ours[0] != ours[2]


@pytest.mark.parametrize("make", both(5), ids=["plain", "centered"])
def test_two_workers_on_one_study_propose_different_points(make):
    study = two_objectives()
    proposed = []
    for worker in (make(0), make(1)):
        study.sampler = worker
        proposed.append(study.ask({"x": X}).params["x"])
    assert proposed[0] != proposed[1]


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


# Around the first guess


@quick
@given(
    st.floats(-5, 5),
    st.floats(0, 5),
    st.floats(0, 1),
    st.booleans(),
    st.integers(0, 1000),
)
def test_values_around_a_center_lie_in_the_range(low, width, fraction, log, seed):
    ends = (math.exp(low), math.exp(low + width)) if log else (low, low + width)
    distribution = FloatDistribution(*ends, log=log)
    center = min(max(ends[0] + fraction * (ends[1] - ends[0]), ends[0]), ends[1])
    value = around([center], distribution, np.random.default_rng(seed))
    assert ends[0] <= value <= ends[1]


@pytest.mark.parametrize(("distribution", "scale"), [(X, float), (Y, math.log)], ids=["even", "log"])
def test_values_around_the_middle_are_normal_with_seven_percent_of_the_range(distribution, scale):
    low, high = scale(distribution.low), scale(distribution.high)
    middle = (low + high) / 2
    center = math.exp(middle) if distribution.log else middle
    random = np.random.default_rng(0)
    drawn = np.array([scale(around([center], distribution, random)) for _ in range(4000)])
    fractions = (drawn - middle) / (high - low)
    assert fractions.std() == pytest.approx(0.07, rel=0.04)  # cut at seven standard deviations
    assert fractions.mean() == pytest.approx(0, abs=0.004)


def test_several_centers_are_averaged_in_the_scale_of_the_range():
    random = np.random.default_rng(0)
    even = [around([0.2, 0.6], X, random) for _ in range(1000)]
    log = [math.log(around([0.01, 0.09], Y, random)) for _ in range(1000)]
    assert np.mean(even) == pytest.approx(0.4, abs=0.01)
    assert np.mean(log) == pytest.approx(math.log(0.03), abs=0.07)


def test_a_range_may_be_cut_close_to_the_center():
    random = np.random.default_rng(0)
    drawn = np.array([around([0.0], X, random) for _ in range(1000)])
    assert drawn.min() >= 0
    assert drawn.mean() == pytest.approx(0.07 * math.sqrt(2 / math.pi), rel=0.1)  # half a normal distribution


def test_an_option_is_mostly_one_of_the_centers():
    """Three of four times, and else any option: the only center's option has 3/4 + 1/12."""
    random, options = np.random.default_rng(0), CategoricalDistribution(("a", "b", "c"))
    drawn = [around(["b"], options, random) for _ in range(3000)]
    assert drawn.count("b") / 3000 == pytest.approx(5 / 6, abs=0.02)
    assert drawn.count("a") / 3000 == pytest.approx(1 / 12, abs=0.02)
    drawn = [around(["b", "a", "a"], options, random) for _ in range(3000)]
    assert drawn.count("a") / 3000 == pytest.approx(0.5 + 1 / 12, abs=0.03)


def test_a_range_of_one_value_gives_it():
    assert around([0.4], FloatDistribution(0.4, 0.4), np.random.default_rng(0)) == 0.4


def test_first_trials_are_drawn_around_the_guess():
    """Of many studies, the first trial: as near to the center as the width says, and not at it."""
    first = [proposals(1, lambda _, seed=seed: PlannedSampler(seed, CENTER))[0] for seed in range(150)]
    x = np.array([point[0] for point in first])
    y = np.log([point[1] for point in first])
    assert np.median(x) == pytest.approx(0.3, abs=0.02)
    assert np.median(y) == pytest.approx(math.log(0.1), abs=0.02 * math.log(1000))
    assert 0.06 < x.std() < 0.08
    assert 0.06 < y.std() / math.log(1000) < 0.08


@pytest.mark.parametrize(("finished", "middle"), [(5, 0.3), (6, 1.5 / 32), (12, 2.5 / 32)])
def test_later_trials_are_drawn_around_the_best(finished, middle):
    """Those with the lowest losses are at 1/32, 2/32, …: the mean of the best two of 6, or of the best four of 12."""
    x = []
    for seed in range(150):
        study = centered_study(finished, [])
        study.sampler = PlannedSampler(seed, CENTER)
        x.append(study.ask({"x": X}).params["x"])
    untruncated = [value for value in x if value < 2 * middle]  # symmetric around the middle
    assert np.mean(untruncated) == pytest.approx(middle, abs=0.02)
    assert len(untruncated) > 40


def test_what_has_no_center_is_left_to_the_inner_sampler():
    study = two_objectives(PlannedSampler(0, {"x": 0.3}, make=lambda seed: Noting(seed, [])))
    trial = study.ask()
    assert trial.suggest_float("y", 1e-3, 1, log=True) == 0.5
    assert trial.suggest_categorical("strength_schedule", ["linear", "step"]) == "linear"
    assert trial.suggest_float("x", 0, 1) != 0.5


# What the inner sampler sees


def add_trial(study, params, state=TrialState.COMPLETE, **attributes):
    values = (0.5, 0.5) if state == TrialState.COMPLETE else None
    distributions = {name: {"x": X, "y": Y}[name] for name in params}
    study.add_trial(
        create_trial(params=params, distributions=distributions, values=values, state=state, user_attrs=attributes)
    )


def seen_values(view):
    return {trial.params["x"]: trial.value for trial in view.get_trials(states=(TrialState.COMPLETE,))}


def test_view_has_losses_relative_to_comparable_trials_by_hand():
    study = two_objectives()
    e = math.e
    add_trial(study, {"x": 0.1}, planned_sparsity=0.9, loss=e**2)
    add_trial(study, {"x": 0.2}, planned_sparsity=0.9, loss=e**4)
    add_trial(study, {"x": 0.3}, planned_sparsity=0.5, loss=e**-5)  # alone at its sparsity
    add_trial(study, {"x": 0.4}, TrialState.PRUNED, planned_sparsity=0.9, **{"rung.5": e**7})
    add_trial(study, {"x": 0.5}, planned_sparsity=0.9, loss=e**3, **{"rung.5": e**5})
    # The logarithms 2, 4 and 3 have the mean 3, also for the one alone; at the rung, 7 and 5 have the mean 6.
    assert seen_values(view_of(study)) == pytest.approx({0.1: -1, 0.2: 1, 0.3: -8, 0.4: 1, 0.5: 0})


def test_view_counts_a_resumed_candidate_once():
    study = two_objectives()
    add_trial(study, {"x": 0.1}, TrialState.PRUNED, candidate=0, planned_sparsity=0.9, **{"rung.5": 2.0})
    add_trial(study, {"x": 0.1}, candidate=0, planned_sparsity=0.9, loss=1.0, **{"rung.5": 2.0})
    add_trial(study, {"x": 0.2}, candidate=1, planned_sparsity=0.9, loss=1.0)
    assert seen_values(view_of(study)) == {0.1: 0, 0.2: 0}
    assert len(view_of(study).get_trials(states=(TrialState.COMPLETE,))) == 2


def test_a_center_outside_the_range_is_moved_to_its_end():
    drawn = [around([40.0], X, np.random.default_rng(seed)) for seed in range(50)]
    assert all(0.2 < value <= 1 for value in drawn)


def test_view_has_one_objective_to_be_minimized():
    assert [direction.name for direction in view_of(two_objectives()).directions] == ["MINIMIZE"]


def test_view_has_no_trials_without_a_loss():
    study = two_objectives()
    add_trial(study, {"x": 0.1}, planned_sparsity=0.9, loss=1.0)
    add_trial(study, {"x": 0.2}, TrialState.FAIL, planned_sparsity=0.9)
    add_trial(study, {"x": 0.3}, TrialState.PRUNED, planned_sparsity=0.9)
    add_trial(study, {"x": 0.4}, TrialState.COMPLETE)
    study.enqueue_trial({"x": 0.5}, user_attrs={"planned_sparsity": 0.9})
    study.ask({"x": X})
    assert seen_values(view_of(study)) == {0.1: 0}


def test_view_keeps_params_and_their_distributions():
    study = two_objectives()
    add_trial(study, {"x": 0.25, "y": 0.5}, planned_sparsity=0.9, loss=1.0)
    (trial,) = view_of(study).get_trials(states=(TrialState.COMPLETE,))
    assert (trial.params, trial.distributions) == ({"x": 0.25, "y": 0.5}, {"x": X, "y": Y})


# Of a long study, a part


def test_few_trials_are_all_selected():
    values = [math.nan, *range(MAX_BEST + MAX_NEWEST), math.inf]
    assert select_trials(values) == list(range(1, MAX_BEST + MAX_NEWEST + 1))


def test_of_many_the_best_and_the_newest_are_selected_oldest_first():
    """Values fall from the oldest on: 1000, 999, …; but two of the first are the best of all."""
    values = [1000.0 - index for index in range(1000)]
    values[3], values[7] = -5.0, -7.0
    # The best are these two and the last ones; of the others the newest come right before.
    first = 1000 - (MAX_BEST - 2) - MAX_NEWEST
    assert select_trials(values) == [3, 7, *range(first, 1000)]


@quick
@given(st.lists(st.one_of(st.floats(-5, 5), st.just(math.nan)), max_size=600), st.integers(0, 10))
def test_the_selection_is_bounded_and_has_all_of_the_best(values, seed):
    finite = [value for value in values if math.isfinite(value)]
    selected = select_trials(values)
    assert selected == sorted(set(selected))
    assert len(selected) == min(len(finite), MAX_BEST + MAX_NEWEST)
    assert sorted(values[index] for index in selected)[:MAX_BEST] == sorted(finite)[:MAX_BEST]
    newest = [index for index in range(len(values)) if math.isfinite(values[index])][-MAX_NEWEST:]
    assert set(newest) <= set(selected)


def test_the_view_of_a_long_study_is_bounded_and_has_the_best():
    study = two_objectives()
    many = MAX_BEST + MAX_NEWEST + 50
    for number in range(many):
        add_trial(study, {"x": number / many}, planned_sparsity=0.9, loss=1.0 + number)  # the first is the best
    selected = seen_values(view_of(study))
    assert len(selected) == MAX_BEST + MAX_NEWEST
    assert min(selected, key=selected.get) == 0.0
    # Values are beside the mean of all, shown or not.
    mean = np.mean(np.log(np.arange(1, many + 1)))
    assert selected[0.0] == pytest.approx(-mean)


class Noting(BaseSampler):
    """Notes every call and answers with what was agreed."""

    def __init__(self, seed, notes):
        self.seed = seed
        self.notes = notes

    def infer_relative_search_space(self, study, _trial):
        self.notes.append(("infer", study))
        return {"x": X}

    def sample_relative(self, study, _trial, search_space):
        self.notes.append(("relative", study, search_space))
        return {"x": 0.25}

    def sample_independent(self, study, _trial, name, distribution):
        self.notes.append(("independent", study, name, distribution))
        return distribution.choices[0] if isinstance(distribution, CategoricalDistribution) else 0.5

    def before_trial(self, study, _trial):
        self.notes.append(("before", study, self.seed))

    def after_trial(self, study, _trial, state, values):
        self.notes.append(("after", study, state, values))

    def reseed_rng(self):
        self.notes.append(("reseed",))


def test_without_a_center_every_call_goes_to_the_inner_sampler_of_the_trial():
    notes = []
    sampler = PlannedSampler(3, make=lambda seed: Noting(seed, notes))
    study = optuna.create_study(sampler=sampler)
    study.tell(study.ask(), 1.0)
    notes.clear()
    trial = study.ask()
    assert (trial.suggest_float("x", 0, 1), trial.suggest_float("y", 1e-3, 1, log=True)) == (0.25, 0.5)
    study.tell(trial, 2.0)
    sampler.reseed_rng()
    assert notes == [
        ("before", study, derived_seed(3, 1)),
        ("infer", study),
        ("relative", study, {"x": X}),
        ("independent", study, "y", Y),
        ("after", study, TrialState.COMPLETE, [2.0]),
        ("reseed",),
    ]


def centered_study(finished, notes):
    study = two_objectives(PlannedSampler(3, CENTER, make=lambda seed: Noting(seed, notes)))
    for number in range(finished):
        add_trial(study, {"x": (number + 1) / 32}, planned_sparsity=0.9, loss=math.exp(number))
    return study


def test_the_inner_sampler_is_used_once_there_are_enough_trials():
    few, enough = centered_study(STARTUP - 1, []), centered_study(STARTUP, [])
    assert few.ask({"x": X}).params["x"] != 0.25
    assert enough.ask({"x": X}).params["x"] == 0.25


def test_the_inner_sampler_gets_the_view_and_not_the_study():
    notes = []
    study = centered_study(STARTUP, notes)
    trial = study.ask()
    assert (trial.suggest_float("x", 0, 1), trial.suggest_float("y", 1e-3, 1, log=True)) == (0.25, 0.5)
    shown = [selected for kind, selected, *_ in notes if kind in {"infer", "relative", "independent"}]
    assert len(shown) == 3
    mean = (STARTUP - 1) / 2
    for view in shown:
        assert view is not study
        expected = {(number + 1) / 32: number - mean for number in range(STARTUP)}
        assert seen_values(view) == pytest.approx(expected)
    study.tell(trial, (0.5, 0.5))
    assert not any(note[0] == "after" for note in notes)


def test_a_paused_trial_counts_towards_the_start():
    study = centered_study(STARTUP - 1, [])
    add_trial(study, {"x": 0.9}, TrialState.PRUNED, planned_sparsity=0.9, **{"rung.5": 2.0})
    assert study.ask({"x": X}).params["x"] == 0.25


def test_sampler_wraps_any_other():
    one = proposals(4, lambda _: PlannedSampler(1, make=lambda seed: RandomSampler(seed=seed)))
    assert one == proposals(4, lambda number: RandomSampler(seed=derived_seed(1, number)))


@pytest.mark.parametrize("name", INNER)
def test_every_inner_sampler_by_name_proposes_points_in_range(name):
    study = two_objectives()
    made = proposals(STARTUP + 2, lambda _: PlannedSampler(2, CENTER, INNER[name]), study)
    assert all(0 <= x <= 1 and 1e-3 <= y <= 1 for x, y in made)
    assert len(set(made)) == STARTUP + 2


def test_the_fitted_sampler_prefers_where_losses_are_low():
    """Twenty trials whose loss is the distance from 0.8: proposals come nearer to it than the center is."""
    study = two_objectives()
    for number in range(20):
        x = (number + 0.5) / 20
        add_trial(study, {"x": x}, planned_sparsity=0.9, loss=0.01 + abs(x - 0.8))
    proposed = []
    for seed in range(15):
        study.sampler = PlannedSampler(seed, {"x": 0.1})
        proposed.append(study.ask({"x": X}).params["x"])
    assert np.median(np.abs(np.array(proposed) - 0.8)) < 0.2


# Optuna's own kit


class TestPlannedSamplerOfRelativeSampling(RelativeSamplerTestCase):
    """The kit asks for joint samples after one trial, so the inner sampler must not begin with random ones."""

    @pytest.fixture
    def sampler(self):
        return lambda: PlannedSampler(0, make=lambda seed: TPESampler(seed=seed, n_startup_trials=0))


class TestPlannedSamplerAroundACentre(BasicSamplerTestCase, MultiObjectiveSamplerTestCase):
    """As studies use it, though with other names; the kit's trials tell no loss, so that they stay at the start."""

    @pytest.fixture
    def sampler(self):
        return lambda: PlannedSampler(0, {"spread": 0.6})
