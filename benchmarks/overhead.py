"""Overhead: one trial against a bare PyTorch loop with the same steps and evaluations.

    python -m benchmarks.overhead digits
    python -m benchmarks.overhead mnist --data-dir DIR

The bare loop is written by hand below, with functional layers, without modules, Lightning or callbacks. Both run
interleaved in one process; the minimum of each counts, since noise only adds time. The cost of the regularizer in the
paper's form is measured in the same way: one training step with it and one without. The bare loop searches its
quantiles among all weights; ours searches near the previous ones.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.interleave import Timing, best, interleaved
from benchmarks.report import RESULTS, provenance, table, write_section
from sca_search.config.candidate import Candidate, Constant, FromPrior
from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.study.setup import make_task
from sca_search.study.space import Space
from sca_search.ternary.methods.sca import LayerSchedules
from sca_search.ternary.parametrize import parametrize_layers
from sca_search.training.task import Task, WarmStart
from sca_search.training.train import train_candidate, train_dense

STUDIES = {
    "digits": ({}, {"epochs": 20, "dense_epochs": 3}),
    # Few images and one epoch: the cost of a step does not depend on their number.
    "mnist": (
        {"data": "mnist", "model": "lenet", "batch": 128, "train_limit": 12800},
        {"epochs": 1, "dense_epochs": 1},
    ),
}


ALLOCATION_STEPS = 10


class BareTrial:
    """A trial of LeNet in the decoupled form with the straight-through gradient, written by hand."""

    def __init__(self, candidate: Candidate, task: Task, start: WarmStart) -> None:
        torch.manual_seed(candidate.seed)
        self.candidate, self.task, self.start = candidate, task, start
        self.p = {name: value.clone() for name, value in start.state.items()}
        self.thetas = {}
        for name in task.ternary_layers:
            weight = self.p.pop(f"{name}.weight")
            self.thetas[name] = (weight * (candidate.spread / weight.square().mean().sqrt())).requires_grad_()
        for name, value in self.p.items():
            if not name.endswith(("running_mean", "running_var", "num_batches_tracked")):
                value.requires_grad_()
        self.planned = {name: candidate.sparsity_of(name) for name in self.thetas}
        self.track(1.0)
        self.first = self.thresholds
        self.momentum = 0.1

    def forward(self, images: Tensor, weights: dict[str, Tensor], training: bool) -> Tensor:
        x = F.conv2d(images, self.p["conv1.weight"], padding=2)
        x = F.max_pool2d(F.relu(self.normalize(x, "bn1", training)), 2)
        x = F.conv2d(x, weights["conv2"], padding=2)
        x = F.max_pool2d(F.relu(self.normalize(x, "bn2", training)), 2)
        x = F.relu(self.normalize(F.linear(x.flatten(1), weights["fc1"]), "bn3", training))
        return F.linear(x, self.p["fc2.weight"], self.p["fc2.bias"])

    def normalize(self, x: Tensor, name: str, training: bool) -> Tensor:
        p = self.p
        mean, var = p[f"{name}.running_mean"], p[f"{name}.running_var"]
        return F.batch_norm(x, mean, var, p[f"{name}.weight"], p[f"{name}.bias"], training, self.momentum)

    def soft(self, strength: float) -> dict[str, Tensor]:
        soft = {}
        for name, theta in self.thetas.items():
            basin, first = (math.tanh(each[name]) ** 2 for each in (self.thresholds, self.first))
            time = strength * basin / first
            growth = math.expm1(time) / basin if basin else strength / first
            weight = torch.tanh(theta.detach())
            square = weight**2
            flowed = weight / torch.maximum(1 + growth * (basin - square), square).sqrt()
            soft[name] = theta + (flowed - theta).detach()
        return soft

    def track(self, fraction: float) -> None:
        pairs = self.thetas.items()
        self.thresholds = {name: quantile(theta.detach(), fraction * self.planned[name]) for name, theta in pairs}

    def reallocate(self) -> None:
        ratios = {name: theta.detach().abs() / self.first[name] for name, theta in self.thetas.items()}
        threshold = quantile(torch.cat([ratio.flatten() for ratio in ratios.values()]), self.candidate.sparsity)
        self.planned = {name: float((ratio < threshold).float().mean()) for name, ratio in ratios.items()}

    @torch.no_grad()
    def validate(self, weights: dict[str, Tensor]) -> float:
        right = 0
        for images, labels in self.task.data.val.batches(256):
            logits = self.forward(images, weights, training=False)
            right += int((logits.argmax(1) == labels).sum())
            F.cross_entropy(logits, labels, reduction="sum").item()
        return right / len(self.task.data.val)

    def look(self, strength: float) -> None:
        with torch.no_grad():
            self.validate(self.soft(strength))
            self.validate({name: soft.round() for name, soft in self.soft(strength).items()})
            sum(int((soft.round() == 0).sum()) for soft in self.soft(strength).values())

    def train(self, epochs: int, groups: list[dict[str, object]], seed: int, trits: dict[str, Tensor] | None) -> None:
        optimizer = torch.optim.Adam(groups, fused=True)
        rows = len(self.task.data.train)
        batch = self.task.batch
        rest = rows % batch
        steps = epochs * (rows // batch + int(rest > 1))
        course = torch.optim.lr_scheduler.OneCycleLR(optimizer, [group["lr"] for group in groups], total_steps=steps)
        step = 0
        for epoch in range(epochs):
            for images, labels, answers in self.shuffled(seed, epoch):
                now = step * epochs / steps
                strength = self.candidate.strength.at(now, epochs)
                if trits is None and step % ALLOCATION_STEPS == 0:
                    self.reallocate()
                if trits is None:
                    self.track(self.candidate.alpha.sparsity_fraction(now, epochs))
                loss = self.loss(self.forward(images, trits or self.soft(strength), training=True), labels, answers)
                optimizer.zero_grad()
                loss.backward()
                if not np.isfinite(loss.item()):
                    raise ArithmeticError
                optimizer.step()
                course.step()
                step += 1
            if trits is None:
                self.look(strength)
            else:
                self.validate(trits)

    def shuffled(self, seed: int, epoch: int):
        data, size = self.task.data.train, self.task.batch
        order = torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(len(data)))
        for rows in order.split(size):
            if len(rows) > 1:
                yield data.images[rows], data.labels[rows], self.start.teacher_logits[rows]

    def loss(self, logits: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        share, hot = self.candidate.distillation, self.candidate.temperature
        mismatch = F.kl_div(
            F.log_softmax(logits / hot, 1), F.log_softmax(answers / hot, 1), log_target=True, reduction="batchmean"
        )
        return (1 - share) * F.cross_entropy(logits, labels) + share * hot**2 * mismatch

    def run(self) -> float:
        candidate = self.candidate
        others = [value for value in self.p.values() if value.requires_grad]
        groups = [
            {"params": list(self.thetas.values()), "lr": candidate.latent_learning_rate},
            {"params": others, "lr": candidate.learning_rate},
        ]
        self.train(candidate.epochs, groups, candidate.seed, None)
        self.track(1.0)
        self.look(candidate.strength.at(candidate.epochs, candidate.epochs))
        trits = {
            name: torch.where(theta.detach().abs() > self.thresholds[name], theta.detach().sign(), 0.0)
            for name, theta in self.thetas.items()
        }
        self.train(
            candidate.frozen_epochs,
            [{"params": others, "lr": candidate.frozen_learning_rate}],
            candidate.seed + 1,
            trits,
        )
        with torch.no_grad():
            for count, (images, *_) in enumerate(self.task.data.train.batches(256, seed=0)):
                self.momentum = 1 / (count + 1)
                self.forward(images, trits, training=True)
        return self.validate(trits)


def quantile(values: Tensor, fraction: float) -> float:
    """The middle between the two magnitudes that a fraction of all divides."""
    zeros = round(fraction * values.numel())
    if zeros == 0:
        return 0.0
    near = np.partition(values.abs().flatten().numpy(), (zeros - 1, zeros))
    return float(near[zeros - 1] + near[zeros]) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    what, lengths = STUDIES[arguments.study]
    spec = resolve(None, {**what, **lengths, "data_dir": arguments.data_dir, "target_sparsity": 0.5})
    task, start, candidate = _prepare(spec)
    trials = interleaved(
        {
            "one trial": lambda: lambda: train_candidate(candidate, task, start),
            "bare loop": lambda: lambda: BareTrial(candidate, task, start).run(),
        },
        arguments.rounds,
    )
    _report(arguments, trials, *_wdr_steps(task, start, candidate))


def _prepare(spec: StudySpec) -> tuple[Task, WarmStart, Candidate]:
    task = make_task(spec)
    dense = train_dense(task, epochs=spec.train.dense_epochs, learning_rate=spec.train.dense_learning_rate, seed=0)
    space = Space(spec)
    candidate = space.candidate(space.first_guess(), spec.goal.target_sparsity, seed=0)
    if spec.train.epochs == 1:  # a short trial has a short frozen phase
        candidate = candidate.model_copy(update={"frozen_epochs": 1})
    return task, dense, candidate


def _wdr_steps(task: Task, start: WarmStart, candidate: Candidate) -> tuple[float, float]:
    """Seconds per training step of the paper's form with and without the regularizer."""
    plain = {"form": "paper", "alpha": FromPrior(), "adaptive": False, "strength": Constant(value=0.0)}
    paper = candidate.model_copy(update=plain)
    strong = paper.model_copy(update={"strength": Constant(value=1e-6)})
    with_wdr, without = _step(task, start, strong), _step(task, start, paper)
    runs = interleaved({"with": lambda: with_wdr, "without": lambda: without}, rounds=60)
    return best(runs["with"]), best(runs["without"])


