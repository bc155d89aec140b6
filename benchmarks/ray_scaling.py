"""Trials per second on a local Ray cluster by its number of nodes; writes the table of RESULTS.md.

    python -m benchmarks.ray_scaling --nodes 1 2 4

Ray, queue, storage, heartbeats and sampling are those of a real study. Only the training is a sleep, so that all nodes
can be on one machine. The time is that from the start of the first trial to the end of the last.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from optuna.trial import TrialState
from ray.cluster_utils import Cluster

from benchmarks import report
from benchmarks.load import LAYERS, StandIn
from sca_search.config.load import resolve
from sca_search.config.storage_url import Shared, storage_address
from sca_search.runs.folder import RunFolder
from sca_search.study.events import ignore
from sca_search.study.objective import work
from sca_search.study.queue import fill_queue, open_study
from sca_search.study.ray_workers import RayWorkers, connected
from sca_search.study.space import Space
from sca_search.system.signals import NEVER
from tests.support.postgres import running_server

TRAINING_SECONDS = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--trials", type=int, default=40, help="per node")
    arguments = parser.parse_args()
    speeds = {nodes: trials_per_second(nodes, arguments.trials * nodes) for nodes in arguments.nodes}
    first = min(speeds)
    rows = [
        [str(nodes), f"{speed:.2f}", f"{speed * first / (speeds[first] * nodes):.2f}"]
        for nodes, speed in speeds.items()
    ]
    headings = ["nodes, one worker each", "trials per second", f"per node, relative to {first}"]
    note = f"{arguments.trials} trials per node; a training is {TRAINING_SECONDS:g} s of sleep."
    text = f"## Ray\n\n{report.table(headings, rows)}\n\n{note}  \n{report.provenance()}"
    print(text)
    report.write_section(report.RESULTS, "ray", text)


def trials_per_second(nodes: int, trials: int) -> float:
    with running_server() as server, tempfile.TemporaryDirectory() as folder, cluster_of(nodes) as address:
        run = RunFolder(Path(folder) / "ray", Shared(storage_address(server.new_database()), ray=address))
        run.path.mkdir()
        spec = resolve(None, {"target_sparsity": 0.9, "trials": trials, "workers": nodes})
        space = Space(spec, LAYERS)
        study = open_study(run, space)
        fill_queue(study, space, is_alone=False)
        with connected(address):
            RayWorkers(run, spec, study, ignore, NEVER, 1, partial(train, run, space)).work()
        complete = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
        assert sorted(trial.user_attrs["candidate"] for trial in complete) == list(range(trials))
        began = min(trial.datetime_start for trial in complete if trial.datetime_start)
        ended = max(trial.datetime_complete for trial in complete if trial.datetime_complete)
    return trials / (ended - began).total_seconds()


def train(run: RunFolder, space: Space) -> None:
    torch.set_num_threads(1)
    objective: Any = StandIn(run, space, TRAINING_SECONDS)
    work(open_study(run, space), objective, is_alone=False)


@contextmanager
def cluster_of(nodes: int) -> Iterator[str]:
    """A cluster with nodes of one CPU on this machine, and a head node that runs no workers."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(nodes):
        cluster.add_node(num_cpus=1)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
