"""Training on the real digits: the optimizer's course, the dense start, candidates, settling, and stopping."""

import math
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from sca_search.config.candidate import Candidate, Ramp, Tracked
from sca_search.config.study import ModelSpec, StudySpec
from sca_search.data import DataSet, Split
from sca_search.errors import DivergenceError, RunError
from sca_search.models.prepare import prepared
from sca_search.study.setup import make_task
from sca_search.study.space import Space
from sca_search.system.signals import NEVER, StopWhen
from sca_search.ternary.exact import Floor
from sca_search.ternary.methods import Method
from sca_search.ternary.parametrize import bake_trits, latents, parametrize_layers, soft_weights, ternary_weights
from sca_search.training import train as training_module
from sca_search.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sca_search.training.fit import (
    EpochModule,
    FitPlan,
    StepModule,
    StopRequestedError,
    fit,
    is_plain,
    lightning,
    parameter_groups,
)
from sca_search.training.task import Epoch, PausedError, Rungs, Task
from sca_search.training.train import CandidateTraining, train_candidate, train_dense

# conv2 has 16·32·5·5 weights and fc1 128·64: what is ternary in the small LeNet on 8×8 images.
TERNARY_WEIGHTS = {"conv2": 12800, "fc1": 8192}
ALL_TERNARY = 12800 + 8192


def digits_task(train_limit=400, **tables):
    """The small LeNet on real digits, few of them unless asked for more."""
    return make_task(StudySpec.model_validate({"data": {"train_limit": train_limit}, **tables}))


@pytest.fixture(scope="module")
def task():
    return digits_task()


@pytest.fixture(scope="module")
def start(task):
    return train_dense(task, epochs=4, learning_rate=0.01, seed=0)


def candidate(**changes):
    """A short candidate in the decoupled form."""
    settings = {
        "sparsity": 0.9,
        "alpha": Tracked(),
        "strength": Ramp(first=1.5, last=40.0, interpolation="exponential"),
        "learning_rate": 0.01,
        "latent_learning_rate": 0.02,
        "epochs": 1,
        "frozen_epochs": 0,
        "frozen_learning_rate": 0.005,
    }
    return Candidate(**settings | changes)


def papers(**changes):
    return candidate(**{"form": "paper", "alpha": {"kind": "prior"}, "strength": Ramp(first=0, last=10)} | changes)


def train(task, start, chosen, **more):
    return train_candidate(chosen, task, start, **more)


@pytest.fixture
def training(monkeypatch):
    """The training that `train_candidate` is running, as its attribute `now`."""

    class Noted(CandidateTraining):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            noted.now = self

    noted = SimpleNamespace()
    monkeypatch.setattr(training_module, "CandidateTraining", Noted)
    return noted


def note_in(epochs):
    """Called after each epoch, as `fit` does it."""
    return lambda epoch, _optimizer_state: epochs.append(epoch)


def states_equal(ours, theirs):
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def float_parts(model):
    """Everything that is not a ternary weight."""
    ternary = {f"{name}.weight" for name in TERNARY_WEIGHTS}
    return {name: value for name, value in model.state_dict().items() if name not in ternary}


def trits_of(model):
    return {name: model.get_submodule(name).weight.detach().clone() for name in TERNARY_WEIGHTS}


def accuracy_by_hand(model, split):
    """Every image at once, in evaluation mode, compared in numpy."""
    model.eval()
    with torch.no_grad():
        logits = model(split.images).numpy()
    return float((logits.argmax(1) == split.labels.numpy()).mean())


# The task


def test_task_names_its_ternary_layers_and_its_last_one(task):
    assert task.ternary_layers == ("conv2", "fc1")
    assert task.last_layer == "fc2"


def test_last_layer_is_the_last_that_runs(task):
    last = task.choices[-1]
    idle = replace(last, layer=replace(last.layer, name="never", executed=False))
    assert replace(task, choices=(*task.choices, idle)).last_layer == "fc2"


def test_model_with_a_state_computes_what_the_trained_one_did(task, start):
    assert states_equal(task.model_with(start.state).state_dict(), start.state)


def test_gap_is_what_rounding_costs():
    assert Epoch("ternary", 1, 2, soft_metric=0.75, rounded_metric=0.5).gap == 0.25


# The optimizer


def ternarized(task, start, form="decoupled"):
    model = task.model_with(start.state)
    parametrize_layers(model, dict.fromkeys(task.ternary_layers, 0.6), form)
    return model


def ids(parameters):
    return sorted(id(parameter) for parameter in parameters)


def test_groups_hold_every_trained_parameter_once(task, start):
    model = ternarized(task, start)
    plan = FitPlan(1, 0.01, 0.02, last_layer_weight_decay=1e-4, last_layer="fc2")
    grouped = [
        parameter for group in parameter_groups(model, plan, latents(model).values()) for parameter in group["params"]
    ]
    assert ids(grouped) == ids(model.parameters())


def test_latent_weights_have_their_own_rate(task, start):
    model = ternarized(task, start)
    plan = FitPlan(1, learning_rate=0.01, latent_learning_rate=0.02)
    groups = parameter_groups(model, plan, latents(model).values())
    of_theta = [group for group in groups if group["lr"] == 0.02]
    assert len(of_theta) == 1
    assert ids(of_theta[0]["params"]) == ids(latents(model).values())
    assert all(group["lr"] == 0.01 for group in groups if group is not of_theta[0])


def test_decay_reaches_the_last_layer_only(task, start):
    model = ternarized(task, start)
    plan = FitPlan(1, 0.01, 0.02, last_layer_weight_decay=1e-4, last_layer="fc2")
    groups = parameter_groups(model, plan, latents(model).values())
    decayed = [parameter for group in groups if group.get("weight_decay") for parameter in group["params"]]
    assert ids(decayed) == ids([model.fc2.weight, model.fc2.bias])
    assert [group["weight_decay"] for group in groups if group.get("weight_decay")] == [1e-4]


