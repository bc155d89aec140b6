"""What a study searches: ranges by form and group, guesses, and the way from values to a candidate and back."""

import math
from itertools import combinations

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution

from sca_search.config.candidate import Candidate, Constant, FromPrior, Ramp, Steps, Tracked
from sca_search.config.names import METHODS
from sca_search.config.study import SpaceSpec, StudySpec
from sca_search.study.sampler import PlannedSampler
from sca_search.study.space import PARTS, Space, is_logarithmic
from sca_search.ternary.allocation import LayerCost, LayerShape

quick = settings(max_examples=60, deadline=None, derandomize=True)
# Two forms of SCA, and methods without a form.
KINDS = ("decoupled", "paper", "straight-through", "twn", "tang")
PLANNED = KINDS[:3]
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

RATES = {"learning_rate", "latent_learning_rate", "frozen_learning_rate"}
ALWAYS = RATES | {"distillation", "temperature"}
RISE = {"rise_start", "rise"}
OPTIONS = {
    "strength_schedule": ("linear", "exponential", "step"),
    "gradient": ("straight-through", "tanh", "flow"),
    "reallocation": ("adaptive", "fixed"),
}


def space_of(kind="decoupled", layers=(), costs=(), goal=None, search=None, **space):
    """`kind`: a form of SCA or another method."""
    chosen = {"form": kind} if kind in {"decoupled", "paper"} else {"method": kind}
    tables = {"search": chosen | {"space": space} | (search or {})}
    if goal or kind in PLANNED:
        tables["goal"] = goal or {"target_sparsity": 0.5}
    return Space(StudySpec.model_validate(tables), layers, costs)


def candidate_of(chosen, sparsity=0.5, **values):
    return chosen.candidate(chosen.first_guess() | values, sparsity, seed=0)


# Ranges


def test_ranges_depend_on_the_form_and_the_method():
    strength = {"strength", "strength_start"}
    assert space_of("decoupled").ranges().keys() == ALWAYS | RISE | strength | {"spread", "strength_first"}
    assert space_of("paper").ranges().keys() == ALWAYS | strength | {"spread"}
    assert space_of("straight-through").ranges().keys() == ALWAYS | RISE | {"spread"}
    assert space_of("twn").ranges().keys() == ALWAYS
    assert space_of("tang").ranges().keys() == ALWAYS | {"strength"}


def test_choices_depend_on_the_form_and_the_method():
    assert space_of("decoupled").choices() == OPTIONS
    assert space_of("paper").choices() == {"strength_schedule": OPTIONS["strength_schedule"]}
    assert space_of("straight-through").choices() == {"reallocation": OPTIONS["reallocation"]}
    assert space_of("twn").choices() == space_of("tang").choices() == {}


def test_ranges_and_choices_are_those_of_the_spec():
    chosen = space_of(spread=[0.4, 0.5], strength_first=[1, 2], rise=0.25, gradient="tanh", reallocation=["fixed"])
    ranges = chosen.ranges()
    assert (ranges["spread"], ranges["strength_first"], ranges["rise"]) == ((0.4, 0.5), (1, 2), (0.25, 0.25))
    assert ranges["learning_rate"] == SpaceSpec().learning_rate
    assert chosen.choices() == OPTIONS | {"gradient": ("tanh",), "reallocation": ("fixed",)}


def test_the_range_of_the_strength_depends_on_its_unit():
    assert space_of("decoupled").ranges()["strength"] == (10, 60)
    assert space_of("paper").ranges()["strength"] == (3, 1000)
    assert space_of("tang").ranges()["strength"] == METHODS["tang"].strength[:2]
    assert {space_of(form, strength=[5, 6]).ranges()["strength"] for form in ("decoupled", "paper")} == {(5, 6)}


def test_distillation_that_is_switched_off_has_no_temperature():
    assert space_of(distillation=0).ranges().keys() & {"distillation", "temperature"} == {"distillation"}
    assert space_of(distillation=0).ranges()["distillation"] == (0, 0)
    assert "temperature" in space_of(distillation=[0, 0.1]).ranges()


