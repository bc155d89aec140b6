import itertools
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sca_search.errors import RunError
from sca_search.runs.trials import (
    COLUMNS,
    area_reference,
    front_area,
    hypervolume,
    pareto_front,
    read_csv,
    trial_frame,
    write_csv,
)


def complete(trial, sparsity, accuracy, loss=0.5, **more):
    return {
        "trial": trial,
        "state": "complete",
        "sparsity": sparsity,
        "metric": accuracy,
        "loss": loss,
        **more,
    }


def frame_of(*rows):
    return trial_frame(rows)


# Few distinct values, so that ties in one and in both objectives are common.
objectives = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, math.nan])
trials = st.lists(
    st.tuples(objectives, objectives, st.sampled_from([0.1, 0.2, math.nan]), st.booleans()), max_size=12
).map(
    lambda drawn: [
        complete(number, sparsity, accuracy, loss) | {"state": "complete" if done else "failed"}
        for number, (sparsity, accuracy, loss, done) in enumerate(drawn)
    ]
)


def test_trial_frame_orders_columns_and_rows():
    frame = frame_of(
        complete(3, 0.5, 0.9, **{"param.width": 4, "param.beta": 2.0}), complete(1, 0.6, 0.8, **{"param.width": 8})
    )
    assert list(frame.columns) == [*COLUMNS, "param.beta", "param.width"]
    assert frame["trial"].tolist() == [1, 3]
    assert frame["param.width"].tolist() == [8, 4]
    assert math.isnan(frame["param.beta"][0])
    assert frame["param.beta"][1] == 2.0


def test_area_counts_from_five_points_or_hundredths_below_the_dense_network():
    assert area_reference(0.9) == pytest.approx((0.85, 0.3))
    assert area_reference(0.9, "r2") == pytest.approx((0.85, 0.3))
    assert area_reference(-20.0, "negative-mae") == pytest.approx((-21.0, 0.3))
    front = frame_of(complete(0, 0.8, -20.5))
    assert front_area(front, -20.0, "negative-mae") == pytest.approx(0.5 * 0.5)


def test_trial_frame_fills_what_is_missing():
    row = frame_of({"trial": 0, "state": "waiting", "planned_sparsity": 0.9, "metric": None}).iloc[0]
    assert row["state"] == "waiting"
    assert row["reason"] == ""
    assert row["off_target"] == False  # noqa: E712  (numpy's own bool)
    assert row["planned_sparsity"] == 0.9
    numbers = ["sparsity", "metric", "loss", "soft_metric", "rounded_metric", "adjusted_fraction", "seconds"]
    assert row[numbers].isna().all()


def test_trial_frame_of_nothing_has_the_columns():
    frame = trial_frame([])
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == 0
    assert frame["trial"].dtype == "int64"
    assert frame["metric"].dtype == "float64"
    assert frame["off_target"].dtype == "bool"
    assert len(pareto_front(frame)) == 0
    assert hypervolume(pareto_front(frame), accuracy=0.0, sparsity=0.0) == 0.0


@pytest.mark.parametrize(("moved", "flag"), [(0.005, False), (0.0051, True), (0.0, False), (None, False)])
def test_trial_frame_flags_off_target_above_half_a_percent(moved, flag):
    assert frame_of(complete(0, 0.5, 0.9, adjusted_fraction=moved))["off_target"].tolist() == [flag]


def test_trial_frame_keeps_a_given_flag():
    rows = complete(0, 0.5, 0.9, off_target=True), complete(1, 0.5, 0.9, adjusted_fraction=0.2, off_target=False)
    assert frame_of(*rows)["off_target"].tolist() == [True, False]


def test_pareto_front_keeps_the_undominated_sorted_by_sparsity():
    frame = frame_of(
        complete(0, 0.9, 0.80),
        complete(1, 0.5, 0.95),
        complete(2, 0.5, 0.90),  # beaten by 1 at the same sparsity
        complete(3, 0.7, 0.80),  # beaten by 0 at the same accuracy
        complete(4, 0.8, 0.85),
        complete(5, 0.99, math.nan),
        {"trial": 6, "state": "failed", "sparsity": 0.99, "metric": 0.99},
    )
    assert pareto_front(frame)["trial"].tolist() == [1, 4, 0]


def test_pareto_front_breaks_exact_ties_of_metric_and_loss_by_size():
    same = [complete(number, 0.5, 0.9, ternary_bytes=size) for number, size in enumerate((200, 100))]
    assert pareto_front(frame_of(*same))["trial"].tolist() == [1]


def test_pareto_front_breaks_exact_ties_by_loss_then_trial():
    frame = frame_of(
        complete(0, 0.5, 0.9, loss=math.nan),
        complete(1, 0.5, 0.9, loss=0.3),
        complete(2, 0.5, 0.9, loss=0.2),
        complete(3, 0.5, 0.9, loss=0.2),
    )
    assert pareto_front(frame)["trial"].tolist() == [2]