def test_no_decay_requested_makes_no_group_of_it(task, start):
    model = ternarized(task, start)
    groups = parameter_groups(model, FitPlan(1, 0.01, 0.02, last_layer="fc2"), latents(model).values())
    assert len(groups) == 2
    assert not any(group.get("weight_decay") for group in groups)


def test_a_ternary_last_layer_is_not_grouped_twice():
    """With `keep_last = false` the last layer's Θ is both a latent weight and the last layer's."""
    task = digits_task(model={"keep_last": False}, train={"last_layer_weight_decay": 1e-4})
    model = task.make_model()
    parametrize_layers(model, dict.fromkeys(task.ternary_layers, 0.6), "decoupled")
    plan = FitPlan(1, 0.01, 0.02, last_layer_weight_decay=task.last_layer_weight_decay, last_layer=task.last_layer)
    groups = parameter_groups(model, plan, latents(model).values())
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert ids(grouped) == ids(model.parameters())
    theta = latents(model)["fc2"]
    assert [group["lr"] for group in groups if any(p is theta for p in group["params"])] == [0.02]


def test_frozen_parameters_are_in_no_group(task, start):
    model = bake_trits(ternarized(task, start))
    groups = parameter_groups(model, FitPlan(1, 0.01))
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert ids(grouped) == ids(p for p in model.parameters() if p.requires_grad)
    assert not {id(model.conv2.weight), id(model.fc1.weight)} & set(ids(grouped))


# The course of the learning rate, read off the steps of a parameter whose gradient never changes


def steps_taken(plan, batches_an_epoch=4):
    """How far Adam moves one weight at each step, by a loss that is linear in it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        model[1].weight.zero_()
    seen = [0.0]

    def note():
        seen.append(float(model[1].weight.detach()))
        return False

    split = Split(torch.ones(2 * batches_an_epoch, 1, 1, 1, dtype=torch.float64), torch.zeros(2 * batches_an_epoch))
    fit(model, split.batches(2, seed=0), plan, stop=StopWhen(note), loss=lambda logits, _labels: -logits.sum())
    return np.diff(seen)


def adam_steps(rates, momenta):
    """Adam under a constant gradient of 2: the second moment cancels, the first follows its momentum."""
    first, moved = 0.0, []
    for number, (rate, momentum) in enumerate(zip(rates, momenta, strict=True), start=1):
        first = momentum * first + (1 - momentum) * 2.0
        moved.append(rate * first / (1 - momentum**number) / 2.0)
    return np.array(moved)


def cosine(first, last, way):
    return last + (first - last) * (1 + np.cos(np.pi * way)) / 2


def one_cycle(peak, steps):
    """Up to the peak in 30 % of the steps, from 1/25 of it, then down to 1/10,000 of that; momentum the other way."""
    top, last = 0.3 * steps - 1, steps - 1
    rates, momenta = [], []
    for step in range(steps):
        if step <= top:
            rates.append(cosine(peak / 25, peak, step / top))
            momenta.append(cosine(0.95, 0.85, step / top))
        else:
            way = (step - top) / (last - top)
            rates.append(cosine(peak, peak / 25 / 1e4, way))
            momenta.append(cosine(0.85, 0.95, way))
    return rates, momenta


def test_without_steps_the_rate_makes_one_cycle():
    moved = steps_taken(FitPlan(epochs=5, learning_rate=0.1))
    expected = adam_steps(*one_cycle(0.1, 20))
    assert len(moved) == 20
    np.testing.assert_allclose(moved, expected, rtol=1e-5)


def test_rate_is_multiplied_at_the_epochs_named():
    moved = steps_taken(FitPlan(epochs=4, learning_rate=0.1, learning_rate_steps=((1, 0.1), (2.5, 5.0))))
    np.testing.assert_allclose(moved, [0.1] * 4 + [0.01] * 6 + [0.05] * 6, rtol=1e-6)


def test_batches_that_are_added_up_fraction_a_step_and_the_rate_still_makes_one_cycle():
    moved = steps_taken(FitPlan(epochs=10, learning_rate=0.1, trainer={"accumulate_grad_batches": 2}))
    np.testing.assert_array_equal(moved[::2], np.zeros(20))
    np.testing.assert_allclose(moved[1::2], adam_steps(*one_cycle(0.1, 20)), rtol=1e-5)


def test_batches_left_over_make_a_step_of_their_own():
    plan = FitPlan(epochs=2, learning_rate=0.1, learning_rate_steps=((1, 0.1),), trainer={"accumulate_grad_batches": 2})
    moved = steps_taken(plan, batches_an_epoch=3)
    assert list(np.flatnonzero(moved)) == [1, 2, 4, 5]
    assert moved[1] == pytest.approx(0.1, rel=1e-6)
    # Half a gradient after a whole one: by hand, (0.1 · 2 · 0.9 + 0.1) / (1 - 0.9²) and the root of the squares alike.
    first, second = (0.9 * 0.1 * 2 + 0.1 * 1) / 0.19, (0.999 * 0.001 * 4 + 0.001 * 1) / (1 - 0.999**2)
    assert moved[2] == pytest.approx(0.1 * first / second**0.5, rel=1e-6)
    assert 0 < moved[4] < 0.02  # in the second epoch, at a tenth of the rate


def test_a_single_step_can_be_taken():
    assert len(steps_taken(FitPlan(epochs=1, learning_rate=0.1), batches_an_epoch=1)) == 1


# fit


class Recorder(Method):
    """A method that does nothing but note when it is moved."""

    def __init__(self):
        self.epochs = []

    def latents(self):
        return {}

    def update(self, epoch):
        self.epochs.append(epoch)

    def penalty(self):
        return 0.0


# Whose steps are plain, and whose are Lightning's: no gradient is so large as to be clipped.
TRAINERS = pytest.mark.parametrize("trainer", [{}, {"gradient_clip_val": 1e9}], ids=["plain", "by Lightning"])


@TRAINERS
def test_schedules_move_before_each_batch_by_its_fraction_of_the_epoch(trainer):
    split = Split(torch.randn(12, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3)
    control, epochs = Recorder(), []
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    fit(model, split.batches(4, seed=0), FitPlan(2, 0.01, trainer=trainer), note_in(epochs), method=control)
    assert control.epochs == pytest.approx([0, 1 / 3, 2 / 3, 1, 4 / 3, 5 / 3])
    assert epochs == [1, 2]


def test_penalty_is_part_of_what_is_minimized():
    """With no task at all, the penalty alone moves the weight: down its gradient."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False))

    class Pull(Recorder):
        def penalty(self):
            return 3.0 * model[1].weight.sum()

    before = float(model[1].weight.detach())
    split = Split(torch.ones(4, 1, 1, 1), torch.zeros(4))
    plan = FitPlan(1, 0.01, learning_rate_steps=((1, 1.0),))
    fit(model, split.batches(2, seed=0), plan, method=Pull(), loss=lambda logits, _labels: 0.0 * logits.sum())
    assert float(model[1].weight.detach()) == pytest.approx(before - 2 * 0.01, abs=1e-6)


