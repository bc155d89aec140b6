"""`run`, the default command, and `show`."""

from typing import Annotated, Any

import typer

from sca_search.cli import searching
from sca_search.cli.options import RUN_PANEL, RunArgument, StudyFile, option, study_options
from sca_search.config.load import STUDY_FLAGS, resolve
from sca_search.config.storage_url import STORAGE_VARIABLE, shared_by
from sca_search.system.console import info, print_json, results
from sca_search.system.versions import __version__


def _print_version(is_requested: bool) -> None:
    if is_requested:
        results().print(f"sca-search {__version__}", highlight=False)
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
    dry_run: Annotated[bool, option("Print the resolved study and exit.", "--dry-run", panel=RUN_PANEL)] = False,
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
    spec = resolve(study, flags)
    if dry_run:
        searching.dry_run(spec)
    else:
        searching.search(spec, resume, shared_by(storage, artifacts))


def show_command(run_folder: RunArgument) -> None:
    """Print a finished or running study: its front, the chosen trial and its files."""
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
            info().print(", ".join(f"{count} {state}" for state, count in states.items()), highlight=False)
            searching.print_results(run, spec)
            searching.print_places(run)
    print_json(document)
