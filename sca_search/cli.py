"""The commands. `--help` answers without importing torch: what trains is imported where it is used."""

import errno
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from typer.core import TyperGroup

from sca_search.dashboard_commands import dashboard_command, features_command
from sca_search.errors import ScaError
from sca_search.spec import StudySpec, resolve

if TYPE_CHECKING:
    from sca_search.export.verify import Verification
    from sca_search.run_folder import RunFolder

# A disk that is full or may not be written, wherever it shows.
_MACHINES_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it
_out = Console()
_err = Console(stderr=True)


class _RunByDefault(TyperGroup):
    """`sca-search --target-sparsity 0.5` is `sca-search run --target-sparsity 0.5`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in {"--install-completion", "--show-completion"}):
            args = ["run", *args]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


app = typer.Typer(cls=_RunByDefault, rich_markup_mode="markdown", pretty_exceptions_enable=False, add_completion=False)

_GOAL, _WHAT, _SEARCH, _TRAIN, _RUN = "Goal", "Data and network", "Search", "Training", "The run"


def _option(panel: str, text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False)


@app.command("run")
def run_command(
    ctx: typer.Context,
    study: Annotated[
        Path | None, typer.Argument(metavar="[STUDY.toml]", help="A study file; flags overrule it.")
    ] = None,
    target_sparsity: Annotated[float | None, _option(_GOAL, "Share of zeros, from 0 to below 1. Default 0.5.")] = None,
    min_accuracy: Annotated[
        float | None, _option(_GOAL, "Instead: the sparsest model with at least this validation accuracy, say 0.98.")
    ] = None,
    front: Annotated[bool | None, _option(_GOAL, "Instead: no goal, the whole front.", "--front")] = None,
    max_latency_ms: Annotated[
        float | None, _option(_GOAL, "Instead or as well: at most so many ms an image in exported C, on one thread.")
    ] = None,
    max_kb: Annotated[
        float | None, _option(_GOAL, "Instead or as well: at most so many KB of packed ternary weights.")
    ] = None,
    max_file_kb: Annotated[
        float | None, _option(_GOAL, "Instead or as well: at most so many KB of the whole packed file.")
    ] = None,
    prefer: Annotated[
        str | None, _option(_GOAL, "With --min-accuracy: sparsest (default), fastest or smallest.")
    ] = None,
    grid: Annotated[
        bool | None, _option(_GOAL, "Let every other trial draw the front around the target (default), or none.")
    ] = None,
    data: Annotated[
        str | None, _option(_WHAT, "digits (embedded, default), mnist, cifar10, cifar100, folder:PATH or npz:PATH.")
    ] = None,
    data_dir: Annotated[Path | None, _option(_WHAT, "Folder with local copies of mnist and cifar.")] = None,
    image_size: Annotated[
        int | None, _option(_WHAT, "Side to which a folder's images are resized. Default 64.")
    ] = None,
    train_limit: Annotated[int | None, _option(_WHAT, "Use only so many training images.")] = None,
    model: Annotated[
        str | None,
        _option(
            _WHAT, "lenet-small (default), lenet-medium, lenet, vgg-s, vgg-variate, resnet20, resnet18 or alexnet."
        ),
    ] = None,
    skip: Annotated[str | None, _option(_WHAT, "Layers that stay dense, as name patterns: 'fc*,conv2'.")] = None,
    only: Annotated[str | None, _option(_WHAT, "The only layers to make ternary, as name patterns.")] = None,
    trials: Annotated[int | None, _option(_SEARCH, "How many candidates are trained. Default 16.")] = None,
    form: Annotated[
        str | None, _option(_SEARCH, "sharpened (ours, default), paper (plain SCA) or straight-through (a baseline).")
    ] = None,
    time_budget: Annotated[str | None, _option(_SEARCH, "Start no trial that would end later: 90s, 10m, 2h.")] = None,
    strength: Annotated[
        float | None, _option(_SEARCH, "Fix the pull's strength (dimensionless λ) instead of searching it.")
    ] = None,
    split: Annotated[
        float | None,
        _option(_SEARCH, "How far splits of the zeros are searched: half-width of log density. Default 1; 0: even."),
    ] = None,
    groups: Annotated[
        str | None,
        _option(_SEARCH, "Which layers share searched values: layer, stage or all. Default by their number."),
    ] = None,
    keep: Annotated[
        float | None, _option(_SEARCH, "Share of candidates that go on at each rung of their training. Default 1: all.")
    ] = None,
    prior: Annotated[
        Path | None, _option(_SEARCH, "Start from what another run of this network reached: its prior.json.")
    ] = None,
    latency_table: Annotated[
        Path | None,
        _option(_SEARCH, "Latencies of the device that is meant, if not this one: see calibrate."),
    ] = None,
    refits: Annotated[int | None, _option(_SEARCH, "More seeds for the chosen candidate. Default 2.")] = None,
    workers: Annotated[int | None, _option(_SEARCH, "Processes that train trials side by side. Default 1.")] = None,
    threads: Annotated[
        int | None, _option(_SEARCH, "Threads a worker. Default: by the network's size and the cores.")
    ] = None,
    epochs: Annotated[int | None, _option(_TRAIN, "Epochs a candidate. Default 20.")] = None,
    dense_epochs: Annotated[int | None, _option(_TRAIN, "Epochs of the dense warm start. Default 30.")] = None,
    batch: Annotated[int | None, _option(_TRAIN, "Images a step. Default 64.")] = None,
    seed: Annotated[int | None, _option(_RUN, "Same seed, machine and threads: same front. Default 0.")] = None,
    name: Annotated[
        str | None, _option(_RUN, "Name of the run folder. Default: from data, network and target.")
    ] = None,
    out: Annotated[Path | None, _option(_RUN, "Where run folders lie. Default runs.")] = None,
    resume: Annotated[
        bool, _option(_RUN, "Go on with the run of this name; more --trials are added.", "--resume")
    ] = False,
    dry_run: Annotated[bool, _option(_RUN, "Print the resolved study and stop.", "--dry-run")] = False,
) -> None:
    """Finds accurate networks with weights in {-1, 0, +1} at the sparsity you ask for.

    **Examples**

    `sca-search --target-sparsity 0.5` searches on the embedded digits, about two minutes

    `sca-search --target-sparsity 0.9 --data mnist --data-dir ~/data --model lenet --epochs 4`

    `sca-search studies/digits.toml --trials 40 --workers 2 --resume`

    **Other commands**

    `sca-search show RUN` prints a finished or running study

    `sca-search dashboard RUN` opens its page; several runs are compared, and with `--live` it follows a running study

    `sca-search features RUN` draws a trial's feature maps beside the dense network's

    `sca-search export RUN` writes the chosen model, or any trial, as packed, C, ONNX and torch files, and verifies them

    `sca-search verify DIR` verifies an export again

    `sca-search bench DIR` times an export's C source beside onnxruntime and torch

    `sca-search check DIR` compiles and runs its self-test for other machines

    `sca-search calibrate --model NAME --data NAME` times a network's C kernels before anything is trained
    """
    flags = {key: value for key, value in ctx.params.items() if key not in {"study", "resume", "dry_run"}}
    spec = resolve(study, flags)
    if dry_run:
        _dry_run(spec)
    else:
        _search(spec, resume)


def _search(spec: StudySpec, resume: bool) -> None:
    _out.print("[dim]loading torch, data and network …[/dim]") if _out.is_terminal else None
    from sca_search.display import StudyDisplay
    from sca_search.goal import unmet
    from sca_search.provenance import note_command
    from sca_search.results import read_csv
    from sca_search.run_folder import new_run, resumed_run
    from sca_search.study import Audience, make_task, prepare_budgets, run_study

    task = make_task(spec)
    known = resumed_run(spec) if resume else None
    prepared = prepare_budgets(spec, task, known.latency_file if known else None, _say)
    for budget in prepared.met_without_zeros:
        _out.print(f"The {budget} stays within its budget with no zeros at all.", highlight=False)
    run = known or new_run(spec)
    note_command(run, sys.argv[1:])
    display = StudyDisplay(spec, _out)
    with _stop_on_interrupt() as stop, display.shown():
        finished = run_study(run, spec, task, display.audience(Audience(stop_requested=stop)), prepared.calibration)
    if finished.summary:
        _print_results(run, spec)
    _print_places(run)
    if finished.stopped:
        _err.print("Stopped as asked. The same command with --resume goes on.")
        raise typer.Exit(_INTERRUPTED)
    if not finished.summary["chosen"]:
        _err.print(unmet(read_csv(run.trials_file), spec.goal), highlight=False, soft_wrap=True)
        raise typer.Exit(1)


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C into a request, so that the trial under way can be put back; the second one kills."""
    asked = Event()

    def note(_signal: int, _frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _dry_run(spec: StudySpec) -> None:
    from sca_search.goal import described, planned_ahead
    from sca_search.study import make_task
    from sca_search.workshop import starting_alphas

    task = make_task(spec)
    alphas = starting_alphas(task, spec)
    _out.print(spec.to_toml(), highlight=False, markup=False)
    longest = max(len(choice.layer.name) for choice in task.choices)  # a name cut short could not be used as a pattern
    layer_column = Column("layer", min_width=longest)
    table = Table(layer_column, "weights", "ternary", "why", "α at the start", title="Layers", title_justify="left")
    for choice in task.choices:
        alpha = f"{alphas[choice.layer.name]:.4f}" if choice.ternary else ""
        table.add_row(
            choice.layer.name, f"{choice.layer.weights:,}", "yes" if choice.ternary else "no", choice.why, alpha
        )
    _out.print(table)
    planned = [planned_ahead(spec.goal, number) for number in range(spec.search.trials)]
    shown = " ".join("as found" if sparsity is None else f"{sparsity:g}" for sparsity in planned)
    _out.print(f"goal: {described(spec.goal)}; planned sparsities: {shown}", highlight=False)
    each = spec.train.epochs + spec.train.frozen_epochs
    total = spec.train.dense_epochs + (spec.search.trials + spec.search.refits) * each
    _out.print(
        f"epochs to come: {total} = {spec.train.dense_epochs} dense + ({spec.search.trials} trials + "
        f"{spec.search.refits} refits) × ({spec.train.epochs} ternary + {spec.train.frozen_epochs} frozen)",
        highlight=False,
    )
    _out.print("α is the prior's on the initial weights; a study takes it anew from its dense warm start.", style="dim")


@app.command("show")
def show_command(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as the search printed it.")],
) -> None:
    """Prints a finished or running study: its front, the chosen trial, where everything is."""
    from sca_search.results import read_csv
    from sca_search.run_folder import RunFolder

    run = RunFolder(run_folder)
    spec = run.spec()
    if not run.trials_file.exists():
        _out.print(f"{run_folder}: no trial has finished yet")
        return
    frame = read_csv(run.trials_file)
    states = frame["state"].value_counts()
    _out.print(", ".join(f"{count} {state}" for state, count in states.items()), highlight=False)
    _print_results(run, spec)
    _print_places(run)


@app.command("export")
def export_command(
    run_folder: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as the search printed it.")],
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
    from sca_search.export.folder import ExportOptions, parse_formats
    from sca_search.export_run import export_run

    options = ExportOptions(
        parse_formats(formats),
        half,
        int2,
        seconds,
        replace=force,
        tune=tune,
        stored=stored,
        activations=activations,
        say=_say,
    )
    exported = export_run(run_folder, trial, out, options)
    for sentence in exported.left_out:
        _err.print(sentence, style="yellow", highlight=False, soft_wrap=True, markup=False)
    _print_checks(exported.verification)
    _out.print(f"Export:    {exported.folder} ({', '.join(exported.files)})", highlight=False, soft_wrap=True)
    if not exported.verification.holds:
        raise typer.Exit(1)


@app.command("verify")
def verify_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An export folder.")],
    seconds: Annotated[float, typer.Option(help="Time for each format on the validation split.")] = 15.0,
) -> None:
    """Runs every format of an export and compares it with torch; exit code 1 if anything differs."""
    from sca_search.verify_folder import verify_folder

    _say("verifying")
    verification = verify_folder(folder, seconds)
    _print_checks(verification)
    if not verification.holds:
        raise typer.Exit(1)


@app.command("bench")
def bench_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="An export folder with its C source.")],
    seconds: Annotated[float, typer.Option(help="How long to measure.")] = 10.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there, too.", show_default=False)
    ] = None,
) -> None:
    """Times the exported C beside onnxruntime (fp32, int8) and torch: one image at a time, one thread, in turns."""
    from sca_search.bench import bench_folder
    from sca_search.display import bench_lines, bench_table
    from sca_search.files import write_json_atomic

    bench = bench_folder(folder, seconds, _say)
    _out.print(bench_table(bench))
    for line in bench_lines(bench):
        _out.print(line, highlight=False, soft_wrap=True, markup=False)
    if json_file is not None:
        write_json_atomic(json_file, bench.as_json())