def plain_trainer(**settings):
    """A Trainer as `fit` makes it, but for what is given."""
    ours = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(**ours | settings)


class Doubled(Recorder):
    """Changes the gradients, and has a term of its own in the loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def penalty(self):
        return 0.1 * self.model.fc1.weight.square().sum()

    def after_backward(self):
        self.model.fc1.weight.grad.mul_(2.0)


@pytest.mark.filterwarnings("ignore")  # Lightning's advice, which `fit` keeps to itself
@pytest.mark.parametrize("steps", [(), ((1, 0.1),)], ids=["one-cycle", "steps"])
def test_a_plain_step_is_lightnings_own_to_the_bit(task, start, steps):
    trained = []
    for kind in (StepModule, EpochModule):
        model = task.model_with(start.state)
        plan = FitPlan(2, 0.01, learning_rate_steps=steps, weight_decay=0.01)
        batches = task.data.train.batches(64, seed=0)
        module = kind(model, len(batches), plan, note_in([]), NEVER, Doubled(model), torch.nn.functional.cross_entropy)
        plain_trainer().fit(module, batches)
        trained.append(model.state_dict() | module.optimizer_state)
    assert states_equal(*trained)
    assert not torch.equal(trained[0]["fc1.weight"], start.state["fc1.weight"])


def test_a_trainer_of_ours_is_plain():
    assert is_plain(plain_trainer())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_clip_val": 1.0},
        {"accumulate_grad_batches": 2},
        {"precision": "bf16-mixed"},
        {"max_steps": 10},
        {"callbacks": [lightning.Callback()]},
        {"enable_checkpointing": True},
        {"logger": lightning.loggers.CSVLogger("unused")},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_trainer_that_does_more_in_a_step_or_counts_them_is_not_plain(settings):
    assert not is_plain(plain_trainer(**settings))


def test_no_epochs_change_nothing(task, start):
    model, calls = task.model_with(start.state), []
    stop = StopWhen(lambda: bool(calls.append("asked")))
    fit(model, task.data.train.batches(64, seed=0), FitPlan(0, 0.1), note_in(calls), stop)
    assert states_equal(model.state_dict(), start.state)
    assert calls == []


def test_a_network_without_trained_parameters_is_left_alone(task, start):
    model = task.model_with(start.state).requires_grad_(False)
    fit(model, task.data.train.batches(64, seed=0), FitPlan(1, 0.1))
    assert states_equal(model.state_dict(), start.state)


def test_training_leaves_no_file_behind(task, start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(task, start, candidate(frozen_epochs=1))
    assert list(tmp_path.rglob("*")) == []


# The dense start


def test_dense_start_learns_and_tells_of_each_epoch(task):
    told = []
    start = train_dense(task, epochs=3, learning_rate=0.01, seed=0, on_epoch=told.append)
    assert [(epoch.phase, epoch.epoch, epoch.epochs) for epoch in told] == [("dense", n, 3) for n in (1, 2, 3)]
    assert start.score.accuracy > 0.8
    assert told[-1].soft_metric == told[-1].rounded_metric == start.score.accuracy
    assert start.score.accuracy == pytest.approx(accuracy_by_hand(task.model_with(start.state), task.data.val))


def test_outputs_of_the_dense_start_are_its_logits_in_the_splits_order(task, start):
    model = task.model_with(start.state).eval()
    with torch.no_grad():
        expected = model(task.data.train.images)
    assert start.teacher_logits.shape == (len(task.data.train), 10)
    torch.testing.assert_close(start.teacher_logits, expected, rtol=1e-4, atol=1e-4)


def test_dense_start_repeats_with_its_seed(task, start):
    torch.rand(17)
    again = train_dense(task, epochs=4, learning_rate=0.01, seed=0)
    assert states_equal(again.state, start.state)
    assert not states_equal(train_dense(task, epochs=4, learning_rate=0.01, seed=1).state, start.state)


def test_candidates_do_not_change_the_start(task, start):
    before = {name: value.clone() for name, value in start.state.items()}
    train(task, start, candidate())
    assert states_equal(start.state, before)


# Settling


@pytest.mark.parametrize("form", ["paper", "decoupled"])
@pytest.mark.parametrize("sparsity", [0.0, 0.37, 0.9, 0.9995])
def test_zeros_are_exact_after_settling(task, start, form, sparsity):
    trained = train(task, start, (papers if form == "paper" else candidate)(sparsity=sparsity))
    weights = trits_of(trained.model)
    zeros = {name: int((trits.numpy() == 0).sum()) for name, trits in weights.items()}
    assert sum(zeros.values()) == math.floor(sparsity * ALL_TERNARY + 0.5)
    assert {name: (count.zeros, count.weights) for name, count in trained.counts.items()} == {
        name: (zeros[name], TERNARY_WEIGHTS[name]) for name in TERNARY_WEIGHTS
    }
    assert all(set(np.unique(trits.numpy())) <= {-1.0, 0.0, 1.0} for trits in weights.values())


def test_floor_of_a_task_keeps_channels_alive(task, start):
    kept = replace(task, floor=Floor(per_layer=1, per_channel=2))
    trained = train(kept, start, candidate(sparsity=0.985))
    for trits in trits_of(trained.model).values():
        assert int((trits.flatten(1) != 0).sum(1).min()) >= 2
    assert sum(count.zeros for count in trained.counts.values()) == math.floor(0.985 * ALL_TERNARY + 0.5)


@pytest.mark.parametrize("form", ["paper", "decoupled"])
def test_frozen_phase_trains_the_float_parts_and_leaves_the_trits(task, start, form):
    chosen = (papers if form == "paper" else candidate)(epochs=2)
    without = train(task, start, chosen).model
    with_phase = train(task, start, chosen.model_copy(update={"frozen_epochs": 2})).model
    before, after = trits_of(without), trits_of(with_phase)
    assert all(torch.equal(before[name], after[name]) for name in TERNARY_WEIGHTS)
    assert not any(with_phase.get_submodule(name).weight.requires_grad for name in TERNARY_WEIGHTS)
    ours, theirs = float_parts(without), float_parts(with_phase)
    same = [name for name in ours if torch.equal(ours[name], theirs[name]) and "num_batches" not in name]
    # The first normalization's statistics follow conv1, which has moved: nothing float stays where it was.
    assert same == []


def test_trained_network_is_plain_and_scored_as_it_is(task, start):
    trained = train(task, start, candidate(epochs=2, frozen_epochs=1))
    assert trained.model.state_dict().keys() == start.state.keys()
    assert trained.score.accuracy == pytest.approx(accuracy_by_hand(trained.model, task.data.val))
    assert type(trained.model.conv2) is nn.Conv2d


def test_trained_statistics_are_those_of_the_settled_network(task, start):
    """The first normalization's, over shuffled batches of 256: what its convolution gives, batch by batch."""
    model = train(task, start, candidate(frozen_epochs=1)).model
    with torch.no_grad():
        outputs = [model.conv1(images).double().numpy() for images, _ in task.data.train.batches(256, seed=0)]
    assert [len(output) for output in outputs] == [256, 144]
    mean = np.mean([output.mean((0, 2, 3)) for output in outputs], axis=0)
    variance = np.mean([output.var((0, 2, 3), ddof=1) for output in outputs], axis=0)
    np.testing.assert_allclose(model.bn1.running_mean, mean, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(model.bn1.running_var, variance, rtol=1e-3)


def test_dropout_is_off_in_a_settled_network_without_normalization():
    """What settling hands over is ready to be used: in evaluation mode, as with a normalization."""
    task = plain_task(dropout=0.5)
    start = train_dense(task, epochs=1, learning_rate=0.01, seed=0)
    assert not train(task, start, candidate(frozen_epochs=1)).model.training


def plain_copy(model, task, change):
    """The network without parametrizations, its soft weights changed by a numpy function."""
    state = {name.replace(".parametrizations.weight.original", ".weight"): x for name, x in model.state_dict().items()}
    for name in TERNARY_WEIGHTS:
        state[f"{name}.weight"] = torch.from_numpy(change(model.get_submodule(name).weight.detach().numpy()))
    return task.model_with(state)


@pytest.mark.parametrize("form", ["paper", "decoupled"])
def test_soft_and_rounded_accuracy_are_recorded_each_epoch_of_both_phases(task, start, form, training):
    """Each recorded figure against a plain network, its weights computed and rounded in numpy."""
    chosen = (papers if form == "paper" else candidate)(epochs=3, frozen_epochs=2)
    told, expected, soft_fractions = [], [], []

    def look(epoch):
        told.append(epoch)
        soft = [weight.numpy().ravel() for weight in soft_weights(training.now.model).values()]
        if soft and form == "decoupled":
            soft_fractions.append(np.mean([abs(each - round(each)) > 0.01 for each in np.concatenate(soft)]))
        networks = (plain_copy(training.now.model, task, change) for change in (np.asarray, np.round))
        expected.append([accuracy_by_hand(network, task.data.val) for network in networks])

    trained = train_candidate(chosen, task, start, look)
    assert [(epoch.phase, epoch.epoch, epoch.epochs) for epoch in told] == [
        *(("ternary", n, 3) for n in (1, 2, 3)),
        *(("frozen", n, 2) for n in (1, 2)),
    ]
    assert trained.history == tuple(told)
    recorded = [(epoch.soft_metric, epoch.rounded_metric) for epoch in told]
    np.testing.assert_allclose(recorded, expected, atol=1e-9)
    assert all(epoch.gap == 0 for epoch in told[3:])
    found = [epoch.soft_fraction for epoch in told if epoch.soft_fraction is not None]
    assert found == pytest.approx(soft_fractions)
    assert [epoch.cosine_straight_through for epoch in told[:3]] == [
        None if form == "paper" else pytest.approx(1.0)
    ] * 3
    assert all(epoch.cosine_exact is None for epoch in told[3:])
    zeros = math.floor(0.9 * ALL_TERNARY + 0.5)
    assert [epoch.sparsity for epoch in told[3:]] == [zeros / ALL_TERNARY] * 2


def test_looking_does_not_disturb_the_training(task, start):
    """Validation between epochs, in evaluation mode and rounded, must leave the same weights."""
    chosen = candidate(epochs=2)
    watched = train(task, start, chosen, on_epoch=lambda _epoch: torch.rand(3))
    assert states_equal(watched.model.state_dict(), train(task, start, chosen).model.state_dict())


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("form", "sparsity"),
    [
        ("decoupled", 0.9),
        ("paper", 0.9),
        *(pytest.param(form, s, marks=pytest.mark.e2e) for form in ("decoupled", "paper") for s in (0.3, 0.5, 0.97)),
    ],
)
def test_first_guess_lands_on_the_plan_by_rounding_alone(form, sparsity):
    """Within a point of the plan, so that the exact step moves less than 0.5 % of the weights."""
    spec = StudySpec.model_validate({"train": {"epochs": 8, "frozen_epochs": 0}, "search": {"form": form}})
    whole = make_task(spec)
    start = train_dense(whole, epochs=4, learning_rate=0.01, seed=0)
    space = Space(spec)
    trained = train(whole, start, space.candidate(space.first_guess(), sparsity, seed=0))
    assert trained.sparsity_before == pytest.approx(sparsity, abs=0.01)
    assert trained.adjusted_fraction < 0.005
    assert trained.score.accuracy > 0.5


