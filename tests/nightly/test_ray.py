"""Workers on a Ray cluster of three nodes, one of which is removed and replaced during a study."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState
from ray.cluster_utils import Cluster

from sca_search.config.storage_url import storage_address
from sca_search.study.heartbeat import OWNER
from tests.support.postgres import running_server

STUDY = """
name = "spread"

[goal]
target_sparsity = 0.5

[search]
trials = 6
refits = 1
workers = 3
threads = 1
heartbeat = 2.0

[train]
epochs = 60
frozen_epochs = 2
dense_epochs = 4
"""
# A study takes seconds per trial; nodes and workers take minutes to start on a busy machine.
MOST_SECONDS = 900


@pytest.fixture
def cluster() -> Iterator[Any]:
    three = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        three.add_node(num_cpus=1)
    yield three
    three.shutdown()


@pytest.fixture
def database() -> Iterator[tuple[str, RDBStorage]]:
    """The address of a database, and the storage in it."""
    with running_server() as server:
        address = server.new_database()
        storage = RDBStorage(storage_address(address))
        yield address, storage
        storage.remove_session()
        storage.engine.dispose()


def raylet_of(node: Any) -> int:
    """The process of a node that starts its workers."""
    (raylet,) = node.all_processes["raylet"]
    return int(raylet.process.pid)


def owners(study: optuna.Study) -> set[int]:
    """The processes that start the workers of the running trials."""
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    processes = [trial.system_attrs[OWNER].rpartition(":")[2] for trial in running if OWNER in trial.system_attrs]
    stats = [Path(f"/proc/{process}/stat") for process in processes]
    return {int(stat.read_text().rpartition(")")[2].split()[1]) for stat in stats if stat.exists()}


def opened(storage: RDBStorage) -> optuna.Study | None:
    known = [each.study_name for each in storage.get_all_studies()]
    return optuna.load_study(study_name="spread", storage=storage) if "spread" in known else None


def wait_for_trial_on(node: int, storage: RDBStorage, command: subprocess.Popen[str]) -> None:
    """Until a worker of the node trains a trial."""
    end = time.monotonic() + MOST_SECONDS / 2
    while command.poll() is None and time.monotonic() < end:
        study = opened(storage)
        if study is not None and node in owners(study):
            return
        time.sleep(0.5)
    command.terminate()
    pytest.fail(f"no trial ran on the node: {command.communicate()[0]}")


@pytest.mark.timeout(MOST_SECONDS + 60)
def test_a_node_that_is_removed_loses_no_trial_and_one_that_is_added_trains_some(
    cluster: Any, database: tuple[str, RDBStorage], tmp_path: Path
) -> None:
    address, storage = database
    (tmp_path / "study.toml").write_text(STUDY)
    arguments = ("study.toml", "--storage", address, "--artifacts", f"file://{tmp_path / 'store'}")
    command = subprocess.Popen(
        [sys.executable, "-m", "sca_search", *arguments, "--ray", cluster.address],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    )
    removed = cluster.worker_nodes.copy().pop()
    wait_for_trial_on(raylet_of(removed), storage, command)
    cluster.remove_node(removed, allow_graceful=False)
    wait_for_trial_on(raylet_of(cluster.add_node(num_cpus=1)), storage, command)
    shown = command.communicate(timeout=MOST_SECONDS)[0]
    assert command.returncode == 0, shown
    study = opened(storage)
    assert study is not None
    complete = Counter(trial.user_attrs["candidate"] for trial in study.trials if trial.state == TrialState.COMPLETE)
    assert complete == dict.fromkeys(range(6), 1)
    assert any(trial.state == TrialState.FAIL for trial in study.trials)  # the one that was lost, and requeued
    table = pd.read_csv(tmp_path / "runs" / "spread" / "trials.csv")
    assert sorted(table["candidate"]) == list(range(6))
    assert set(table["state"]) == {"complete"}


@pytest.mark.timeout(MOST_SECONDS)
def test_a_stopped_study_requeues_the_trials_of_its_ray_workers(
    database: tuple[str, RDBStorage], tmp_path: Path
) -> None:
    address, storage = database
    (tmp_path / "study.toml").write_text(STUDY)
    arguments = ("study.toml", "--storage", address, "--workers", "1", "--ray", "local")
    with subprocess.Popen(
        [sys.executable, "-m", "sca_search", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as command:
        end = time.monotonic() + MOST_SECONDS / 2
        while not ((study := opened(storage)) and owners(study)) and time.monotonic() < end:
            time.sleep(0.2)
        command.terminate()
        shown = command.communicate()[0]
    assert command.returncode == 143, shown
    study = opened(storage)
    assert study is not None
    assert not study.get_trials(states=(TrialState.RUNNING,))
    assert len(study.get_trials(states=(TrialState.WAITING,))) == 6