@app.command("check")
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
    from sca_search.check_folder import check_folder
    from sca_search.display import check_table, size_table
    from sca_search.export.targets import parse_targets

    report = check_folder(folder, parse_targets(target), _say)
    _out.print(check_table(report))
    _out.print(size_table(report))
    if not report.holds:
        raise typer.Exit(1)


@app.command("calibrate")
def calibrate_command(
    study: Annotated[
        Path | None, typer.Argument(metavar="[STUDY.toml]", help="A study file, for its data, network and layers.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="As in a study.", show_default=False)] = None,
    data_dir: Annotated[Path | None, typer.Option(help="As in a study.", show_default=False)] = None,
    image_size: Annotated[int | None, typer.Option(help="As in a study.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="As in a study.", show_default=False)] = None,
    skip: Annotated[str | None, typer.Option(help="As in a study.", show_default=False)] = None,
    only: Annotated[str | None, typer.Option(help="As in a study.", show_default=False)] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure even if it was done before.")] = False,
    seconds: Annotated[float, typer.Option(help="How long to time at most; compiling comes on top.")] = 15.0,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the table there, too.", show_default=False)
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
    from sca_search.calibrate import How, calibration_graph, calibration_of, emit_calibration, refuse_mixed
    from sca_search.display import latency_lines, latency_table
    from sca_search.latency import latency_model
    from sca_search.latency_file import write_calibration
    from sca_search.study import make_task

    refuse_mixed(emit, target, seconds)
    named = {"data": data, "data_dir": data_dir, "image_size": image_size, "model": model, "skip": skip, "only": only}
    task = make_task(resolve(study, named))
    graph = calibration_graph(task)
    if emit is not None and target is not None:
        emitted = emit_calibration(emit, graph, target, _say)
        if emitted.left_out:
            _err.print(emitted.left_out, style="yellow", highlight=False, soft_wrap=True, markup=False)
        _out.print(f"Program:   {', '.join([str(emit), *emitted.programs])}", highlight=False, soft_wrap=True)
        return
    calibration = calibration_of(graph, _say, How(seconds, fresh))
    if json_file is not None:
        write_calibration(json_file, calibration)
    latency = latency_model(calibration)
    _out.print(latency_table(latency))
    for line in latency_lines(latency, calibration, {shape.name: shape.least_nonzeros for shape in task.layer_shapes}):
        _out.print(line, highlight=False, soft_wrap=True, markup=False)


app.command("dashboard")(dashboard_command)
app.command("features")(features_command)


def _say(line: str) -> None:
    _out.print(f"{line} …", style="dim", highlight=False, soft_wrap=True, markup=False)


def _print_checks(verification: "Verification") -> None:
    verdicts = {True: "[green]yes[/green]", False: "[red]NO[/red]", None: "not checked"}
    table = Table("file", "check", "found", "holds", title="Verification", title_justify="left")
    shown = ""
    for check in verification.checks:
        table.add_row("" if check.file == shown else check.file, check.what, Text(check.found), verdicts[check.holds])
        shown = check.file
    _out.print(table)
    verdict = "everything agrees" if verification.holds else "something differs"
    _out.print(f"Compared with {verification.described}: {verdict}.", highlight=False, soft_wrap=True)


def _print_results(run: "RunFolder", spec: StudySpec) -> None:
    from sca_search.display import better_lines, front_table, result_lines, rung_lines, sensitivity_table
    from sca_search.results import read_csv

    frame = read_csv(run.trials_file)
    summary = json.loads(run.summary_file.read_text()) if run.summary_file.exists() else {}
    sensitivity = sensitivity_table(summary.get("sensitivity", []))
    for table in [*([sensitivity] if sensitivity else []), front_table(frame, spec.goal)]:
        _out.print(table)
    for line in [*rung_lines(summary), *result_lines(summary), *better_lines(frame, spec.goal)]:
        _out.print(line, highlight=False)


def _print_places(run: "RunFolder") -> None:
    from sca_search.display import closing_lines

    for line in closing_lines(run.path, run.dashboard_file, run.chosen_file):
        _out.print(line, highlight=False, soft_wrap=True)


def main() -> NoReturn:
    """The console script: a user's mistake is one sentence and exit code 2, never a traceback."""
    try:
        app(standalone_mode=True)
    except ScaError as error:
        _refuse(str(error))
    except OSError as error:
        if error.errno not in _MACHINES_FAULTS:
            raise
        _refuse(f"{error.filename or 'a file'} cannot be written: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    sys.exit(0)


def _refuse(sentences: str) -> NoReturn:
    for line in sentences.splitlines():
        _err.print(line, style="red", highlight=False, soft_wrap=True, markup=False)
    sys.exit(2)


if __name__ == "__main__":
    main()
