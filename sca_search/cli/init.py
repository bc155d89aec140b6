"""`init`: a study file whose run takes a given time, from epochs that are timed on this machine."""

import sys
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sca_search.cli.options import option, study_options
from sca_search.config.costs import BUDGETS
from sca_search.config.load import FLAGS, STUDY_FLAGS, resolve
from sca_search.config.names import DATA, MODELS
from sca_search.config.study import GOALS, StudySpec
from sca_search.errors import SpecError
from sca_search.system.console import info, output_mode, print_json, results, say
from sca_search.system.signals import stop_on_interrupt

if TYPE_CHECKING:
    from sca_search.study.pace import Pace, StudySize

_FILE = Path("study.toml")
# Time limit of the run, as a multiple of the requested time, in case the machine becomes busier.
_LIMIT = 1.25
_SHOWN = ("data.name", "model.name", "train.batch", "search.form", "search.workers", "search.threads")


@study_options(*(name for name in STUDY_FLAGS if name not in {"time_budget", "out"}))
def init_command(
    flags: dict[str, Any],
    time: Annotated[str | None, option("Time that the run may take: 90s, 20m, 2h.")] = None,
    out: Annotated[Path, option(f"The study file to write. Default: {_FILE}.", metavar="FILE")] = _FILE,
    force: Annotated[bool, option("Replace an existing file.", "--force")] = False,
) -> None:
    """Write a study file with as many epochs and trials as fit into a time on this machine.

    A few epochs are trained and timed, which takes up to a minute. On a terminal, it prompts for missing settings.
    Values given by flags are fixed, the others are planned.

    **Example**

    `sca-search init --data mnist --model lenet --target-sparsity 0.9 --time 1h --out mnist.toml`, then
    `sca-search mnist.toml`
    """
    _check_writable(out, force)
    if sys.stdin.isatty() and not output_mode.json:
        flags, time = _prompted(flags, time)
    if time is None:
        raise SpecError("--time is missing: the time that the run may take, like 20m")
    seconds = _parse_seconds(time)
    spec = resolve(None, flags)
    _write(out, spec, seconds, _measured(spec), {name for name, value in flags.items() if value is not None})


def _check_writable(path: Path, force: bool) -> None:
    """Reject a path before anything is timed."""
    if path.is_dir():
        raise SpecError(f"--out must be a file, got the folder {str(path)!r}")
    if path.exists() and not force:
        raise SpecError(f"{path}: exists already; choose another --out, or --force to replace it")
    if not path.resolve().parent.is_dir():
        raise SpecError(f"{path}: must be in a folder that exists, got {str(path.parent)!r}")


def _prompted(flags: dict[str, Any], time: str | None) -> tuple[dict[str, Any], str]:
    """The flags; missing values are prompted for."""

    def prompt(question: str, default: str) -> str:
        return str(typer.prompt(question, default=default, err=True))

    flags = dict(flags)
    for name, text, known in (("data", "Data set", DATA), ("model", "Network", MODELS)):
        if flags[name] is None:
            flags[name] = prompt(f"{text} ({', '.join(known)}, …)", STUDY_FLAGS[name].field.default)
    if all(flags[goal] is None for goal in (*GOALS, *BUDGETS)):
        flags["target_sparsity"] = typer.prompt("Target sparsity", default=0.5, type=float, err=True)
    return flags, time or prompt("Time that the run may take", "20m")


def _parse_seconds(time: str) -> float:
    """Parsed like a study's time_budget."""
    try:
        spec = resolve(None, {"time_budget": time})
    except SpecError as error:
        raise SpecError(str(error).replace("--time-budget", "--time")) from error
    assert spec.search.time_budget is not None
    return spec.search.time_budget


def _measured(spec: StudySpec) -> "Pace":
    began = clock.monotonic()
    say("loading torch, data and network")
    from sca_search.study.pace import measure_pace
    from sca_search.training.fit import StopRequestedError

    with stop_on_interrupt() as stop:
        try:
            return measure_pace(spec, say, stop, began)
        except StopRequestedError as error:
            raise typer.Exit(stop.exit_code) from error


def _write(path: Path, spec: StudySpec, seconds: float, pace: "Pace", requested: set[str]) -> None:
    from sca_search.config.toml_text import commented_toml
    from sca_search.study.pace import RESERVE, fit_study
    from sca_search.system.files import write_text_atomic

    size = fit_study(RESERVE * seconds, pace, _fixed_sizes(spec, requested))
    parts = pace.parts(size)
    total = sum(parts.values())
    # The time budget of a study starts with the first trial.
    planned = _with_size(spec, size, _LIMIT * seconds - parts["start"] - parts["dense warm start"])
    heading = (
        f"Written by sca-search init for a run of {_duration(seconds)}. Expected on this machine: {_duration(total)}:\n"
        + ", ".join(f"{name} {_duration(part)}" for name, part in parts.items())
    )
    shown = {FLAGS[name] for name in requested} | {*_SHOWN, "goal.target_sparsity"}
    write_text_atomic(path, commented_toml(planned, shown, _notes(size, pace, seconds), heading))
    times = {"seconds_requested": seconds, "seconds_expected": total, "parts": parts, "pace": vars(pace)}
    print_json({"file": path, **times, "study": planned.model_dump(mode="json")})
    info().print(f"Expected: {_duration(total)} for {size}", soft_wrap=True)
    results().print(f"Study:    {path}", soft_wrap=True)
    info().print(f"Run it:   sca-search {path}{' --trust' if spec.references else ''}", soft_wrap=True)


def _fixed_sizes(spec: StudySpec, requested: set[str]) -> dict[str, int]:
    """The sizes that flags set; no dense training if weights are given."""
    train, search = spec.train, spec.search
    sizes = {name: getattr(train, name) for name in ("dense_epochs", "epochs")}
    sizes |= {name: getattr(search, name) for name in ("trials", "refits")}
    return {name: value for name, value in sizes.items() if name in requested or (name, value) == ("dense_epochs", 0)}


def _with_size(spec: StudySpec, size: "StudySize", time_budget: float) -> StudySpec:
    train = {name: getattr(size, name) for name in ("dense_epochs", "epochs", "frozen_epochs")}
    search = {"trials": size.trials, "refits": size.refits, "time_budget": float(max(1, round(time_budget)))}
    new = {"train": spec.train.model_copy(update=train), "search": spec.search.model_copy(update=search)}
    return spec.model_copy(update=new)


def _notes(size: "StudySize", pace: "Pace", seconds: float) -> dict[str, str]:
    """The measurements as notes, by the key that is derived from each."""
    return {
        "train.dense_epochs": f"{pace.dense_epoch:.2g} s per epoch",
        "train.epochs": f"{pace.epoch:.2g} s per epoch",
        "train.frozen_epochs": f"{pace.frozen_epoch:.2g} s per epoch",
        "search.trials": f"{pace.trial(size):.2g} s per trial",
        "search.refits": f"{pace.trial(size):.2g} s per refit",
        "search.time_budget": f"safety net: {_LIMIT:g} × {_duration(seconds)} for the whole run",
    }


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
