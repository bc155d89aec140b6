"""The commands of exported models, and `calibrate`, which times the kernels of an untrained network."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from sca_search.cli.exit_codes import NEGATIVE
from sca_search.cli.options import RunArgument, StudyFile, TrialOption, option, study_options
from sca_search.config.load import resolve
from sca_search.system.console import info, print_json, results, say, warn

if TYPE_CHECKING:
    from sca_search.export.verify import Verification


ExportFolder = Annotated[Path, typer.Argument(metavar="DIR", help="An export folder.")]


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
) -> None:
    """Write the chosen model, or any trial, as packed, C, ONNX and torch files, and verify them."""
    from sca_search.cli.json_output import export_answer
    from sca_search.export.folder import ExportOptions, parse_formats
    from sca_search.export.run import export_run

    options = ExportOptions(
        parse_formats(formats),
        half,
        int2,
        seconds,
        replace=force,
        tune=tune,
        stored=stored,
        activations=activations,
        say=say,
    )
    exported = export_run(run_folder, trial, out, options)
    for message in exported.left_out:
        warn(message)
    _print_checks(exported.verification)
    print_json(export_answer(exported))
    results().print(f"Export:    {exported.folder} ({', '.join(exported.files)})", highlight=False, soft_wrap=True)
    if not exported.verification.holds:
        raise typer.Exit(NEGATIVE)


def verify_command(
    folder: ExportFolder,
    seconds: Annotated[float, typer.Option(help="Seconds per format on the validation split.")] = 15.0,
) -> None:
    """Verify an export again: run every format and compare it with torch; exit code 1 if anything differs."""
    from sca_search.cli.json_output import verification_answer
    from sca_search.export.verify_folder import verify_folder

    say("verifying")
    verification = verify_folder(folder, seconds)
    _print_checks(verification)
    print_json(verification_answer(verification))
    if not verification.holds:
        raise typer.Exit(NEGATIVE)


def bench_command(
    folder: ExportFolder,
    seconds: Annotated[float, typer.Option(help="Seconds of measurement.")] = 10.0,
    save: Annotated[Path | None, option("Also write the measured times to this JSON file.", metavar="FILE")] = None,
) -> None:
    """Time exported C against onnxruntime (fp32, int8) and torch: one image at a time, one thread, interleaved."""
    from sca_search.cli.tables import bench_lines, bench_table
    from sca_search.export.latency.bench import bench_folder
    from sca_search.system.files import write_json_atomic

    bench = bench_folder(folder, seconds, say)
    results().print(bench_table(bench))
    for line in bench_lines(bench):
        info().print(line, highlight=False, soft_wrap=True, markup=False)
    if save is not None:
        write_json_atomic(save, bench.as_json())
    print_json(bench.as_json())


def check_command(
    folder: ExportFolder,
    target: Annotated[
        str, typer.Option(help="Targets, separated by commas.")
    ] = "aarch64-linux,armv7-linux,riscv64-linux,wasm32-wasi",
) -> None:
    """Cross-compile the C self-test for other targets and run it under qemu-user or wasmtime if they are installed.

    The compiler is installed by `pip install 'sca-search[cross]'`; its first build for a target takes a minute. Prints
    what ran and what was only compiled, and the model's size on a Cortex-M4; exit code 1 if anything fails.
    """
    from sca_search.cli.json_output import check_answer
    from sca_search.cli.tables import check_table, size_table
    from sca_search.export.c.cross import parse_targets
    from sca_search.export.check import check_folder

    report = check_folder(folder, parse_targets(target), say)
    results().print(check_table(report))
    results().print(size_table(report))
    print_json(check_answer(report))
    if not report.holds:
        raise typer.Exit(NEGATIVE)


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
) -> None:
    """Time the C kernels of an untrained network on this machine, per layer at several sparsities.

    The measurement is cached for this processor, compiler, network and version of the kernels. On another device, the
    emitted program prints a latency table: `./calibrate-aarch64-linux-neon > latency.json`.
    """
    from sca_search.cli.tables import latency_lines, latency_table
    from sca_search.export.latency.calibrate import (
        How,
        calibration_graph,
        calibration_of,
        check_options,
        emit_calibration,
    )
    from sca_search.export.latency.model import latency_model
    from sca_search.export.latency.table import write_calibration
    from sca_search.study.setup import make_task

    check_options(emit, target, seconds)
    task = make_task(resolve(study, flags))
    graph = calibration_graph(task)
    if emit is not None and target is not None:
        emitted = emit_calibration(emit, graph, target, say)
        if emitted.left_out:
            warn(emitted.left_out)
        print_json({"folder": emit, "programs": emitted.programs, "left_out": emitted.left_out or None})
        results().print(f"Program:   {', '.join([str(emit), *emitted.programs])}", highlight=False, soft_wrap=True)
        return
    calibration = calibration_of(graph, say, How(seconds, fresh))
    if save is not None:
        write_calibration(save, calibration)
    latency = latency_model(calibration)
    print_json(calibration.model_dump(mode="json", exclude_none=True))
    results().print(latency_table(latency))
    for line in latency_lines(latency, calibration, {shape.name: shape.least_nonzeros for shape in task.layer_shapes}):
        info().print(line, highlight=False, soft_wrap=True, markup=False)


def _print_checks(verification: "Verification") -> None:
    verdicts = {True: Text("yes", "green"), False: Text("NO", "red"), None: Text("not checked")}
    table = Table("file", "check", "found", "holds", title="Verification", title_justify="left")
    shown = ""
    for check in verification.checks:
        table.add_row("" if check.file == shown else check.file, check.what, Text(check.found), verdicts[check.holds])
        shown = check.file
    info().print(table)
    verdict = "everything agrees" if verification.holds else "something differs"
    results().print(f"Compared with {verification.described}: {verdict}.", highlight=False, soft_wrap=True)
