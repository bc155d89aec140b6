"""Schedules: values by hand, reading from TOML, printing, comparing, and what they reject."""

import math
import tomllib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from sca_search.config.candidate import AlphaSchedule, Constant, FromPrior, Ramp, Schedule, Steps, Tracked

quick = settings(max_examples=60, deadline=None, derandomize=True)
SCHEDULE = TypeAdapter(Schedule)
ALPHA = TypeAdapter(AlphaSchedule)


def read(line, kind=SCHEDULE):
    return kind.validate_python(tomllib.loads(f"value = {line}")["value"])


# Values


def test_constant_never_changes():
    assert [Constant(value=0.3).at(epoch, 10) for epoch in (0, 0.5, 10, 11)] == [0.3] * 4


def test_steps_multiply_from_their_epochs_on():
    steps = Steps(value=3.0, factors=((2, 10.0), (5.5, 0.5)))
    assert [steps.at(epoch, 8) for epoch in (0, 1.99, 2, 5.49, 5.5, 8)] == [3, 3, 30, 30, 15, 15]


def test_steps_of_the_paper():
    strength = read("{ kind = 'steps', value = 5e-8, factors = [[270, 50]] }")
    assert strength.at(269, 300) == pytest.approx(5e-8)
    assert strength.at(270, 300) == pytest.approx(2.5e-6)


def test_steps_are_epochs_however_long_the_training():
    steps = Steps(value=1.0, factors=((3, 2.0),))
    assert steps.at(3, 4) == steps.at(3, 400) == 2.0


def test_steps_without_factors_are_constant():
    assert Steps(value=2.0, factors=()).at(7, 10) == 2.0


def test_a_factor_of_0_switches_off():
    assert Steps(value=2.0, factors=((1, 0.0),)).at(1, 2) == 0.0


def test_linear_ramp_by_hand():
    ramp = Ramp(first=2, last=10, start=0.25, stop=0.75)
    assert [ramp.at(epoch, 8) for epoch in (0, 1, 2, 3, 4, 5, 6, 7, 8)] == [2, 2, 2, 4, 6, 8, 10, 10, 10]


def test_linear_ramp_may_fall_and_start_at_0():
    assert [Ramp(first=4, last=0).at(epoch, 4) for epoch in range(5)] == [4, 3, 2, 1, 0]


def test_exponential_ramp_by_hand():
    ramp = Ramp(first=1, last=100, interpolation="exponential")
    assert [ramp.at(epoch, 4) for epoch in (0, 1, 2, 4)] == pytest.approx([1, math.sqrt(10), 10, 100])
    stopped = Ramp(first=2, last=128, start=0, stop=0.9, interpolation="exponential")
    assert [stopped.at(epoch, 20) for epoch in (0, 3, 9, 18, 20)] == pytest.approx([2, 4, 16, 128, 128])


def test_ramp_keeps_its_shape_when_epochs_change():
    ramp = Ramp(first=1, last=3, start=0.2, stop=0.6)
    assert ramp.at(4, 10) == pytest.approx(ramp.at(40, 100)) == pytest.approx(2.0)


def test_ramp_that_stops_where_it_starts_is_a_jump():
    jump = Ramp(first=1, last=5, start=0.5, stop=0.5)
    assert [jump.at(epoch, 10) for epoch in (0, 4.9, 5, 10)] == [1, 1, 5, 5]


def test_ramp_that_stops_at_once_is_its_last_value():
    assert [Ramp(first=1, last=5, stop=0).at(epoch, 10) for epoch in (0, 10)] == [5, 5]


@pytest.mark.parametrize("schedule", [Ramp(first=1, last=5), Ramp(first=1, last=5, interpolation="exponential")])
def test_a_training_without_epochs_is_at_its_end(schedule):
    assert schedule.at(0, 0) == 5


def test_tracked_sparsity_rises_as_a_cubic_by_hand():
    # Four of eight epochs: 1 - (1 - epoch/4)³.
    fractions = [Tracked(rise=0.5).sparsity_fraction(epoch, 8) for epoch in (0, 1, 2, 3, 4, 6, 8)]
    assert fractions == [0, 37 / 64, 7 / 8, 63 / 64, 1, 1, 1]


def test_tracked_sparsity_is_0_before_its_start():
    # Half of eight epochs from the second on: the same cubic, two epochs later.
    tracked = Tracked(start=0.25, rise=0.5)
    fractions = [tracked.sparsity_fraction(epoch, 8) for epoch in (0, 1, 2, 3, 4, 5, 6, 8)]
    assert fractions == [0, 0, 0, 37 / 64, 7 / 8, 63 / 64, 1, 1]


