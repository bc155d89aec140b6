"""The commands of exported models, and `calibrate`, which times the kernels of an untrained network."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from sca_search.cli.options import NEGATIVE, RunArgument, StudyFile, TrialOption, TrustOption, option, study_options
from sca_search.config.costs import KB
from sca_search.config.load import resolve
from sca_search.system.console import info, print_json, results, say, warn
from sca_search.system.files import write_json_atomic

if TYPE_CHECKING:  # these modules import torch
    from sca_search.export.latency.bench import Bench, EngineTiming
    from sca_search.export.latency.model import Calibration, LatencyModel
    from sca_search.export.verify import Verification

ExportFolder = Annotated[Path, typer.Argument(metavar="DIR", help="An export folder.")]
_SHOWN_SPARSITIES = (0.0, 0.5, 0.9, 0.98, 0.99)
_LARGE_SPREAD = 0.02


def export_command(
    run_folder: RunArgument,
    trial: TrialOption = None,
    formats: Annotated[
        str, typer.Option("--format", help="Formats, separated by commas: packed, c, onnx, torch.")
    ] = "packed,c,onnx,torch",
    out: Annotated[Path | None, option("An empty or new folder. Default: RUN/exports/trial-NNN.")] = None,
    half: Annotated[bool, option("Packed: store float parameters as float16.", "--half")] = False,
    int2: Annotated[bool, option("ONNX: store two bits per ternary weight.", "--int2")] = False,
    tune: Annotated[bool, option("C: time each kernel for each layer here, and use the fastest.", "--tune")] = False,
    stored: Annotated[
        bool, option("C: store weights in the order in which they are read: more flash, less RAM.", "--stored")
    ] = False,
    activations: Annotated[
        str, typer.Option(help="C: float, or int8 for integer arithmetic with scales from training images.")
    ] = "float",
    force: Annotated[bool, option("Replace an export in the folder.", "--force")] = False,
    seconds: Annotated[float, typer.Option(help="Seconds of verification per format on the validation split.")] = 15.0,
    trust: TrustOption = False,
) -> None:
    """Write the chosen model, or any trial, as packed, C, ONNX and torch files, and verify them."""
    from sca_search.export.folder import ExportOptions, parse_formats
    from sca_search.export.run import export_run

    options = ExportOptions(
        parse_formats(formats), half, int2, seconds, force, tune=tune, stored=stored, activations=activations, say=say
    )
    exported = export_run(run_folder, trial, out, options, trust=trust)
    for message in exported.left_out:
        warn(message)
    checks = _print_checks(exported.verification)
    written = {"folder": exported.folder, "files": exported.files, "left_out": exported.left_out}
    print_json(written | {"verification": checks})
    results().print(f"Export:    {exported.folder} ({', '.join(exported.files)})", soft_wrap=True)
    _require(exported.verification.holds)


def verify_command(
    folder: ExportFolder,
    seconds: Annotated[float, typer.Option(help="Seconds per format on the validation split.")] = 15.0,
    trust: TrustOption = False,
) -> None:
    """Verify an export again: run every format and compare it with torch; exit code 1 if anything differs."""
    from sca_search.export.verify_folder import verify_folder

    say("verifying")
    verification = verify_folder(folder, seconds, trust=trust)
    print_json(_print_checks(verification))
    _require(verification.holds)


def _print_checks(verification: "Verification") -> dict[str, Any]:
    """Print every check and return them for JSON; `holds` is null if something could not be checked."""
    verdicts = {True: Text("yes", "green"), False: Text("NO", "red"), None: Text("not checked")}
    table = Table("file", "check", "found", "holds", title="Verification", title_justify="left")
    shown = ""
    for check in verification.checks:
        table.add_row("" if check.file == shown else check.file, check.what, Text(check.found), verdicts[check.holds])
        shown = check.file
    info().print(table)
    verdict = "everything agrees" if verification.holds else "something differs"
    results().print(f"Compared with {verification.described}: {verdict}.", soft_wrap=True)
    checks = [asdict(check) for check in verification.checks]
    return {"holds": verification.holds, "compared_with": verification.described, "checks": checks}


def _require(holds: bool) -> None:
    if not holds:
        raise typer.Exit(NEGATIVE)


def bench_command(
    folder: ExportFolder,
    seconds: Annotated[float, typer.Option(help="Seconds of measurement.")] = 10.0,
    save: Annotated[Path | None, option("Also write the measured times to this JSON file.", metavar="FILE")] = None,
) -> None:
    """Time exported C against onnxruntime (fp32, int8) and torch: one image at a time, one thread, interleaved."""
    from sca_search.export.latency.bench import bench_folder

    bench = bench_folder(folder, seconds, say)
    title = f"One image at a time on one thread, at {bench.clock_hz / 1e9:.2f} GHz"
    times = ("median µs", "IQR µs", "10th % µs", "times fp32", "adds/cycle", "noisy")
    # Narrow, so that ten columns fit into eighty characters without truncation.
    table = Table(Column("engine", no_wrap=True), title=title, title_justify="left", padding=0, pad_edge=False)
    _print_table(
        table, (*times, "disk KB", "scratch KB", "tables KB"), (_bench_row(bench, each) for each in bench.measured)
    )
    info().print(*bench_lines(bench), sep="\n", soft_wrap=True)
    if save is not None:
        write_json_atomic(save, bench.as_json())
    print_json(bench.as_json())


def _print_table(table: Table, numbers: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table with further columns, of numbers."""
    for heading in numbers:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    results().print(table)