def test_moved_fraction_is_the_distance_to_the_plan(task, start):
    """A short pull in the paper's form misses the plan, and says by how much."""
    trained = train(task, start, papers(sparsity=0.97))
    zeros = math.floor(0.97 * ALL_TERNARY + 0.5)
    missing = abs(zeros - round(trained.sparsity_before * ALL_TERNARY))
    assert missing > 0
    assert trained.adjusted_fraction * ALL_TERNARY == pytest.approx(missing, abs=1e-6)


@pytest.mark.parametrize("form", ["paper", "decoupled", "straight-through"])
def test_a_candidate_without_epochs_ends_where_it_starts(task, start, form):
    """The largest weights of the dense network stay: a tracked or prior α divides them at the plan."""
    chosen = papers(epochs=0) if form == "paper" else candidate(epochs=0, form=form)
    trained = train(task, start, chosen)
    assert trained.history == ()
    for name, trits in trits_of(trained.model).items():
        dense = start.state[f"{name}.weight"].numpy()
        assert (np.sign(trits.numpy()) * dense >= 0).all()
        assert np.abs(dense[trits.numpy() == 0]).max() <= np.abs(dense[trits.numpy() != 0]).min()
    assert sum(count.zeros for count in trained.counts.values()) == math.floor(0.9 * ALL_TERNARY + 0.5)


