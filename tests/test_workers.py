"""Workers: how many threads each gets, and that no two take the same trial."""

import os
import threading
from dataclasses import replace

import optuna
import pytest

from sca_search.layers import LayerChoice, WeightLayer
from sca_search.provenance import usable_cores
from sca_search.run_folder import RunFolder
from sca_search.spec import StudySpec
from sca_search.trials import QueueStorage
from sca_search.workers import threads_of
from sca_search.workshop import make_task


def spec_of(**search):
    return StudySpec.model_validate({"search": search})


@pytest.fixture(scope="module")
def small():
    """The small LeNet: 400 + 12,800 + 8,192 + 640 weights."""
    return make_task(spec_of())


def of_size(task, *sizes):
    """A task whose layers have these numbers of weights."""
    layers = [WeightLayer(f"layer{place}", (size,), scale_is_free=True) for place, size in enumerate(sizes)]
    return replace(task, choices=tuple(LayerChoice(layer, True, "given") for layer in layers))


@pytest.fixture(autouse=True)
def _no_threads_of_the_environment(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.fixture
def on_cores():
    """Binds this process to the first so many of its cores, and lets it free afterwards."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system binds no process to cores")
    before = os.sched_getaffinity(0)
    yield lambda count: os.sched_setaffinity(0, sorted(before)[:count])
    os.sched_setaffinity(0, before)


def test_usable_cores_are_those_this_process_may_run_on(on_cores):
    there = usable_cores()
    assert 1 <= there <= os.cpu_count()
    on_cores(1)
    assert usable_cores() == 1


def test_threads_asked_for_are_given_whatever_the_network(small):
    assert threads_of(spec_of(threads=7, workers=3), small) == 7
    assert threads_of(spec_of(threads=7), of_size(small, 10**8)) == 7


def test_a_small_network_gets_one_thread(small):
    assert threads_of(spec_of(), small) == 1
    assert threads_of(spec_of(), of_size(small, 99_999)) == 1
    assert threads_of(spec_of(), of_size(small, 60_000, 39_999)) == 1


def test_a_large_network_gets_the_cores_divided_among_the_workers(small):
    cores = usable_cores()
    for task in (of_size(small, 100_000), of_size(small, 60_000, 40_000), of_size(small, 10**8)):
        assert threads_of(spec_of(workers=1), task) == cores
        assert threads_of(spec_of(workers=cores), task) == 1
    if cores > 1:
        assert threads_of(spec_of(workers=2), of_size(small, 10**6)) == cores // 2


def test_more_workers_than_cores_still_get_a_thread_each(small):
    assert threads_of(spec_of(workers=usable_cores() + 1), of_size(small, 10**6)) == 1


def test_a_bound_process_has_fewer_threads_to_give(small, on_cores):
    on_cores(1)
    assert threads_of(spec_of(workers=1), of_size(small, 10**6)) == 1


def test_threads_of_the_environment_are_not_exceeded_unless_asked_for(small, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads_of(spec_of(), of_size(small, 10**6)) == 1
    assert threads_of(spec_of(threads=3), of_size(small, 10**6)) == 3
    for nonsense in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
        assert threads_of(spec_of(), of_size(small, 10**6)) == usable_cores()


def test_no_trial_is_taken_by_two_workers(tmp_path):
    """Six workers with their own connections take what waits, all at the same moment."""
    run = RunFolder(tmp_path)
    study = optuna.create_study(study_name="s", storage=QueueStorage(run))
    for _ in range(30):
        study.enqueue_trial({})
    together = threading.Barrier(6)
    taken = []

    def take():
        mine = optuna.load_study(study_name="s", storage=QueueStorage(run))
        for _ in range(5):
            together.wait()
            taken.append(mine.ask().number)

    workers = [threading.Thread(target=take) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(taken) == list(range(30))
