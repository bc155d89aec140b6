"""The command line and the commands that search. `--help` answers without torch: what trains is imported where used."""

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.table import Column, Table

from sca_search.compare_command import compare_command
from sca_search.completion import augmentation_names, data_names, method_names, model_names, run_folders, study_files
from sca_search.dashboard_commands import dashboard_command, features_command
from sca_search.ending import NO, ended
from sca_search.every_command import PlainFlags, RunByDefault, with_manner
from sca_search.export_commands import (
    bench_command,
    calibrate_command,
    check_command,
    export_command,
    verify_command,
)
from sca_search.init_command import init_command
from sca_search.interrupt import stop_on_interrupt
from sca_search.reproduce_command import reproduce_command
from sca_search.rerun_command import rerun_command
from sca_search.screen import answer, errors, remarks, results, say, speak
from sca_search.shared_study import STORAGE_VARIABLE, Shared, shared_by
from sca_search.spec import FLAGS, StudySpec, resolve
from sca_search.versions import __version__
from sca_search.worker_command import worker_command

if TYPE_CHECKING:
    from sca_search.run_folder import RunFolder
    from sca_search.task import Task

app = typer.Typer(cls=RunByDefault, rich_markup_mode="markdown", pretty_exceptions_enable=False)

_GOAL, _WHAT, _SEARCH, _TRAIN, _RUN = "Goal", "Data and network", "Search", "Training", "The run"


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


def _tell_version(asked: bool) -> None:
    if asked:
        results().print(f"sca-search {__version__}", highlight=False)
        answer({"version": __version__})
        raise typer.Exit