def test_reached_is_what_rounding_alone_gave_each_layer(task, start):
    """Tracked and strong, each layer has its planned zeros before any weight is moved."""
    trained = train(task, start, candidate(allocation={"conv2": 0.95}, exact=False))
    zeros = {name: float((trits == 0).double().mean()) for name, trits in trits_of(trained.model).items()}
    assert trained.achieved == pytest.approx(zeros, abs=1e-6)
    assert trained.achieved == pytest.approx({"conv2": 0.95, "fc1": 0.9}, abs=1e-3)
    assert trained.adjusted_fraction == 0


@pytest.mark.parametrize("form", ["decoupled", "straight-through"])
def test_a_layer_survives_thresholds_at_which_alpha_is_2(task, start, form, training):
    """From t = 19 on, 2 tanh²t is 2 to the last bit, and the threshold of α = 2 is infinite."""
    chosen = candidate(form=form, latent_learning_rate=8.0, epochs=2, allocation={"conv2": 0.88, "fc1": 0.93})
    trained = train(task, start, chosen)
    assert set(trained.alphas.values()) == {2.0}
    assert all(19 < weight.threshold < math.inf for weight in ternary_weights(training.now.method.model).values())
    assert trained.achieved == pytest.approx({"conv2": 0.88, "fc1": 0.93}, abs=1e-3)
    assert trained.dead_layers == ()


def test_strength_has_a_unit_in_the_papers_form_only(task, start):
    assert CandidateTraining(candidate(), task, start).method.unit == 1.0
    assert CandidateTraining(candidate(form="straight-through"), task, start).method.unit == 1.0
    assert CandidateTraining(papers(strength_is_lambda=True), task, start).method.unit == 1.0
    assert 0 < CandidateTraining(papers(), task, start).method.unit != 1.0


# Rungs: a training that is looked at on its way, paused, and gone on with


FORMS = {
    "paper": {"form": "paper", "alpha": {"kind": "prior"}, "strength": Ramp(first=0, last=10)},
    "late": {"form": "paper", "alpha": {"kind": "prior"}, "strength": Ramp(first=0, last=10, start=0.6)},
    "decoupled": {"alpha": Tracked(rise=0.5, every=3), "gradient": "flow"},
    "adaptive": {"adaptive": True, "sparsity": 0.55, "allocation": {"conv2": 0.3, "fc1": 0.94}, "gradient": "tanh"},
    "straight-through": {"form": "straight-through", "distillation": 0.5},
    "a layer of zeros": {"allocation": {"fc1": 0.99999}},  # its threshold is infinite
}


@pytest.fixture(scope="module")
def few():
    """200 digits: 4 batches per epoch."""
    return digits_task(200)


@pytest.fixture(scope="module")
def few_start(few):
    return train_dense(few, epochs=1, learning_rate=0.01, seed=0)


class PausesOnce:
    """Stops a training the first time it comes to each rung, and remembers the scores."""

    def __init__(self):
        self.scores = {}

    def __call__(self, epoch, score):
        seen = self.scores.setdefault(epoch, [])
        seen.append(score)
        return len(seen) > 1


def train_with_pauses(task, start, chosen, rungs, checkpoint):
    """Every pause throws all but the checkpoint away."""
    pauses, told = PausesOnce(), []
    while True:
        torch.rand(5)  # what else the process did in between
        try:
            trained = train_candidate(chosen, task, start, told.append, rungs=Rungs(rungs, pauses, checkpoint))
        except PausedError:
            assert checkpoint.exists()
        else:
            return trained, pauses.scores, told


@pytest.mark.e2e
@pytest.mark.parametrize("form", FORMS)
def test_a_paused_training_ends_as_one_that_never_paused(few, few_start, form, tmp_path):
    chosen = candidate(**FORMS[form], epochs=3, frozen_epochs=1, seed=3)
    whole = train(few, few_start, chosen)
    paused, scores, told = train_with_pauses(few, few_start, chosen, (1, 2), tmp_path / "a" / "checkpoint.safetensors")
    assert list(scores) == [1, 2]
    assert all(score == again for score, again in scores.values())
    assert states_equal(paused.model.state_dict(), whole.model.state_dict())
    assert (paused.score, paused.adjusted_fraction, paused.achieved) == (
        whole.score,
        whole.adjusted_fraction,
        whole.achieved,
    )
    assert (paused.alphas, paused.unit) == (whole.alphas, whole.unit)
    assert tuple(told) == paused.history == whole.history  # no epoch twice, none left out
    assert paused.snapshots == whole.snapshots
    assert [each.epoch for each in whole.snapshots] == [0, 1, 2, 3]


