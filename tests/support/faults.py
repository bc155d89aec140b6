"""Faults injected into real studies: each is a function that injects one a number of times, and then counts.

A study's candidates are counted where its trials are stored: one that has no complete trial in the end is lost, one
that has two was counted twice.
"""

import contextlib
import csv
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import sqlalchemy

from sca_search.export.verify_folder import verify_folder
from sca_search.runs.candidates import damage_of
from sca_search.study.heartbeat import OWNER
from sca_search.system.files import is_temporary, stamp_of
from sca_search.training.checkpoint import load_checkpoint
from tests.support.postgres import Server

# Trials of a few seconds, with a checkpoint after every epoch and frequent heartbeats.
STUDY = """
[data]
train_limit = 600

[train]
dense_epochs = 2
epochs = {epochs}
frozen_epochs = 1

[search]
refits = 0
heartbeat = 0.5
checkpoint_every = 0.01
"""
EPOCHS = 25
PATIENCE_SECONDS = 240.0


@dataclass
class Injected:
    """What became of a study."""

    times: int = 0
    lost: int = 0
    twice: int = 0
    seconds: list[float] = field(default_factory=list)  # until it went on, or had ended in order

    def add(self, other: "Injected") -> None:
        self.times += other.times
        self.lost += other.lost
        self.twice += other.twice
        self.seconds += other.seconds


@dataclass
class Case:
    """A study's command, and where its trials are."""

    folder: Path
    trials: int
    storage: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    epochs: int = EPOCHS
    more: tuple[str, ...] = ()
    out: str = "runs"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "study.toml").write_text(STUDY.format(epochs=self.epochs))

    @property
    def run(self) -> Path:
        return self.folder / self.out / "case"

    def command(self, *more: str) -> list[str]:
        words = [sys.executable, "-u", "-m", "sca_search", "study.toml", "--name", "case", "--threads", "1"]
        shared = ["--storage", self.storage] if self.storage else []
        return [*words, "--trials", str(self.trials), "--out", self.out, *shared, *self.more, *more]

    def start(self, *more: str, log: str = "screen.txt") -> subprocess.Popen[bytes]:
        with (self.folder / log).open("ab") as screen:
            return subprocess.Popen(
                self.command(*more),
                cwd=self.folder,
                stdout=screen,
                stderr=screen,
                env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | dict(self.environment),
                start_new_session=True,
            )

    def screen(self, log: str = "screen.txt") -> str:
        return (self.folder / log).read_text()

    def finish(self, *more: str) -> Injected:
        """Lets the study go on to its end, and counts."""
        process = self.start(*more)
        code = process.wait(timeout=PATIENCE_SECONDS)
        assert code == 0, self.screen()
        return self.counted()

    def states(self) -> list[tuple[int, str, int]]:
        """Number, state and candidate of each trial."""
        rows = self._found(
            "select t.number, t.state, a.value_json from trials t join trial_user_attributes a "
            "on a.trial_id = t.trial_id and a.key = 'candidate' order by t.number"
        )
        return [(number, state, int(candidate)) for number, state, candidate in rows]

    def trained_by(self) -> dict[int, int]:
        """The candidate that each process of this machine trains."""
        rows = self._found(
            "select o.value_json, c.value_json from trials t "
            f"join trial_system_attributes o on o.trial_id = t.trial_id and o.key = '{OWNER}' "
            "join trial_user_attributes c on c.trial_id = t.trial_id and c.key = 'candidate' "
            "where t.state = 'RUNNING'"
        )
        return {int(json.loads(owner).rpartition(":")[2]): int(candidate) for owner, candidate in rows}

    def _found(self, query: str) -> list[Any]:
        if self.storage is None and not (self.run / "study.db").exists():
            return []  # to look would make it
        address = self.storage or f"sqlite:///{self.run / 'study.db'}"
        engine = sqlalchemy.create_engine(re.sub(r"^postgresql:", "postgresql+psycopg:", address))
        try:
            with engine.connect() as connection:
                return list(connection.execute(sqlalchemy.text(query)))
        except sqlalchemy.exc.DBAPIError:  # there is no table yet, or it is being written
            return []
        finally:
            engine.dispose()

    def counted(self) -> Injected:
        complete = [candidate for _, state, candidate in self.states() if state == "COMPLETE"]
        lost = [number for number in range(self.trials) if number not in complete]
        twice = [number for number in set(complete) if complete.count(number) > 1]
        for number in complete:
            assert (self.run / "candidates" / f"{number:03d}" / "candidate.json").is_file()
        return Injected(lost=len(lost), twice=len(twice))

    def checkpoint(self, candidate: int) -> Path:
        return self.run / "candidates" / f"{candidate:03d}" / "checkpoint.safetensors"

    def checkpoints(self) -> set[Path]:
        return set(self.run.glob("candidates/*/checkpoint.safetensors"))


