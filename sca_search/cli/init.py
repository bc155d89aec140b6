"""`init`: a study file whose run takes as long as you have, from a pace that is measured on this machine."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sca_search.cli.completion import augmentation_names, data_names, model_names
from sca_search.config.costs import BUDGETS, FILE_SIZE, LATENCY, TERNARY_SIZE
from sca_search.config.load import FLAGS, resolve
from sca_search.config.study import GOALS, StudySpec
from sca_search.errors import SpecError
from sca_search.system.console import answer, manner, remarks, results, say
from sca_search.system.signals import stop_on_interrupt

if TYPE_CHECKING:
    from sca_search.study.time_plan import Amount, Pace

_GOAL, _WHAT, _FIXED = "Goal", "Data and network", "Fixed instead of planned"
# A machine that is busier than now must not make the run much longer.
_NET = 1.25
_USUAL_FILE = "study.toml"


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


def init_command(
    ctx: typer.Context,
    time: Annotated[
        str | None, typer.Option("--time", help="How long the run may take: 90s, 20m, 2h.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The study file. Default study.toml.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.", show_default=False)] = False,
    target_sparsity: Annotated[float | None, _option(_GOAL, "Share of zeros, from 0 to below 1. Default 0.5.")] = None,
    min_accuracy: Annotated[float | None, _option(_GOAL, "Instead: the sparsest model with this accuracy.")] = None,
    front: Annotated[bool | None, _option(_GOAL, "Instead: no goal, the whole front.", "--front")] = None,
    max_latency_ms: Annotated[float | None, _option(_GOAL, LATENCY.help)] = None,
    max_kb: Annotated[float | None, _option(_GOAL, FILE_SIZE.help)] = None,
    max_ternary_kb: Annotated[float | None, _option(_GOAL, TERNARY_SIZE.help)] = None,
    prefer: Annotated[str | None, _option(_GOAL, "With --min-accuracy: sparsest, fastest or smallest.")] = None,
    data: Annotated[
        str | None,
        _option(
            _WHAT,
            "digits (default), mnist, cifar10, cifar100, tiny-imagenet, imagenet, folder:PATH or npz:PATH.",
            autocompletion=data_names,
        ),
    ] = None,
    data_dir: Annotated[Path | None, _option(_WHAT, "Folder with local copies of the data sets named.")] = None,
    image_size: Annotated[int | None, _option(_WHAT, "Side to which a folder's images are resized.")] = None,
    train_limit: Annotated[int | None, _option(_WHAT, "Use only so many training images.")] = None,
    augment: Annotated[
        str | None,
        _option(
            _WHAT, "Of training images: none (default), crop-flip or scale-aspect.", autocompletion=augmentation_names
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool | None, _option(_WHAT, "Leave out image files that cannot be read.", "--skip-unreadable")
    ] = None,
    model: Annotated[
        str | None,
        _option(_WHAT, "lenet-small (default), resnet20, …: see sca-search --help.", autocompletion=model_names),
    ] = None,
    skip: Annotated[str | None, _option(_WHAT, "Layers that stay dense, as name patterns.")] = None,
    only: Annotated[str | None, _option(_WHAT, "The only layers to make ternary.")] = None,
    form: Annotated[str | None, _option(_FIXED, "sharpened (default), paper or straight-through.")] = None,
    trials: Annotated[int | None, _option(_FIXED, "Candidates.")] = None,
    refits: Annotated[int | None, _option(_FIXED, "More seeds for the chosen candidate.")] = None,
    epochs: Annotated[int | None, _option(_FIXED, "Epochs a candidate.")] = None,
    dense_epochs: Annotated[int | None, _option(_FIXED, "Epochs of the dense warm start.")] = None,
    batch: Annotated[int | None, _option(_FIXED, "Images a step. Default 64.")] = None,
    workers: Annotated[int | None, _option(_FIXED, "Processes side by side. Default 1.")] = None,
    threads: Annotated[
        int | None, _option(_FIXED, "Threads a worker. Default: by the network's size and the cores.")
    ] = None,
    seed: Annotated[int | None, _option(_FIXED, "Default 0.")] = None,
    name: Annotated[str | None, _option(_FIXED, "Name of the run folder.")] = None,
) -> None:
    """Writes a study file with as many epochs and trials as fit into a time on this machine.

    The pace is measured: a small study is run and thrown away, which takes up to a minute or two. Asks for what is
    missing where it runs on a terminal.

    **Example**

    `sca-search init --data mnist --model lenet --target-sparsity 0.9 --time 1h --out mnist.toml`, then
    `sca-search mnist.toml`
    """
    flags = {key: value for key, value in ctx.params.items() if key in FLAGS}
    path = _free(file, force)
    if sys.stdin.isatty() and not manner.json:
        flags, time = _asked(flags, time)
    if time is None:
        raise SpecError("--time is missing: it says how long the run may take, like 20m")
    seconds = _seconds(time)
    spec = resolve(None, flags)
    pace = _measured(spec)
    _write(path, spec, seconds, pace, {key for key, value in flags.items() if value is not None})


def _free(file: Path | None, force: bool) -> Path:
    """The file to write, before anybody waits for a measurement."""
    path = file or Path(_USUAL_FILE)
    if path.is_dir():
        raise SpecError(f"--out must be a file, got the folder {str(path)!r}")
    if path.exists() and not force:
        raise SpecError(f"{path}: is there already; choose another --out, or --force to replace it")
    if not path.resolve().parent.is_dir():
        raise SpecError(f"{path}: must lie in a folder that exists, got {str(path.parent)!r}")
    return path


def _asked(flags: dict[str, Any], time: str | None) -> tuple[dict[str, Any], str]:
    """What the flags do not say, from the user."""

    def ask(question: str, default: str) -> str:
        return str(typer.prompt(question, default=default, err=True))

    flags = dict(flags)
    if flags["data"] is None:
        flags["data"] = ask("Data (digits, mnist, cifar10, cifar100, tiny-imagenet, folder:PATH, npz:PATH)", "digits")
    if flags["model"] is None:
        flags["model"] = ask("Network (lenet-small, lenet-medium, lenet, vgg-s, resnet20, …)", "lenet-small")
    if all(flags[goal] is None for goal in (*GOALS, *BUDGETS)):
        flags["target_sparsity"] = typer.prompt("Share of zeros", default=0.5, type=float, err=True)
    return flags, time or ask("Time that the run may take", "20m")


def _seconds(time: str) -> float:
    """By the rule of a study's time_budget."""
    try:
        spec = resolve(None, {"time_budget": time})
    except SpecError as error:
        raise SpecError(str(error).replace("--time-budget", "--time")) from error
    assert spec.search.time_budget is not None
    return spec.search.time_budget