@given(trials)
def test_pareto_front_is_the_brute_force_one(rows):
    usable = [
        row
        for row in rows
        if row["state"] == "complete" and not math.isnan(row["sparsity"]) and not math.isnan(row["metric"])
    ]

    def point(row):
        return row["sparsity"], row["metric"]

    def beats(one, other):
        at_least = all(a >= b for a, b in zip(point(one), point(other), strict=True))
        return at_least and point(one) != point(other)

    undominated = [row for row in usable if not any(beats(other, row) for other in usable)]
    expected = []
    for _, same in itertools.groupby(sorted(undominated, key=point), key=point):
        best = min(same, key=lambda row: (math.inf if math.isnan(row["loss"]) else row["loss"], row["trial"]))
        expected.append(best["trial"])
    assert pareto_front(trial_frame(rows))["trial"].tolist() == expected


def test_hypervolume_sums_the_steps():
    # (0.9, 0.8) covers 0.4 x 0.3; (0.6, 0.9) adds 0.1 x 0.1 above it.
    front = pareto_front(frame_of(complete(0, 0.9, 0.8), complete(1, 0.6, 0.9)))
    assert hypervolume(front, accuracy=0.5, sparsity=0.5) == pytest.approx(0.4 * 0.3 + 0.1 * 0.1)


def test_hypervolume_ignores_points_below_the_reference():
    front = pareto_front(frame_of(complete(0, 0.9, 0.2), complete(1, 0.3, 0.99), complete(2, 0.8, 0.7)))
    assert hypervolume(front, accuracy=0.5, sparsity=0.5) == pytest.approx(0.3 * 0.2)


@given(trials, st.sampled_from([0.0, 0.2, 0.5]), st.sampled_from([0.0, 0.2, 0.5]))
def test_hypervolume_is_the_area_of_the_union_of_rectangles(rows, accuracy, sparsity):
    # Each point spans a rectangle from the reference. Cut the plane at all their edges; a cell belongs
    # to the union if its upper corner lies within one of them.
    front = pareto_front(trial_frame(rows))
    points = list(zip(front["sparsity"], front["metric"], strict=True))
    widths = sorted({sparsity} | {x for x, _ in points if x > sparsity})
    heights = sorted({accuracy} | {y for _, y in points if y > accuracy})
    union = sum(
        (right - left) * (top - bottom)
        for left, right in itertools.pairwise(widths)
        for bottom, top in itertools.pairwise(heights)
        if any(x >= right and y >= top for x, y in points)
    )
    assert hypervolume(front, accuracy=accuracy, sparsity=sparsity) == pytest.approx(union, abs=1e-12)


def test_undeclared_column_is_rejected():
    with pytest.raises(ValueError, match=r"must be declared or start with 'param\.', got 'width'"):
        frame_of(complete(0, 0.5, 0.9, width=4))
    frame_of(complete(0, 0.5, 0.9, **{"rung.2": 0.1, "predicted_latency_ms": 0.1, "latency_ms": 0.2}))


def test_csv_returns_what_was_written(tmp_path):
    path = tmp_path / "trials.csv"
    frame = frame_of(
        complete(0, 0.1 + 0.2, 1 / 3, adjusted_fraction=0.01, **{"param.optimizer": "None", "param.rate": 1e-30}),
        {"trial": 1, "state": "failed", "reason": 'diverged, "loss" is\nnot finite; λ = 2'},
        {"trial": 2, "state": "waiting"},
    )
    write_csv(frame, path)
    pd.testing.assert_frame_equal(read_csv(path), frame, rtol=1e-14)
    assert [entry.name for entry in tmp_path.iterdir()] == ["trials.csv"]


@given(
    st.floats(0, 1, allow_subnormal=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)
def test_csv_returns_every_number_and_text(tmp_path_factory, number, text):
    path = tmp_path_factory.getbasetemp() / "trials.csv"
    frame = frame_of(complete(0, number, 0.5, reason=text))
    write_csv(frame, path)
    pd.testing.assert_frame_equal(read_csv(path), frame, rtol=1e-14)


def test_csv_of_nothing_returns(tmp_path):
    path = tmp_path / "trials.csv"
    write_csv(trial_frame([]), path)
    pd.testing.assert_frame_equal(read_csv(path), trial_frame([]))


def test_read_csv_names_a_missing_file(tmp_path):
    path = tmp_path / "trials.csv"
    with pytest.raises(RunError) as caught:
        read_csv(path)
    assert str(caught.value) == f"{path} cannot be read: No such file or directory"


HEAD = ",".join(COLUMNS)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"trial,state\n0,complete\n",
        b"\xff\xfe\x00",
        HEAD.encode() + b"\nzero,complete,,,,,,,,False,,\n",
        HEAD.encode() + b"\n0,complete,,,,,,,,perhaps,,\n",
        HEAD.encode() + b",latency_ms\n0,complete,,,,,,,,False,,,fast\n",
        HEAD.encode() + b",candidate\n0,complete,,,,,,,,False,,,1.7976931348623157e308\n",
        HEAD.encode() + b",candidate\n0,complete,,,,,,,,False,,,-1\n",
        HEAD.encode() + b",images\n0,complete,,,,,,,,False,,,0\n",
        HEAD.encode() + 2 * b"\n0,complete,,,,,,,,False,,",
    ],
)
def test_read_csv_refuses_another_table(tmp_path, content):
    path = tmp_path / "trials.csv"
    path.write_bytes(content)
    with pytest.raises(RunError, match="is not a table of trials"):
        read_csv(path)