def _bench_row(bench: "Bench", measured: "EngineTiming") -> list[str]:
    """An engine with its times in microseconds."""
    engine, timing = measured.engine, measured.timing
    times = [f"{1e6 * seconds:,.1f}" for seconds in (timing.median, timing.spread, timing.low)]
    ratios = ["" if each is None else f"{each:.2f}" for each in (bench.ratio(measured), bench.adds_per_cycle(measured))]
    sizes = (engine.disk_bytes, engine.scratch_bytes, engine.table_bytes)
    shown = ["" if size is None else f"{size / KB:,.1f}" for size in sizes]
    return [engine.name, *times, *ratios, f"{timing.noisy_fraction:.0%}", *shown]


def bench_lines(bench: "Bench") -> list[str]:
    """Remarks about the measurements."""
    lines = [*bench.left_out]
    loud = [measured.engine.name for measured in bench.measured if not measured.timing.has_quiet]
    if loud:
        lines.append(f"No quiet phase for {', '.join(loud)}: their times include noisy samples and are unreliable.")
    elif any(measured.timing.noisy_fraction > 0 for measured in bench.measured):
        lines.append("Samples during which a calibration loop ran slowly are excluded as noisy.")
    return [*lines, f"C built by {bench.built_by}"]


def check_command(
    folder: ExportFolder,
    target: Annotated[
        str, typer.Option(help="Targets, separated by commas.")
    ] = "aarch64-linux,armv7-linux,riscv64-linux,wasm32-wasi",
) -> None:
    """Cross-compile the C self-test for other targets and run it under qemu-user or wasmtime if they are installed.

    The compiler is installed by `pip install 'sca-search[cross]'`; its first build for a target takes a minute. Prints
    which self-tests ran, which were only compiled, and the model's size on a Cortex-M4; exit code 1 if anything fails.
    """
    from sca_search.export.c.cross import parse_targets
    from sca_search.export.check import check_folder

    report = check_folder(folder, parse_targets(target), say)
    words = {"ran": Text("ran, agrees", "green"), "compiled": Text("only compiled"), "failed": Text("FAILED", "red")}
    table = Table("target", "instructions", "self-test", "output", title="Other machines", title_justify="left")
    for check in report.checks:
        table.add_row(check.target, check.instructions, words[check.outcome], Text(check.said))
    results().print(table)
    sizes = {
        stored: {"code": size.code, "constants": size.constants, "flash": size.flash, "ram": size.ram}
        for stored, size in report.sizes.items()
    }
    table = Table("weights", title="On a Cortex-M4, bytes of model.c's object file", title_justify="left")
    headings = ("code", "constants", "flash in all", "RAM: tables and scratch")
    _print_table(table, headings, ([stored, *(f"{n:,}" for n in size.values())] for stored, size in sizes.items()))
    print_json({"holds": report.holds, "checks": [asdict(check) for check in report.checks], "cortex_m4_bytes": sizes})
    _require(report.holds)