def _step(task: Task, start: WarmStart, candidate: Candidate) -> Callable[[], None]:
    model = task.model_with(start.state)
    parametrize_layers(model, dict.fromkeys(task.ternary_layers, candidate.spread), candidate.form)
    control = LayerSchedules(model, candidate)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    images, labels = next(iter(task.data.train.batches(task.batch)))

    def step() -> None:
        optimizer.zero_grad()
        (F.cross_entropy(model(images), labels) + control.penalty()).backward()
        optimizer.step()

    return step


def _report(arguments: argparse.Namespace, trials: dict[str, list[Timing]], with_wdr: float, without: float) -> None:
    rows = [
        [name, f"{best(runs):.2f} ({best(runs):.2f} to {max(each.seconds for each in runs):.2f})"]
        for name, runs in trials.items()
    ]
    rows += [
        ["ratio of the minima", f"{best(trials['one trial']) / best(trials['bare loop']):.3f}"],
        ["regularizer in the paper's form, fraction of a step", f"{(with_wdr - without) / with_wdr:.1%}"],
    ]
    text = f"## Overhead: {arguments.study}\n\n{table(['', 'seconds, minimum (range)'], rows)}\n\n{provenance()}"
    print(text)
    write_section(RESULTS, f"overhead on {arguments.study}", text)


if __name__ == "__main__":
    main()
