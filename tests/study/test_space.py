"""What a study searches: ranges by form and group, guesses, and the way from values to a candidate and back."""

import math

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution

from sca_search.config.candidate import Candidate, Constant, FromPrior, Ramp, Steps, Tracked
from sca_search.config.study import SpaceSpec, StudySpec
from sca_search.study.sampler import PlannedSampler
from sca_search.study.space import STRENGTH, Space, is_logarithmic
from sca_search.ternary.allocation import LayerCost, LayerShape, weighting_of

quick = settings(max_examples=60, deadline=None, derandomize=True)
FORMS = ("paper", "sharpened", "straight-through")
# The small LeNet on 8×8 digits.
LENET = (LayerShape("conv2", (32, 16, 5, 5)), LayerShape("fc1", (64, 128)))
WEIGHTS = {"conv2": 12_800, "fc1": 8_192}
RESIDUAL = tuple(LayerShape(f"stage{s}.{b}.conv{c}", (8, 8, 3, 3)) for s in (1, 2) for b in (0, 1) for c in (1, 2))
# conv2 suffers ten times as much.
COSTS = tuple(
    LayerCost(name, sparsity, factor * loss, 0.0)
    for name, factor in (("conv2", 1.0), ("fc1", 0.1))
    for sparsity, loss in ((0.0, 0.0), (0.5, 0.01), (0.8, 0.03), (0.9, 0.06), (0.95, 0.1), (0.98, 0.15), (0.99, 0.24))
)

SHARPNESS = {"sharpness", "sharpness_first", "sharpness_start", "gradient_sharpness"}
ALWAYS = {"spread", "learning_rate", "latent_learning_rate", "frozen_learning_rate"}
STRENGTH_VALUES = {"strength", "strength_start"}


def space_of(form="sharpened", layers=(), costs=(), goal=None, groups=None, **space):
    search = {"form": form, "space": space} | ({"groups": groups} if groups else {})
    goals = goal or {"target_sparsity": 0.5}
    return Space(StudySpec.model_validate({"goal": goals, "search": search}), layers, costs)


# Ranges


def test_ranges_depend_on_the_form():
    assert space_of("paper").ranges().keys() == ALWAYS | STRENGTH_VALUES
    assert space_of("sharpened").ranges().keys() == ALWAYS | SHARPNESS | {"rise"}
    assert space_of("straight-through").ranges().keys() == ALWAYS | {"rise"}


def test_ranges_are_those_of_the_spec():
    given_ranges = space_of("sharpened", spread=[0.4, 0.5], sharpness=[7, 9], rise=0.25).ranges()
    assert given_ranges["spread"] == (0.4, 0.5)
    assert given_ranges["sharpness"] == (7, 9)
    assert given_ranges["rise"] == (0.25, 0.25)
    assert given_ranges["learning_rate"] == SpaceSpec().learning_rate


def test_the_papers_form_always_pulls_and_the_others_only_if_told_to():
    assert space_of("paper").ranges()["strength"] == STRENGTH
    assert space_of("paper", strength=[5, 6]).ranges()["strength"] == (5, 6)
    assert space_of("sharpened", strength=0.1).ranges().keys() >= STRENGTH_VALUES
    assert not STRENGTH_VALUES & space_of("straight-through", strength=0.1).ranges().keys()


def test_growth_is_a_choice_where_there_is_a_pull():
    assert space_of("paper").choices() == {"strength_schedule": ("linear", "exponential", "step")}
    assert space_of("paper", strength_schedule="step").choices() == {"strength_schedule": ("step",)}
    assert space_of("sharpened", strength=0.1, strength_schedule="linear").choices() == {
        "strength_schedule": ("linear",)
    }
    assert space_of("sharpened").choices() == space_of("straight-through").choices() == {}


