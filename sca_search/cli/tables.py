"""Tables of measurements for the terminal: engines, targets, microcontroller sizes, latency. Does not import torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from sca_search.config.costs import KB

if TYPE_CHECKING:  # these modules import torch
    from sca_search.export.check import CheckReport
    from sca_search.export.latency.bench import Bench, Measured
    from sca_search.export.latency.model import Calibration, LatencyModel

_SHOWN_SPARSITIES = (0.0, 0.5, 0.9, 0.98, 0.99)
_LARGE_SPREAD = 0.02


def bench_table(bench: "Bench") -> Table:
    """One row per engine, with times in microseconds."""
    title = f"One image at a time on one thread, at {bench.clock_hz / 1e9:.2f} GHz"
    # Narrow, so that ten columns fit into eighty characters without truncation.
    table = Table(title=title, title_justify="left", padding=0, pad_edge=False)
    times = ("median µs", "IQR µs", "10th % µs", "times fp32", "adds/cycle", "noisy")
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
        "" if ratio is None else f"{ratio:.2f}" for ratio in (bench.ratio(measured), bench.adds_per_cycle(measured))
    ]
    sizes = [
        "" if size is None else f"{size / KB:,.1f}"
        for size in (engine.disk_bytes, engine.scratch_bytes, engine.table_bytes)
    ]
    return [*times, *ratios, f"{timing.noisy_fraction:.0%}", *sizes]


def bench_lines(bench: "Bench") -> list[str]:
    """Remarks about the measurements."""
    lines = [*bench.left_out]
    loud = [measured.engine.name for measured in bench.measured if not measured.timing.has_quiet]
    if loud:
        lines.append(f"No quiet phase for {', '.join(loud)}: their times include noisy samples and are unreliable.")
    elif any(measured.timing.noisy_fraction > 0 for measured in bench.measured):
        lines.append("Samples during which a calibration loop ran slowly are excluded as noisy.")
    return [*lines, f"C built by {bench.built_by}"]


def check_table(report: "CheckReport") -> Table:
    """The outcome of the self-test per target."""
    words = {"ran": Text("ran, agrees", "green"), "compiled": Text("only compiled"), "failed": Text("FAILED", "red")}
    table = Table("target", "instructions", "self-test", "output", title="Other machines", title_justify="left")
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
    """Microseconds per ternary layer, by sparsity."""
    table = Table(title="Microseconds by sparsity, one image on one thread", title_justify="left")
    for heading in ("layer", "weights", *(f"{sparsity:g}" for sparsity in _SHOWN_SPARSITIES)):
        # A truncated name could not be used as a pattern.
        table.add_column(heading, justify="left" if heading == "layer" else "right", overflow="fold")
    for layer in latency.layers.values():
        times = [layer.at((1 - sparsity) * layer.weights) for sparsity in _SHOWN_SPARSITIES]
        table.add_row(layer.layer, f"{layer.weights:,}", *(f"{time:.1f}" for time in times))
    table.add_row("rest", "", *(f"{latency.fixed_us:.1f}" for _ in _SHOWN_SPARSITIES))
    return table


def latency_lines(latency: "LatencyModel", calibration: "Calibration", least_nonzeros: Mapping[str, int]) -> list[str]:
    """The latency range of the whole network, and the quality of the measurement."""
    fastest, slowest = latency.range_us(least_nonzeros)
    large = ": large; calibrate again on a less busy machine" if latency.spread > _LARGE_SPREAD else ""
    return [
        f"Whole network: {slowest / 1e3:.4g} ms without zeros, {fastest / 1e3:.4g} ms at maximum sparsity",
        f"Spread: {latency.spread:.1%}{large}",
        f"{calibration.noisy_samples} of {calibration.samples} samples were noisy; excluded where possible",
        f"Timed on {latency.about['cpu']}, C built by {latency.about['compiler']}",
    ]