def _measured(spec: StudySpec) -> "Pace":
    say("loading torch, data and network")
    from sca_search.study.pace import measure_pace
    from sca_search.training.fit import StopRequestedError

    with stop_on_interrupt() as stop:
        try:
            return measure_pace(spec, say, stop)
        except StopRequestedError as error:
            raise typer.Exit(stop.exit_code) from error


def _write(path: Path, spec: StudySpec, seconds: float, pace: "Pace", asked: set[str]) -> None:
    from sca_search.config.toml_text import commented_toml
    from sca_search.study.time_plan import Given, parts_of, plan, told
    from sca_search.system.files import write_text_atomic

    fixed = {flag: value for flag, value in _amounts(spec).items() if flag in asked}
    amount = plan(seconds, pace, Given(**fixed))
    parts = parts_of(amount, pace)
    total = sum(parts.values())
    # The study's clock starts when trials are queued, before worker processes are there.
    net = _NET * seconds - parts["start"] - parts["dense warm start"] - parts["end"]
    planned = _with_amount(spec, amount, net)
    heading = (
        f"Written by sca-search init for a run of {_clock(seconds)}. On this machine it should take {_clock(total)}:\n"
        + ", ".join(f"{name} {_clock(part)}" for name, part in parts.items())
    )
    write_text_atomic(path, commented_toml(planned, _reasons(amount, pace, asked, seconds), heading))
    answer(
        {
            "file": path,
            "seconds_given": seconds,
            "seconds_expected": total,
            "parts": parts,
            "pace": vars(pace),
            "study": planned.model_dump(mode="json"),
        }
    )
    remarks().print(f"Expected: {_clock(total)} for {told(amount)}", highlight=False, soft_wrap=True)
    results().print(f"Study:    {path}", highlight=False, soft_wrap=True, markup=False)
    remarks().print(f"Run it:   sca-search {path}", highlight=False, soft_wrap=True, markup=False)