def until(
    holds: Callable[[], object], process: subprocess.Popen[bytes] | None = None, case: Case | None = None
) -> float:
    """Waits, and says how long it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < PATIENCE_SECONDS, case.screen()
        assert process is None or process.poll() is None, case.screen()
        time.sleep(0.02)
    return time.monotonic() - began


def until_kept_again(case: Case, process: subprocess.Popen[bytes]) -> None:
    """Waits for a checkpoint that was not there, or was another one, when the process was started."""
    before = {path: path.stat().st_mtime_ns for path in case.checkpoints()}
    until(lambda: any(_age(path) not in {None, before.get(path)} for path in case.checkpoints()), process, case)


def _age(path: Path) -> int | None:
    """None where it is gone: a candidate that is finished needs none."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return None


def under_way(case: Case, before: set[Path]) -> Callable[[], bool]:
    """Whether a candidate that was not there before is in the middle of its training."""
    return lambda: bool(case.checkpoints() - before)


def workers_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Its worker processes: children that have a thread for their parent's pipe, not Python's own helpers."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one of them ended just now
        processes = [int(each) for each in children.read_text().split()]
        return [child for child in processes if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return []


def _ended(process: subprocess.Popen[bytes], case: Case, seconds: list[float]) -> Injected:
    """What became of a study that must end well by itself."""
    assert process.wait(timeout=PATIENCE_SECONDS) == 0, case.screen()
    counted = case.counted()
    counted.times, counted.seconds = len(seconds), seconds
    return counted


# Killed ---------------------------------------------------------------------------------------------------------------


def _worker_ended(folder: Path, times: int, how: signal.Signals) -> Injected:
    """One of two workers in the middle of an epoch; another goes on from the last checkpoint.

    It has recovered when another process trains the candidate.
    """
    # Long enough that the other worker does not finish all of it while a third one imports torch.
    case, chance = Case(folder, max(4, times), epochs=4 * EPOCHS, more=("--workers", "2")), random.Random(times)
    process = case.start()
    seconds: list[float] = []
    kept_then: dict[int, int | None] = {}

    def is_time() -> bool:
        return process.poll() is not None or (len(workers_of(process)) == 2 and bool(_came_further(case, kept_then)))

    while len(seconds) < times:
        until(is_time, None, case)
        if process.poll() is not None:
            break
        time.sleep(chance.uniform(0.0, 0.3))
        training = _came_further(case, kept_then)
        if not training:
            continue
        victim = chance.choice(sorted(training))
        candidate = training[victim]
        checkpoint = case.checkpoint(candidate)
        os.kill(victim, how)
        until(functools.partial(_is_gone, victim), None, case)
        kept_then[candidate], epoch = _age(checkpoint), _kept_epoch(checkpoint)
        seconds.append(until(functools.partial(_is_trained_by_another, case, candidate, victim), None, case))
        _went_on_from(epoch, checkpoint, kept_then[candidate], case, candidate)
    return _ended(process, case, seconds)


def worker_killed(folder: Path, times: int, _server: Server | None = None) -> Injected:
    return _worker_ended(folder, times, signal.SIGKILL)


def worker_terminated(folder: Path, times: int, _server: Server | None = None) -> Injected:
    """By something that watches the machine's memory, say; nobody asked the study to stop."""
    return _worker_ended(folder, times, signal.SIGTERM)


def _came_further(case: Case, kept_then: Mapping[int, int | None]) -> dict[int, int]:
    """Processes, with what they train, that have kept a checkpoint since a worker was last killed with it."""
    training = case.trained_by().items()
    return {
        process: candidate
        for process, candidate in training
        if _age(case.checkpoint(candidate)) not in {None, kept_then.get(candidate)}
    }


def _is_gone(victim: int) -> bool:
    """Whether a process has ended, though nobody may have asked for its exit code yet."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def _is_complete(case: Case, candidate: int) -> bool:
    return any(state == "COMPLETE" for _, state, each in case.states() if each == candidate)


def _is_trained_by_another(case: Case, candidate: int, victim: int) -> bool:
    """Or is complete, if its worker was killed after it had reported the result."""
    others = {each for process, each in case.trained_by().items() if process != victim}
    return candidate in others or _is_complete(case, candidate)


def _kept_epoch(checkpoint: Path) -> int:
    """0 where nothing is kept; a file that is being replaced is looked at again."""
    while checkpoint.exists():
        with contextlib.suppress(FileNotFoundError):
            return load_checkpoint(checkpoint).epoch
    return 0


def _went_on_from(epoch: int, checkpoint: Path, age: int | None, case: Case, candidate: int) -> None:
    """What is kept next is not of an earlier epoch: the training did not begin again. At a rung it is kept twice."""
    until(lambda: _age(checkpoint) not in {None, age} or _is_complete(case, candidate), None, case)
    later = _kept_epoch(checkpoint)
    assert later >= epoch or _is_complete(case, candidate), (epoch, later, case.screen())


def machine_lost(folder: Path, times: int, server: Server | None = None) -> Injected:
    """kill -9 of one of two commands that share a study by a database and a store of files, each with a folder of its
    own; the other takes its candidate over by the missing heart, and goes on from its last checkpoint."""
    assert server is not None
    total = Injected()
    for index in range(times):
        place = folder / str(index)
        store = ("--artifacts", f"file://{place / 'store'}")
        # Long enough that both train when one of them is lost.
        case = Case(place, trials=2, storage=server.new_database(), epochs=8 * EPOCHS, more=store)
        first = case.start()
        until(under_way(case, set()), first, case)
        other = replace(case, out="elsewhere")
        second = other.start(log="second.txt")
        until(lambda: sum(state == "RUNNING" for _, state, _ in case.states()) == 2, second, case)  # noqa: B023
        (mine,) = [candidate for number, _, candidate in case.states() if number == 0]
        first.kill()
        first.wait()
        began = time.monotonic()
        # The one that was lost is complete in the end, and by the one that is left.
        until(lambda: _taken_again(case, mine), second, case)  # noqa: B023
        total.seconds.append(time.monotonic() - began)
        # The store has the last that was kept, or the one before, if it was lost in between.
        checkpoint = other.checkpoint(mine)
        _went_on_from(_kept_epoch(case.checkpoint(mine)) - 2, checkpoint, None, case, mine)
        _went_on_from(_kept_epoch(checkpoint), checkpoint, _age(checkpoint), case, mine)
        assert second.wait(timeout=PATIENCE_SECONDS) == 0, case.screen("second.txt")
        counted = other.counted()
        counted.times = 1
        total.add(counted)
        shutil.rmtree(case.folder)
    return total


def _taken_again(case: Case, candidate: int) -> bool:
    states = [state for _, state, each in case.states() if each == candidate]
    return states.count("COMPLETE") > 0 or (len(states) > 1 and states[-1] == "RUNNING")


def _stopped_and_resumed(
    folder: Path, times: int, how: signal.Signals, code: int, more: tuple[str, ...] = ()
) -> Injected:
    """One study, stopped so often and resumed; it goes on from where it was, and in the end it is whole.

    Killed, it has recovered when the resumed command has kept more; otherwise when it has ended in order.
    """
    case, chance = Case(folder, trials=3, epochs=EPOCHS * max(1, times // 3), more=more), random.Random(times)
    ended, resumed, process = [], [], case.start()
    until_kept_again(case, process)
    for _ in range(times):
        time.sleep(chance.uniform(0.0, 0.2))
        os.kill(process.pid, how)
        began = time.monotonic()
        assert process.wait(timeout=PATIENCE_SECONDS) == code, case.screen()
        ended.append(time.monotonic() - began)
        kept = {path: _kept_epoch(path) for path in case.checkpoints()}
        began = time.monotonic()
        process = case.start("--resume")
        until_kept_again(case, process)
        resumed.append(time.monotonic() - began)
        assert all(_kept_epoch(path) >= epoch for path, epoch in kept.items() if path.exists()), case.screen()
    return _ended(process, case, resumed if how == signal.SIGKILL else ended)


def only_process_killed(folder: Path, times: int, _server: Server | None = None) -> Injected:
    return _stopped_and_resumed(folder, times, signal.SIGKILL, -signal.SIGKILL)


def parent_killed(folder: Path, times: int, _server: Server | None = None) -> Injected:
    """kill -9 of the process that started two workers, resumed while these may still end."""
    return _stopped_and_resumed(folder, times, signal.SIGKILL, -signal.SIGKILL, ("--workers", "2"))


def killed_at_its_start(folder: Path, times: int, _server: Server | None = None) -> Injected:
    """kill -9 as soon as the run folder or a file in it exists; the same command begins or resumes the study."""
    total, chance = Injected(), random.Random(times)
    for index in range(times):
        case = Case(folder / str(index), trials=1, epochs=2)
        process = case.start()
        while not case.run.exists():
            assert process.poll() is None, case.screen()
        time.sleep(chance.uniform(0.0, 0.01))
        process.kill()
        process.wait()
        began = time.monotonic()
        counted = case.finish(*(["--resume"] if (case.run / "study.toml").exists() else []))
        assert not [path for path in case.run.rglob(".*") if is_temporary(path)]
        counted.times, counted.seconds = 1, [time.monotonic() - began]
        total.add(counted)
    return total


def terminated(folder: Path, times: int, _server: Server | None = None) -> Injected:
    return _stopped_and_resumed(folder, times, signal.SIGTERM, 143)


def interrupted(folder: Path, times: int, _server: Server | None = None) -> Injected:
    return _stopped_and_resumed(folder, times, signal.SIGINT, 130)


# Suspended ------------------------------------------------------------------------------------------------------------


def _suspended(folder: Path, times: int, until_then: Callable[[Case, int], Callable[[], bool]]) -> Injected:
    """One of two workers is stopped in the middle of a training, and goes on when its candidate may be complete.

    It has recovered when a candidate was completed after that.
    """
    case, chance = Case(folder, max(4, 2 * times), more=("--workers", "2")), random.Random(times)
    process, seconds, results = case.start(), [], {}
    while len(seconds) < times:
        until(lambda: process.poll() is not None or len(case.trained_by()) == 2, None, case)
        if process.poll() is not None:
            break
        time.sleep(chance.uniform(0.0, 1.0))
        if not (training := sorted(case.trained_by().items())):
            continue
        victim, candidate = chance.choice(training)
        is_time, began, finished = until_then(case, candidate), time.monotonic(), _finished(case)
        os.kill(victim, signal.SIGSTOP)
        try:
            # It may have been stopped while it held the lock of the queue: then nobody can go on.
            until(lambda: is_time() or time.monotonic() - began > 30.0, None, case)  # noqa: B023
        finally:
            os.kill(victim, signal.SIGCONT)
        files = [
            case.run / "candidates" / f"{candidate:03d}" / name for name in ("candidate.json", "model.safetensors")
        ]
        if _is_complete(case, candidate):
            results |= {path: stamp_of(path) for path in files}
        began = time.monotonic()
        until(lambda: _finished(case) > finished or process.poll() is not None, None, case)  # noqa: B023
        seconds.append(time.monotonic() - began)
    counted = _ended(process, case, seconds)
    assert results == {path: stamp_of(path) for path in results}, "a completed candidate was overwritten"
    return counted


def worker_suspended(folder: Path, times: int, _server: Server | None = None) -> Injected:
    """Until another worker has completed its candidate."""
    return _suspended(folder, times, lambda case, candidate: lambda: _is_complete(case, candidate))


def worker_paused(folder: Path, times: int, _server: Server | None = None) -> Injected:
    """About as long as it takes others to requeue its trial: it may end its trial while they do."""
    chance = random.Random(times)

    def until_then(_case: Case, _candidate: int) -> Callable[[], bool]:
        end = time.monotonic() + chance.uniform(1.0, 2.5)
        return lambda: time.monotonic() > end

    return _suspended(folder, times, until_then)


# The database ---------------------------------------------------------------------------------------------------------


def database_restarted(folder: Path, times: int, server: Server | None = None) -> Injected:
    assert server is not None
    return _database_lost(folder, times, server, server.stop)


def database_crashed(folder: Path, times: int, server: Server | None = None) -> Injected:
    assert server is not None
    return _database_lost(folder, times, server, server.crash)


def _database_lost(folder: Path, times: int, server: Server, end: Callable[[], None]) -> Injected:
    """PostgreSQL ended and started again under a study with two workers."""
    case = Case(folder, trials=max(4, times), storage=server.new_database(), more=("--workers", "2"))
    process, seconds, chance = case.start(), [], random.Random(times)
    for _ in range(times):
        finished = _finished(case)
        until(lambda: any(state == "RUNNING" for _, state, _ in case.states()), process, case)
        time.sleep(chance.uniform(0.0, 1.0))
        end()
        time.sleep(chance.uniform(0.2, 1.5))
        server.start()
        began = time.monotonic()
        until(lambda: _finished(case) > finished or process.poll() is not None, None, case)  # noqa: B023
        seconds.append(time.monotonic() - began)
        if process.poll() is not None:
            break
    return _ended(process, case, seconds)


def _finished(case: Case) -> int:
    return sum(state == "COMPLETE" for _, state, _ in case.states())


# The disk -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int = 32) -> Iterator[Path]:
    """A file system of its own; needs the rights to mount one."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb") as file:
        while True:
            file.write(bytes(1024))
            file.flush()


