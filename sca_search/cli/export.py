"""The commands of exported models, and `calibrate`, which times a network that is not yet trained."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from sca_search.cli.completion import data_names, model_names, run_folders, study_files
from sca_search.config.load import resolve
from sca_search.system.console import answer, remarks, results, say, warn

if TYPE_CHECKING:
    from sca_search.export.verify import Verification


def export_command(
    run_folder: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder, as the search printed it.", autocompletion=run_folders),
    ],
    trial: Annotated[int | None, typer.Option(help="Which trial. Default: the chosen one.", show_default=False)] = None,
    formats: Annotated[
        str, typer.Option("--format", help="Which of packed, c, onnx and torch, separated by commas.")
    ] = "packed,c,onnx,torch",
    out: Annotated[
        Path | None, typer.Option(help="An empty or new folder. Default: RUN/exports/trial-NNN.", show_default=False)
    ] = None,
    half: Annotated[bool, typer.Option("--half", help="The packed file's float numbers as float16.")] = False,
    int2: Annotated[bool, typer.Option("--int2", help="ONNX with two bits a ternary weight.")] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="C with the kernels that are fastest here: each layer is timed with each.")
    ] = False,
    stored: Annotated[
        bool, typer.Option("--stored", help="C with weights stored as they are read: more flash, less working memory.")
    ] = False,
    activations: Annotated[
        str, typer.Option(help="Of C: float, or int8 with integer arithmetic and scales from training images.")
    ] = "float",
    force: Annotated[bool, typer.Option("--force", help="Replace an export that is in the folder.")] = False,
    seconds: Annotated[float, typer.Option(help="Time for each format on the validation split.")] = 15.0,
) -> None:
    """Writes a trial of a study as files to use elsewhere, without training again, and verifies them."""
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
    for sentence in exported.left_out:
        warn(sentence)
    _print_checks(exported.verification)
    answer(export_answer(exported))
    results().print(f"Export:    {exported.folder} ({', '.join(exported.files)})", highlight=False, soft_wrap=True)
    if not exported.verification.holds:
        raise typer.Exit(1)


def verify_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An export folder.")],
    seconds: Annotated[float, typer.Option(help="Time for each format on the validation split.")] = 15.0,
) -> None:
    """Runs every format of an export and compares it with torch; exit code 1 if anything differs."""
    from sca_search.cli.json_output import verification_answer
    from sca_search.export.verify_folder import verify_folder

    say("verifying")
    verification = verify_folder(folder, seconds)
    _print_checks(verification)
    answer(verification_answer(verification))
    if not verification.holds:
        raise typer.Exit(1)


def bench_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An export folder with its C source.")],
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 10.0,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures there, too, as JSON.", show_default=False)
    ] = None,
) -> None:
    """Times the exported C beside onnxruntime (fp32, int8) and torch: one image at a time, one thread, in turns."""
    from sca_search.export.latency.bench import bench_folder
    from sca_search.study.progress import bench_lines, bench_table
    from sca_search.system.files import write_json_atomic

    bench = bench_folder(folder, seconds, say)
    results().print(bench_table(bench))
    for line in bench_lines(bench):
        remarks().print(line, highlight=False, soft_wrap=True, markup=False)
    if save is not None:
        write_json_atomic(save, bench.as_json())
    answer(bench.as_json())


def check_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An export folder with its C source.")],
    target: Annotated[
        str, typer.Option(help="Which of these machines, separated by commas.")
    ] = "aarch64-linux,armv7-linux,riscv64-linux,wasm32-wasi",
) -> None:
    """Compiles the C self-test for other machines and runs it under qemu-user or wasmtime where they are installed.

    The compiler is that of `pip install 'sca-search[cross]'`; its first build for a machine takes a minute. Says what
    ran and what was only compiled, and how large the model is on a Cortex-M4; exit code 1 if anything fails.
    """
    from sca_search.cli.json_output import check_answer
    from sca_search.export.c.cross import parse_targets
    from sca_search.export.check import check_folder
    from sca_search.study.progress import check_table, size_table

    report = check_folder(folder, parse_targets(target), say)
    results().print(check_table(report))
    results().print(size_table(report))
    answer(check_answer(report))
    if not report.holds:
        raise typer.Exit(1)


def calibrate_command(
    study: Annotated[
        Path | None,
        typer.Argument(
            metavar="STUDY.toml", help="A study file, for its data, network and layers.", autocompletion=study_files
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="As in a study.", show_default=False, autocompletion=data_names)
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="As in a study.", show_default=False)] = None,
    image_size: Annotated[int | None, typer.Option(help="As in a study.", show_default=False)] = None,
    model: Annotated[
        str | None, typer.Option(help="As in a study.", show_default=False, autocompletion=model_names)
    ] = None,
    skip: Annotated[str | None, typer.Option(help="As in a study.", show_default=False)] = None,
    only: Annotated[str | None, typer.Option(help="As in a study.", show_default=False)] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure even if it was done before.")] = False,
    seconds: Annotated[float, typer.Option(help="How long to time at most; compiling comes on top.")] = 15.0,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the table there, too, for --latency-table.", show_default=False),
    ] = None,
    emit: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the program for another device instead.", show_default=False),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The device: aarch64-linux, armv7-linux, …", show_default=False)
    ] = None,
) -> None:
    """Times a network's C kernels on this machine, layer by layer at several sparsities, before anything is trained.

    What was measured is kept for this processor, compiler, network and version of the kernels. On another device, what
    the emitted program prints is a latency table: `./calibrate-aarch64-linux-neon > latency.json`.
    """
    from sca_search.export.latency.calibrate import (
        How,
        calibration_graph,
        calibration_of,
        check_options,
        emit_calibration,
    )
    from sca_search.export.latency.model import latency_model
    from sca_search.export.latency.table import write_calibration
    from sca_search.study.progress import latency_lines, latency_table
    from sca_search.study.run import make_task

    check_options(emit, target, seconds)
    named = {"data": data, "data_dir": data_dir, "image_size": image_size, "model": model, "skip": skip, "only": only}
    task = make_task(resolve(study, named))
    graph = calibration_graph(task)
    if emit is not None and target is not None:
        emitted = emit_calibration(emit, graph, target, say)
        if emitted.left_out:
            warn(emitted.left_out)
        answer({"folder": emit, "programs": emitted.programs, "left_out": emitted.left_out or None})
        results().print(f"Program:   {', '.join([str(emit), *emitted.programs])}", highlight=False, soft_wrap=True)
        return
    calibration = calibration_of(graph, say, How(seconds, fresh))
    if save is not None:
        write_calibration(save, calibration)
    latency = latency_model(calibration)
    answer(calibration.model_dump(mode="json", exclude_none=True))
    results().print(latency_table(latency))
    for line in latency_lines(latency, calibration, {shape.name: shape.least_nonzeros for shape in task.layer_shapes}):
        remarks().print(line, highlight=False, soft_wrap=True, markup=False)


def _print_checks(verification: "Verification") -> None:
    verdicts = {True: Text("yes", "green"), False: Text("NO", "red"), None: Text("not checked")}
    table = Table("file", "check", "found", "holds", title="Verification", title_justify="left")
    shown = ""
    for check in verification.checks:
        table.add_row("" if check.file == shown else check.file, check.what, Text(check.found), verdicts[check.holds])
        shown = check.file
    remarks().print(table)
    verdict = "everything agrees" if verification.holds else "something differs"
    results().print(f"Compared with {verification.described}: {verdict}.", highlight=False, soft_wrap=True)
