"""The readers of a run folder's files: its page, the commands, and a study that goes on."""

import contextlib
import io
import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from sca_search.cli.run import show_command
from sca_search.config.candidate import Candidate, Ramp, Tracked
from sca_search.config.study import StudySpec
from sca_search.dashboard.live import LiveStudies, requested_export
from sca_search.dashboard.page import document_of, embedded
from sca_search.errors import RunError
from sca_search.export.run import found_network, trial_row
from sca_search.paper.result import read_result
from sca_search.runs.candidates import exported_model, records_of
from sca_search.runs.folder import RunFolder
from sca_search.runs.integrity import require_intact_database
from sca_search.runs.log import note_command
from sca_search.study.artifacts import _records
from sca_search.study.compare import read_result as read_method_result
from sca_search.study.queue import open_study
from sca_search.study.rerun import changed_since, training_environment
from sca_search.study.setup import make_task, read_sensitivity, read_warm_start
from sca_search.study.space import Space
from sca_search.training.fit import FitPlan, parameter_groups, restore_state
from sca_search.training.task import PausedError, Rungs, Source
from sca_search.training.train import CandidateTraining, train_candidate, train_dense
from tests.support.answer_cache import AnswerCache
from tests.support.fuzzing import (
    ODD_VALUES,
    Mutator,
    Reader,
    altered,
    altered_header,
    damaged,
    reworded,
    shuffled_lines,
    spliced,
    through,
)

RUN = Path(__file__).parent / "run-folder"
BYTES: tuple[Mutator, ...] = (damaged, spliced)
JSON: tuple[Mutator, ...] = (altered, altered, altered, reworded, damaged, spliced)
TEXT: tuple[Mutator, ...] = (reworded, reworded, shuffled_lines, damaged, spliced)
TENSORS: tuple[Mutator, ...] = (altered_header, altered_header, damaged, spliced)

# Files of a run folder that its page shows; of the last three, others are made anew with each of their changes.
PAGE_FILES = (
    "summary.json",
    "about.json",
    "closed-form.json",
    "sensitivity.json",
    "study.toml",
)
WHOLE_PAGE_FILES = ("trials.csv", "dense.json", "candidates/000/candidate.json")
# Those of one trial, as a live page asks for them.
DETAIL_FILES = ("candidate.json", "history.csv", "distribution.json", "features.json")


def run_readers(folder: Path) -> list[Reader]:
    """All of them; `folder` is for the files that they read."""
    place = folder / "run"
    shutil.copytree(RUN, place)
    return [*_pages(place), *_shown(place), *_exported(place), *_gone_on(folder, place)]


def _of_run(
    name: str,
    place: Path,
    file: str,
    read: Callable[[], object],
    mutators: tuple[Mutator, ...] | None = None,
    *,
    is_slow: bool = False,
) -> Reader:
    """A run with one bad file in it; the file is good again afterwards."""
    path = place / file
    good = path.read_bytes()
    cache = AnswerCache(place)

    def call(content: bytes) -> object:
        path.write_bytes(content)
        try:
            with cache.used():
                return read()
        finally:
            path.write_bytes(good)

    return Reader(name, good, call, mutators or (JSON if file.endswith(".json") else TEXT), is_slow)


def _pages(place: Path) -> list[Reader]:
    progress = b'{"what": "trial 7", "epoch": 1, "epochs": 20, "at": 1e99, "pause_seconds": 1.5}'
    (place / "progress.json").write_bytes(progress)
    page = partial(_page, place)
    live = LiveStudies([place], lambda _run, _trial: {})
    return [
        *(_of_run(f"page: {Path(name).name}", place, name, page) for name in PAGE_FILES),
        *(_of_run(f"page: {Path(name).name}", place, name, page, is_slow=True) for name in WHOLE_PAGE_FILES),
        *(_of_run(f"live: {name}", place, name, live.status) for name in ("progress.json", "dense.json")),
        *(
            _of_run(f"live: {name}", place, f"candidates/000/{name}", lambda: live.detail(0, 0))
            for name in DETAIL_FILES
        ),
        Reader("live: request to export", b'{"study": 0, "trial": 1}', lambda body: requested_export(body, 2), JSON),
    ]


def _page(place: Path) -> object:
    return embedded(document_of(place))


def _shown(place: Path) -> list[Reader]:
    show = partial(_show, place)
    return [
        _of_run(f"show: {name}", place, name, show, is_slow=True)
        for name in ("trials.csv", "summary.json", "dense.json")
    ]