def _disk_full(folder: Path, times: int, is_time: Callable[[Case], bool]) -> Injected:
    """The disk fills up at some moment; the study ends with a sentence, and goes on when there is room again.

    Where all was written when the disk had filled up, nothing happened, and it does not count.
    """
    total, index = Injected(), 0
    with small_disk(folder) as disk:
        while total.times < times:
            index += 1
            assert index <= 5 * times, "the disk was full too late, again and again"
            case = Case(folder.parent / f"{folder.name}-study-{index}", trials=2, out=str(disk / str(index)))
            process = case.start()
            until(lambda: is_time(case), process, case)  # noqa: B023
            filler = disk / "filler"
            _fill(filler)
            began = time.monotonic()
            code = process.wait(timeout=PATIENCE_SECONDS)
            seconds = time.monotonic() - began
            if code != 0:
                assert code == 2, (code, case.screen())
                assert re.search(r"(cannot be written|full|No space left)", case.screen()), case.screen()
                assert "Traceback" not in case.screen(), case.screen()
                _require_whole(case)
            filler.unlink()
            if code != 0:
                assert case.start("--resume").wait(timeout=PATIENCE_SECONDS) == 0, case.screen()
                counted = case.counted()
                counted.times, counted.seconds = 1, [seconds]
                total.add(counted)
            shutil.rmtree(disk / str(index))
            shutil.rmtree(case.folder)
    return total


