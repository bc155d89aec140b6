"""What a user sees of a study: live progress, then the front. The one room that draws on the terminal."""

import math
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sca_search.config.costs import COST_METRICS, KB, TERNARY_SIZE, CostMetric
from sca_search.config.names import ACCURACY, format_metric
from sca_search.config.study import GoalSpec, StudySpec
from sca_search.runs.goal import chosen_trial
from sca_search.runs.trials import expected_accuracy, pareto_front, trial_frame

if TYPE_CHECKING:  # the rooms that train import torch, and `show` has no need of it
    from sca_search.export.check import CheckReport
    from sca_search.export.latency.bench import Bench, Measured
    from sca_search.export.latency.model import Calibration, LatencyModel
    from sca_search.study.run import Audience
    from sca_search.training.task import Epoch


_SHOWN_SPARSITIES = (0.0, 0.5, 0.9, 0.98, 0.99)
_SHOWN_LAYERS = 8
_LARGE_SPREAD = 0.02


class StudyDisplay:
    """Keeps what the study has told and draws it: a line a trial under way, the best so far, the time left."""

    def __init__(self, spec: StudySpec, console: Console, metric: str = ACCURACY) -> None:
        self.spec = spec
        self.metric = metric
        self.console = console
        self._live: Live | None = None
        self._began = time.monotonic()
        self._phase = "dense warm start"
        self._running: dict[str, tuple[float, Epoch | None]] = {}
        self._finished = self._total = 0
        self._epochs_done = 0
        self._rows: list[dict[str, Any]] = []
        self._best: dict[str, Any] | None = None
        self._epochs_left = spec.train.dense_epochs + spec.search.trials * self._epochs_a_trial

    @property
    def _epochs_a_trial(self) -> int:
        return self.spec.train.epochs + self.spec.train.frozen_epochs

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self.console.is_terminal:
            yield
            return
        with Live(get_renderable=self._draw, console=self.console, refresh_per_second=4, transient=True) as self._live:
            yield

    def audience(self, base: "Audience") -> "Audience":
        """An audience that draws; whether to stop is the given one's business."""
        return replace(
            base,
            on_dense_epoch=lambda epoch: self._epoch("dense", 0.0, epoch),
            on_sensitivity=self._on_sensitivity,
            on_queue=self._on_queue,
            on_trial_start=self._on_start,
            on_trial_epoch=lambda trial, epoch: self._epoch(f"trial {trial}", None, epoch),
            on_trial_end=self._on_end,
            on_refit_epoch=lambda index, epoch: self._epoch(f"refit {index}", epoch.sparsity, epoch),
            on_note=lambda sentence: self._print(Text(sentence, style="yellow", overflow="fold")),
        )

    def _print(self, line: Text) -> None:
        """Above what is drawn, where something is."""
        (self.console if self._live is None else self._live.console).print(line)

    def _on_sensitivity(self, layer: int, layers: int) -> None:
        self._phase = f"what rounding costs: layer {layer} of {layers}"
        self._running.pop("dense", None)
        if layer == 1 and not self.console.is_terminal:
            self.console.print(f"measuring what rounding costs, {layers} layers")

    def _on_queue(self, waiting: int, finished: int) -> None:
        self._phase = "trials"
        self._running.pop("dense", None)
        self._finished, self._total = finished, finished + waiting
        self._epochs_left = (waiting + self.spec.search.refits) * self._epochs_a_trial
        if not self.console.is_terminal:
            self.console.print(f"{waiting} trial{'s' * (waiting != 1)} to run, {finished} finished before")

    def _on_start(self, trial: int, sparsity: float) -> None:
        self._running[f"trial {trial}"] = (sparsity, None)

    def _epoch(self, who: str, sparsity: float | None, epoch: "Epoch") -> None:
        planned = self._running.get(who, (sparsity or 0.0, None))[0]
        if who.startswith("refit"):
            self._phase = "refit of the chosen one"
            self._running = {who: (planned, epoch)}
        self._running[who] = (planned, epoch)
        self._epochs_done += 1
        self._epochs_left -= 1
        if who == "dense" and epoch.epoch == epoch.epochs and not self.console.is_terminal:
            self.console.print(
                f"dense warm start: {format_metric(self.metric, epoch.soft_metric)} validation {self.metric}"
            )

    def _on_end(self, row: dict[str, Any]) -> None:
        self._running.pop(f"trial {row['trial']}", None)
        self._finished += 1
        self._rows.append(row)
        chosen = chosen_trial(trial_frame(self._rows), self.spec.goal, self.metric)
        self._best = next((each for each in self._rows if each["trial"] == chosen), None)
        line = _trial_line(row, self._finished, self._total, self.metric)
        self._print(line)

    def _draw(self) -> Group:
        done = self._epochs_done / max(1, self._epochs_done + max(0, self._epochs_left))
        grid = Table.grid(padding=(0, 1))
        grid.add_row(ProgressBar(total=1.0, completed=done, width=40), Text(self._headline(), style="bold"))
        lines = [_running_line(who, planned, epoch, self.metric) for who, (planned, epoch) in self._running.items()]
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