def test_tracked_sparsity_without_a_rise_is_whole_from_its_start_on():
    assert [Tracked(start=0.5).sparsity_fraction(epoch, 8) for epoch in (0, 3.9, 4, 8)] == [0, 0, 1, 1]


def test_tracked_sparsity_holds_at_once_without_a_rise():
    assert [Tracked().sparsity_fraction(epoch, 8) for epoch in (0, 0.1, 8)] == [1, 1, 1]
    assert Tracked(rise=0.5).sparsity_fraction(0, 0) == 1


def test_a_rise_over_the_whole_training_ends_with_it():
    assert [Tracked(rise=1.0).sparsity_fraction(epoch, 2) for epoch in (0, 1, 2)] == [0, 7 / 8, 1]


@quick
@given(st.tuples(st.floats(0, 1), st.floats(0, 1)), st.integers(1, 100))
def test_tracked_sparsity_never_falls_and_slows_down(ends, epochs):
    start, stop = sorted(ends)
    tracked = Tracked(start=start, rise=stop - start)
    rising = [start + (1 - start) * step / 40 for step in range(41)]
    fractions = [tracked.sparsity_fraction(epochs * fraction, epochs) for fraction in rising]
    steps = [after - before for before, after in pairwise(fractions)]
    assert all(tracked.sparsity_fraction(epochs * start * step / 10, epochs) == 0 for step in range(10)) or start == 0
    assert tracked.sparsity_fraction(epochs, epochs) == pytest.approx(1)
    assert all(0 <= fraction <= 1 for fraction in fractions)
    assert all(step >= 0 for step in steps)
    assert all(after <= before + 1e-9 for before, after in pairwise(steps[1:]))


ramps = st.builds(
    lambda first, last, ends, interpolation: Ramp(
        first=first, last=last, start=min(ends), stop=max(ends), interpolation=interpolation
    ),
    st.floats(0.01, 100),
    st.floats(0.01, 100),
    st.tuples(st.floats(0, 1), st.floats(0, 1)).filter(lambda ends: abs(ends[0] - ends[1]) > 1e-6),
    st.sampled_from(["linear", "exponential"]),
)


@quick
@given(ramps, st.integers(1, 100))
def test_ramp_begins_at_first_ends_at_last_and_never_turns(ramp, epochs):
    values = [ramp.at(epochs * step / 50, epochs) for step in range(51)]
    low, high = sorted([ramp.first, ramp.last])
    assert values[-1] == ramp.last
    assert ramp.at(epochs * ramp.start, epochs) == pytest.approx(ramp.first, rel=1e-6)
    assert all(low * (1 - 1e-9) <= value <= high * (1 + 1e-9) for value in values)
    ordered = sorted(values, reverse=ramp.first > ramp.last)
    assert values == pytest.approx(ordered, rel=1e-12)


# Reading


def test_plain_numbers_are_constants():
    assert read("0.1") == Constant(value=0.1)
    assert read("3") == Constant(value=3.0)
    assert read("0") == Constant(value=0.0)
    assert read("0.5", ALPHA) == Constant(value=0.5)


def test_tables_name_their_kind():
    assert read("{ kind = 'constant', value = 0.1 }") == Constant(value=0.1)
    assert read("{ kind = 'steps', value = 1, factors = [[2, 0.1], [4, 0.1]] }") == Steps(
        value=1.0, factors=((2.0, 0.1), (4.0, 0.1))
    )
    assert read("{ kind = 'ramp', first = 2, last = 100, stop = 0.9, interpolation = 'exponential' }") == Ramp(
        first=2.0, last=100.0, start=0.0, stop=0.9, interpolation="exponential"
    )
    assert read("{ kind = 'prior' }", ALPHA) == FromPrior()
    assert read("{ kind = 'tracked' }", ALPHA) == Tracked(every=1)
    assert read("{ kind = 'tracked', every = 5 }", ALPHA) == Tracked(every=5)
    assert read("{ kind = 'tracked', rise = 0.5 }", ALPHA) == Tracked(every=1, start=0.0, rise=0.5)
    assert read("{ kind = 'tracked', start = 0.2 }", ALPHA) == Tracked(start=0.2)


ALL = [
    Constant(value=0.25),
    Steps(value=1.0, factors=((3.0, 0.1),)),
    Ramp(first=0.0, last=2.0, stop=0.5),
    Tracked(every=3, start=0.25),
    FromPrior(),
]


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.kind)
def test_what_is_written_reads_back(schedule):
    assert ALPHA.validate_python(schedule.model_dump(mode="json")) == schedule
    assert ALPHA.validate_python(schedule) == schedule
    assert ALPHA.validate_json(schedule.model_dump_json()) == schedule