@pytest.mark.parametrize("steps", [(), ((1, 0.1),)], ids=["one-cycle", "steps"])
def test_the_learning_rates_course_goes_on_after_a_pause(few, few_start, steps, tmp_path):
    task = replace(few, learning_rate_steps=steps)
    chosen = candidate(epochs=2)
    paused, _, _ = train_with_pauses(task, few_start, chosen, (1,), tmp_path / "checkpoint.safetensors")
    assert states_equal(paused.model.state_dict(), train(task, few_start, chosen).model.state_dict())


def test_dropout_goes_on_with_its_own_random_numbers_after_a_pause(tmp_path):
    task = digits_task(100, model={"dropout": 0.3})
    start = train_dense(task, epochs=1, learning_rate=0.01, seed=0)
    chosen = candidate(epochs=2)
    paused, _, _ = train_with_pauses(task, start, chosen, (1,), tmp_path / "checkpoint.safetensors")
    assert states_equal(paused.model.state_dict(), train(task, start, chosen).model.state_dict())


@pytest.mark.parametrize("form", ["paper", "decoupled"])
def test_rungs_that_are_passed_do_not_disturb_the_training(few, few_start, form):
    chosen = candidate(**FORMS[form], epochs=2)
    passed = train_candidate(chosen, few, few_start, rungs=Rungs((1,)))
    assert states_equal(passed.model.state_dict(), train(few, few_start, chosen).model.state_dict())


def test_a_pause_leaves_a_checkpoint_of_its_epoch(few, few_start, tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    told = []
    with pytest.raises(PausedError):
        train_candidate(candidate(epochs=3), few, few_start, told.append, rungs=Rungs((2,), lambda *_: False, path))
    kept = load_checkpoint(path)
    assert kept.epoch == 2
    assert [epoch.epoch for epoch in told] == [1, 2]
    assert {f"threshold of {layer}" for layer in TERNARY_WEIGHTS} <= kept.method.keys()
    thetas = {name: kept.model[f"{name}.parametrizations.weight.original"] for name in TERNARY_WEIGHTS}
    assert {name: theta.numel() for name, theta in thetas.items()} == TERNARY_WEIGHTS
    assert list(tmp_path.iterdir()) == [path]


def test_a_pause_without_a_place_for_its_checkpoint_writes_nothing(few, few_start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PausedError):
        train_candidate(candidate(epochs=2), few, few_start, rungs=Rungs((1,), lambda *_: False))
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_network_is_rejected(few, few_start, tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, Checkpoint(1, {"unit": 1.0}, [], {"conv9.weight": torch.zeros(2)}, {}, torch.get_rng_state()))
    with pytest.raises(RunError, match=f"^{path}: must be of this study's network") as refused:
        train_candidate(candidate(epochs=2), few, few_start, rungs=Rungs((1,), checkpoint=path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "damage",
    [
        {"method": {}},
        {"history": [{"epoch": 1}]},
        {"memory": {"99.step": torch.tensor(1.0)}},
        {"random": torch.zeros(3)},
        {"epoch": 0},
        {"epoch": 3},
        {"epoch": -1},
        {"epoch": 10**30},
        {"method": {"unit": -1.0}},
        {"method": {"unit": math.inf}},
        {"method": {"threshold of fc1": math.nan}},
        {"memory": {"0.step": torch.tensor(1.0)}},
        {"memory": {"0.exp_avg": torch.zeros(3)}},
        {"memory": {"0.step": torch.zeros(3)}},
        {"memory": {"0.else": torch.tensor(1.0)}},
    ],
    ids=[
        *(
            "method",
            "history",
            "memory",
            "random state",
            "no epoch",
            "an epoch too many",
            "epoch below 0",
            "epoch too large",
        ),
        *("unit below 0", "unit without end", "threshold not a number", "half of a memory", "memory too small"),
        *("memory too large", "memory of something else"),
    ],
)
def test_a_checkpoint_that_no_training_of_this_study_left_is_rejected(few, few_start, tmp_path, damage):
    path, rungs = tmp_path / "checkpoint.safetensors", (1,)
    with pytest.raises(PausedError):
        train_candidate(candidate(epochs=2), few, few_start, rungs=Rungs(rungs, lambda *_: False, path))
    saved = load_checkpoint(path)
    whole = {"method": saved.method | damage["method"]} if damage.get("method") else {}
    save_checkpoint(path, replace(saved, **damage | whole))
    with pytest.raises(RunError, match="checkpoint"):
        train_candidate(candidate(epochs=2), few, few_start, rungs=Rungs(rungs, checkpoint=path))


def test_rungs_do_not_change_what_dropout_draws():
    task = digits_task(100, model={"dropout": 0.3})
    start = train_dense(task, epochs=1, learning_rate=0.01, seed=0)
    chosen = candidate(epochs=2)
    passed = train_candidate(chosen, task, start, rungs=Rungs((1,)))
    assert states_equal(passed.model.state_dict(), train(task, start, chosen).model.state_dict())


def batch_norm(x, statistics, weights, name):
    """In double precision, with the statistics given; then the rectifier."""
    mean, variance = statistics
    shape = (1, -1) + (1,) * (x.ndim - 2)
    gain, shift = weights[f"{name}.weight"].double(), weights[f"{name}.bias"].double()
    normal = (x - mean.view(shape)) / (variance.view(shape) + 1e-5).sqrt()
    return (normal * gain.view(shape) + shift.view(shape)).clamp(min=0)


def lenet_logits(weights, images, statistics):
    """The small LeNet by hand. `statistics` says mean and variance for a normalization's name and input."""
    x = images.double()
    for number in (1, 2):
        x = nn.functional.conv2d(x, weights[f"conv{number}.weight"].double(), padding=2)
        x = batch_norm(x, statistics(f"bn{number}", x), weights, f"bn{number}")
        x = nn.functional.max_pool2d(x, 2)
    x = x.flatten(1) @ weights["fc1.weight"].double().T
    x = batch_norm(x, statistics("bn3", x), weights, "bn3")
    return x @ weights["fc2.weight"].double().T + weights["fc2.bias"].double()


def score_with_new_statistics(weights, data):
    """Accuracy and loss on validation, with the mean over shuffled batches of 256 of each batch's statistics."""
    seen = {}

    def of_the_batch(name, x):
        dims = [0, *range(2, x.ndim)]
        seen.setdefault(name, []).append((x.mean(dims), x.var(dims, unbiased=True)))
        return x.mean(dims), x.var(dims, unbiased=False)

    for images, _ in data.train.batches(256, seed=0):
        lenet_logits(weights, images, of_the_batch)
    mean = {name: [torch.stack(parts).mean(0) for parts in zip(*each, strict=True)] for name, each in seen.items()}
    logits = lenet_logits(weights, data.val.images, lambda name, _: mean[name]).numpy()
    labels = data.val.labels.numpy()
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
    return (logits.argmax(1) == labels).mean(), loss.mean()


@pytest.mark.parametrize("form", ["paper", "decoupled"])
def test_a_rungs_score_is_that_of_the_network_if_it_ended_there(task, start, form, training):
    """Zeros counted out to the plan over all layers, rounded, statistics estimated anew: by hand, from Θ."""
    chosen = candidate(**FORMS[form], epochs=2)
    expected, told = [], []

    def passes(_epoch, score):
        thetas = {name: latent.detach().double() for name, latent in latents(training.now.model).items()}
        borders = {
            name: 0.0 if form == "paper" else math.atanh(math.sqrt(alpha / 2))
            for name, alpha in training.now.method.alphas().items()
        }
        beyond = np.concatenate([(thetas[name].abs() - borders[name]).numpy().ravel() for name in thetas])
        last_zero = np.sort(beyond)[math.floor(0.9 * ALL_TERNARY + 0.5) - 1]
        weights = dict(training.now.model.state_dict())
        for name, theta in thetas.items():
            weights[f"{name}.weight"] = torch.where(theta.abs() - borders[name] <= last_zero, 0.0, theta.sign())
        expected.append(score_with_new_statistics(weights, task.data))
        told.append((score.accuracy, score.loss))
        return True

    train_candidate(chosen, task, start, rungs=Rungs((1,), passes))
    assert len(told) == 1
    # A few logits may change places in single precision.
    assert told[0][0] == pytest.approx(expected[0][0], abs=1.5 / len(task.data.val))
    assert told[0][1] == pytest.approx(expected[0][1], rel=1e-3)


# Without normalization


def plain_task(dropout=0.0):
    """A fully connected network on the digits that normalizes nothing."""
    data = digits_task().data

    def make_model():
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 48),
            nn.ReLU(),
            nn.Linear(48, 48),
            nn.Sequential(nn.ReLU(), nn.Dropout(dropout)),
            nn.Linear(48, 10),
        )

    network = prepared(make_model, data.input_shape, data.num_classes, ModelSpec())
    return Task(data, network.make_model, network.choices)


