"""The commands `dashboard` (a page of one or several runs, or live) and `features`."""

import contextlib
import html
import tempfile
import webbrowser
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sca_search.cli.options import TrialOption, TrustOption, option, run_argument
from sca_search.errors import RunError
from sca_search.system.console import info, print_json, results, say, warn

_LOCAL = "127.0.0.1"


def dashboard_command(
    runs: Annotated[list[Path], run_argument("Run folders; several are compared on one page.")],
    live: Annotated[bool, option("Serve the page, which then updates itself, until Ctrl-C.", "--live")] = False,
    out: Annotated[
        Path | None, option("Path of the page. Default: RUN/dashboard.html, or comparison.html next to the first run.")
    ] = None,
    opened: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    share_plotly: Annotated[
        bool, option("Write plotly.js to a file next to the page, for folders with several pages.", "--share-plotly")
    ] = False,
    host: Annotated[str, typer.Option(help="With --live: the address to serve on.")] = _LOCAL,
    port: Annotated[int, typer.Option(help="With --live: the port; 0: any free one.")] = 0,
    trust: TrustOption = False,
) -> None:
    """Open the page of a study: its front, every trial, the prior, feature maps and settings."""
    if live:
        if out is not None or share_plotly:
            raise RunError("--live must not be given with --out or --share-plotly: it writes no page")
        if not 0 <= port <= 65535:
            raise RunError(f"--port must be from 0 to 65535, got {port}")
    from sca_search.runs.folder import RunFolder

    for run in runs:
        RunFolder(run).spec(trust=trust or not live)  # only an export loads what it names
    if live:
        _serve(runs, host, port, opened, trust)
        return
    usual = runs[0] / "dashboard.html"
    path = out or (usual if len(runs) == 1 else runs[0].resolve().parent / "comparison.html")
    if path != usual:  # written by any version of this package
        _check_replaceable(path)
    from sca_search.dashboard import write_page

    write_page(path, runs, share_plotly=share_plotly)
    print_json({"page": path})
    results().print(f"Dashboard: {path}", soft_wrap=True)
    if opened:
        webbrowser.open(path.resolve().as_uri())


def features_command(
    run_folder: Annotated[Path, run_argument("A run folder, as the search printed it.")],
    trial: TrialOption = None,
    out: Annotated[Path | None, option("Path of the picture. Default: RUN/features-NNN.png.")] = None,
    trust: TrustOption = False,
) -> None:
    """Draw the mean feature maps of a trial and of the dense network, with their similarity, as a PNG.

    They are also stored with the trial, so that the dashboard shows them.
    """
    from sca_search.dashboard.trial import contact_sheet
    from sca_search.system.files import atomic_path

    if out is not None and out.suffix.lower() != ".png":
        raise RunError(f"--out must end in .png, got {str(out)!r}")
    number, features = _features(run_folder, trial, trust)
    path = out or run_folder / f"features-{number:03d}.png"
    with atomic_path(path) as temporary:
        contact_sheet(features, f"{run_folder.resolve().name}, trial {number}").save(temporary, "PNG")
    for layer in features["layers"]:
        kind = "ternary" if layer["ternary"] else "dense"
        info().print(f"{layer['layer']} ({kind}): similarity {layer['cka']:.3f}")
    layers = [{name: layer[name] for name in ("layer", "ternary", "cka")} for layer in features["layers"]]
    print_json({"picture": path, "trial": number, "layers": layers})
    results().print(f"Picture: {path}", soft_wrap=True)


def _features(path: Path, trial: int | None, trust: bool) -> tuple[int, dict[str, Any]]:
    """Compare a trial, by default the chosen one, with the dense network, and store the result with the trial."""
    from sca_search.export.run import built, trial_row
    from sca_search.export.state_dict import load_plain
    from sca_search.runs.candidates import FEATURES, exported_model, records_of
    from sca_search.runs.folder import RunFolder
    from sca_search.study.setup import read_warm_start
    from sca_search.system.files import write_json_atomic
    from sca_search.training.evaluate import EVALUATION_BATCH
    from sca_search.training.features import compare_features
    from sca_search.training.task import BY_NAME

    run = RunFolder(path)
    spec = run.spec(trust=trust)
    row = trial_row(run, spec, trial)
    number = int(row["candidate"])
    best = exported_model(records_of(run, number), row, spec.goal, run.metric)
    state, layers, _ = load_plain(best["folder"] / "model.safetensors")
    dense = read_warm_start(run).state
    say("reading the data")
    data = BY_NAME.load(spec)
    if not data.input.is_image:
        raise RunError(f"{run.path}: feature maps need images, inputs of {data.name} have the shape {data.input_shape}")
    say("comparing the networks")
    networks = (built(spec, data.input, dense, run.path), built(spec, data.input, state, best["folder"]))
    found = asdict(compare_features(*networks, data.val.batches(EVALUATION_BATCH), data.name_of, layers))
    write_json_atomic(run.candidate(number) / FEATURES, found)
    return int(row["trial"]), found


def _check_replaceable(path: Path) -> None:
    """RunError if the path is a file that this package did not write."""
    if path.is_dir():
        raise RunError(f"{path}: must be a file, got a folder")
    if path.exists() and b'name="generator" content="sca-search"' not in path.read_bytes()[:2000]:
        raise RunError(f"{path}: is not a page of sca-search; choose another --out")


def _serve(runs: list[Path], host: str, port: int, opened: bool, trust: bool) -> None:
    from sca_search.dashboard.live import LiveStudies, listen, serve

    studies = LiveStudies(runs, partial(_export, trust=trust))
    studies.data()  # rejects a folder that is not a run before anything is served
    listening = listen(host, port)
    if host != _LOCAL:
        warn(f"Warning: everybody who can reach {host} can read these studies.")
    shown = f"[{host}]" if ":" in host else host
    # The token is behind a #: a browser does not send this part.
    address = f"http://{shown}:{listening.getsockname()[1]}/#export={studies.token}"
    print_json({"live": address})
    results().print(f"Live:      {address} (Ctrl-C stops it)", soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="sca-search-") as folder, contextlib.suppress(KeyboardInterrupt):
        if opened:
            _open_privately(address, Path(folder) / "open.html")
        serve(studies, listening, host)


def _open_privately(address: str, page: Path) -> None:
    """Open an address through a private file: other users can see the arguments of the browser's process."""
    page.write_text(f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">', encoding="utf-8")
    webbrowser.open(page.as_uri())


def _export(run: Path, trial: int, trust: bool) -> dict[str, Any]:
    """Export a trial with the defaults of the export command; an earlier export of it is replaced."""
    from sca_search.export.folder import ExportOptions
    from sca_search.export.run import export_run

    exported = export_run(run, trial, None, ExportOptions(replace=True, say=say), trust=trust)
    written = {"folder": str(exported.folder), "files": list(exported.files)}
    return {**written, "holds": exported.verification.holds, "left_out": list(exported.left_out)}