def test_layers_have_values_of_their_own_as_wide_as_told():
    paper = space_of("paper", LENET, allocation=1.5, group_range=0.3).ranges()
    assert {name: ends for name, ends in paper.items() if "." in name} == {
        "strength.conv2": (-0.3, 0.3),
        "strength.fc1": (-0.3, 0.3),
        "density.conv2": (-1.5, 1.5),
        "density.fc1": (-1.5, 1.5),
    }
    sharp = space_of("sharpened", LENET, allocation=1.5, group_range=0.3).ranges()
    assert {name for name in sharp if "." in name} == {
        "sharpness.conv2",
        "sharpness.fc1",
        "density.conv2",
        "density.fc1",
    }
    straight = space_of("straight-through", LENET, allocation=1.5, group_range=0.3).ranges()
    assert {name for name in straight if "." in name} == {"density.conv2", "density.fc1"}


def test_a_width_of_0_makes_all_layers_alike():
    assert not any("." in name for name in space_of("paper", LENET, allocation=0, group_range=0).ranges())


def test_a_group_alone_has_nothing_of_its_own():
    assert not any("." in name for name in space_of("paper", LENET[:1], allocation=1).ranges())
    assert not any("." in name for name in space_of("paper", LENET, groups="all", allocation=1).ranges())


def test_many_layers_share_values_by_stage():
    assert set(space_of(layers=RESIDUAL[:6]).groups.values()) == {layer.name for layer in RESIDUAL[:6]}
    assert set(space_of(layers=RESIDUAL).groups.values()) == {"stage1", "stage2"}
    assert set(space_of(layers=RESIDUAL, groups="layer").groups.values()) == {layer.name for layer in RESIDUAL}
    assert set(space_of(layers=RESIDUAL[:6], groups="stage").groups.values()) == {"stage1", "stage2"}


def test_shares_and_logarithms_are_sampled_evenly_and_the_rest_by_its_logarithm():
    even = {"strength_start", "rise", "sharpness_start", "density.fc1", "strength.stage1", "sharpness.conv2"}
    every = set()
    for form in FORMS:
        every |= space_of(form, LENET, allocation=1).ranges().keys()
    assert {name for name in every | even if not is_logarithmic(name)} >= even
    assert {name for name in every if is_logarithmic(name)} == ALWAYS | {"strength"} | SHARPNESS - even


# Guesses


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "space",
    [{}, {"spread": [0.7, 0.9], "strength": [20, 30]}, {"learning_rate": 1e-5, "strength_start": [0.2, 0.3]}],
    ids=["default", "above", "below"],
)
def test_first_guess_lies_in_the_ranges(form, space):
    chosen = space_of(form, LENET, **space)
    guess = chosen.first_guess()
    assert guess.keys() == chosen.ranges().keys() | chosen.choices().keys()
    assert all(low <= guess[name] <= high for name, (low, high) in chosen.ranges().items())
    assert all(guess[name] in options for name, options in chosen.choices().items())


def test_first_guess_moves_to_the_nearest_end():
    guess = space_of(
        "paper", spread=[0.7, 0.9], learning_rate=[0.001, 0.004], strength_start=[0.2, 0.3], strength=[1, 2]
    ).first_guess()
    assert (guess["spread"], guess["learning_rate"], guess["strength_start"]) == (0.7, 0.004, 0.2)
    assert guess["strength"] == 2
    assert guess["strength_schedule"] == "linear"


def test_first_guess_has_all_layers_alike():
    guess = space_of("paper", LENET, allocation=1).first_guess()
    assert {name: value for name, value in guess.items() if "." in name} == dict.fromkeys(
        ("strength.conv2", "strength.fc1", "density.conv2", "density.fc1"), 0.0
    )


def even_plan(_candidate):
    return 0.9


def test_first_candidates_are_the_guess_for_the_target_and_for_the_grid():
    chosen = space_of(layers=LENET, allocation=0)
    guess = chosen.first_guess()
    assert chosen.first_guesses(even_plan) == {0: guess, 1: guess}


def test_all_at_the_target_there_is_one_guess():
    chosen = space_of(layers=LENET, allocation=0, goal={"target_sparsity": 0.5, "grid": False})
    assert chosen.first_guesses(even_plan) == {0: chosen.first_guess()}


