"""Studies that several commands share, on a real PostgreSQL: who joins and waits, what is done once, where files go."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import numpy as np
import optuna
import pandas as pd
import pytest
import sqlalchemy
from moto.server import ThreadedMotoServer

from sca_search.config.load import resolve
from sca_search.config.storage_url import Shared, storage_address
from sca_search.errors import RunError, StorageError
from sca_search.runs.folder import RunFolder, joined_run, new_run, resumed_run
from sca_search.study.artifacts import ArtifactStore, do_once, files_in
from sca_search.study.events import Event, Note
from sca_search.study.queue import join, shared_spec
from sca_search.system.machine import __version__
from sca_search.training.fit import StopRequestedError
from tests.support.command import TINY, sca_search
from tests.support.postgres import Server, running_server

SECRET = "hunter-2"
STUDY = ("--target-sparsity", "0.5", "--name", "joint", *TINY, "--trials", "4")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture
def database(server: Server) -> str:
    """With a password, which this server does not ask for."""
    return server.new_database().replace("postgres:@", f"postgres:{SECRET}@")


def started(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sca_search", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"},
    )


def in_database(address: str) -> str:
    """All that a study leaves there."""
    engine = sqlalchemy.create_engine(storage_address(address))
    tables = ("study_user_attributes", "study_system_attributes", "trial_user_attributes", "trial_system_attributes")
    with engine.connect() as connection:
        rows = [row for table in tables for row in connection.execute(sqlalchemy.text(f"select * from {table}"))]
    engine.dispose()
    assert len(rows) > 10
    return repr(rows)


def figures(run: Path) -> list[tuple[int, str, float]]:
    trials = pd.read_csv(run / "trials.csv").sort_values("candidate")
    return list(trials[["candidate", "state", "metric"]].itertuples(index=False, name=None))


def test_the_same_command_joins_by_name_and_each_machine_has_everything_in_the_end(
    database: str, tmp_path: Path
) -> None:
    shared = ("--storage", database, "--artifacts", f"file://{tmp_path / 'store'}")
    machines = [started(*STUDY, *shared, "--out", name, cwd=tmp_path) for name in ("a", "b")]
    said = [machine.communicate(timeout=240)[0] for machine in machines]
    assert [machine.returncode for machine in machines] == [0, 0], said
    first, second = (tmp_path / name / "joint" for name in ("a", "b"))
    assert figures(first) == figures(second)
    assert [state for _, state, _ in figures(first)] == ["complete"] * 4
    for name in ("dense.safetensors", "chosen.safetensors", "sensitivity.json", "candidates/003/model.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    chosen = json.loads((first / "summary.json").read_text())["chosen"]
    assert chosen["refits"] == 1
    refit = f"candidates/{chosen['candidate']:03d}/refit-1/model.safetensors"
    assert (first / refit).read_bytes() == (second / refit).read_bytes()
    # One of them trained the dense network and the refit; trials of each were trained once.
    logs = [(run / "log.txt").read_text() for run in (first, second)]
    assert sum(log.count("dense warm start: dense epoch 4 of 4") for log in logs) == 1
    assert sum(len(re.findall(r"refit 1: ternary epoch 2 of 2", log)) for log in logs) == 1
    assert sum(len(re.findall(r"trial \d+: ternary epoch 2 of 2", log)) for log in logs) == 4
    # The password is nowhere.
    assert not any(SECRET in text for text in said)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
    # And a later command does not mistake the folder for a study of this machine alone.
    refused = sca_search(*STUDY, "--out", "a", "--resume", cwd=tmp_path)
    assert refused.returncode == 2
    assert "its trials are in a shared storage; give --storage" in refused.stderr


def test_a_worker_takes_part_by_the_studys_name_alone(database: str, tmp_path: Path) -> None:
    shared = ("--storage", database)
    nobody = sca_search("worker", "joint", *shared, cwd=tmp_path)
    assert nobody.returncode == 2
    assert nobody.stderr.strip() == "--storage has no study named 'joint'"
    long = (*STUDY, "--epochs", "40", "--refits", "0")
    leading = started(*long, *shared, cwd=tmp_path)
    run = tmp_path / "runs" / "joint"
    while not (run / "sensitivity.json").exists():
        assert leading.poll() is None, leading.communicate()
    joined = sca_search("worker", "joint", *shared, "--json", cwd=tmp_path)
    said, _ = leading.communicate(timeout=240)
    assert (leading.returncode, joined.returncode) == (0, 0), (said, joined.stderr)
    printed = json.loads(joined.stdout)
    assert printed["study"] == "joint"
    assert not printed["stopped"]
    assert 1 <= len(printed["trials"]) < 4
    assert [state for _, state, _ in figures(run)] == ["complete"] * 4
    other = sca_search(*STUDY, *shared, "--target-sparsity", "0.9", "--out", "elsewhere", cwd=tmp_path)
    assert other.returncode == 2
    assert "it differs in goal.target_sparsity" in other.stderr
    near = sca_search("worker", "jonit", *shared, cwd=tmp_path)
    assert near.stderr.strip() == "--storage has no study named 'jonit'; did you mean 'joint'?"
    assert SECRET not in said + joined.stderr + other.stderr + near.stderr
    assert SECRET not in in_database(database)


@pytest.mark.nightly
def test_the_same_command_in_the_same_folder_only_trains(database: str, tmp_path: Path) -> None:
    long = (*STUDY, "--epochs", "40", "--refits", "0", "--storage", database)
    first = started(*long, cwd=tmp_path)
    run = tmp_path / "runs" / "joint"
    while not (run / "sensitivity.json").exists():
        assert first.poll() is None, first.communicate()
    second = sca_search(*long, cwd=tmp_path)
    first.communicate(timeout=240)
    assert (first.returncode, second.returncode) == (0, 0), second.stderr
    assert "run folder is in use by another process; joining as a worker" in second.stdout
    assert [state for _, state, _ in figures(run)] == ["complete"] * 4


def test_folders_of_shared_and_of_other_studies_are_not_mixed_up(tmp_path: Path) -> None:
    spec = resolve(None, {"out": tmp_path, "name": "x"})
    shared = Shared(storage_address(f"postgresql://me:{SECRET}@db/x"))
    run = joined_run(spec, shared)
    assert SECRET not in run.shared_file.read_text()
    assert joined_run(spec, shared).path == run.path
    with pytest.raises(RunError, match="give --storage or choose another --name"):
        new_run(spec)
    with pytest.raises(RunError, match="give --storage"):
        resumed_run(spec)
    changed = resolve(None, {"out": tmp_path, "name": "x", "seed": 1})
    with pytest.raises(RunError, match="differs in seed"):
        joined_run(changed, shared)
    alone = resolve(None, {"out": tmp_path, "name": "alone"})
    new_run(alone)
    with pytest.raises(RunError, match="holds files that are not of a shared study"):
        joined_run(alone, shared)


def test_a_study_of_another_spec_is_refused_before_anything_is_written(database: str, tmp_path: Path) -> None:
    shared = Shared(storage_address(database))
    join(resolve(None, {"out": tmp_path / "a", "name": "x"}), shared)
    other = resolve(None, {"out": tmp_path / "b", "name": "x", "epochs": 3, "data_dir": tmp_path})
    with pytest.raises(RunError) as caught:
        join(other, shared)
    assert str(caught.value) == (
        "--storage holds another study named 'x', it differs in train.epochs; choose another --name"
    )
    assert not (tmp_path / "b").exists()


INPUTS = {"data": "1f", "network": "2f", "initial weights": "3f"}


@pytest.mark.parametrize("name", INPUTS)
def test_a_machine_with_other_inputs_is_refused_before_anything_is_written(
    name: str, database: str, tmp_path: Path
) -> None:
    shared = Shared(storage_address(database))
    specs = [resolve(None, {"out": tmp_path / folder, "name": "x"}) for folder in "abc"]
    join(specs[0], shared, INPUTS)
    with pytest.raises(RunError) as caught:
        join(specs[1], shared, INPUTS | {name: "4f"})
    assert str(caught.value) == (
        f"--storage: the study 'x' was started with other {name} ({INPUTS[name]}, here 4f); restore what it was "
        "started with, or choose another --name"
    )
    assert not specs[1].out.exists()
    assert join(specs[2], shared, INPUTS).spec_file.is_file()


def test_a_machine_with_another_version_is_refused(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Shared(storage_address(database))
    join(resolve(None, {"out": tmp_path / "a", "name": "x"}), shared, INPUTS)
    monkeypatch.setattr("sca_search.study.queue.__version__", "7.8.9")
    with pytest.raises(RunError, match=rf"other sca-search \({re.escape(__version__)}, here 7.8.9\)"):
        join(resolve(None, {"out": tmp_path / "b", "name": "x"}), shared, INPUTS)
    assert not (tmp_path / "b").exists()


def test_a_worker_with_other_data_under_the_same_path_is_refused(database: str, tmp_path: Path) -> None:
    random, shared = np.random.default_rng(0), ("--storage", database)
    for machine in ("a", "b"):
        (tmp_path / machine).mkdir()
        images = {f"{part}_images": random.integers(0, 256, (60, 8, 8), np.uint8) for part in ("train", "val", "test")}
        labels = {f"{part}_labels": np.arange(60) % 3 for part in ("train", "val", "test")}
        np.savez(tmp_path / machine / "set.npz", **images, **labels)
    command = ("--data", "npz:set.npz", "--name", "joint", *TINY, "--trials", "1", "--refits", "0", *shared)
    assert sca_search(*command, cwd=tmp_path / "a").returncode == 0
    for words in (command, ("worker", "joint", *shared)):
        refused = sca_search(*words, cwd=tmp_path / "b")
        assert refused.returncode == 2
        assert "the study 'joint' was started with other data (" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert [entry.name for entry in (tmp_path / "b").iterdir()] == ["set.npz"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--storage", "postgresql://me:hunter-2@127.0.0.1:1/x"), "the database cannot be used: "),
        (("--storage", "sqlite:///x"), "--storage must be the URL of a PostgreSQL database"),
        (("--storage", "postgresql://me:hunter-2@h/x", "--artifacts", "x"), "--artifacts must be file:///FOLDER or s3"),
        (("--artifacts", "file:///x"), "--artifacts requires --storage"),
    ],
)
def test_addresses_that_cannot_be_used_are_one_sentence_and_leave_nothing(run, tmp_path: Path, flags, sentence) -> None:
    done = run("--name", "x", *flags)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert SECRET not in done.stderr + done.stdout
    assert not (tmp_path / "runs").exists()


def test_a_worker_needs_a_storage(run) -> None:
    done = run("worker", "x")
    assert done.returncode == 2
    assert done.stderr.strip().startswith("--storage must be given, or SCA_SEARCH_STORAGE be set")


@pytest.mark.parametrize(
    ("name", "printed", "sentence"),
    [
        ("x", {"seed": "many"}, "the study 'x' cannot be used, its seed is invalid"),
        ("../x", {}, "the study '../x' cannot be used, its name is invalid"),
        ("x", "text", "'x' is not a study of sca-search"),
    ],
)
def test_a_study_in_the_database_that_is_none_of_ours_is_refused(name: str, printed: object, sentence: str) -> None:
    study = optuna.create_study(study_name=name)
    study.set_user_attr("spec", printed)
    with pytest.raises(RunError, match=re.escape(sentence)):
        shared_spec(study)


# Artifacts


def test_a_worker_runs_code_of_the_study_only_with_consent(database: str, tmp_path: Path) -> None:
    nets = tmp_path / "nets.py"
    nets.write_text(
        "from pathlib import Path\n\nPath('was-here').touch()\n\n\ndef net(*_):\n    raise AssertionError\n"
    )
    spec = resolve(None, {"name": "joint", "model": f"{nets}:net", "out": tmp_path / "a"})
    join(spec, Shared(database))
    worker = ("worker", "joint", "--storage", database)
    done = sca_search(*worker, cwd=tmp_path)
    assert done.returncode == 2
    assert (
        f"--storage: study 'joint': model.name names code, '{nets}:net', which would run here from {nets}"
        in done.stderr
    )
    assert not (tmp_path / "was-here").exists()
    done = sca_search(*worker, "--trust", cwd=tmp_path)
    assert "failed when called: AssertionError" in done.stderr
    assert (tmp_path / "was-here").exists()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket's server on this machine."""
    serving = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    serving.start()
    host, port = serving.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "word",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3").create_bucket(Bucket="my-bucket")
    yield "s3://my-bucket/some/where"
    serving.stop()


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_files_go_to_the_store_and_come_back(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    place = f"file://{tmp_path / 'store'}" if kind == "folder" else request.getfixturevalue("bucket")
    here, there = (RunFolder(tmp_path / name / "joint", Shared("x", place)) for name in ("here", "there"))
    file = here.candidate(7) / "model.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(range(256)) * 1000)
    kept = ArtifactStore(here).upload([file])
    (name,) = kept.values()
    assert "joint--" in name
    ArtifactStore(there).download(kept)
    assert (there.candidate(7) / "model.safetensors").read_bytes() == file.read_bytes()
    before = (there.candidate(7) / "model.safetensors").stat().st_mtime_ns
    ArtifactStore(there).download(kept)  # what is there is not fetched again
    assert (there.candidate(7) / "model.safetensors").stat().st_mtime_ns == before
    assert [path.name for path in files_in(there.candidate(7))] == ["model.safetensors"]
    ArtifactStore(here).delete(name)
    ArtifactStore(here).delete(name)
    with pytest.raises(StorageError, match="cannot be downloaded from the artifact store: it does not exist"):
        ArtifactStore(there).download_as(name, there.path / "again")
    assert not (there.path / "again").exists()


@pytest.mark.parametrize("was_put", [False, True])
def test_what_another_machine_completed_replaces_what_this_one_left(was_put: bool, tmp_path: Path) -> None:
    """This one was killed before its own candidate counted: before or after its files were in the store."""
    here, there = (
        RunFolder(tmp_path / name / "joint", Shared("x", f"file://{tmp_path / 'store'}")) for name in ("here", "there")
    )
    for run, content in ((here, b"mine"), (there, b"theirs")):
        run.candidate(7).mkdir(parents=True)
        for name in ("candidate.json", "model.safetensors"):
            (run.candidate(7) / name).write_bytes(content)
    if was_put:
        ArtifactStore(here).upload(files_in(here.candidate(7)))
    kept = ArtifactStore(there).upload(files_in(there.candidate(7)))
    ArtifactStore(here).download(kept)
    assert [path.read_bytes() for path in files_in(here.candidate(7))] == [b"theirs", b"theirs"]


def test_a_candidates_record_is_fetched_last(tmp_path: Path) -> None:
    """Where it is, all is: also where a machine dies between two files."""
    here, there = (
        RunFolder(tmp_path / name / "joint", Shared("x", f"file://{tmp_path / 'store'}")) for name in ("here", "there")
    )
    there.candidate(7).mkdir(parents=True)
    (there.candidate(7) / "candidate.json").write_bytes(b"{}")
    kept = ArtifactStore(there).upload(files_in(there.candidate(7))) | {"candidates/007/model.safetensors": "gone"}
    with pytest.raises(StorageError, match="it does not exist"):
        ArtifactStore(here).download(kept)
    assert not (here.candidate(7) / "candidate.json").exists()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../b", "a//b", ".hidden", "a\nb", "", "a/.b"])
def test_files_that_a_study_names_stay_in_the_run_folder(name: str, tmp_path: Path) -> None:
    store = ArtifactStore(RunFolder(tmp_path / "joint", Shared("x", f"file://{tmp_path / 'store'}")))
    with pytest.raises(RunError, match="has an invalid file name"):
        store.download({name: "whatever"})


# Tasks that one machine does


def test_a_task_is_done_once_for_all_machines_and_again_if_it_failed(database: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "joint", Shared(storage_address(database)))
    done = []

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        do_once(run, "x", fail, list)
    for _ in range(3):
        do_once(run, "x", lambda: done.append(1), list)
    assert done == [1]
    do_once(run, "y", lambda: done.append(2), list)
    assert done == [1, 2]


def test_a_machine_waits_for_the_task_of_another_and_gets_its_files(database: str, tmp_path: Path) -> None:
    shared = Shared(storage_address(database), f"file://{tmp_path / 'store'}")
    first, second = (RunFolder(tmp_path / name / "joint", shared) for name in ("a", "b"))
    started, waited = threading.Event(), threading.Event()

    def train() -> None:
        started.set()
        assert waited.wait(timeout=60)
        first.path.mkdir(parents=True)
        first.dense_file.write_bytes(b"weights")

    def never() -> None:
        raise AssertionError("done twice")

    thread = threading.Thread(target=do_once, args=(first, "x", train, lambda: [first.dense_file]))
    thread.start()
    assert started.wait(timeout=60)
    do_once(second, "x", never, list, emit=lambda _event: waited.set())
    thread.join()
    assert second.dense_file.read_bytes() == b"weights"


def test_if_two_machines_do_a_task_the_first_result_counts(database: str, server: Server, tmp_path: Path) -> None:
    """The lock is lost when the database restarts."""
    shared = Shared(storage_address(database), f"file://{tmp_path / 'store'}")
    first, second = (RunFolder(tmp_path / name / "joint", shared) for name in ("a", "b"))

    def write(run: RunFolder) -> None:
        run.path.mkdir(parents=True)
        run.dense_file.write_text(run.path.parent.name)

    def train() -> None:
        server.stop()
        server.start()
        assert do_once(second, "x", lambda: write(second), lambda: [second.dense_file])
        write(first)

    assert not do_once(first, "x", train, lambda: [first.dense_file])
    assert (first.dense_file.read_text(), second.dense_file.read_text()) == ("b", "b")


def test_a_stop_ends_the_waiting_for_another_machine(database: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "joint", Shared(storage_address(database)))
    stops: list[Event] = []

    def train() -> None:
        with pytest.raises(StopRequestedError):
            do_once(run, "x", lambda: None, list, lambda: bool(stops), stops.append)

    do_once(run, "x", train, list)
    assert stops == [Note("waiting for another machine to finish: x")]


CRASHES = """
import os, sys
from pathlib import Path
from sca_search.study.artifacts import do_once
from sca_search.runs.folder import RunFolder
from sca_search.config.storage_url import Shared

do_once(RunFolder(Path(sys.argv[1]), Shared(sys.argv[2])), "x", lambda: os._exit(9), list)
"""


def test_a_task_whose_process_crashed_is_done_by_another(database: str, tmp_path: Path) -> None:
    address = storage_address(database)
    crashed = subprocess.run([sys.executable, "-c", CRASHES, str(tmp_path / "joint"), address], check=False)
    assert crashed.returncode == 9
    done: list[int] = []
    do_once(RunFolder(tmp_path / "joint", Shared(address)), "x", lambda: done.append(1), list)
    assert done == [1]
