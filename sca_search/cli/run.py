"""`run`, the default command, and `show`."""

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from sca_search.cli.options import NEGATIVE, RUN_PANEL, RunArgument, StudyFile, TrustOption, option, study_options
from sca_search.config.load import STUDY_FLAGS, resolve
from sca_search.config.storage_url import STORAGE_VARIABLE, shared_by
from sca_search.system.console import errors, info, print_json, results, say
from sca_search.system.machine import __version__

if TYPE_CHECKING:
    import pandas as pd

    from sca_search.config.storage_url import Shared
    from sca_search.config.study import StudySpec
    from sca_search.runs.choice import Choice
    from sca_search.runs.folder import RunFolder
    from sca_search.study.session import Finished
    from sca_search.training.task import Task


def _print_version(is_requested: bool) -> None:
    if is_requested:
        results().print(f"sca-search {__version__}")
        print_json({"version": __version__})
        raise typer.Exit


@study_options(*STUDY_FLAGS)
def run_command(
    flags: dict[str, Any],
    study: StudyFile = None,
    resume: Annotated[
        bool, option("Continue the run of this name. A larger --trials adds trials.", "--resume", panel=RUN_PANEL)
    ] = False,
    storage: Annotated[
        str | None,
        option(
            "Database that several machines share: postgresql://USER@HOST/DATABASE. The same command on each machine "
            f"joins the study of this name. Default: {STORAGE_VARIABLE}.",
            panel=RUN_PANEL,
        ),
    ] = None,
    artifacts: Annotated[
        str | None,
        option(
            "Where these machines share files: file:///FOLDER or s3://BUCKET/PREFIX. Default: the run folder.",
            panel=RUN_PANEL,
        ),
    ] = None,
    ray: Annotated[
        str | None,
        option(
            "Run the workers as tasks of a Ray cluster: its address, auto, or local for one on this machine. Needs "
            "--storage.",
            panel=RUN_PANEL,
        ),
    ] = None,
    dry_run: Annotated[bool, option("Print the resolved study and exit.", "--dry-run", panel=RUN_PANEL)] = False,
    trust: TrustOption = False,
    version: Annotated[
        bool, option("Print the version.", "--version", panel="Output", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Find accurate neural networks with weights in {-1, 0, +1} at a target sparsity.

    **Examples**

    `sca-search --target-sparsity 0.5` searches on the included digits data set, in about two minutes

    `sca-search --target-sparsity 0.9 --data mnist --data-dir ~/data --model lenet --epochs 4`

    `sca-search studies/digits.toml --trials 40 --workers 2 --resume`
    """
    spec = resolve(study, flags, trust=trust)
    if dry_run:
        _print_plan(spec)
        return
    shared = shared_by(storage, artifacts, ray)
    if info().is_terminal:
        say("loading torch, data and network")
    from sca_search.dashboard import PageWriter
    from sca_search.study.progress import StudyDisplay
    from sca_search.study.session import run_search

    with _cluster(shared), StudyDisplay(info()) as display:
        listeners = (PageWriter(), display)
        finished = run_search(spec, sys.argv[1:], listeners, resume=resume, shared=shared, say=say)
    _print_finished(finished, spec)


def _cluster(shared: "Shared | None") -> contextlib.AbstractContextManager[None]:
    """The connection to the Ray cluster, where the workers run on one."""
    if shared is None or shared.ray is None:
        return contextlib.nullcontext()
    from sca_search.study.ray_workers import connected

    return connected(shared.ray)


def _print_finished(finished: "Finished", spec: "StudySpec") -> None:
    """Print the results of a search; exits with the code of a stop or of an unmet goal."""
    from sca_search.runs.goal import unmet

    run, stopped = finished.run, finished.stopped
    if finished.is_joined and not stopped:
        print_json({"run": run.path, "joined": True, "stopped": False})
        return
    frame, choice = _trials(run, spec)
    if finished.summary:
        _print_results(run, frame, choice)
    _print_places(run, spec)
    is_met = bool(finished.summary.get("chosen"))
    reason = "stopped" if stopped else None if is_met else unmet(frame, spec.goal, run.metric)
    print_json(_study_document(run, spec, frame, choice) | {"met": is_met, "stopped": stopped, "reason": reason})
    if stopped:
        errors().print("Stopped. The same command with --resume continues.")
        raise typer.Exit(finished.exit_code)
    if reason:
        errors().print(reason, soft_wrap=True)
        raise typer.Exit(NEGATIVE)


def _print_plan(spec: "StudySpec") -> None:
    from sca_search.config.recipe import describe_scaling
    from sca_search.runs.goal import goal_text, planned_sparsities
    from sca_search.study.setup import make_task

    task = make_task(spec)
    for note in task.data.notes:
        info().print(f"{task.data.name}: {note}", soft_wrap=True)
    task.start_model()  # weights that do not fit are rejected here, too
    if spec.recipe is not None:
        info().print(describe_scaling(spec), soft_wrap=True)
    layers = _print_layers(spec, task)
    searched = _print_searched(spec, task)
    goal, planned = goal_text(spec, task.metric.name), planned_sparsities(spec)
    shown = " ".join("by earlier trials" if sparsity is None else f"{sparsity:g}" for sparsity in planned)
    results().print(f"goal: {goal}; planned sparsities: {shown}")
    train, search = spec.train, spec.search
    total = train.dense_epochs + (search.trials + search.refits) * (train.epochs + train.frozen_epochs)
    results().print(
        f"total epochs: {total} = {train.dense_epochs} dense + ({search.trials} trials + "
        f"{search.refits} refits) × ({train.epochs} ternary + {train.frozen_epochs} frozen)"
    )
    if spec.recipe is None:
        note = "α is the prior's on the initial weights; a study computes it from its dense warm start."
        results().print(note, style="dim")
    plan = {"goal": goal, "layers": layers, "searched": searched, "planned_sparsities": planned, "epochs": total}
    print_json({"study": spec.model_dump(mode="json"), **plan})


def _print_layers(spec: "StudySpec", task: "Task") -> list[dict[str, Any]]:
    from sca_search.study.setup import starting_alphas

    alphas = starting_alphas(task, spec)
    results().print(spec.to_toml())
    longest = max(len(choice.layer.name) for choice in task.choices)  # a truncated name could not be used as a pattern
    layer_column = Column("layer", min_width=longest)
    table = Table(layer_column, "weights", "ternary", "why", "α at the start", title="Layers", title_justify="left")
    layers = []
    for choice in task.choices:
        name, weights, alpha = choice.layer.name, choice.layer.weights, alphas.get(choice.layer.name)
        yes, shown = "yes" if choice.ternary else "no", "" if alpha is None else f"{alpha:.4f}"
        table.add_row(name, f"{weights:,}", yes, choice.why, shown)
        layers.append({"layer": name, "weights": weights, "ternary": choice.ternary, "why": choice.why, "alpha": alpha})
    results().print(table)
    return layers


def _print_searched(spec: "StudySpec", task: "Task") -> list[dict[str, Any]]:
    """The searched parameters; a recipe has none."""
    from sca_search.study.space import Space

    searched = [] if spec.recipe is not None else Space(spec, task.layer_shapes).searched()
    if not searched:
        return []
    columns = (Column("parameter", no_wrap=True), "sets", "range or options", "scale", "first guess")
    table = Table(*columns, title="Searched parameters", title_justify="left", padding=(0, 1, 0, 0))
    for row in searched:
        low, high = row["range"] or (0.0, 0.0)
        limits = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        guess = row["first_guess"] if row["options"] else f"{row['first_guess']:g}"
        table.add_row(row["parameter"], row["sets"], ", ".join(row["options"] or [limits]), row["scale"], guess)
    results().print(table)
    if any("." in row["parameter"] for row in searched):
        note = "Of a layer or stage, relative to the others: logarithm of strength and density, difference of rise."
        results().print(note, style="dim")
    return searched


def _trials(run: "RunFolder", spec: "StudySpec") -> "tuple[pd.DataFrame, Choice | None]":
    """The table of trials, empty if none has finished, and the chosen one."""
    from sca_search.runs.goal import chosen_trial
    from sca_search.runs.trials import read_csv, trial_frame

    frame = read_csv(run.trials_file) if run.trials_file.exists() else trial_frame([])
    return frame, chosen_trial(frame, spec.goal, run.metric)


def _print_results(run: "RunFolder", frame: "pd.DataFrame", choice: "Choice | None") -> None:
    """Print the tables of a study; with -q only the chosen model."""
    from sca_search.runs.candidates import read_json
    from sca_search.study import progress

    summary = read_json(run.summary_file, {})
    if (sensitivity := progress.sensitivity_table(summary.get("sensitivity", []))) is not None:
        info().print(sensitivity)
    info().print(progress.front_table(frame, choice, run.metric))
    for line in progress.rung_lines(summary):
        info().print(line)
    for line in progress.result_lines(summary, choice):
        results().print(line)
    for line in progress.better_lines(frame, choice, run.metric):
        info().print(line)


def _print_places(run: "RunFolder", spec: "StudySpec") -> None:
    from sca_search.study.progress import closing_lines

    results().print(*closing_lines(run, spec), sep="\n", soft_wrap=True)


def show_command(run_folder: RunArgument) -> None:
    """Print a finished or running study: its front, the chosen trial and its files."""
    from sca_search.runs.folder import RunFolder
    from sca_search.runs.integrity import damage_as_run_error

    run = RunFolder(run_folder)
    spec = run.spec(trust=True)  # nothing that it names is loaded
    with damage_as_run_error(run_folder, "shown"):
        frame, choice = _trials(run, spec)
        document = _study_document(run, spec, frame, choice)
        if not run.trials_file.exists():
            results().print(f"{run_folder}: no trial has finished yet")
        else:
            info().print(", ".join(f"{count} {state}" for state, count in document["states"].items()))
            for trial, damage in document["damaged"].items():
                results().print(f"trial {trial}: {damage}; --resume trains it again", soft_wrap=True)
            _print_results(run, frame, choice)
            _print_places(run, spec)
    print_json(document)


def _study_document(
    run: "RunFolder", spec: "StudySpec", frame: "pd.DataFrame", choice: "Choice | None"
) -> dict[str, Any]:
    """A study for JSON, finished or not."""
    from sca_search.runs.candidates import damaged_trials, read_json
    from sca_search.runs.goal import goal_text
    from sca_search.runs.trials import pareto_front

    tables = {"trials": run.trials_file, "front": run.front_file}
    files = {"dashboard": run.dashboard_file, "log": run.log_file, **tables, "model": run.chosen_file}
    return {
        "run": run.path,
        "goal": goal_text(spec, run.metric),
        "states": frame["state"].value_counts().to_dict(),
        "damaged": damaged_trials(run, frame),
        "chosen": choice and choice.trial,
        "chosen_reason": choice and choice.reason,
        "front": pareto_front(frame).to_dict("records"),
        "summary": read_json(run.summary_file, None),
        "files": {name: path for name, path in files.items() if path.exists()},
    }