@pytest.mark.parametrize(
    "goal",
    [
        {"max_kb": 10.0},
        {"max_latency_ms": 1.0, "target_sparsity": 0.5},
        {"min_accuracy": 0.9, "prefer": "smallest"},
    ],
    ids=["size", "latency", "smallest"],
)
def test_zeros_do_not_move_between_layers_where_costs_are_planned(goal):
    assert "reallocation" not in space_of(layers=LENET, goal=goal).choices()


def test_zeros_of_a_layer_alone_cannot_move():
    assert "reallocation" in space_of(layers=LENET).choices()
    assert "reallocation" not in space_of(layers=LENET[:1]).choices()


def test_a_constant_alpha_has_no_rise():
    fixed = space_of(layers=LENET, search={"alpha": {"kind": "prior"}})
    assert not any(name.startswith("rise") for name in fixed.ranges())
    assert "reallocation" not in fixed.choices()
    tracked = space_of("paper", LENET, search={"alpha": {"kind": "tracked"}})
    assert tracked.ranges().keys() >= RISE | {"rise.conv2", "rise.fc1"}
    assert "reallocation" in tracked.choices()


@pytest.mark.parametrize(
    ("kind", "prefixes"),
    [
        ("decoupled", {"strength": 0.3, "rise": 0.1, "density": 1.5}),
        ("paper", {"strength": 0.3, "density": 1.5}),
        ("straight-through", {"rise": 0.1, "density": 1.5}),
        ("twn", {}),
    ],
)
def test_layers_have_values_of_their_own_as_wide_as_told(kind, prefixes):
    ranges = space_of(kind, LENET, allocation=1.5, group_strength=0.3, group_rise=0.1).ranges()
    assert {name: ends for name, ends in ranges.items() if "." in name} == {
        f"{prefix}.{layer}": (-width, width) for prefix, width in prefixes.items() for layer in WEIGHTS
    }


def test_a_width_of_0_makes_all_layers_alike():
    assert not any(
        "." in name for name in space_of(layers=LENET, allocation=0, group_strength=0, group_rise=0).ranges()
    )


def test_a_group_alone_has_nothing_of_its_own():
    assert not any("." in name for name in space_of(layers=LENET[:1]).ranges())
    assert not any("." in name for name in space_of(layers=LENET, search={"groups": "all"}).ranges())


def test_many_layers_share_values_by_stage():
    assert set(space_of(layers=RESIDUAL[:6]).groups.values()) == {layer.name for layer in RESIDUAL[:6]}
    assert set(space_of(layers=RESIDUAL).groups.values()) == {"stage1", "stage2"}
    assert set(space_of(layers=RESIDUAL, search={"groups": "layer"}).groups.values()) == {
        layer.name for layer in RESIDUAL
    }
    assert set(space_of(layers=RESIDUAL[:6], search={"groups": "stage"}).groups.values()) == {"stage1", "stage2"}


def test_fractions_and_logarithms_are_sampled_uniformly_and_the_rest_log_uniformly():
    every = {name for kind in KINDS for name in space_of(kind, LENET).ranges()}
    of_layers = {f"{prefix}.{layer}" for prefix in ("strength", "rise", "density") for layer in WEIGHTS}
    uniform = RISE | {"strength_start", "distillation"} | of_layers
    assert {name for name in every if not is_logarithmic(name)} == uniform
    assert every - uniform == RATES | {"temperature", "spread", "strength", "strength_first"}


def test_searched_values_are_listed_by_what_they_set():
    parts = {
        "λ schedule": ("strength_start", "strength_first", "strength_schedule", "strength", "strength.conv2"),
        "α schedule": ("rise_start", "rise", "rise.conv2"),
        "allocation": ("density.conv2", "reallocation"),
        "training": (*ALWAYS, "spread", "gradient"),
    }
    rows = [row for row in space_of(layers=LENET, rise=0.25).searched() if not row["parameter"].endswith(".fc1")]
    assert {row["parameter"]: row["sets"] for row in rows} == {
        name: part for part, names in parts.items() for name in names
    }
    assert [row["sets"] for row in rows] == sorted((row["sets"] for row in rows), key=PARTS.index)
    listed = {row["parameter"]: tuple(row.values())[2:] for row in rows}
    assert listed["strength"] == ((10, 60), None, "log", 40.0)
    assert listed["rise"] == ((0.25, 0.25), None, "linear", 0.25)
    assert listed["gradient"] == (None, OPTIONS["gradient"], None, "straight-through")