@study_options("data", "data_dir", "image_size", "model", "skip", "only")
def calibrate_command(
    flags: dict[str, Any],
    study: StudyFile = None,
    fresh: Annotated[bool, option("Measure again, even if a measurement is cached.", "--fresh")] = False,
    seconds: Annotated[float, typer.Option(help="Maximum seconds of timing; compiling is not counted.")] = 15.0,
    save: Annotated[
        Path | None, option("Also write the table to this file, for --latency-table.", metavar="FILE")
    ] = None,
    emit: Annotated[
        Path | None, option("Write the program for another device to this folder instead.", metavar="DIR")
    ] = None,
    target: Annotated[str | None, option("The device, with --emit: aarch64-linux, armv7-linux, …")] = None,
    trust: TrustOption = False,
) -> None:
    """Time the C kernels of an untrained network on this machine, per layer at several sparsities.

    The measurement is cached for this processor, compiler, network and version of the kernels. On another device, the
    emitted program prints a latency table: `./calibrate-aarch64-linux-neon > latency.json`.
    """
    from sca_search.export.latency import calibrate
    from sca_search.export.latency.model import latency_model
    from sca_search.export.latency.table import write_calibration
    from sca_search.study.setup import make_task

    calibrate.check_options(emit, target, seconds)
    task = make_task(resolve(study, flags, trust=trust))
    graph = calibrate.calibration_graph(task)
    if emit is not None and target is not None:
        emitted = calibrate.emit_calibration(emit, graph, target, say)
        if emitted.left_out:
            warn(emitted.left_out)
        print_json({"folder": emit, "programs": emitted.programs, "left_out": emitted.left_out or None})
        results().print(f"Program:   {', '.join([str(emit), *emitted.programs])}", soft_wrap=True)
        return
    calibration = calibrate.calibration_of(graph, say, calibrate.CalibrationOptions(seconds, fresh))
    if save is not None:
        write_calibration(save, calibration)
    latency = latency_model(calibration)
    print_json(calibration.model_dump(mode="json", exclude_none=True))
    _print_latency(latency)
    least_nonzeros = {shape.name: shape.least_nonzeros for shape in task.layer_shapes}
    info().print(*_latency_lines(latency, calibration, least_nonzeros), sep="\n", soft_wrap=True)


def _print_latency(latency: "LatencyModel") -> None:
    """Microseconds per ternary layer, by sparsity."""
    layer_column = Column("layer", overflow="fold")  # a truncated name could not be used as a pattern
    table = Table(layer_column, title="Microseconds by sparsity, one image on one thread", title_justify="left")
    for heading in ("weights", *(f"{sparsity:g}" for sparsity in _SHOWN_SPARSITIES)):
        table.add_column(heading, justify="right", overflow="fold")
    for layer in latency.layers.values():
        times = [layer.at((1 - sparsity) * layer.weights) for sparsity in _SHOWN_SPARSITIES]
        table.add_row(layer.layer, f"{layer.weights:,}", *(f"{time:.1f}" for time in times))
    table.add_row("rest", "", *(f"{latency.fixed_us:.1f}" for _ in _SHOWN_SPARSITIES))
    results().print(table)


def _latency_lines(latency: "LatencyModel", calibration: "Calibration", least_nonzeros: Mapping[str, int]) -> list[str]:
    """The latency range of the whole network, and the quality of the measurement."""
    fastest, slowest = latency.range_us(least_nonzeros)
    large = ": large; calibrate again on a less busy machine" if latency.spread > _LARGE_SPREAD else ""
    return [
        f"Whole network: {slowest / 1e3:.4g} ms without zeros, {fastest / 1e3:.4g} ms at maximum sparsity",
        f"Spread: {latency.spread:.1%}{large}",
        f"{calibration.noisy_samples} of {calibration.samples} samples were noisy; excluded where possible",
        f"Timed on {latency.about['cpu']}, C built by {latency.about['compiler']}",
    ]