@pytest.mark.parametrize("form", ["paper", "decoupled"])
def test_a_network_without_normalization_trains_and_becomes_ternary(form):
    task = plain_task()
    start = train_dense(task, epochs=4, learning_rate=0.01, seed=0)
    trained = train(task, start, (papers if form == "paper" else candidate)(sparsity=0.8, epochs=3, frozen_epochs=3))
    weight = trained.model[3].weight
    assert int((weight == 0).sum()) == math.floor(0.8 * 48 * 48 + 0.5)
    assert set(np.unique(weight.numpy())) <= {-1.0, 0.0, 1.0}
    assert trained.score.accuracy > 0.5
    assert all(value.isfinite().all() for value in trained.model.state_dict().values())


def test_without_normalization_the_scale_takes_over_what_the_weights_lose():
    """scale · Θ is the dense weight, and the rest is as it was."""
    task = plain_task()
    start = train_dense(task, epochs=1, learning_rate=0.01, seed=0)
    training = CandidateTraining(papers(spread=0.4), task, start)
    dense, dense_scale = (start.state[f"3.{name}"].double().numpy() for name in ("weight", "output_scale"))
    latent = latents(training.model)["3"].detach().double().numpy()
    assert np.sqrt(np.mean(latent**2)) == pytest.approx(0.4, rel=1e-5)
    np.testing.assert_allclose(training.model[3].output_scale.item() * latent, dense_scale * dense, rtol=1e-5)
    assert torch.equal(training.model[3].bias, start.state["3.bias"])


def test_a_scale_learns_in_its_own_measure():
    """Adam's steps are as long as the rate: a scale of 0.1 would be lost within ten of them."""
    task = plain_task()
    model = task.make_model()
    parametrize_layers(model, dict.fromkeys(task.ternary_layers, 0.6), "decoupled")
    scale = model[3].output_scale.item()
    plan = FitPlan(1, learning_rate=0.01, latent_learning_rate=0.02)
    groups = parameter_groups(model, plan, latents(model).values())
    rates = [group["lr"] for group in groups if any(each is model[3].output_scale for each in group["params"])]
    assert rates == [pytest.approx(0.01 * scale)]
    assert ids([parameter for group in groups for parameter in group["params"]]) == ids(model.parameters())


# Seeds


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_same_seed_gives_the_same_bits_and_another_gives_others(dropout):
    task = digits_task(200, model={"dropout": dropout})
    start = train_dense(task, epochs=1, learning_rate=0.01, seed=0)
    chosen = candidate(seed=7, frozen_epochs=1, distillation=0.5)
    first = train(task, start, chosen)
    torch.rand(17)  # what the global generator did before does not matter
    again = train(task, start, chosen)
    other = train(task, start, chosen.model_copy(update={"seed": 8}))
    assert states_equal(first.model.state_dict(), again.model.state_dict())
    assert first.history == again.history
    assert first.score == again.score
    assert not states_equal(first.model.state_dict(), other.model.state_dict())
    assert not all(torch.equal(a, b) for a, b in zip(first.model.parameters(), other.model.parameters(), strict=True))


