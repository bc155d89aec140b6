"""`rerun`: a trial trained again, to see whether it comes out the same."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sca_search.cli.completion import run_folders
from sca_search.cli.exit_codes import NO
from sca_search.config.names import format_metric
from sca_search.errors import SpecError
from sca_search.system.console import answer, errors, remarks, results, say
from sca_search.system.signals import stop_on_interrupt

if TYPE_CHECKING:
    from sca_search.study.rerun import Rerun

_MOST_LISTED = 10  # tensors that differ, by name


def rerun_command(
    run_folder: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder, as the search printed it.", autocompletion=run_folders),
    ],
    trial: Annotated[int | None, typer.Option(help="Which trial. Default: the chosen one.", show_default=False)] = None,
    refit: Annotated[
        int, typer.Option(help="Which of its refits, from 1. Default: the trial itself.", show_default=False)
    ] = 0,
) -> None:
    """Trains a trial again from what the run folder holds and says whether it got the same bits.

    Nothing in the run folder is changed. Exit code 1 if anything differs; then it says what, and which of versions,
    threads and machine are not those of the run.

    **Example**

    `sca-search rerun runs/digits-lenet-small-s0.5 --trial 3`
    """
    if refit < 0:
        raise SpecError(f"--refit must be at least 1, or 0 for the trial itself, got {refit}")
    say("loading torch")
    from sca_search.study.rerun import rerun
    from sca_search.training.fit import StopRequestedError

    with stop_on_interrupt() as stop:
        try:
            done = rerun(run_folder, trial, refit, say, stop)
        except StopRequestedError:
            errors().print("Stopped as asked. The run is as it was.")
            answer({"error": "stopped", "exit_code": stop.exit_code})
            raise typer.Exit(stop.exit_code) from None
    _print(done)
    answer(_document(run_folder, done))
    if not done.same:
        raise typer.Exit(NO)


def _print(done: "Rerun") -> None:
    name = f"Trial {done.trial}" + (f", refit {done.refit}," if done.refit else "")
    then, now = format_metric(done.metric, done.accuracy_then), format_metric(done.metric, done.accuracy_now)
    if done.same:
        sentence = f"{name} came out the same, bit for bit: {done.tensors} tensors, {done.trits:,} trits, {then}."
        results().print(sentence, highlight=False, soft_wrap=True)
        return
    results().print(
        f"{name} came out different: {len(done.differences)} of {done.tensors} tensors, "
        f"{done.trits_differing:,} of {done.trits:,} trits; {then} then, {now} now.",
        highlight=False,
        soft_wrap=True,
    )
    for each in done.differences[:_MOST_LISTED]:
        line = f"  {each.tensor}: {each.values:,} {'trits' if each.is_ternary else 'numbers'}"
        remarks().print(line, highlight=False, soft_wrap=True, markup=False)
    told = "; ".join(f"{what} {before} then, {after} now" for what, (before, after) in done.changed.items())
    why = f"Not as in the run: {told}." if told else "Versions, threads and machine are those that the run tells of."
    results().print(why, highlight=False, soft_wrap=True, markup=False)


def _document(run: Path, done: "Rerun") -> dict[str, object]:
    return {
        "run": run,
        "trial": done.trial,
        "refit": done.refit or None,
        "same": done.same,
        "tensors": done.tensors,
        "trits": done.trits,
        "trits_differing": done.trits_differing,
        "differences": [vars(each) for each in done.differences],
        "metric": done.metric,
        "accuracy_then": done.accuracy_then,
        "accuracy_now": done.accuracy_now,
        "changed": {what: {"then": then, "now": now} for what, (then, now) in done.changed.items()},
    }