@pytest.mark.parametrize(("grid", "numbers"), [(True, (2, 4)), (False, (1, 2))])
def test_the_targets_next_candidates_try_the_known_splits(grid, numbers):
    """Without sensitivity: even, and by size; densities go as 58 / 12,800 to 192 / 8,192, ln of which is 1.643."""
    chosen = space_of(layers=LENET, allocation=2, goal={"target_sparsity": 0.5, "grid": grid})
    guesses = chosen.first_guesses(even_plan)
    even, by_size = (guesses[number] for number in numbers)
    half = math.log(192 / 8192 / (58 / 12_800)) / 2
    assert (even["density.conv2"], even["density.fc1"]) == (0, 0)
    assert (by_size["density.conv2"], by_size["density.fc1"]) == pytest.approx((-half, half))
    others = {name: value for name, value in chosen.first_guess().items() if not name.startswith("density.")}
    assert all(guess | others == guess for guess in guesses.values())


@pytest.mark.parametrize("goal", [{"front": True}, {"min_accuracy": 0.9}], ids=["front", "min_accuracy"])
def test_without_a_target_the_sparsest_come_first_with_the_best_known_split(goal):
    chosen = space_of(layers=LENET, costs=COSTS, allocation=2, goal=goal)
    guess = chosen.first_guess()
    guesses = chosen.first_guesses(even_plan)
    assert guesses.keys() == {0, 1, 2, 3, 5}
    assert guesses[0] == guesses[1] == guesses[2] == guess
    assert guesses[3] == guess | chosen.densities_of(dict.fromkeys(WEIGHTS, 0.0), 0.9)


def test_a_known_split_is_cut_to_the_range():
    guesses = space_of(layers=LENET, allocation=0.5).first_guesses(even_plan)
    assert (guesses[4]["density.conv2"], guesses[4]["density.fc1"]) == (-0.5, 0.5)


def test_with_sensitivity_the_even_split_is_still_tried():
    """Around another middle, its values make it even again."""
    chosen = space_of(layers=LENET, costs=COSTS, allocation=3)
    guesses = chosen.first_guesses(even_plan)
    spared = chosen.candidate(guesses[0], 0.9, seed=0).allocation
    assert spared["conv2"] < 0.9 < spared["fc1"]
    assert chosen.candidate(guesses[2], 0.9, seed=0).allocation == pytest.approx({"conv2": 0.9, "fc1": 0.9}, abs=1e-9)


# Samples


def finished(chosen, number):
    """One trial of a study, asked for and sampled."""
    study = optuna.create_study(directions=["maximize"] * 2, sampler=PlannedSampler(number, chosen.first_guess()))
    trial = study.ask()
    return trial, chosen.sample(trial, 0.7, seed=number)


@pytest.mark.parametrize("form", FORMS)
def test_samples_lie_in_the_ranges_and_make_the_candidate(form):
    chosen = space_of(form, LENET, allocation=1)
    seen = set()
    for number in range(6):
        trial, candidate = finished(chosen, number)
        assert trial.params.keys() == chosen.ranges().keys() | chosen.choices().keys()
        for name, (low, high) in chosen.ranges().items():
            assert trial.distributions[name] == FloatDistribution(low, high, log=is_logarithmic(name))
            assert low <= trial.params[name] <= high
        for name, options in chosen.choices().items():
            assert trial.distributions[name] == CategoricalDistribution(options)
        assert candidate == chosen.candidate(trial.params, 0.7, seed=number)
        seen.add(tuple(trial.params.values()))
    assert len(seen) == 6


@pytest.mark.parametrize("form", FORMS)
def test_fixed_values_are_fixed(form):
    fixed = {"spread": 0.5, "latent_learning_rate": 0.04, "learning_rate": 0.02}
    for number in range(3):
        trial, candidate = finished(space_of(form, LENET, **fixed), number)
        assert {name: trial.params[name] for name in fixed} == fixed
        assert {name: getattr(candidate, name) for name in fixed} == fixed