def _show(place: Path) -> None:
    """Without its words."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        show_command(run_folder=place)


def _exported(place: Path) -> list[Reader]:
    run = RunFolder(place)
    record = "candidates/000/candidate.json"
    network = partial(found_network, run, run.spec(), trial_row(run, run.spec(), 0))
    return [
        _of_run("candidate of a run", place, record, lambda: _candidate(run)),
        _of_run("export: candidate.json", place, record, network),
        _of_run("export: trials.csv", place, "trials.csv", lambda: trial_row(run, run.spec(), 0)),
        _of_run("export: model.safetensors", place, "candidates/000/model.safetensors", network, TENSORS),
    ]


def _candidate(run: RunFolder) -> Candidate:
    record = exported_model(records_of(run, 0), {}, run.spec().goal, "accuracy")
    try:
        return Candidate.model_validate(record["candidate"])
    except (KeyError, ValueError) as error:
        raise RunError(str(error)) from error


def _gone_on(folder: Path, place: Path) -> list[Reader]:
    run = RunFolder(place)
    database = (place / "study.db").read_bytes()
    entry = b'{"method": "twn", "seed": 0, "trials": 1, "failed": 0, "epochs": 3, "trial": 0, "metric": 0.5}'
    notes = b'{"model.safetensors": "study--0123456789abcdef--model.safetensors", "history.csv": "study--1--h"}'
    cell = b'{"epochs": 3, "network": "lenet", "top1": [0.5], "top5": [0.9], "sparsity": [0.1], "failed": 0}'
    return [
        _of_run("resume: about.json", place, "about.json", lambda: note_command(run, ["x"], 1)),
        _of_run("resume: dense.json", place, "dense.json", lambda: read_warm_start(run)),
        _of_run("resume: dense.safetensors", place, "dense.safetensors", lambda: read_warm_start(run), TENSORS),
        _of_run("resume: sensitivity.json", place, "sensitivity.json", lambda: read_sensitivity(run.sensitivity_file)),
        Reader(
            "resume: study.db", database, through(folder / "study.db", require_intact_database), (*BYTES, rewritten)
        ),
        _of_run("whole study: study.db", place, "study.db", lambda: _study(run), (*BYTES, rewritten), is_slow=True),
        _going_on(folder),
        _of_run(
            "rerun: about.json",
            place,
            "about.json",
            lambda: changed_since(training_environment(run, {"folder": place})),
        ),
        Reader("store: artifacts.json", notes, through(folder / "artifacts.json", _records), JSON),
        _of_run("features: dense.safetensors", place, "dense.safetensors", lambda: read_warm_start(run), TENSORS),
        Reader("comparison: a method's result", entry, through(folder / "entry.json", read_method_result), JSON),
        Reader("reproduction: a cell's result", cell, through(folder / "cell.json", read_result), JSON),
    ]


def rewritten(content: bytes, dice: random.Random) -> bytes:
    """A database that is still one: a value of some row is another, or of another type."""
    database = sqlite3.connect(":memory:")
    database.deserialize(content)
    tables = ("trial_user_attributes", "trial_user_attributes", "trial_params", "trials", "trial_values", "studies")
    for _ in range(dice.choice((1, 1, 3))):
        table = dice.choice(tables)
        names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
        ids = [row[0] for row in database.execute(f"SELECT rowid FROM {table}")]
        name, row = dice.choice(names), dice.choice(ids)
        (value,) = database.execute(f"SELECT {name} FROM {table} WHERE rowid = ?", (row,)).fetchone()
        if isinstance(value, str) and dice.random() < 0.6:
            new: object = reworded(value.encode(), dice).decode("utf-8", "replace")
        else:
            new = dice.choice(ODD_VALUES)
        with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
            put = new if isinstance(new, str | int | float | None) else json.dumps(new)
            database.execute(f"UPDATE {table} SET {name} = ? WHERE rowid = ?", (put, row))
    database.commit()
    return database.serialize()


def _study(run: RunFolder) -> object:
    """As a study opens it that goes on."""
    study = open_study(run, Space(run.spec()))
    study._storage._backend.engine.dispose()
    return study


def _going_on(folder: Path) -> Reader:
    """A training that goes on from its checkpoint, up to the optimizer's next step."""
    network = nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU()),
        *(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 10)),
    )
    spec = StudySpec.model_validate({"data": {"train_limit": 100}, "train": {"batch": 50}})
    task = make_task(spec, Source(model=network))
    start = train_dense(task, epochs=1, learning_rate=0.01, seed=0)
    candidate = Candidate(
        sparsity=0.5,
        alpha=Tracked(),
        strength=Ramp(first=1.0, last=40.0),
        learning_rate=0.01,
        latent_learning_rate=0.02,
        epochs=3,
        frozen_epochs=0,
        frozen_learning_rate=0.005,
    )
    path = folder / "going-on.safetensors"
    with contextlib.suppress(PausedError):
        train_candidate(candidate, task, start, rungs=Rungs((1,), lambda *_: False, path))
    training = CandidateTraining(candidate, task, start)

    def go_on(place: Path) -> None:
        training.rungs = Rungs(checkpoint=place)
        _, memory = training.resume()
        groups = parameter_groups(training.model, FitPlan(3, 0.01, 0.02), training.method.latents().values())
        optimizer = torch.optim.Adam(groups, fused=True)
        restore_state(optimizer, memory)
        for parameter in training.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()

    return Reader("resume: checkpoint.safetensors", path.read_bytes(), through(path, go_on), TENSORS)
