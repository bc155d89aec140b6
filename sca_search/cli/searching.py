"""What `run` does with a resolved study: searches, or says what it would do; and how results are printed."""

import sys
from typing import TYPE_CHECKING

import typer
from rich.table import Column, Table

from sca_search.cli.exit_codes import NEGATIVE
from sca_search.config.storage_url import Shared
from sca_search.config.study import StudySpec
from sca_search.system.console import errors, info, print_json, results, say
from sca_search.system.signals import stop_on_interrupt

if TYPE_CHECKING:
    from sca_search.runs.folder import RunFolder
    from sca_search.training.task import Task


def search(spec: StudySpec, resume: bool, shared: Shared | None) -> None:
    info().print("loading torch, data and network …", style="dim") if info().is_terminal else None
    from sca_search.cli.json_output import study_answer
    from sca_search.dashboard import PageWriter
    from sca_search.runs.folder import new_run, resumed_run
    from sca_search.runs.goal import unmet
    from sca_search.runs.provenance import note_command
    from sca_search.runs.trials import read_csv
    from sca_search.study.progress import StudyDisplay
    from sca_search.study.queue import join
    from sca_search.study.run import Audience, make_task, prepare_budgets, run_study
    from sca_search.study.workers import threads_of

    task = make_task(spec)
    _print_notes(task)
    _print_recipe(spec)
    known = (
        join(spec, shared)
        if shared
        else resumed_run(spec, training_is_whole=task.data.training_is_whole)
        if resume
        else None
    )
    if known is None:
        task.start_model()  # weights that do not fit are refused before anything is written
    prepared = prepare_budgets(spec, task, known.latency_file if known else None, say)
    for budget in prepared.met_without_zeros:
        info().print(f"The {budget} stays within its budget with no zeros at all.", highlight=False)
    run = known or new_run(spec)
    note_command(run, sys.argv[1:], threads_of(spec, task))
    display = StudyDisplay(spec, info(), task.metric.name)
    with stop_on_interrupt() as stop, display.shown():
        audience = display.audience(Audience(stop_requested=stop, page=PageWriter))
        finished = run_study(run, spec, task, audience, prepared.calibration)
    if finished.is_joined and not finished.stopped:
        print_json({"run": run.path, "joined": True, "stopped": False})
        return
    if finished.summary:
        print_results(run, spec)
    print_places(run)
    is_met = bool(finished.summary.get("chosen"))
    reason = (
        "stopped" if finished.stopped else None if is_met else unmet(read_csv(run.trials_file), spec.goal, run.metric)
    )
    print_json(study_answer(run, spec) | {"met": is_met, "stopped": finished.stopped, "reason": reason})
    if finished.stopped:
        errors().print("Stopped as asked. The same command with --resume goes on.")
        raise typer.Exit(stop.exit_code)
    if reason:
        errors().print(reason, highlight=False, soft_wrap=True)
        raise typer.Exit(NEGATIVE)


def dry_run(spec: StudySpec) -> None:
    from sca_search.cli.json_output import plan_answer
    from sca_search.runs.goal import aim_of, planned_sparsities
    from sca_search.study.run import make_task
    from sca_search.study.setup import starting_alphas

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
    print_json(plan_answer(spec, task, alphas, total))


def print_results(run: "RunFolder", spec: StudySpec) -> None:
    """With -q the chosen model alone."""
    from sca_search.runs.candidates import read_json
    from sca_search.runs.trials import read_csv
    from sca_search.study.progress import better_lines, front_table, result_lines, rung_lines, sensitivity_table

    frame = read_csv(run.trials_file)
    summary = read_json(run.summary_file, {})
    sensitivity = sensitivity_table(summary.get("sensitivity", []))
    for table in [*([sensitivity] if sensitivity else []), front_table(frame, spec.goal, run.metric)]:
        info().print(table)
    for line in rung_lines(summary):
        info().print(line, highlight=False)
    for line in result_lines(summary):
        results().print(line, highlight=False)
    for line in better_lines(frame, spec.goal, run.metric):
        info().print(line, highlight=False)


def _print_notes(task: "Task") -> None:
    for note in task.data.notes:
        info().print(f"{task.data.name}: {note}", highlight=False, soft_wrap=True, markup=False)


def _print_recipe(spec: StudySpec) -> None:
    """What is made of a recipe by the length that was asked for."""
    from sca_search.config.recipe import describe_scaling

    if spec.recipe is not None:
        info().print(describe_scaling(spec), highlight=False, soft_wrap=True, markup=False)


def print_places(run: "RunFolder") -> None:
    from sca_search.study.progress import closing_lines

    for line in closing_lines(run.path, run.dashboard_file, run.chosen_file):
        results().print(line, highlight=False, soft_wrap=True)