# Guesses


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "space",
    [{}, {"spread": [0.7, 0.9], "strength": [20, 30]}, {"learning_rate": 1e-5, "strength_start": [0.2, 0.3]}],
    ids=["default", "above", "below"],
)
def test_first_guess_lies_in_the_ranges(kind, space):
    chosen = space_of(kind, LENET, **space)
    guess = chosen.first_guess()
    assert guess.keys() == chosen.ranges().keys() | chosen.choices().keys()
    assert all(low <= guess[name] <= high for name, (low, high) in chosen.ranges().items())
    assert all(guess[name] in options for name, options in chosen.choices().items())


def test_first_guess_moves_to_the_nearest_end():
    fixed = {"spread": [0.7, 0.9], "learning_rate": [0.001, 0.004], "strength_start": [0.2, 0.3], "strength": [1, 2]}
    guess = space_of("decoupled", **fixed, rise_start=0.1, gradient=["flow", "tanh"]).first_guess()
    assert (guess["spread"], guess["learning_rate"], guess["strength_start"]) == (0.7, 0.004, 0.2)
    assert (guess["strength"], guess["rise_start"], guess["gradient"]) == (2, 0.1, "flow")


def test_first_guess_has_all_layers_alike():
    guess = space_of(layers=LENET).first_guess()
    assert {value for name, value in guess.items() if "." in name} == {0.0}
    candidate = candidate_of(space_of(layers=LENET), 0.9)
    assert (candidate.layer_strength, candidate.layer_alpha) == ({}, {})


def test_first_guess_of_a_method_is_its_own_strength():
    assert space_of("tang").first_guess()["strength"] == METHODS["tang"].strength[2]
    assert [space_of(form).first_guess()["strength"] for form in ("decoupled", "paper")] == [40, 100]


@pytest.mark.parametrize(
    ("goal", "count"),
    [
        ({"target_sparsity": 0.5}, 2),
        ({"target_sparsity": 0.5, "grid": False}, 1),
        ({"front": True}, 3),
        ({"min_accuracy": 0.9}, 3),
    ],
    ids=["target and grid", "target", "front", "minimum"],
)
def test_first_candidates_are_the_guess_for_the_target_and_the_grid_or_for_the_sparsest(goal, count):
    chosen = space_of(layers=LENET, costs=COSTS, allocation=2, goal=goal)
    assert chosen.first_guesses() == dict.fromkeys(range(count), chosen.first_guess())


def test_first_allocation_follows_the_layers_sensitivity():
    chosen = space_of(layers=LENET, costs=COSTS, allocation=3)
    allocation = chosen.candidate(chosen.first_guess(), 0.9, seed=0).allocation
    assert allocation["conv2"] < 0.9 < allocation["fc1"]


# Samples


def finished(chosen, number):
    """One trial of a study, asked for and sampled."""
    study = optuna.create_study(directions=["maximize"] * 2, sampler=PlannedSampler(number, chosen.first_guess()))
    trial = study.ask()
    return trial, chosen.sample(trial, 0.7, seed=number)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_lie_in_the_ranges_and_make_the_candidate(kind):
    chosen = space_of(kind, LENET)
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


@pytest.mark.parametrize("kind", PLANNED)
def test_fixed_values_are_fixed(kind):
    fixed = {"spread": 0.5, "latent_learning_rate": 0.04, "learning_rate": 0.02, "distillation": 0.3}
    for number in range(3):
        trial, candidate = finished(space_of(kind, LENET, **fixed), number)
        assert {name: trial.params[name] for name in fixed} == fixed
        assert {name: getattr(candidate, name) for name in fixed} == fixed


# Values -> candidate


