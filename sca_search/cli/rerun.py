"""`rerun`: train a trial again, to check that it is reproducible."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sca_search.cli.options import NEGATIVE, RunArgument, TrialOption, TrustOption, option
from sca_search.config.names import format_metric
from sca_search.errors import SpecError
from sca_search.system.console import errors, info, print_json, results, say
from sca_search.system.signals import stop_on_interrupt

if TYPE_CHECKING:
    from sca_search.study.rerun import Rerun

_MAX_LISTED = 10  # tensors that differ


def rerun_command(
    run_folder: RunArgument,
    trial: TrialOption = None,
    refit: Annotated[int, option("Number of one of its refits, from 1. Default: the trial itself.")] = 0,
    trust: TrustOption = False,
) -> None:
    """Train a trial again from the files of the run folder, and report whether the result is bit-identical.

    The run folder is not changed. Exit code 1 if anything differs, with a list of the differences, also of versions,
    threads and machine.

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
            done = rerun(run_folder, trial, refit, say, stop, trust=trust)
        except StopRequestedError:
            errors().print("Interrupted. The run folder is unchanged.")
            print_json({"error": "interrupted", "exit_code": stop.exit_code})
            raise typer.Exit(stop.exit_code) from None
    _print(done)
    print_json(_document(run_folder, done))
    if done.differences:
        raise typer.Exit(NEGATIVE)


def _print(done: "Rerun") -> None:
    name = f"Trial {done.trial}" + (f", refit {done.refit}," if done.refit else "")
    then, now = format_metric(done.metric, done.accuracy_then), format_metric(done.metric, done.accuracy_now)
    if not done.differences:
        message = f"{name} is bit-identical: {done.tensors} tensors, {done.trits:,} trits, {then}."
        results().print(message, soft_wrap=True)
        return
    counts = f"{len(done.differences)} of {done.tensors} tensors, {done.trits_differing:,} of {done.trits:,} trits"
    results().print(f"{name} differs: {counts}; {then} then, {now} now.", soft_wrap=True)
    for each in done.differences[:_MAX_LISTED]:
        line = f"  {each.tensor}: {each.values:,} {'trits' if each.is_ternary else 'numbers'}"
        info().print(line, soft_wrap=True)
    changed = "; ".join(f"{what} {before} then, {after} now" for what, (before, after) in done.changed.items())
    why = f"Different from the run: {changed}." if changed else "Versions, threads and machine are the same."
    results().print(why, soft_wrap=True)


def _document(run: Path, done: "Rerun") -> dict[str, object]:
    trial = {"run": run, "trial": done.trial, "refit": done.refit or None, "same": not done.differences}
    counts = {"tensors": done.tensors, "trits": done.trits, "trits_differing": done.trits_differing}
    scores = {"metric": done.metric, "accuracy_then": done.accuracy_then, "accuracy_now": done.accuracy_now}
    changed = {what: {"then": then, "now": now} for what, (then, now) in done.changed.items()}
    return {**trial, **counts, "differences": [vars(each) for each in done.differences], **scores, "changed": changed}
