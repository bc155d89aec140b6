"""What a study trains with: refusals before anything is written, and what is made once and read back ever after."""

import json

import pytest
import torch

from sca_search.config.costs import COST_METRICS
from sca_search.config.study import StudySpec
from sca_search.errors import SpecError
from sca_search.export.latency.model import LatencyModel, LayerLatency
from sca_search.runs.folder import RunFolder
from sca_search.study import budgets
from sca_search.study.budgets import prepare_costs
from sca_search.study.setup import (
    StudyContext,
    build_context,
    make_task,
    needs_sensitivity,
    read_context,
    warm_start,
)


def spec_of(**tables):
    small = {"data": {"train_limit": 100}, "train": {"dense_epochs": 1} | tables.pop("train", {})}
    return StudySpec.model_validate(small | tables)


@pytest.fixture(scope="module")
def task():
    return make_task(spec_of())


@pytest.fixture
def run(tmp_path):
    return RunFolder(tmp_path)


# Refusals


@pytest.mark.parametrize(
    ("target", "floors", "sentence"),
    [
        # 12,800 + 8,192 weights; two in each of 32 + 64 channels are 192, 1 - 192 / 20,992 = 0.99085.
        (
            0.995,
            {"floor_per_channel": 2},
            "a sparsity of 0.995 leaves 105 of 20992 weights, fewer than the 192 of the layers' floors: "
            "the highest possible is 0.99085",
        ),
        # A floor that is more than the smaller layer has keeps all of it: 10,000 + 8,192, 1 - 18,192 / 20,992.
        (
            0.5,
            {"floor_per_layer": 10_000},
            "a sparsity of 0.5 leaves 10496 of 20992 weights, fewer than the 18192 of the layers' floors: "
            "the highest possible is 0.13338",
        ),
    ],
    ids=["channels", "layers"],
)
def test_a_target_beyond_the_layers_floors_is_refused_in_one_sentence(target, floors, sentence):
    with pytest.raises(SpecError) as caught:
        make_task(spec_of(goal={"target_sparsity": target}, train=floors))
    assert str(caught.value) == sentence


def test_a_target_at_the_floors_is_possible():
    task = make_task(spec_of(goal={"target_sparsity": 0.99}, train={"floor_per_channel": 2}))
    assert [layer.least_nonzeros for layer in task.layer_shapes] == [64, 128]


# The warm start and the layers' sensitivity


def test_the_warm_start_is_trained_once_and_read_back(run, task):
    events = []
    first = warm_start(run, spec_of(), task, events.append)
    again = warm_start(run, spec_of(), task, events.append)
    assert [event.epoch.phase for event in events] == ["dense"]
    assert again.score == first.score
    assert torch.equal(again.teacher_logits, first.teacher_logits)
    assert first.state.keys() == again.state.keys() == task.make_model().state_dict().keys()
    assert all(torch.equal(first.state[name], again.state[name]) for name in first.state)


def test_sensitivity_is_measured_once_and_read_back(run, task):
    first = build_context(run, spec_of(), task).space.costs
    assert {cost.layer for cost in first} == {"conv2", "fc1"}
    kept = json.loads(run.sensitivity_file.read_text())
    run.sensitivity_file.write_text(json.dumps(kept[:3]))
    assert build_context(run, spec_of(), task).space.costs == first[:3]


def test_sensitivity_is_only_measured_where_splits_are_searched(run, task):
    without = build_context(run, spec_of(search={"space": {"allocation": 0.0}}), task).space
    assert without.costs == ()
    assert not run.sensitivity_file.exists()
    with_allocation = build_context(run, spec_of(search={"space": {"allocation": 1.0}}), task).space
    assert {cost.layer for cost in with_allocation.costs} == {"conv2", "fc1"}
    assert with_allocation.layers == without.layers == task.layer_shapes


@pytest.mark.parametrize(("method", "needs"), [("sca", True), ("straight-through", True), ("twn", False)])
def test_sensitivity_guides_every_method_that_plans_its_sparsity(task, method, needs):
    """The baseline at the quantile starts from the same allocation as SCA."""
    assert needs_sensitivity(spec_of(search={"method": method}), task) == needs


# The context


def same_state(ours: StudyContext, theirs: StudyContext) -> bool:
    first, second = ours.warm_start.state, theirs.warm_start.state
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_the_files_of_a_context_give_the_same_one(run, task):
    built = build_context(run, spec_of(), task)
    read = read_context(run, spec_of(), task)
    assert same_state(built, read)
    assert torch.equal(built.warm_start.teacher_logits, read.warm_start.teacher_logits)
    assert (built.space, built.warm_start.score) == (read.space, read.warm_start.score)


def test_the_network_is_traced_once_for_all_that_a_budget_needs(run, task, monkeypatch):
    traced = []
    graph = budgets.calibration_graph(task)
    monkeypatch.setattr(budgets, "calibration_graph", lambda _task: traced.append(None) or graph)
    spec = spec_of(goal={"target_sparsity": None, "max_kb": 12.0})
    costs = prepare_costs(spec, task, None)
    context = build_context(run, spec, task, costs)
    assert len(traced) == 1
    assert context.space.budgets is costs.budgets
    assert context.cost_meter is costs.meter


def test_every_cost_metric_is_predicted_and_measured(task, monkeypatch):
    graph = budgets.calibration_graph(task)
    monkeypatch.setattr(budgets, "graph_of", lambda _task, _model: graph)
    layers = {
        budgets.record_name(layer.name): LayerLatency(
            layer.name, layer.weights, (1, layer.weights), (2.0, 8.0), ("", "")
        )
        for layer in task.layer_shapes
    }
    latency = LatencyModel(1.0, layers, 0.0, {})
    keys = [metric.key for metric in COST_METRICS]
    assert list(budgets.budgets_of(task, graph, latency).models) == keys
    assert list(budgets.budgets_of(task, graph, None).models) == keys[1:]
    costs = budgets.CostMeter(latency, is_timed=False)(task.make_model(), task)
    assert list(costs.figures) == keys
    assert {name: list(values) for name, values in costs.layers.items()} == dict.fromkeys(("conv2", "fc1"), keys[:1])
    assert list(budgets.CostMeter()(task.make_model(), task).figures) == keys[1:]