@pytest.mark.parametrize(
    ("kind", "form", "alpha"),
    [
        ("decoupled", "decoupled", Tracked(rise=0.5)),
        ("paper", "paper", FromPrior()),
        ("straight-through", "straight-through", Tracked(rise=0.5)),
        ("twn", "decoupled", FromPrior()),
    ],
)
def test_candidate_takes_what_the_spec_fixes(kind, form, alpha):
    train = {"epochs": 7, "frozen_epochs": 3}
    search = {"form": kind} if kind in {"decoupled", "paper"} else {"method": kind}
    chosen = Space(StudySpec.model_validate({"train": train, "search": search}))
    candidate = chosen.candidate(chosen.first_guess(), 0.37, seed=11)
    assert {name: getattr(candidate, name) for name in train} == train
    assert (candidate.form, candidate.alpha, candidate.method) == (form, alpha, search.get("method", "sca"))
    assert (candidate.sparsity, candidate.seed, candidate.allocation) == (0.37, 11, {})
    assert candidate.exact == (kind in PLANNED)
    assert Candidate.model_validate(candidate.model_dump(mode="json")) == candidate


def changed(chosen, name):
    """The candidates of the first guess, and of it with another value."""
    guess = chosen.first_guess()
    low, high = chosen.ranges().get(name, (0, 0))
    other = next(each for each in chosen.choices().get(name, (low, (low + high) / 2)) if each != guess[name])
    return candidate_of(chosen, 0.9), candidate_of(chosen, 0.9, **{name: other})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("costs", [(), COSTS], ids=["even", "spared"])
def test_every_searched_value_changes_the_candidate(kind, costs):
    chosen = space_of(kind, LENET, costs)
    for name in chosen.first_guess():
        guessed, other = changed(chosen, name)
        assert guessed != other, name


@pytest.mark.parametrize("name", [*sorted(RATES), "distillation", "temperature", "spread", "gradient"])
def test_values_of_the_training_are_the_candidates(name):
    guessed, other = changed(space_of(layers=LENET), name)
    assert {key for key, value in guessed if value != getattr(other, key)} == {name}


def test_zeros_move_only_where_the_trial_chose_so():
    chosen = space_of(layers=LENET)
    assert [candidate_of(chosen, reallocation=kind).adaptive for kind in OPTIONS["reallocation"]] == [True, False]
    assert not candidate_of(space_of("paper", LENET)).adaptive


@pytest.mark.parametrize("seed", range(3))
def test_trials_have_schedules_of_their_own(seed):
    candidates = [finished(space_of(layers=LENET), 10 * seed + number)[1] for number in range(4)]
    strengths, alphas = [each.strength for each in candidates], [each.alpha for each in candidates]
    assert all(one != other for one, other in combinations(strengths, 2))
    assert all(one != other for one, other in combinations(alphas, 2))
    assert all(each.strength_of("conv2", 20) != each.strength_of("fc1", 20) for each in candidates)
    assert all(each.alpha_of("conv2") != each.alpha_of("fc1") for each in candidates)


def test_sparsity_rises_when_the_trial_chose_so_and_of_each_layer_for_its_own_time():
    values = {"rise_start": 0.25, "rise": 0.5, "rise.fc1": -0.125}
    candidate = candidate_of(space_of(layers=LENET), **values)
    assert candidate.alpha == candidate.alpha_of("conv2") == Tracked(start=0.25, rise=0.5)
    assert candidate.alpha_of("fc1") == Tracked(start=0.25, rise=0.375)


@pytest.mark.parametrize(("rise", "offset", "expected"), [(0.1, -0.2, 0.0), (0.7, 0.2, 0.75), (0.7, -0.2, 0.5)])
def test_a_rise_ends_within_training(rise, offset, expected):
    values = {"rise_start": 0.25, "rise": rise, "rise.fc1": offset}
    assert candidate_of(space_of(layers=LENET), **values).alpha_of("fc1").rise == pytest.approx(expected)