def _running_line(who: str, planned: float, epoch: "Epoch | None", metric: str = ACCURACY) -> Text:
    if epoch is None:
        plan = "" if math.isnan(planned) else f" · planned sparsity {planned:.1%}"
        return Text(f"  {who}{plan} · starting", style="dim")
    soft, rounded = format_metric(metric, epoch.soft_metric), format_metric(metric, epoch.rounded_metric)
    text = f"  {who} · {epoch.phase} epoch {epoch.epoch}/{epoch.epochs} · {metric} {soft}"
    if epoch.phase == "ternary":
        text += f", rounded {rounded} · sparsity {epoch.sparsity:.2%}"
        text += "" if math.isnan(planned) else f" of {planned:.1%}"
    elif epoch.phase == "frozen":
        text += f" · sparsity {epoch.sparsity:.2%}, trits frozen"
    return Text(text)


def _trial_line(row: dict[str, Any], finished: int, total: int, metric: str = ACCURACY) -> Text:
    head = f"[{finished}/{total}] trial {row['trial']}: "
    if row["state"] == "paused":
        return Text(head + f"paused after {row['epochs']:.0f} epochs, others of its sparsity are better", style="dim")
    if row["state"] != "complete":
        return Text(head + f"failed, {row.get('reason', 'for an unknown reason')}", style="yellow")
    flag = " · off target before the exact step" if row["moved_share"] > 0.005 else ""
    took = "" if row["seconds"] is None else f" · {row['seconds']:.1f} s"  # None: the clock was moved meanwhile
    return Text(
        head + f"{metric} {format_metric(metric, row['metric'])} at sparsity {row['sparsity']:.3%} "
        f"(moved {row['moved_share']:.3%}){flag}{took}"
    )


def front_table(frame: pd.DataFrame, goal: GoalSpec, metric: str = ACCURACY) -> Table:
    """The Pareto front, the chosen trial marked; it is listed even where another trial dominates it."""
    chosen = chosen_trial(frame, goal, metric)
    front = pareto_front(frame)
    if chosen is not None and chosen not in set(front["trial"]):
        front = pd.concat([front, frame[frame["trial"] == chosen]]).sort_values("sparsity")
    table = Table(title="Pareto front (validation)", title_justify="left")
    costs = [metric for metric in COST_METRICS if metric.key in front and front[metric.key].notna().any()]
    costs = [] if costs == [TERNARY_SIZE] else costs  # the ternary size is always counted
    # Costs replace the training columns: together they do not fit on a line.
    how = () if costs else ("before the frozen phase", "moved", "seconds")
    for heading in ("", "trial", "sparsity", metric, *how, *(f"{cost.label}, {cost.unit}" for cost in costs)):
        table.add_column(heading, justify="right" if heading else "left")
    for row in front.to_dict("records"):
        is_chosen = row["trial"] == chosen
        table.add_row(
            "→ chosen" if is_chosen else "",
            str(row["trial"]),
            f"{row['sparsity']:.3%}",
            format_metric(metric, row["metric"]),
            *(
                (format_metric(metric, row["rounded_metric"]), f"{row['moved_share']:.3%}", _seconds(row["seconds"]))
                if how
                else ()
            ),
            *(f"{row[cost.key] / cost.scale:.4g}" for cost in costs),
            style="bold green" if is_chosen else None,
        )
    return table


def _seconds(took: float) -> str:
    return "" if math.isnan(took) else f"{took:.1f}"


def result_lines(summary: dict[str, Any]) -> list[str]:
    """The chosen model in words."""
    chosen, dense = summary.get("chosen"), summary.get("dense")
    if not chosen or not dense:
        return []
    metric, examples = summary.get("metric_name", ACCURACY), summary.get("examples", "images")
    return [
        f"Chosen: trial {chosen['trial']}, sparsity {chosen['sparsity']:.3%} counted in the file, "
        f"validation {expected_accuracy(chosen, metric)}",
        *_test_lines(chosen, dense, metric, examples),
        *_cost_lines(chosen),
    ]