def test_distillation_changes_what_is_learnt(task, start):
    alone, distilled = (train(task, start, candidate(distillation=share)) for share in (0.0, 1.0))
    assert not states_equal(alone.model.state_dict(), distilled.model.state_dict())


def test_distillation_alone_needs_no_labels(task, start):
    """A share of 1 asks for the dense network's answers only: wrong labels change nothing."""
    train_split = task.data.train
    wrong = Split(train_split.images, (train_split.labels + 1) % 10)
    shuffled = replace(task, data=DataSet(**{**vars(task.data), "train": wrong}))
    # λ given as such: its unit would be measured with the labels.
    chosen = candidate(distillation=1.0, strength=0.0, strength_is_lambda=True)
    ours, theirs = train(task, start, chosen), train(shuffled, start, chosen)
    assert states_equal(ours.model.state_dict(), theirs.model.state_dict())


# What goes wrong


REASON = r"^diverged: the loss became (nan|inf) in epoch 1$"


def test_a_huge_learning_rate_is_a_divergence_of_the_dense_start(task):
    with pytest.raises(DivergenceError, match=REASON):
        train_dense(task, epochs=2, learning_rate=1e30, seed=0)


@pytest.mark.parametrize("rate", ["learning_rate", "frozen_learning_rate"])
def test_a_huge_learning_rate_is_a_divergence_with_its_reason(task, start, rate):
    with pytest.raises(DivergenceError, match=REASON):
        train(task, start, candidate(**{rate: 1e30}, frozen_epochs=1))


@pytest.mark.parametrize(
    "rates",
    [
        {"frozen_epochs": 1, "frozen_learning_rate": 1e38},
        {"frozen_epochs": 0, "learning_rate": 1e38},
        {"frozen_epochs": 0, "latent_learning_rate": 1e38},
    ],
    ids=["frozen", "ternary", "latent"],
)
def test_an_explosion_in_the_very_last_step_never_reaches_the_saved_weights(task, start, rates):
    """One batch an epoch: the loss before the step is finite, what the step leaves is not."""
    whole_batch = replace(task, batch=len(task.data.train))
    try:
        trained = train(whole_batch, start, candidate(**rates))
    except DivergenceError:
        return
    assert all(value.isfinite().all() for value in trained.model.state_dict().values())
    assert math.isfinite(trained.score.loss)


def test_an_explosion_in_the_last_dense_step_is_no_start(task):
    whole_batch = replace(task, batch=len(task.data.train))
    try:
        start = train_dense(whole_batch, epochs=1, learning_rate=1e38, seed=0)
    except DivergenceError:
        return
    assert all(value.isfinite().all() for value in start.state.values())
    assert start.teacher_logits.isfinite().all()
    assert math.isfinite(start.score.loss)


class StopAt:
    """Asks to stop when it is asked for the nth time."""

    def __init__(self, nth):
        self.nth = nth
        self.asked = 0

    def is_set(self):
        self.asked += 1
        return self.asked >= self.nth


# 400 images in batches of 64, the last of 16: 7 batches per epoch.
@TRAINERS
@pytest.mark.parametrize("nth", [1, 6, 7, 8, 14])
def test_a_stop_ends_the_training_within_one_batch(task, start, nth, trainer):
    model, stop, epochs, passes = task.model_with(start.state), StopAt(nth), [], []
    model.register_forward_hook(lambda *_: passes.append(model.training))
    plan = FitPlan(2, 0.01, trainer=trainer)
    with pytest.raises(StopRequestedError):
        fit(model, task.data.train.batches(64, seed=0), plan, note_in(epochs), stop)
    assert stop.asked == nth
    assert passes == [True] * nth
    assert epochs == [1] * (nth > 7)  # an epoch that was cut, or ended with the stop, is not told


# 10 batches per epoch; the third is told by a signal to be the last.
TERMINATED = """
import os, signal, sys
import torch
from sca_search.data import Split
from sca_search.training.fit import FitPlan, fit

model, passes = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(1, 2)), []

def loss(outputs, labels):
    passes.append(None)
    print(len(passes), flush=True)
    if len(passes) == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return torch.nn.functional.cross_entropy(outputs, labels)

split = Split(torch.ones(20, 1, 1, 1), torch.zeros(20, dtype=torch.int64))
fit(model, split.batches(2, seed=0), FitPlan(2, 0.01), loss=loss)
"""


@pytest.mark.e2e
def test_a_signal_that_nobody_else_hears_ends_the_process_within_one_batch():
    ended = subprocess.run([sys.executable, "-c", TERMINATED], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["1", "2", "3"], ended.stderr
    assert ended.returncode == -signal.SIGTERM


# One epoch of 7 batches in each phase.
@pytest.mark.parametrize(("nth", "phases"), [(3, []), (10, ["ternary"])])
def test_a_stopped_candidate_is_not_finalized(task, start, nth, phases):
    stop, told = StopAt(nth), []
    with pytest.raises(StopRequestedError):
        train(task, start, candidate(frozen_epochs=1), on_epoch=told.append, stop=stop)
    assert stop.asked == nth
    assert [epoch.phase for epoch in told] == phases


def test_a_stopped_dense_training_gives_no_start(task):
    with pytest.raises(StopRequestedError):
        train_dense(task, epochs=1, learning_rate=0.01, seed=0, stop=StopWhen(lambda: True))


def test_a_stop_while_normalization_is_estimated_again_is_answered(task, start):
    """No epoch is trained, so that nobody asks before the whole training split is read for the trits."""
    asked = []

    def stop_requested():
        asked.append(None)
        return len(asked) == 2  # before the second of two batches of 256 among 400 images

    with pytest.raises(StopRequestedError):
        train_candidate(candidate(epochs=0), task, start, stop=StopWhen(stop_requested))
    assert len(asked) == 2