def _require_whole(case: Case) -> None:
    """What lies there is old or new, and no half of it."""
    for path in case.checkpoints():
        load_checkpoint(path)
    for path in case.run.rglob("*.json"):
        json.loads(path.read_text())
    for path in (case.run / "trials.csv", case.run / "front.csv"):
        if path.exists():
            lines = list(csv.reader(path.read_text().splitlines()))
            assert {len(line) for line in lines} == {len(lines[0])}, path.read_text()
            assert path.read_text().endswith("\n")


def disk_full_at_checkpoint(folder: Path, times: int, _server: Server | None = None) -> Injected:
    return _disk_full(folder, times, lambda case: bool(case.checkpoints()))


def disk_full_at_front(folder: Path, times: int, _server: Server | None = None) -> Injected:
    """When a candidate's record is there, the tables are next."""
    return _disk_full(folder, times, lambda case: bool(list(case.run.glob("candidates/*/candidate.json"))))


# Damaged, doubled -----------------------------------------------------------------------------------------------------


def _damaged(folder: Path, times: int, damage: Callable[[bytes, random.Random], bytes]) -> Injected:
    case, seconds, chance = Case(folder, trials=3, epochs=EPOCHS * max(1, times // 3)), [], random.Random(times)
    for index in range(times):
        process = case.start(*(["--resume"] if index else []))
        until_kept_again(case, process)
        process.kill()
        process.wait()
        (path,) = case.checkpoints()
        path.write_bytes(damage(path.read_bytes(), chance))
        said = case.screen().count("training starts from the beginning")
        process = case.start("--resume", log="screen.txt")
        seconds.append(until(lambda: case.screen().count("training starts from the beginning") > said, process, case))  # noqa: B023
        process.kill()
        process.wait()
    counted = case.finish("--resume")
    counted.times, counted.seconds = times, seconds
    return counted


def checkpoint_truncated(folder: Path, times: int, _server: Server | None = None) -> Injected:
    return _damaged(folder, times, lambda raw, chance: raw[: chance.randrange(len(raw))])


def checkpoint_flipped(folder: Path, times: int, _server: Server | None = None) -> Injected:
    def flip(raw: bytes, chance: random.Random) -> bytes:
        changed = bytearray(raw)
        # Behind the header's length and format: spaces that pad the header mean nothing.
        bit = 8 * (len(raw) // 2) + chance.randrange(4 * len(raw))
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    return _damaged(folder, times, flip)


def files_lost(folder: Path, times: int, _server: Server | None = None) -> Injected:
    """A finished candidate's folder is deleted, or its model cut off; the resumed study trains it again."""
    case, seconds, chance = Case(folder, trials=3, epochs=2), [], random.Random(times)
    case.finish()
    for index in range(times):
        candidate = case.run / "candidates" / f"{chance.randrange(3):03d}"
        model = candidate / "model.safetensors"
        if index % 2:
            os.truncate(model, chance.randrange(model.stat().st_size))
        else:
            shutil.rmtree(candidate)
        began, said = time.monotonic(), case.screen().count("the candidate is trained again")
        assert case.start("--resume").wait(timeout=PATIENCE_SECONDS) == 0, case.screen()
        assert case.screen().count("the candidate is trained again") == said + 1
        seconds.append(time.monotonic() - began)
    rows = list(csv.DictReader((case.run / "trials.csv").read_text().splitlines()))
    complete = [int(float(row["candidate"])) for row in rows if row["state"] == "complete"]
    lost = [number for number in range(3) if damage_of(case.run / "candidates" / f"{number:03d}") is not None]
    return Injected(times, len(lost) + len({0, 1, 2} - set(complete)), len(complete) - len(set(complete)), seconds)


def two_commands(folder: Path, times: int, _server: Server | None = None) -> Injected:
    """The same command again, by mistake, while the first works on the folder."""
    case, seconds = Case(folder, trials=2, epochs=8 * EPOCHS), []
    process = case.start()
    until(under_way(case, set()), process, case)
    for index in range(times):
        began = time.monotonic()
        second = case.start("--resume", log="second.txt")
        code = second.wait(timeout=PATIENCE_SECONDS)
        if process.poll() is not None and code == 0:
            break  # the first was done by then, and nobody is there to be disturbed
        assert code == 2, case.screen("second.txt")
        seconds.append(time.monotonic() - began)
        assert case.screen("second.txt").count("is in use by another process") == index + 1
        if process.poll() is not None:
            break
    return _ended(process, case, seconds)


# Trials that do not end -----------------------------------------------------------------------------------------------

_OWN_LOSS = '''
import time
from pathlib import Path

import torch
from torch.nn import functional

KEPT = []


def loss(outputs, targets):
    """A training fails when the file beside this one says so; not the trial run before all trainings."""
    marks = Path(__file__).with_suffix(".marks")
    if outputs.grad_fn is not None and marks.exists() and marks.read_text() == "now":
        marks.write_text("done")
        {wrong}
    return functional.cross_entropy(outputs, targets)
'''


def _going_wrong(folder: Path, times: int, wrong: str, flags: tuple[str, ...], reason: str) -> Injected:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.py").write_text(_OWN_LOSS.replace("{wrong}", wrong))
    trials = times + 2
    case = Case(folder, trials=trials, epochs=5, more=("--loss", "own.py:loss", *flags))
    process, marks, seconds = case.start(), folder / "own.marks", []
    until(lambda: _finished(case) > 0, process, case)
    for _ in range(times):
        failed = sum(state == "FAIL" for _, state, _ in case.states())
        marks.write_text("now")
        began = time.monotonic()
        until(lambda: sum(state == "FAIL" for _, state, _ in case.states()) > failed, process, case)  # noqa: B023
        seconds.append(time.monotonic() - began)
    assert process.wait(timeout=PATIENCE_SECONDS) == 0, case.screen()
    assert case.screen().count(reason) >= times, case.screen()
    states = case.states()
    complete = [candidate for _, state, candidate in states if state == "COMPLETE"]
    failed = [candidate for _, state, candidate in states if state == "FAIL"]
    # A trial that goes wrong counts as failed, once; all others are complete.
    lost = trials - len(set(complete) | set(failed))
    twice = len(complete) + len(failed) - len(set(complete) | set(failed))
    assert len(failed) == times
    return Injected(times, lost, twice, seconds)


def hangs(folder: Path, times: int, _server: Server | None = None) -> Injected:
    return _going_wrong(folder, times, "time.sleep(10_000)", ("--trial-time", "6s"), "took longer than its 6 s")


def takes_all_memory(folder: Path, times: int, _server: Server | None = None) -> Injected:
    wrong = "[(KEPT.append(torch.ones(2**24)), time.sleep(0.05)) for _ in range(200)]"
    return _going_wrong(folder, times, wrong, ("--trial-memory-gb", "2.5"), "GB of memory, more than its 2.5")


# The machine ----------------------------------------------------------------------------------------------------------


def shim(folder: Path) -> Path:
    """The library that stands between a program and the system, compiled."""
    library = folder / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def clock_moved_back(folder: Path, times: int, server: Server | None = None) -> Injected:
    assert server is not None
    return _clock_moved(folder, times, server, -3600)


def clock_moved_forward(folder: Path, times: int, server: Server | None = None) -> Injected:
    assert server is not None
    return _clock_moved(folder, times, server, 3600)


def _clock_moved(folder: Path, times: int, server: Server, seconds_each: int) -> Injected:
    """The time of day jumps by an hour, again and again, under a shared study with two workers."""
    folder.mkdir(parents=True, exist_ok=True)
    offset = folder / "offset"
    offset.write_text("0")
    environment = {"LD_PRELOAD": str(shim(folder)), "SHIM_CLOCK_FILE": str(offset)}
    case = Case(folder, max(4, times), server.new_database(), environment, more=("--workers", "2"))
    process, seconds = case.start(), []
    for index in range(times):
        finished = _finished(case)
        until(lambda: bool(case.trained_by()), process, case)  # one that began before and ends after
        offset.write_text(str(seconds_each * (index + 1)))
        seconds.append(until(lambda: _finished(case) > finished or process.poll() is not None, None, case))  # noqa: B023
        if process.poll() is not None:
            break
    return _ended(process, case, seconds)


def no_locks(folder: Path, times: int, _server: Server | None = None) -> Injected:
    """A file system that cannot lock: it is said, and nothing is begun."""
    folder.mkdir(parents=True, exist_ok=True)
    case = Case(folder, 1, environment={"LD_PRELOAD": str(shim(folder)), "SHIM_NO_LOCKS": "1"})
    seconds = []
    for index in range(times):
        began = time.monotonic()
        process = case.start(*(["--resume"] if index else []))
        assert process.wait(timeout=PATIENCE_SECONDS) == 2, case.screen()
        seconds.append(time.monotonic() - began)
    assert case.screen().count("the file system does not support locks") == times, case.screen()
    assert not (case.run / "study.db").exists()
    counted = Case(folder, 1).finish("--resume")
    counted.times, counted.seconds = times, seconds
    return counted


# Other commands -------------------------------------------------------------------------------------------------------


def _command_killed(
    folder: Path, times: int, arguments: tuple[str, ...], check: Callable[[], None], environment: Mapping[str, str]
) -> Injected:
    """kill -9 of a command at any moment; the same command then does its work as if nothing had happened."""
    words = [sys.executable, "-m", "sca_search", *arguments]
    where: dict[str, Any] = {"cwd": folder, "env": os.environ | {"OMP_NUM_THREADS": "1"} | environment}
    took, seconds, chance = 0.0, [], random.Random(times)
    for index in range(times + 1):
        if index:
            with subprocess.Popen(words, **where, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                time.sleep(chance.uniform(0.3, 1.0) * took)  # before that, it imports torch
                process.kill()
        began = time.monotonic()
        done = subprocess.run(words, **where, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        took = time.monotonic() - began
        seconds.append(took)
        check()
    return Injected(times, seconds=seconds[1:])


def export_killed(folder: Path, times: int, _server: Server | None = None) -> Injected:
    """Into a folder that exists, again and again; what was there before is replaced as a whole."""
    case = Case(folder, trials=1, epochs=2)
    counted, out = case.finish(), folder / "out"
    out.mkdir()

    def check() -> None:
        assert not [path for path in folder.rglob(".*") if is_temporary(path)]
        assert verify_folder(out, 1.0).holds

    command = ("export", str(case.run), "--out", str(out), "--format", "packed,c", "--force", "--seconds", "1")
    counted.add(_command_killed(folder, times, command, check, {}))
    return counted


def calibrate_killed(folder: Path, times: int, _server: Server | None = None) -> Injected:
    folder.mkdir(parents=True)
    table = folder / "table.json"

    def check() -> None:
        assert json.loads(table.read_text())["variants"]
        assert not [path for path in folder.rglob(".*") if is_temporary(path)]

    command = ("calibrate", "--model", "lenet-small", "--data", "digits", "--seconds", "2", "--fresh")
    return _command_killed(folder, times, (*command, "--save", str(table)), check, {"XDG_CACHE_HOME": str(folder)})


FAULTS: dict[str, Callable[[Path, int, Server | None], Injected]] = {
    "one of two workers killed (kill -9)": worker_killed,
    "one of two workers ended by SIGTERM": worker_terminated,
    "one of two machines lost (kill -9), PostgreSQL": machine_lost,
    "the only process killed (kill -9), resumed": only_process_killed,
    "SIGTERM, resumed": terminated,
    "Ctrl-C, resumed": interrupted,
    "PostgreSQL switched off and on": database_restarted,
    "disk full at a checkpoint": disk_full_at_checkpoint,
    "disk full at the front": disk_full_at_front,
    "checkpoint cut off": checkpoint_truncated,
    "a bit of a checkpoint flipped": checkpoint_flipped,
    "two commands on one run folder": two_commands,
    "a trial hangs": hangs,
    "a trial takes all memory": takes_all_memory,
    "the clock moved back by an hour": clock_moved_back,
    "a file system without locks": no_locks,
    "the parent of two workers killed (kill -9), resumed": parent_killed,
    "killed (kill -9) while the run folder is created": killed_at_its_start,
    "a worker suspended until another has completed its candidate": worker_suspended,
    "a worker suspended until its trial is requeued": worker_paused,
    "PostgreSQL killed (kill -9) and started": database_crashed,
    "files of a finished candidate deleted or cut off": files_lost,
    "the clock moved forward by an hour": clock_moved_forward,
    "export killed (kill -9), repeated": export_killed,
    "calibrate killed (kill -9), repeated": calibrate_killed,
}