def _test_lines(chosen: dict[str, Any], dense: dict[str, Any], metric: str, examples: str) -> list[str]:
    if "test_metric" not in chosen:  # the study was stopped
        return []
    return [
        f"Test {metric} {format_metric(metric, chosen['test_metric'])} on {chosen['test_images']} {examples}, "
        f"dense network {format_metric(metric, dense['test_metric'])}"
    ]


def _cost_lines(chosen: dict[str, Any]) -> list[str]:
    """Measured costs of the model, where the goal limits one."""
    costs = [metric for metric in COST_METRICS if metric.key in chosen]
    if not costs or costs == [TERNARY_SIZE]:  # the ternary size is always counted
        return []
    return [f"Costs: {', '.join(_cost_text(cost, chosen) for cost in costs)}"]


def _cost_text(cost: CostMetric, chosen: dict[str, Any]) -> str:
    text = f"{cost.label} {cost.format(chosen[cost.key])}"
    if cost.spread_key in chosen:
        return f"{text} (measured, 10th percentile; interquartile range {cost.format(chosen[cost.spread_key])})"
    return f"{text} (predicted by the latency table)" if cost.is_calibrated else text


def better_lines(frame: pd.DataFrame, goal: GoalSpec, metric: str = ACCURACY) -> list[str]:
    """Says so where a trial beats the chosen one in both: a user may want more zeros than were asked for."""
    chosen = chosen_trial(frame, goal, metric)
    mine = frame[frame["trial"] == chosen]
    if mine.empty:
        return []
    front = pareto_front(frame)
    accuracy, sparsity = mine["metric"].iloc[0], mine["sparsity"].iloc[0]
    better = front[(front["metric"] >= accuracy) & (front["sparsity"] > sparsity + 0.001)]
    if better.empty:
        return []
    best = better.iloc[-1]
    return [
        f"Trial {best['trial']} is no less accurate with more zeros: {format_metric(metric, best['metric'])} "
        f"at {best['sparsity']:.1%}. "
        "A higher target may cost nothing."
    ]


def rung_lines(summary: dict[str, Any]) -> list[str]:
    """How well the looks on the way foretold the end."""
    told = [
        f"{rung['rank_correlation']:.2f} after {epoch} epochs ({rung['trials']} trials)"
        for epoch, rung in summary.get("rungs", {}).items()
    ]
    return [f"Rank correlation of the loss on the way with the loss at the end: {', '.join(told)}"] if told else []


def sensitivity_table(costs: list[dict[str, Any]]) -> Table | None:
    """What rounding one layer costs, the most sensitive first; None where it was not measured."""
    if not costs:
        return None
    losses = {(cost["layer"], round(cost["sparsity"], 3)): cost["loss"] for cost in costs}
    layers = list(dict.fromkeys(cost["layer"] for cost in costs))
    told = [sparsity for sparsity in _SHOWN_SPARSITIES if all((layer, sparsity) in losses for layer in layers)]
    table = Table(title="Validation loss added by rounding one layer alone, untrained", title_justify="left")
    for heading in ("layer", *(f"sparsity {sparsity:g}" for sparsity in told)):
        # A name cut short could not be used as a pattern.
        table.add_column(heading, justify="left" if heading == "layer" else "right", overflow="fold")
    ranked = sorted(layers, key=lambda layer: -losses[layer, told[-1]]) if told else layers
    for layer in ranked[:_SHOWN_LAYERS]:
        table.add_row(str(layer), *(f"{losses[layer, sparsity]:+.4f}" for sparsity in told))
    if len(ranked) > _SHOWN_LAYERS:
        table.add_row(f"… {len(ranked) - _SHOWN_LAYERS} more in sensitivity.json")
    return table


def closing_lines(folder: Path, dashboard: Path, model: Path) -> list[str]:
    """Where everything is."""
    lines = [f"Run:       {folder}", f"Dashboard: {dashboard}"]
    if not model.exists():
        return lines
    return [*lines, f"Model:     {model}", f"To use it: sca-search export {shlex.quote(str(folder))}"]