def _amounts(spec: StudySpec) -> dict[str, int]:
    train, search = spec.train, spec.search
    return {
        "dense_epochs": train.dense_epochs,
        "epochs": train.epochs,
        "trials": search.trials,
        "refits": search.refits,
    }


def _with_amount(spec: StudySpec, amount: "Amount", net: float) -> StudySpec:
    train = {
        "dense_epochs": amount.dense_epochs,
        "epochs": amount.epochs,
        "frozen_epochs": amount.frozen_epochs,
    }
    search = {"trials": amount.trials, "refits": amount.refits, "time_budget": float(max(1, round(net)))}
    return spec.model_copy(
        update={
            "train": spec.train.model_copy(update=train),
            "search": spec.search.model_copy(update=search),
        }
    )


def _reasons(amount: "Amount", pace: "Pace", asked: set[str], seconds: float) -> dict[str, str]:
    """Why each line is as it is."""
    trial = amount.epochs * pace.epoch + amount.frozen_epochs * pace.frozen_epoch + pace.trial_rest
    reasons = {
        "goal.target_sparsity": "share of zeros, met exactly",
        "goal.min_accuracy": "on validation images; the sparsest network that has it is chosen",
        "goal.front": "no single goal: trials at many sparsities",
        "goal.max_latency_ms": "an image in exported C, on one thread of this machine",
        "goal.max_kb": "the whole packed file",
        "goal.max_ternary_kb": "the ternary weights in the packed file",
        "data.name": "where the images come from",
        "model.name": "the network; its first and last weight layer stay dense",
        "train.batch": "images a step; a larger one is faster, with fewer steps to learn from",
        "train.dense_epochs": f"the network that all trials start from: {pace.dense_epoch:.2g} s an epoch",
        "train.epochs": f"of each trial: {pace.epoch:.2g} s an epoch, with two looks at the validation images",
        "train.frozen_epochs": f"after rounding, float parts only: {pace.frozen_epoch:.2g} s an epoch",
        "search.form": "sharpened is the default; paper is plain SCA",
        "search.trials": f"as many as fit: {trial:.2g} s each",
        "search.refits": "the chosen one again with other seeds, for a spread; as long as a trial each",
        "search.workers": "processes that train side by side",
        "search.threads": "of each worker; 0: by the network's size and the cores",
        "search.time_budget": f"a safety net: trials and refits end by then, for {_NET:g} × {_clock(seconds)} in all",
    }
    by_flag = {FLAGS[flag] for flag in asked}
    always = {f"train.{name}" for name in ("dense_epochs", "epochs", "frozen_epochs")}
    always |= {f"search.{name}" for name in ("trials", "refits", "time_budget")}
    shown = by_flag | always | {"data.name", "model.name", "train.batch", "search.form"}
    shown |= {"search.workers", "search.threads"} | ({"goal.target_sparsity"} if not _has_goal(asked) else set())
    fixed = {"train.dense_epochs", "train.epochs", "search.trials", "search.refits"} & by_flag
    return {key: f"as asked; {why}" if key in fixed else why for key, why in reasons.items() if key in shown}


def _has_goal(asked: set[str]) -> bool:
    return bool(asked & {*GOALS, *BUDGETS})


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
