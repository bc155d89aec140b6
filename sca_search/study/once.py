"""Tasks that one of the machines of a shared study does: the dense warm start, and each refit.

A machine holds an advisory lock of the database while it works; the others wait for the lock. The result is recorded
with the study, together with the names of its files in the artifact store. The lock is released if the process ends, if
its machine is lost, or if the database restarts. In the last case two machines may do the same task: the first recorded
result counts, and all machines use its files.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna

from sca_search.runs.folder import RunFolder
from sca_search.study.artifacts import artifact_store
from sca_search.study.optuna_internals import queue_locked
from sca_search.study.queue import create_study
from sca_search.study.storage import PostgresStorage, open_storage
from sca_search.training.fit import StopRequestedError

_RESULT = "result of "
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class OnceTasks:
    """The tasks of one study."""

    run: RunFolder
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    on_wait: Callable[[str], None] = field(default=lambda _task: None)

    def once(self, name: str, do: Callable[[], None], files: Callable[[], Iterable[Path]]) -> bool:
        """Do a task, or wait until another machine has done it. Its files are then in the run folder.

        Returns whether they are the files that `do` wrote.
        """
        if self.run.shared is None:  # the process holds the lock of the run folder
            do()
            return True
        storage = open_storage(self.run, self.stop_requested)
        assert isinstance(storage, PostgresStorage)
        try:
            result, is_own = self._result(storage, name, do, files)
        finally:
            storage.close()
        if (store := artifact_store(self.run)) is not None:
            store.download(result)
        return is_own

    def _result(
        self, storage: PostgresStorage, name: str, do: Callable[[], None], files: Callable[[], Iterable[Path]]
    ) -> tuple[dict[str, Any], bool]:
        study, waits, is_own = create_study(self.run, storage), False, False
        while (result := study.user_attrs.get(_RESULT + name)) is None:
            if self.stop_requested():
                raise StopRequestedError
            with storage.try_locked(name) as is_held:
                if is_held and _RESULT + name not in study.user_attrs:
                    do()
                    is_own = self._record(study, name, files)
                    continue
            if not (is_held or waits):
                self.on_wait(name)
                waits = True
            time.sleep(_POLL_SECONDS)
        return dict(result), is_own

    def _record(self, study: optuna.Study, name: str, files: Callable[[], Iterable[Path]]) -> bool:
        store = artifact_store(self.run)
        uploaded = store.upload(path for path in files() if path.exists()) if store else {}
        with queue_locked(study):  # the other lock may have been lost
            is_first = _RESULT + name not in study.user_attrs
            if is_first:
                study.set_user_attr(_RESULT + name, uploaded)
        return is_first