def bench_table(bench: "Bench") -> Table:
    """Engines beside each other; times in microseconds."""
    title = f"One image at a time on one thread, at {bench.clock_hz / 1e9:.2f} GHz"
    # Narrow, so that ten columns fit into eighty characters with no name cut.
    table = Table(title=title, title_justify="left", padding=0, pad_edge=False)
    times = ("median µs", "IQR µs", "10th % µs", "times fp32", "adds a cycle", "noisy")
    table.add_column("engine", no_wrap=True)
    for heading in (*times, "disk KB", "scratch KB", "tables KB"):
        table.add_column(heading, justify="right")
    for measured in bench.measured:
        table.add_row(measured.engine.name, *_bench_cells(bench, measured))
    return table


def _bench_cells(bench: "Bench", measured: "Measured") -> list[str]:
    engine, timing = measured.engine, measured.timing
    times = [f"{1e6 * seconds:,.1f}" for seconds in (timing.median, timing.spread, timing.low)]
    ratios = [
        "" if ratio is None else f"{ratio:.2f}" for ratio in (bench.ratio(measured), bench.adds_a_cycle(measured))
    ]
    sizes = [
        "" if size is None else f"{size / KB:,.1f}"
        for size in (engine.disk_bytes, engine.scratch_bytes, engine.table_bytes)
    ]
    return [*times, *ratios, f"{timing.noisy_share:.0%}", *sizes]


def bench_lines(bench: "Bench") -> list[str]:
    """What has to be said about the figures."""
    lines = [*bench.left_out]
    loud = [measured.engine.name for measured in bench.measured if not measured.timing.has_quiet]
    if loud:
        lines.append(f"No quiet phase was seen for {', '.join(loud)}: figures are over all samples, so mistrust them.")
    elif any(measured.timing.noisy_share > 0 for measured in bench.measured):
        lines.append("Noisy samples, beside which a calibration loop was slow, are left out of all figures.")
    return [*lines, f"C built by {bench.built_by}"]


def check_table(report: "CheckReport") -> Table:
    """What became of the self-test on each target."""
    words = {"ran": Text("ran, agrees", "green"), "compiled": Text("only compiled"), "failed": Text("FAILED", "red")}
    table = Table("target", "instructions", "self-test", "said", title="Other machines", title_justify="left")
    for check in report.checks:
        table.add_row(check.target, check.instructions, words[check.outcome], Text(check.said))
    return table


def size_table(report: "CheckReport") -> Table:
    """Bytes of the object file on a microcontroller."""
    table = Table(title="On a Cortex-M4, bytes of model.c's object file", title_justify="left")
    table.add_column("weights")
    for heading in ("code", "constants", "flash in all", "RAM: tables and scratch"):
        table.add_column(heading, justify="right")
    for stored, size in report.sizes.items():
        table.add_row(stored, *(f"{count:,}" for count in (size.code, size.constants, size.flash, size.ram)))
    return table


def latency_table(latency: "LatencyModel") -> Table:
    """Microseconds of each ternary layer by its sparsity."""
    table = Table(title="Microseconds by sparsity, one image on one thread", title_justify="left")
    for heading in ("layer", "weights", *(f"{sparsity:g}" for sparsity in _SHOWN_SPARSITIES)):
        # A name cut short could not be used as a pattern.
        table.add_column(heading, justify="left" if heading == "layer" else "right", overflow="fold")
    for layer in latency.layers.values():
        times = [layer.at((1 - sparsity) * layer.weights) for sparsity in _SHOWN_SPARSITIES]
        table.add_row(layer.layer, f"{layer.weights:,}", *(f"{time:.1f}" for time in times))
    table.add_row("all else", "", *(f"{latency.fixed_us:.1f}" for _ in _SHOWN_SPARSITIES))
    return table


def latency_lines(latency: "LatencyModel", calibration: "Calibration", least_nonzeros: Mapping[str, int]) -> list[str]:
    """What the network as a whole can reach, and how far it is to be trusted."""
    fastest, slowest = latency.range_us(least_nonzeros)
    large = ": large, so calibrate again on a quieter machine" if latency.spread > _LARGE_SPREAD else ""
    return [
        f"Whole network: {slowest / 1e3:.4g} ms without zeros, {fastest / 1e3:.4g} ms with as few weights as may be",
        f"Spread: {latency.spread:.1%}{large}",
        f"{calibration.noisy_samples} of {calibration.samples} samples were noisy: left out wherever there were others",
        f"Timed on {latency.about['cpu']}, C built by {latency.about['compiler']}",
    ]