def test_schedules_print_what_they_are():
    assert repr(ALL[0]) == "Constant(kind='constant', value=0.25)"
    assert repr(ALL[1]) == "Steps(kind='steps', value=1.0, factors=((3.0, 0.1),))"
    assert repr(ALL[2]) == "Ramp(kind='ramp', first=0.0, last=2.0, start=0.0, stop=0.5, interpolation='linear')"
    assert repr(ALL[3]) == "Tracked(kind='tracked', every=3, start=0.25, rise=0.0)"
    assert repr(ALL[4]) == "FromPrior(kind='prior')"


def test_schedules_compare_by_value():
    assert Constant(value=1) == Constant(value=1.0)
    assert Constant(value=1) != Constant(value=2)
    assert Constant(value=1) != Steps(value=1, factors=())
    assert len({Constant(value=1), Constant(value=1.0), Tracked(), Tracked(every=1)}) == 2


def test_schedules_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        ALL[0].value = 3.0


# Refusing


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{ kind = 'ramp', first = 1, last = 2, start = 0.6, stop = 0.4 }", "stop must not be before start"),
        ("{ kind = 'ramp', first = 0, last = 2, interpolation = 'exponential' }", "first and last must be above 0"),
        ("{ kind = 'ramp', first = 2, last = 0, interpolation = 'exponential' }", "first and last must be above 0"),
        ("{ kind = 'ramp', first = 2, last = 1, interpolation = 'cubic' }", "'linear' or 'exponential'"),
        ("{ kind = 'ramp', first = 2, last = 1, stop = 1.1 }", "less than or equal to 1"),
        ("{ kind = 'ramp', first = 2, last = 1, start = -0.1 }", "greater than or equal to 0"),
        ("{ kind = 'ramp', first = 2 }", "last"),
        ("{ kind = 'ramp', first = nan, last = 1 }", "finite number"),
        ("{ kind = 'rampe', first = 2, last = 1 }", "'rampe'"),
        ("{ value = 1 }", "kind"),
        ("{ kind = 'constant', value = 1, vlaue = 2 }", "vlaue"),
        ("{ kind = 'constant' }", "value"),
        ("{ kind = 'steps', value = 1, factors = [[4, 0.1], [2, 0.1]] }", r"in order, got \[4.0, 2.0\]"),
        ("{ kind = 'steps', value = 1, factors = [[2, 0.1], [2, 0.1]] }", "each epoch once"),
        ("{ kind = 'steps', value = 1, factors = [[2, nan]] }", "finite number"),
        ("{ kind = 'steps', value = 1, factors = [[2]] }", "factors"),
        ("{ kind = 'steps', value = 1, factors = [[-1, 2]] }", "greater than or equal to 0"),
        ("nan", "finite number"),
        ("inf", "finite number"),
        ("-0.1", "greater than or equal to 0"),
        ("'fast'", "'fast'"),
        ("[1, 2]", "dictionary"),
    ],
)
def test_errors_are_rejected_with_a_reason(line, says):
    for kind in (SCHEDULE, ALPHA):
        with pytest.raises(ValidationError, match=says):
            read(line, kind)


@pytest.mark.parametrize("line", ["{ kind = 'tracked' }", "{ kind = 'prior' }"])
def test_only_alpha_can_follow_the_weights(line):
    with pytest.raises(ValidationError, match="'constant', 'steps', 'ramp'"):
        read(line)


@pytest.mark.parametrize("every", ["0", "-1", "1.5"])
def test_tracked_looks_at_whole_steps(every):
    with pytest.raises(ValidationError, match="every"):
        read(f"{{ kind = 'tracked', every = {every} }}", ALPHA)


@pytest.mark.parametrize("value", ["-0.1", "1.1", "nan", "'slow'"])
@pytest.mark.parametrize("name", ["start", "rise"])
def test_start_and_rise_are_fractions_of_training(name, value):
    with pytest.raises(ValidationError, match=name):
        read(f"{{ kind = 'tracked', {name} = {value} }}", ALPHA)


@pytest.mark.parametrize(
    "line",
    [
        "true",
        "{ kind = 'constant', value = true }",
        "{ kind = 'steps', value = 1, factors = [[2, true]] }",
        "{ kind = 'ramp', first = true, last = 2 }",
        "{ kind = 'tracked', every = true }",
        "{ kind = 'tracked', rise = true }",
    ],
)
def test_true_is_no_number(line):
    with pytest.raises(ValidationError):
        read(line, ALPHA)