# Values -> candidate


@pytest.mark.parametrize(
    ("form", "alpha"), [("paper", FromPrior()), *((form, Tracked(rise=0.0)) for form in FORMS[1:])]
)
def test_candidate_takes_what_the_spec_fixes(form, alpha):
    train = {"epochs": 7, "frozen_epochs": 3, "distillation": 0.4, "temperature": 2.5}
    chosen = Space(StudySpec.model_validate({"train": train, "search": {"form": form}}))
    candidate = chosen.candidate(chosen.first_guess(), 0.37, seed=11)
    assert {name: getattr(candidate, name) for name in train} == train
    assert candidate.alpha == alpha
    assert (candidate.form, candidate.sparsity, candidate.seed, candidate.allocation) == (form, 0.37, 11, {})
    assert Candidate.model_validate(candidate.model_dump(mode="json")) == candidate


def test_an_alpha_of_the_spec_overrules_the_forms_own():
    spec = StudySpec.model_validate({"search": {"alpha": {"kind": "prior"}}})
    assert Space(spec).candidate(Space(spec).first_guess(), 0.5, seed=0).alpha == FromPrior()
    spec = StudySpec.model_validate({"search": {"alpha": {"kind": "tracked", "every": 4}}})
    values = Space(spec).first_guess() | {"rise": 0.125}
    assert Space(spec).candidate(values, 0.5, seed=0).alpha == Tracked(every=4, rise=0.125)


def with_schedule(strength_schedule, **values):
    chosen = Space(StudySpec.model_validate({"train": {"epochs": 20}, "search": {"form": "paper"}}), LENET)
    guess = chosen.first_guess() | {"strength": 100.0, "strength_start": 0.25, "strength_schedule": strength_schedule}
    return chosen.candidate(guess | values, 0.5, seed=0)


def test_strength_grows_straight_by_factors_or_in_a_step():
    assert with_schedule("linear").strength == Ramp(first=0.0, last=100.0, start=0.25)
    assert with_schedule("exponential").strength == Ramp(first=2.0, last=100.0, start=0.25, interpolation="exponential")
    # The paper's: a fiftieth until a quarter of the 20 epochs are over.
    assert with_schedule("step").strength == Steps(value=2.0, factors=((5.0, 50.0),))


@pytest.mark.parametrize("strength_schedule", ["linear", "exponential", "step"])
def test_every_growth_ends_at_its_strength(strength_schedule):
    candidate = with_schedule(strength_schedule, **{"strength.fc1": math.log(3)})
    assert candidate.strength_of("conv2", 20) == pytest.approx(100.0)
    assert candidate.strength_of("fc1", 20) == pytest.approx(300.0)
    assert candidate.layer_strength.keys() == {"fc1"}


def test_without_a_pull_there_is_no_strength():
    for form in FORMS[1:]:
        candidate = space_of(form).candidate(space_of(form).first_guess(), 0.5, seed=0)
        assert candidate.strength == Constant(value=0.0)
        assert candidate.layer_strength == {}


def test_sharpness_goes_from_its_first_to_its_last_and_a_layer_has_its_own():
    chosen = space_of("sharpened", LENET)
    values = chosen.first_guess() | {"sharpness": 400.0, "sharpness_first": 4.0, "sharpness.conv2": math.log(2)}
    candidate = chosen.candidate(values | {"sharpness_start": 0.25}, 0.5, seed=0)
    epochs = candidate.epochs
    assert [candidate.sharpness_of("fc1", epoch) for epoch in (0, epochs / 4, epochs)] == pytest.approx([4, 4, 400])
    assert candidate.sharpness_of("fc1", 0.3 * epochs) > 4
    assert [candidate.sharpness_of("conv2", epoch) for epoch in (0, epochs)] == pytest.approx([4, 800])
    assert candidate.layer_sharpness.keys() == {"conv2"}