@app.command("run", cls=PlainFlags)
@with_manner
def run_command(
    ctx: typer.Context,
    study: Annotated[
        Path | None,
        typer.Argument(metavar="STUDY.toml", help="A study file; flags overrule it.", autocompletion=study_files),
    ] = None,
    target_sparsity: Annotated[float | None, _option(_GOAL, "Share of zeros, from 0 to below 1. Default 0.5.")] = None,
    min_accuracy: Annotated[
        float | None,
        _option(_GOAL, "Instead: the sparsest model with at least this on validation, in the metric's unit: 0.98."),
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
        str | None,
        _option(
            _WHAT,
            "digits (embedded, default), mnist, cifar10, cifar100, tiny-imagenet, imagenet, folder:PATH, npz:PATH, "
            "hf-disk:PATH, or your own function: module:function or file.py:function.",
            autocompletion=data_names,
        ),
    ] = None,
    data_dir: Annotated[Path | None, _option(_WHAT, "Folder with local copies of the data sets named.")] = None,
    image_size: Annotated[
        int | None, _option(_WHAT, "Side to which a folder's images are resized. Default 64; of imagenet 224.")
    ] = None,
    train_limit: Annotated[int | None, _option(_WHAT, "Use only so many training images.")] = None,
    normalise: Annotated[
        bool | None, _option(_WHAT, "Normalise inputs by channel and a regression's targets (default), or leave them.")
    ] = None,
    data_columns: Annotated[
        str | None, _option(_WHAT, "Of hf-disk: the columns of inputs and targets, 'image,label'. Default: by type.")
    ] = None,
    augment: Annotated[
        str | None,
        _option(
            _WHAT,
            "Of training images: none (default), crop-flip (moved by up to an eighth, mirrored) or scale-aspect (of "
            "image files: a part of 8 to 100 %, mirrored).",
            autocompletion=augmentation_names,
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool | None, _option(_WHAT, "Leave out image files that cannot be read, and say how many.", "--skip-unreadable")
    ] = None,
    model: Annotated[
        str | None,
        _option(
            _WHAT,
            "lenet-small (default), lenet-medium, lenet, vgg-s, vgg-variate, resnet20, resnet18 or alexnet; any other "
            "network as file.py:function, package.module:function, torchvision:NAME or timm:NAME.",
            autocompletion=model_names,
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        _option(_WHAT, "Trained weights to start from, instead of dense training: safetensors or a state dict."),
    ] = None,
    skip: Annotated[str | None, _option(_WHAT, "Layers that stay dense, as name patterns: 'fc*,conv2'.")] = None,
    only: Annotated[str | None, _option(_WHAT, "The only layers to make ternary, as name patterns.")] = None,
    trials: Annotated[int | None, _option(_SEARCH, "How many candidates are trained. Default 16.")] = None,
    method: Annotated[
        str | None,
        _option(
            _SEARCH,
            "sca (default), or one that it is compared with: straight-through, twn, ttq … (see compare).",
            autocompletion=method_names,
        ),
    ] = None,
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
    trial_time: Annotated[
        str | None, _option(_SEARCH, "End a trial that takes longer: 90s, 10m, 2h. Default: none does.")
    ] = None,
    trial_memory_gb: Annotated[
        float | None, _option(_SEARCH, "End a trial whose worker takes more than so many GB. Default: none does.")
    ] = None,
    epochs: Annotated[int | None, _option(_TRAIN, "Epochs a candidate. Default 20.")] = None,
    dense_epochs: Annotated[
        int | None, _option(_TRAIN, "Epochs of the dense warm start. Default 30; with --weights 0.")
    ] = None,
    batch: Annotated[int | None, _option(_TRAIN, "Images a step. Default 64.")] = None,
    loss: Annotated[
        str | None,
        _option(
            _TRAIN,
            "cross-entropy, balanced-cross-entropy; binary-cross-entropy of labels; mse, mae, huber of numbers; or "
            "module:function of (outputs, targets). Default: by the targets.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        _option(
            _TRAIN,
            "accuracy, balanced-accuracy, macro-f1; macro-f1, exact-match of labels; r2, negative-mae, negative-mse "
            "of numbers; or module:function of (outputs, targets), higher is better. Default: by the targets.",
        ),
    ] = None,
    seed: Annotated[int | None, _option(_RUN, "Same seed, machine and threads: same front. Default 0.")] = None,
    name: Annotated[
        str | None, _option(_RUN, "Name of the run folder. Default: from data, network and target.")
    ] = None,
    out: Annotated[Path | None, _option(_RUN, "Where run folders lie. Default runs.")] = None,
    resume: Annotated[
        bool, _option(_RUN, "Go on with the run of this name; more --trials are added.", "--resume")
    ] = False,
    storage: Annotated[
        str | None,
        _option(
            _RUN,
            "A database that machines share: the same command on each joins the study of this name. "
            f"postgresql://USER@HOST/DATABASE; or in {STORAGE_VARIABLE}.",
        ),
    ] = None,
    artifacts: Annotated[
        str | None,
        _option(_RUN, "Where these machines share files, if not the run folder: file:///FOLDER or s3://BUCKET/PREFIX."),
    ] = None,
    dry_run: Annotated[bool, _option(_RUN, "Print the resolved study and stop.", "--dry-run")] = False,
    version: Annotated[
        bool, _option("Output", "Print the version.", "--version", callback=_tell_version, is_eager=True)
    ] = False,
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

    `sca-search init --time 20m` writes a study file that takes so long on this machine

    `sca-search compare --methods all` trains SCA and other methods under equal conditions

    `sca-search reproduce 6 --quick` trains a table of the paper's and prints ours beside it

    `sca-search worker STUDY --storage postgresql://…` trains trials of a study that machines share

    `sca-search rerun RUN --trial 3` trains a trial again and says whether it got the same bits

    `sca-search --install-completion` lets the shell complete commands, flags, names and run folders

    **Exit codes**: 0 done, 1 no trial meets the goal or a file differs, 2 a mistake in what was given or a full disk,
    70 a fault of the program, 130 stopped by Ctrl-C, 143 by SIGTERM
    """
    flags = {key: value for key, value in ctx.params.items() if key in FLAGS}
    spec = resolve(study, flags)
    if dry_run:
        _dry_run(spec)
    else:
        _search(spec, resume, shared_by(storage, artifacts))


def _search(spec: StudySpec, resume: bool, shared: Shared | None) -> None:
    remarks().print("loading torch, data and network …", style="dim") if remarks().is_terminal else None
    from sca_search.answers import study_answer
    from sca_search.display import StudyDisplay
    from sca_search.goal import unmet
    from sca_search.provenance import note_command
    from sca_search.results import read_csv
    from sca_search.run_folder import new_run, resumed_run
    from sca_search.study import Audience, make_task, prepare_budgets, run_study
    from sca_search.trials import join
    from sca_search.workers import threads_of

    task = make_task(spec)
    _print_notes(task)
    _print_recipe(spec)
    known = join(spec, shared) if shared else resumed_run(spec) if resume else None
    if known is None:
        task.start_model()  # weights that do not fit are refused before anything is written
    prepared = prepare_budgets(spec, task, known.latency_file if known else None, say)
    for budget in prepared.met_without_zeros:
        remarks().print(f"The {budget} stays within its budget with no zeros at all.", highlight=False)
    run = known or new_run(spec)
    note_command(run, sys.argv[1:], threads_of(spec, task))
    display = StudyDisplay(spec, remarks(), task.metric.name)
    with stop_on_interrupt() as stop, display.shown():
        finished = run_study(run, spec, task, display.audience(Audience(stop_requested=stop)), prepared.calibration)
    if finished.is_joined and not finished.stopped:
        answer({"run": run.path, "joined": True, "stopped": False})
        return
    if finished.summary:
        _print_results(run, spec)
    _print_places(run)
    is_met = bool(finished.summary.get("chosen"))
    reason = (
        "stopped" if finished.stopped else None if is_met else unmet(read_csv(run.trials_file), spec.goal, run.metric)
    )
    answer(study_answer(run, spec) | {"met": is_met, "stopped": finished.stopped, "reason": reason})
    if finished.stopped:
        errors().print("Stopped as asked. The same command with --resume goes on.")
        raise typer.Exit(stop.exit_code)
    if reason:
        errors().print(reason, highlight=False, soft_wrap=True)
        raise typer.Exit(NO)


def _dry_run(spec: StudySpec) -> None:
    from sca_search.answers import plan_answer
    from sca_search.goal import aim_of, planned_sparsities
    from sca_search.study import make_task
    from sca_search.workshop import starting_alphas

    task = make_task(spec)
    _print_notes(task)
    task.start_model()  # weights that do not fit are refused here, too
    _print_recipe(spec)
    alphas, out = starting_alphas(task, spec), results()
    out.print(spec.to_toml(), highlight=False, markup=False)
    longest = max(len(choice.layer.name) for choice in task.choices)  # a name cut short could not be used as a pattern
    layer_column = Column("layer", min_width=longest)
    table = Table(layer_column, "weights", "ternary", "why", "α at the start", title="Layers", title_justify="left")
    for choice in task.choices:
        alpha = f"{alphas[choice.layer.name]:.4f}" if choice.layer.name in alphas else ""
        table.add_row(
            choice.layer.name, f"{choice.layer.weights:,}", "yes" if choice.ternary else "no", choice.why, alpha
        )
    out.print(table)
    planned = planned_sparsities(spec)
    shown = " ".join("as found" if sparsity is None else f"{sparsity:g}" for sparsity in planned)
    out.print(f"goal: {aim_of(spec, task.metric.name)}; planned sparsities: {shown}", highlight=False)
    each = spec.train.epochs + spec.train.frozen_epochs
    total = spec.train.dense_epochs + (spec.search.trials + spec.search.refits) * each
    out.print(
        f"epochs to come: {total} = {spec.train.dense_epochs} dense + ({spec.search.trials} trials + "
        f"{spec.search.refits} refits) × ({spec.train.epochs} ternary + {spec.train.frozen_epochs} frozen)",
        highlight=False,
    )
    if spec.recipe is None:
        note = "α is the prior's on the initial weights; a study takes it anew from its dense warm start."
        out.print(note, style="dim")
    answer(plan_answer(spec, task, alphas, total))


@app.command("show", cls=PlainFlags)
@with_manner
def show_command(
    run_folder: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder, as the search printed it.", autocompletion=run_folders),
    ],
) -> None:
    """Prints a finished or running study: its front, the chosen trial, where everything is."""
    from sca_search.answers import study_answer
    from sca_search.damage import damage_refused
    from sca_search.results import read_csv
    from sca_search.run_folder import RunFolder

    run = RunFolder(run_folder)
    spec = run.spec()
    with damage_refused(run_folder, "shown"):
        document = study_answer(run, spec)
        if not run.trials_file.exists():
            results().print(f"{run_folder}: no trial has finished yet")
        else:
            states = read_csv(run.trials_file)["state"].value_counts()
            remarks().print(", ".join(f"{count} {state}" for state, count in states.items()), highlight=False)
            _print_results(run, spec)
            _print_places(run)
    answer(document)


app.command("init", cls=PlainFlags)(with_manner(init_command))
app.command("export", cls=PlainFlags)(with_manner(export_command))
app.command("verify", cls=PlainFlags)(with_manner(verify_command))
app.command("bench", cls=PlainFlags)(with_manner(bench_command))
app.command("check", cls=PlainFlags)(with_manner(check_command))
app.command("calibrate", cls=PlainFlags)(with_manner(calibrate_command))
app.command("dashboard", cls=PlainFlags)(with_manner(dashboard_command))
app.command("features", cls=PlainFlags)(with_manner(features_command))
app.command("compare", cls=PlainFlags)(with_manner(compare_command))
app.command("reproduce", cls=PlainFlags)(with_manner(reproduce_command))
app.command("rerun", cls=PlainFlags)(with_manner(rerun_command))
app.command("worker", cls=PlainFlags)(with_manner(worker_command))


def _print_results(run: "RunFolder", spec: StudySpec) -> None:
    """With -q the chosen model alone."""
    from sca_search.candidate_record import read_json
    from sca_search.display import better_lines, front_table, result_lines, rung_lines, sensitivity_table
    from sca_search.results import read_csv

    frame = read_csv(run.trials_file)
    summary = read_json(run.summary_file, {})
    sensitivity = sensitivity_table(summary.get("sensitivity", []))
    for table in [*([sensitivity] if sensitivity else []), front_table(frame, spec.goal, run.metric)]:
        remarks().print(table)
    for line in rung_lines(summary):
        remarks().print(line, highlight=False)
    for line in result_lines(summary):
        results().print(line, highlight=False)
    for line in better_lines(frame, spec.goal, run.metric):
        remarks().print(line, highlight=False)


def _print_notes(task: "Task") -> None:
    for note in task.data.notes:
        remarks().print(f"{task.data.name}: {note}", highlight=False, soft_wrap=True, markup=False)


def _print_recipe(spec: StudySpec) -> None:
    """What is made of a recipe by the length that was asked for."""
    from sca_search.shortening import told

    if spec.recipe is not None:
        remarks().print(told(spec), highlight=False, soft_wrap=True, markup=False)


def _print_places(run: "RunFolder") -> None:
    from sca_search.display import closing_lines

    for line in closing_lines(run.path, run.dashboard_file, run.chosen_file):
        results().print(line, highlight=False, soft_wrap=True)


def main() -> NoReturn:
    """The console script: a user's mistake is one sentence and exit code 2, never a traceback."""
    speak(json="--json" in sys.argv[1:])  # until the command line is understood
    sys.exit(ended(functools.partial(app, standalone_mode=False)))


if __name__ == "__main__":
    main()
