"""The terminal output of a study: live progress, then tables and lines of results. Does not import torch."""

import math
import shlex
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sca_search.config.costs import COST_METRICS, TERNARY_SIZE, CostMetric
from sca_search.config.names import ACCURACY, format_metric
from sca_search.config.study import StudySpec
from sca_search.runs.candidates import model_name, refit_text
from sca_search.runs.choice import Choice
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import chosen_trial
from sca_search.runs.trials import pareto_front, trial_frame
from sca_search.study import events as e

if TYPE_CHECKING:  # these modules import torch
    from sca_search.training.task import Epoch


_SHOWN_SPARSITIES = (0.0, 0.5, 0.9, 0.98, 0.99)
_SHOWN_LAYERS = 8


class StudyDisplay(AbstractContextManager["StudyDisplay"]):
    """Shows the progress of a study: one line per running trial, the best one so far, the time left.

    On a terminal the lines are redrawn until the study ends, or until the context is left; one display can follow
    several studies in a row.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def on_event(self, event: e.Event) -> None:
        match event:
            case e.StudyStarted():
                self._on_start(event)
            case e.SensitivityStep(layer, layers):
                line = f"measuring layer sensitivity, {layers} layers" * (layer == 1)
                self._on_phase(f"layer sensitivity: layer {layer} of {layers}", line)
            case e.TrialsQueued(waiting, finished):
                self._finished, self._total = finished, finished + waiting
                self._epochs_left = (waiting + self.spec.search.refits) * self._epochs_per_trial
                self._on_phase("trials", f"{waiting} trial{'s' * (waiting != 1)} to run, {finished} finished before")
            case e.TrialStarted(trial, sparsity):
                self._running[f"trial {trial}"] = (sparsity, None)
            case e.DenseEpoch() | e.TrialEpoch() | e.RefitEpoch():
                self._on_epoch(event)
            case e.TrialEnded(trial, row):
                self._on_end(trial, row)
            case e.Note(text):
                self._print(Text(text, style="yellow", overflow="fold"))
            case e.StudyEnded():
                self._stop()

    def _on_start(self, event: e.StudyStarted) -> None:
        self.spec, self.metric = event.spec, event.metric
        for note in event.notes:
            self.console.print(note, highlight=False, soft_wrap=True, markup=False)
        self._began = time.monotonic()
        self._phase = "dense warm start"
        self._running: dict[str, tuple[float, Epoch | None]] = {}
        self._finished = self._total = 0
        self._epochs_done = 0
        self._rows: list[Mapping[str, Any]] = []
        self._best: Mapping[str, Any] | None = None
        self._epochs_per_trial = self.spec.train.epochs + self.spec.train.frozen_epochs
        self._epochs_left = self.spec.train.dense_epochs + self.spec.search.trials * self._epochs_per_trial
        if self.console.is_terminal:
            self._live = Live(get_renderable=self._draw, console=self.console, refresh_per_second=4, transient=True)
            self._live.start()

    def _print(self, line: Text) -> None:
        """Above the redrawn lines, if there are any."""
        (self.console if self._live is None else self._live.console).print(line)

    def _on_phase(self, phase: str, line: str) -> None:
        self._phase = phase
        self._running.pop("dense", None)
        if line and not self.console.is_terminal:
            self.console.print(line)

    def _on_epoch(self, event: e.DenseEpoch | e.TrialEpoch | e.RefitEpoch) -> None:
        epoch = event.epoch
        match event:
            case e.DenseEpoch():
                self._running["dense"] = (0.0, epoch)
            case e.TrialEpoch(trial):
                planned, _ = self._running.get(f"trial {trial}", (0.0, None))
                self._running[f"trial {trial}"] = (planned, epoch)
            case e.RefitEpoch(refit):
                self._phase = "refit of the chosen trial"
                self._running = {f"refit {refit}": (epoch.sparsity, epoch)}
        self._epochs_done += 1
        self._epochs_left -= 1
        if isinstance(event, e.DenseEpoch) and epoch.epoch == epoch.epochs and not self.console.is_terminal:
            accuracy = format_metric(self.metric, epoch.soft_metric)
            self.console.print(f"dense warm start: {accuracy} validation {self.metric}")

    def _on_end(self, trial: int, row: Mapping[str, Any] | None) -> None:
        self._running.pop(f"trial {trial}", None)
        if row is None:
            return
        self._finished += 1
        self._rows.append(row)
        choice = chosen_trial(trial_frame(self._rows), self.spec.goal, self.metric)
        self._best = next((each for each in self._rows if choice and each["trial"] == choice.trial), None)
        self._print(_trial_line(row, self._finished, self._total, self.metric))

    def _draw(self) -> Group:
        done = self._epochs_done / max(1, self._epochs_done + max(0, self._epochs_left))
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=1.0, completed=done, width=40), Text(self._headline(), style="bold"))
        lines = [_running_line(name, planned, epoch, self.metric) for name, (planned, epoch) in self._running.items()]
        return Group(grid, *lines)

    def _headline(self) -> str:
        parts = [self._phase]
        if self._total:
            parts.append(f"{self._finished}/{self._total}")
        if self._best:
            best = format_metric(self.metric, self._best["metric"])
            parts.append(f"best for the goal {best} at {self._best['sparsity']:.1%}")
        if self._epochs_done >= 3:
            each = (time.monotonic() - self._began) / self._epochs_done
            parts.append(f"{_clock(each * max(0, self._epochs_left))} left")
        return " · ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _running_line(name: str, planned: float, epoch: "Epoch | None", metric: str = ACCURACY) -> Text:
    if epoch is None:
        plan = "" if math.isnan(planned) else f" · planned sparsity {planned:.1%}"
        return Text(f"  {name}{plan} · starting", style="dim")
    soft, rounded = format_metric(metric, epoch.soft_metric), format_metric(metric, epoch.rounded_metric)
    text = f"  {name} · {epoch.phase} epoch {epoch.epoch}/{epoch.epochs} · {metric} {soft}"
    if epoch.phase == "ternary":
        text += f", rounded {rounded} · sparsity {epoch.sparsity:.2%}"
        text += "" if math.isnan(planned) else f" of {planned:.1%}"
    elif epoch.phase == "frozen":
        text += f" · sparsity {epoch.sparsity:.2%}, trits frozen"
    return Text(text)


def _trial_line(row: Mapping[str, Any], finished: int, total: int, metric: str = ACCURACY) -> Text:
    head = f"[{finished}/{total}] trial {row['trial']}: "
    if row["state"] == "paused":
        return Text(head + f"paused after {row['epochs']:.0f} epochs, others at its sparsity are better", style="dim")
    if row["state"] != "complete":
        return Text(head + f"failed, {row.get('reason', 'for an unknown reason')}", style="yellow")
    flag = " · off target before the exact step" if row["adjusted_fraction"] > 0.005 else ""
    took = "" if row["seconds"] is None else f" · {row['seconds']:.1f} s"  # None: the clock was changed meanwhile
    return Text(
        head + f"{metric} {format_metric(metric, row['metric'])} at sparsity {row['sparsity']:.3%} "
        f"(adjusted {row['adjusted_fraction']:.3%}){flag}{took}"
    )


def front_table(frame: pd.DataFrame, choice: Choice | None, metric: str = ACCURACY) -> Table:
    """The Pareto front, the chosen trial marked; one that is not on the front has its own row below."""
    front = pareto_front(frame)
    chosen = frame[frame["trial"] == (choice and choice.trial)]
    beside = chosen[~chosen["trial"].isin(front["trial"])]
    table = Table(title="Pareto front (validation)", title_justify="left")
    costs = [metric for metric in COST_METRICS if metric.key in front and front[metric.key].notna().any()]
    costs = [] if costs == [TERNARY_SIZE] else costs  # the ternary size is always counted
    # Costs replace the training columns: together they do not fit on a line.
    how = () if costs else ("before the frozen phase", "adjusted", "seconds")
    for heading in ("", "trial", "sparsity", metric, *how, *(f"{cost.label}, {cost.unit}" for cost in costs)):
        table.add_column(heading, justify="right" if heading else "left")
    marks = ["→ chosen" if trial in set(chosen["trial"]) else "" for trial in front["trial"]]
    marks += ["→ chosen,\n  not on front"] * len(beside)
    for number, (mark, row) in enumerate(zip(marks, pd.concat([front, beside]).to_dict("records"), strict=True)):
        if number == len(front):
            table.add_section()
        table.add_row(
            mark,
            str(row["trial"]),
            f"{row['sparsity']:.3%}",
            format_metric(metric, row["metric"]),
            *(_training_cells(row, metric) if how else ()),
            *(f"{row[cost.key] / cost.scale:.4g}" for cost in costs),
            style="bold green" if mark else None,
        )
    return table


def _training_cells(row: Mapping[Any, Any], metric: str) -> tuple[str, ...]:
    seconds = "" if math.isnan(row["seconds"]) else f"{row['seconds']:.1f}"
    return format_metric(metric, row["rounded_metric"]), f"{row['adjusted_fraction']:.3%}", seconds


def result_lines(summary: dict[str, Any], choice: Choice | None) -> list[str]:
    """Sentences about the chosen model; without refits and test if it was chosen after the summary was written."""
    chosen, dense = summary.get("chosen"), summary.get("dense")
    if choice is None:
        return []
    if not chosen or not dense or chosen["trial"] != choice.trial or "refits" not in chosen:
        return [f"Chosen so far: trial {choice.trial} — {choice.reason}"]
    metric, examples = summary.get("metric_name", ACCURACY), summary.get("examples", "images")
    lines = [
        f"Chosen: {model_name(chosen)}, sparsity {chosen['sparsity']:.3%}, "
        f"validation {format_metric(metric, chosen['metric'])} — {choice.reason}",
        f"Refits: {refit_text(chosen, metric)}",
    ]
    if "test_metric" in chosen:  # not if the study was stopped
        lines.append(
            f"Test {metric} {format_metric(metric, chosen['test_metric'])} on {chosen['test_images']} {examples}, "
            f"dense network {format_metric(metric, dense['test_metric'])}"
        )
    costs = [each for each in COST_METRICS if each.key in chosen]
    if costs and costs != [TERNARY_SIZE]:  # the ternary size is always counted
        lines.append(f"Costs: {', '.join(_cost_text(cost, chosen) for cost in costs)}")
    return lines


def _cost_text(cost: CostMetric, chosen: dict[str, Any]) -> str:
    text = f"{cost.label} {cost.format(chosen[cost.key])}"
    if cost.spread_key in chosen:
        return f"{text} (measured, 10th percentile; interquartile range {cost.format(chosen[cost.spread_key])})"
    return f"{text} (predicted by the latency table)" if cost.is_calibrated else text


def better_lines(frame: pd.DataFrame, choice: Choice | None, metric: str = ACCURACY) -> list[str]:
    """A hint where another trial has both more zeros and at least the score of the chosen one."""
    mine = frame[frame["trial"] == (choice and choice.trial)]
    if mine.empty:
        return []
    front = pareto_front(frame)
    accuracy, sparsity = mine["metric"].iloc[0], mine["sparsity"].iloc[0]
    better = front[(front["metric"] >= accuracy) & (front["sparsity"] > sparsity + 0.001)]
    if better.empty:
        return []
    best = better.iloc[-1]
    return [
        f"Trial {best['trial']} scores no lower with more zeros: {format_metric(metric, best['metric'])} "
        f"at {best['sparsity']:.1%}. "
        "A higher target may cost nothing."
    ]


def rung_lines(summary: dict[str, Any]) -> list[str]:
    """How well the loss at each rung predicted the final loss."""
    shown = [
        f"{rung['rank_correlation']:.2f} after {epoch} epochs ({rung['trials']} trials)"
        for epoch, rung in summary.get("rungs", {}).items()
    ]
    return [f"Spearman correlation of rung loss with final loss: {', '.join(shown)}"] if shown else []


def sensitivity_table(costs: list[dict[str, Any]]) -> Table | None:
    """Sensitivity per layer, the most sensitive first; None where it was not measured."""
    if not costs:
        return None
    losses = {(cost["layer"], round(cost["sparsity"], 3)): cost["loss"] for cost in costs}
    layers = list(dict.fromkeys(cost["layer"] for cost in costs))
    shown = [sparsity for sparsity in _SHOWN_SPARSITIES if all((layer, sparsity) in losses for layer in layers)]
    table = Table(title="Layer sensitivity: loss increase when only this layer is ternarized", title_justify="left")
    for heading in ("layer", *(f"sparsity {sparsity:g}" for sparsity in shown)):
        # A truncated name could not be used as a pattern.
        table.add_column(heading, justify="left" if heading == "layer" else "right", overflow="fold")
    ranked = sorted(layers, key=lambda layer: -losses[layer, shown[-1]]) if shown else layers
    for layer in ranked[:_SHOWN_LAYERS]:
        table.add_row(str(layer), *(f"{losses[layer, sparsity]:+.4f}" for sparsity in shown))
    if len(ranked) > _SHOWN_LAYERS:
        table.add_row(f"… {len(ranked) - _SHOWN_LAYERS} more in sensitivity.json")
    return table


def closing_lines(run: RunFolder, spec: StudySpec) -> list[str]:
    """Paths of the results."""
    export = f"sca-search export {shlex.quote(str(run.path))}{' --trust' if spec.references else ''}"
    use = [f"Model:     {run.chosen_file}", f"To use it: {export}"]
    return [f"Run:       {run.path}", f"Dashboard: {run.dashboard_file}", *(use if run.chosen_file.exists() else ())]