def test_the_gradients_sharpness_is_the_candidates():
    chosen = space_of("sharpened", LENET)
    values = chosen.first_guess() | {"gradient_sharpness": 7.0}
    assert chosen.candidate(values, 0.5, seed=0).gradient_sharpness == 7.0
    for form in ("paper", "straight-through"):
        assert space_of(form).candidate(space_of(form).first_guess(), 0.5, seed=0).gradient_sharpness is None


# Values -> allocation -> values

densities = st.fixed_dictionaries({"density.conv2": st.floats(-2, 2), "density.fc1": st.floats(-2, 2)})


def allocation_of(chosen, sparsity, **values):
    return chosen.candidate(chosen.first_guess() | values, sparsity, seed=0).allocation


@pytest.mark.parametrize("costs", [(), COSTS], ids=["even", "spared"])
@quick
@given(values=densities, sparsity=st.floats(0, 0.999))
def test_every_sampled_split_has_the_planned_sparsity(costs, values, sparsity):
    allocation = allocation_of(space_of(layers=LENET, costs=costs, allocation=2), sparsity, **values)
    assert all(0 <= share < 1 for share in allocation.values())
    zeros = sum(WEIGHTS[name] * share for name, share in allocation.items())
    assert zeros / sum(WEIGHTS.values()) == pytest.approx(sparsity, abs=1e-9)


@pytest.mark.parametrize("costs", [(), COSTS], ids=["even", "spared"])
@quick
@given(difference=st.floats(-0.9, 0.9), sparsity=st.floats(0.9, 0.99))
def test_values_make_a_split_whose_weighting_gives_the_values_back(costs, difference, sparsity):
    """Values that sum to 0, and layers that are neither full nor at their floor."""
    chosen = space_of(layers=LENET, costs=costs, allocation=2)
    values = {"density.conv2": difference, "density.fc1": -difference}
    allocation = allocation_of(chosen, sparsity, **values)
    again = chosen.densities_of(weighting_of(LENET, allocation), sparsity)
    assert again == pytest.approx(values, abs=1e-6)


@quick
@given(common=st.floats(-1, 1), difference=st.floats(-1, 1), sparsity=st.floats(0, 0.999))
def test_only_differences_between_densities_matter(common, difference, sparsity):
    chosen = space_of(layers=LENET, allocation=2)
    one = allocation_of(chosen, sparsity, **{"density.conv2": difference, "density.fc1": 0.0})
    other = allocation_of(chosen, sparsity, **{"density.conv2": difference + common, "density.fc1": common})
    assert one == pytest.approx(other, abs=1e-9)


def test_a_split_by_hand():
    # conv2 e times as dense as fc1: d = 2,099.2 / (12,800 e + 8,192) for fc1.
    allocation = allocation_of(space_of(layers=LENET, allocation=2), 0.9, **{"density.conv2": 1.0, "density.fc1": 0.0})
    density = 2099.2 / (12_800 * math.e + 8_192)
    assert allocation == pytest.approx({"conv2": 1 - math.e * density, "fc1": 1 - density})


def test_layers_of_a_group_have_the_same_share():
    allocation = allocation_of(
        space_of(layers=RESIDUAL, allocation=2), 0.9, **{"density.stage1": 1.0, "density.stage2": -1.0}
    )
    shares = {
        group: {allocation[layer.name] for layer in RESIDUAL if layer.name.startswith(group)}
        for group in ("stage1", "stage2")
    }
    assert all(len(each) == 1 for each in shares.values())
    (first,), (second,) = shares.values()
    assert (1 - first) / (1 - second) == pytest.approx(math.e**2)


def test_a_plan_beyond_the_floors_becomes_the_highest_possible():
    layers = (LayerShape("a", (10, 10), 5), LayerShape("b", (10, 10), 5))
    assert Space(StudySpec(), layers).possible(0.99) == 0.95
    assert Space(StudySpec(), layers).possible(0.9) == 0.9