def test_an_alpha_of_the_spec_overrules_the_forms_own():
    assert candidate_of(space_of(search={"alpha": {"kind": "prior"}})).alpha == FromPrior()
    tracked = space_of(search={"alpha": {"kind": "tracked", "every": 4}})
    assert candidate_of(tracked, rise=0.125).alpha == Tracked(every=4, rise=0.125)


def with_schedule(form, strength_schedule, **values):
    chosen = Space(StudySpec.model_validate({"train": {"epochs": 20}, "search": {"form": form}}), LENET)
    fixed = {"strength": 100.0, "strength_start": 0.25, "strength_schedule": strength_schedule}
    return candidate_of(chosen, **fixed | values)


def test_strength_of_the_paper_grows_linearly_exponentially_or_in_a_step():
    assert with_schedule("paper", "linear").strength == Ramp(first=0.0, last=100.0, start=0.25)
    exponential = Ramp(first=2.0, last=100.0, start=0.25, interpolation="exponential")
    assert with_schedule("paper", "exponential").strength == exponential
    # The paper's: a fiftieth until a quarter of the 20 epochs are over.
    assert with_schedule("paper", "step").strength == Steps(value=2.0, factors=((5.0, 50.0),))


def test_strength_of_the_decoupled_form_grows_from_its_first_value_and_stops_before_the_end():
    ramp = {"first": 4.0, "last": 100.0, "start": 0.25, "stop": 0.9}
    for kind in ("linear", "exponential"):
        assert with_schedule("decoupled", kind, strength_first=4.0).strength == Ramp(**ramp, interpolation=kind)
    assert with_schedule("decoupled", "step", strength_first=4.0).strength == Steps(value=4.0, factors=((5.0, 25.0),))


@pytest.mark.parametrize("strength_schedule", OPTIONS["strength_schedule"])
def test_strength_does_not_fall_where_the_first_value_is_above_the_last(strength_schedule):
    candidate = with_schedule("decoupled", strength_schedule, strength=2.0, strength_first=8.0)
    assert [candidate.strength_of("fc1", epoch) for epoch in (0, 10, 20)] == pytest.approx([2, 2, 2])


@pytest.mark.parametrize("strength_schedule", OPTIONS["strength_schedule"])
@pytest.mark.parametrize(("form", "end"), [("paper", 20), ("decoupled", 18)])
def test_every_schedule_ends_at_its_strength_and_a_layer_at_its_own(form, end, strength_schedule):
    candidate = with_schedule(form, strength_schedule, **{"strength.fc1": math.log(3)})
    assert [candidate.strength_of("conv2", epoch) for epoch in (end, 20)] == pytest.approx([100, 100])
    ratios = [candidate.strength_of("fc1", epoch) / candidate.strength_of("conv2", epoch) for epoch in (6, 12, 20)]
    assert ratios == pytest.approx([3, 3, 3])
    assert candidate.layer_strength.keys() == {"fc1"}


def test_other_methods_have_a_constant_strength_or_none():
    assert candidate_of(space_of("tang"), strength=0.7).strength == Constant(value=0.7)
    for kind in ("straight-through", "twn"):
        candidate = candidate_of(space_of(kind, LENET))
        assert (candidate.strength, candidate.layer_strength) == (Constant(value=0.0), {})


# Values -> allocation -> values

densities = st.fixed_dictionaries({"density.conv2": st.floats(-2, 2), "density.fc1": st.floats(-2, 2)})


def allocation_of(chosen, sparsity, **values):
    return candidate_of(chosen, sparsity, **values).allocation


@pytest.mark.parametrize("costs", [(), COSTS], ids=["even", "spared"])
@quick
@given(values=densities, sparsity=st.floats(0, 0.999))
def test_every_sampled_split_has_the_planned_sparsity(costs, values, sparsity):
    allocation = allocation_of(space_of(layers=LENET, costs=costs, allocation=2), sparsity, **values)
    assert all(0 <= share < 1 for share in allocation.values())
    zeros = sum(WEIGHTS[name] * share for name, share in allocation.items())
    assert zeros / sum(WEIGHTS.values()) == pytest.approx(sparsity, abs=1e-9)


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
