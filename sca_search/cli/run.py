"""The command line and the commands that search. `--help` answers without torch: what trains is imported where used."""

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from sca_search.cli import searching
from sca_search.cli.app import PlainFlags, RunByDefault, with_manner
from sca_search.cli.compare import compare_command
from sca_search.cli.completion import (
    augmentation_names,
    data_names,
    method_names,
    model_names,
    run_folders,
    study_files,
)
from sca_search.cli.dashboard import dashboard_command, features_command
from sca_search.cli.exit_codes import ended
from sca_search.cli.export import (
    bench_command,
    calibrate_command,
    check_command,
    export_command,
    verify_command,
)
from sca_search.cli.init import init_command
from sca_search.cli.reproduce import reproduce_command
from sca_search.cli.rerun import rerun_command
from sca_search.cli.worker import worker_command
from sca_search.config.costs import FILE_SIZE, LATENCY, TERNARY_SIZE
from sca_search.config.load import FLAGS, resolve
from sca_search.config.storage_url import STORAGE_VARIABLE, shared_by
from sca_search.system.console import answer, remarks, results, speak
from sca_search.system.versions import __version__

if TYPE_CHECKING:
    pass

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
    max_latency_ms: Annotated[float | None, _option(_GOAL, LATENCY.help)] = None,
    max_kb: Annotated[float | None, _option(_GOAL, FILE_SIZE.help)] = None,
    max_ternary_kb: Annotated[float | None, _option(_GOAL, TERNARY_SIZE.help)] = None,
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
        searching.dry_run(spec)
    else:
        searching.search(spec, resume, shared_by(storage, artifacts))


@app.command("show", cls=PlainFlags)
@with_manner
def show_command(
    run_folder: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder, as the search printed it.", autocompletion=run_folders),
    ],
) -> None:
    """Prints a finished or running study: its front, the chosen trial, where everything is."""
    from sca_search.cli.json_output import study_answer
    from sca_search.runs.folder import RunFolder
    from sca_search.runs.integrity import damage_refused
    from sca_search.runs.trials import read_csv

    run = RunFolder(run_folder)
    spec = run.spec()
    with damage_refused(run_folder, "shown"):
        document = study_answer(run, spec)
        if not run.trials_file.exists():
            results().print(f"{run_folder}: no trial has finished yet")
        else:
            states = read_csv(run.trials_file)["state"].value_counts()
            remarks().print(", ".join(f"{count} {state}" for state, count in states.items()), highlight=False)
            searching.print_results(run, spec)
            searching.print_places(run)
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


def main() -> NoReturn:
    """The console script: a user's mistake is one sentence and exit code 2, never a traceback."""
    speak(json="--json" in sys.argv[1:])  # until the command line is understood
    sys.exit(ended(functools.partial(app, standalone_mode=False)))


if __name__ == "__main__":
    main()
