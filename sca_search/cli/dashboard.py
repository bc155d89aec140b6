"""The commands that look: `dashboard`, static, beside others or live, and `features`."""

import contextlib
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from sca_search.cli.completion import run_folders
from sca_search.errors import RunError
from sca_search.system.console import info, print_json, results, say, warn

_LOCAL = "127.0.0.1"


def dashboard_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Run folders; several are compared on one page.", autocompletion=run_folders
        ),
    ],
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page, which then follows the study by itself, until Ctrl-C.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where to write the page. Default: RUN/dashboard.html, or comparison.html beside the first run.",
            show_default=False,
        ),
    ] = None,
    opened: Annotated[bool, typer.Option("--open/--no-open", help="Show it in the browser.")] = True,
    share_plotly: Annotated[
        bool, typer.Option("--share-plotly", help="Keep plotly.js beside the page, for folders of several pages.")
    ] = False,
    host: Annotated[str, typer.Option(help="With --live: the address to serve on.")] = _LOCAL,
    port: Annotated[int, typer.Option(help="With --live: the port; 0 takes a free one.")] = 0,
) -> None:
    """Opens the page of a study: its front, every trial, the prior, features, and how it was made."""
    if live:
        if out is not None or share_plotly:
            raise RunError("--live writes no page: it cannot be given together with --out or --share-plotly")
        if not 0 <= port <= 65535:
            raise RunError(f"--port must be from 0 to 65535, got {port}")
        _serve(runs, host, port, opened)
        return
    path = out or _default_page(runs)
    if path != runs[0] / "dashboard.html":  # which is ours, whatever version wrote it
        _refuse_foreign(path)
    from sca_search.dashboard import write_page

    write_page(path, runs, share_plotly=share_plotly)
    print_json({"page": path})
    results().print(f"Dashboard: {path}", highlight=False, soft_wrap=True, markup=False)
    if opened:
        webbrowser.open(path.resolve().as_uri())


def features_command(
    run_folder: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder, as the search printed it.", autocompletion=run_folders),
    ],
    trial: Annotated[int | None, typer.Option(help="Which trial. Default: the chosen one.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="The picture. Default: RUN/features-NNN.png.", show_default=False)
    ] = None,
) -> None:
    """Draws the mean feature maps of a trial beside the dense network's, with their similarity, as a PNG.

    They are kept beside the trial, too, so that the dashboard shows them.
    """
    from sca_search.cli.features_run import features_run
    from sca_search.cli.json_output import features_answer
    from sca_search.dashboard.feature_maps import sheet
    from sca_search.system.files import atomic_path

    if out is not None and out.suffix.lower() != ".png":
        raise RunError(f"--out must be a file that ends in .png, got {str(out)!r}")
    number, features = features_run(run_folder, trial, say)
    path = out or run_folder / f"features-{number:03d}.png"
    with atomic_path(path) as temporary:
        sheet(features, f"{run_folder.resolve().name}, trial {number}").save(temporary, "PNG")
    for layer in features["layers"]:
        kind = "ternary" if layer["ternary"] else "kept dense"
        info().print(f"{layer['layer']} ({kind}): similarity {layer['cka']:.3f}", highlight=False, markup=False)
    print_json(features_answer(path, number, features["layers"]))
    results().print(f"Picture: {path}", highlight=False, soft_wrap=True, markup=False)


def _default_page(runs: list[Path]) -> Path:
    return runs[0] / "dashboard.html" if len(runs) == 1 else runs[0].resolve().parent / "comparison.html"


def _refuse_foreign(path: Path) -> None:
    """A page may be written anew; somebody's other file may not."""
    if path.is_dir():
        raise RunError(f"{path}: must be the name of a page, got a folder")
    if path.exists() and b'name="generator" content="sca-search"' not in path.read_bytes()[:2000]:
        raise RunError(f"{path}: holds something that is no page of ours; choose another --out")


def _serve(runs: list[Path], host: str, port: int, opened: bool) -> None:
    from sca_search.dashboard.live import LiveStudies, listen, serve

    studies = LiveStudies(runs, _export)
    studies.data()  # a folder that is no run is refused before anything is served
    listening = listen(host, port)
    if host != _LOCAL:
        warn(f"Warning: everybody who can reach {host} can read these studies and export their trials.")
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    print_json({"live": address})
    results().print(f"Live:      {address} (Ctrl-C stops it)", highlight=False, soft_wrap=True, markup=False)
    if opened:
        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        serve(studies, listening, host)


def _export(run: Path, trial: int) -> dict[str, Any]:
    """What the export command does with its defaults; an earlier export of the trial is replaced."""
    from sca_search.export.folder import ExportOptions, parse_formats
    from sca_search.export.run import export_run

    options = ExportOptions(parse_formats("packed,c,onnx,torch"), replace=True, say=say)
    exported = export_run(run, trial, None, options)
    return {
        "folder": str(exported.folder),
        "files": list(exported.files),
        "holds": exported.verification.holds,
        "left_out": list(exported.left_out),
    }
