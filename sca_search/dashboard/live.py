"""The live page: a local server for the page, its document and one action, the export of a trial.

Every request must name the right host, so that no other web page can reach the server by DNS rebinding. An export also
requires the right origin and the token, which is in the address that the command prints and opens. The server never
sends it: other users of the machine can read the page.
"""

import asyncio
import hashlib
import ipaddress
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from sca_search.dashboard.document import one_detail
from sca_search.dashboard.page import document_of, embedded, render_page
from sca_search.dashboard.read import current_training, read_run
from sca_search.dashboard.text import StudyState, state_of, status
from sca_search.errors import RunError, ScaError
from sca_search.runs.integrity import damage_as_run_error
from sca_search.system.files import stamp_of

Export = Callable[[Path, int], dict[str, Any]]
# Of every response: not cached, not framed, not sniffed, not readable by other origins.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NUMBER = re.compile(r"[0-9]{1,9}")
# An IPv6 address in brackets or a name, and optionally a port.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_MAX_BODY_BYTES = 1000
# A browser opens six connections to a server. The time is for a request to arrive, not for its answer.
_MAX_CONNECTIONS = 32
_REQUEST_SECONDS = 10.0
_LOCAL = {"127.0.0.1", "localhost", "::1"}
Stamps = tuple[tuple[str, tuple[int, ...]], ...]


class LiveStudies:
    """The runs that are served, the token, and how to export."""

    def __init__(self, runs: Sequence[Path], export: Export, token: str | None = None) -> None:
        self.runs = list(runs)
        self.export = export
        self.token = token or secrets.token_urlsafe(32)
        # Documents and states as last read, with what they were read from.
        self._version, self._body = "", b""
        self._page_version, self._page = "", ""
        self._reading = threading.Lock()
        self._states: dict[Path, tuple[Stamps, StudyState]] = {}
        self._exporting = threading.Lock()

    def page(self) -> str:
        """The page, rendered again when the runs have changed."""
        with self._reading:
            version = self.version()
            if version != self._page_version:
                documents = [document_of(run) for run in self.runs]
                self._page = render_page(documents, live={"version": version})
                self._page_version = version
            return self._page

    def version(self) -> str:
        """A hash that changes when there is something new to draw."""
        return hashlib.sha256(repr([_stamps(run) for run in self.runs]).encode()).hexdigest()[:32]

    def status(self) -> dict[str, Any]:
        """Whether there is something new, and what is running. Polled every two seconds, so it must be cheap."""
        return {"version": self.version(), "status": [self._status(run) for run in self.runs]}

    def _status(self, run: Path) -> dict[str, str]:
        """Reads progress.json only; the run is read again when its files have changed."""
        with damage_as_run_error(run, "shown"):
            stamps = _stamps(run)
            if run not in self._states or self._states[run][0] != stamps:
                self._states[run] = (stamps, state_of(read_run(run)))
            return status(self._states[run][1], current_training(run))

    def data(self) -> bytes:
        """The documents, read again when they have changed."""
        with self._reading:
            version = self.version()
            if version != self._version:
                content = {"version": version, "studies": [document_of(run) for run in self.runs]}
                self._version, self._body = version, _encoded(embedded(content))
            return self._body

    def detail(self, study: int, trial: int) -> dict[str, Any] | None:
        if not 0 <= study < len(self.runs):
            return None
        with damage_as_run_error(self.runs[study], "shown"):
            return one_detail(read_run(self.runs[study]), trial)

    def exported(self, study: int, trial: int) -> dict[str, Any]:
        """Export a trial. One at a time: an export uses all cores and the folder."""
        if not self._exporting.acquire(blocking=False):
            raise RunError("another export is running; wait until it has finished")
        try:
            return self.export(self.runs[study], trial)
        finally:
            self._exporting.release()


def _stamps(run: Path) -> Stamps:
    """Stamps of the files that change when a trial ends or its feature maps are computed."""
    names = ("trials.csv", "summary.json", "dense.json", "study.toml", "about.json")
    files = [*(run / name for name in names), *sorted(run.glob("candidates/*/features.json"))]
    return tuple((str(file), stamp_of(file)) for file in files)


def application(studies: LiveStudies, host: str = "127.0.0.1") -> Starlette:
    """The server's routes; those that are not `async` run in threads. `host` is the address that it listens on."""

    def detail(request: Request) -> Response:
        numbers = [request.path_params[name] for name in ("study", "trial")]
        is_number = all(_NUMBER.fullmatch(each) for each in numbers)
        found = studies.detail(*map(int, numbers)) if is_number else None
        return _json({"error": "no such trial"}, 404) if found is None else _json(found)

    async def export(request: Request) -> Response:
        if not secrets.compare_digest(request.headers.get("x-token", "").encode(), studies.token.encode()):
            return _json({"error": "the token must be that of the address which the command printed"}, 403)
        study, trial = requested_export(await _short_body(request), len(studies.runs))
        return _json(await run_in_threadpool(studies.exported, study, trial))

    routes = [
        Route("/", lambda _request: HTMLResponse(_encoded(studies.page()))),
        Route("/status.json", lambda _request: _json(studies.status())),
        Route("/data.json", lambda _request: Response(studies.data(), media_type="application/json")),
        Route("/studies/{study}/trials/{trial}", detail),
        Route("/export", export, methods=["POST"]),
    ]
    guard = Middleware(BaseHTTPMiddleware, dispatch=_guard(host))
    errors = {ScaError: lambda _request, error: _json({"error": str(error)}, 400)}
    return Starlette(routes=routes, middleware=[guard], exception_handlers=errors)


def requested_export(body: bytes, studies: int) -> tuple[int, int]:
    """Study and trial of an export request."""
    try:
        request = json.loads(body)
        study, trial = request["study"], request["trial"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError("an export must name study and trial as JSON") from error
    if type(study) is not int or type(trial) is not int or not 0 <= study < studies:
        found = f"{repr(study)[:80]} and {repr(trial)[:80]}"
        raise RunError(f"an export must name a study from 0 to {studies - 1} and a trial, got {found}")
    return study, trial


async def _short_body(request: Request) -> bytes:
    """The body of a request; reading stops at the maximum length of a valid one."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_BODY_BYTES:
            raise RunError(f"a request to export must have at most {_MAX_BODY_BYTES} bytes")
    return body


def _encoded(text: str) -> bytes:
    """UTF-8, with lone surrogates, which JSON can hold, escaped."""
    return text.encode(errors="backslashreplace")


def _json(value: object, status_code: int = 200) -> Response:
    return Response(_encoded(embedded(value)), status_code, media_type="application/json")


def _guard(address: str) -> Callable[[Request, RequestResponseEndpoint], Any]:
    async def dispatch(request: Request, call_next: RequestResponseEndpoint) -> Response:
        host = request.headers.get("host", "")
        if not is_our_host(host, address):
            return PlainTextResponse(f"the host must be the served address, got {host!r}", 403)
        origin = request.headers.get("origin")
        if request.method != "GET" and origin is not None and origin != f"http://{host}":
            return PlainTextResponse(f"the origin must be the page itself, got {origin!r}", 403)
        response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    return dispatch


def is_our_host(header: str, address: str) -> bool:
    """Whether a Host header names this server, and not a foreign name that resolves to it.

    On an address other than localhost, IP addresses are accepted too: only names can be forged.
    """
    found = _HOST.fullmatch(header)
    if found is None:
        return False
    name = found[1] or found[2].lower()
    if address in _LOCAL:
        return name in _LOCAL
    return name == address or name == socket.gethostname() or _is_ip_address(name)


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Connection(H11Protocol):
    """A connection whose client must send each request in time, and may have only a few others."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened = self.loop.time()
        self.deadline: asyncio.TimerHandle | None = None
        self._watch()
        others = [each for each in self.connections if isinstance(each, _Connection) and each._is_of(self.client)]
        others.remove(self)
        if len(others) >= _MAX_CONNECTIONS:
            # The oldest that waits for its client, else the oldest.
            min(others, key=lambda each: (not each.is_waiting, each.opened)).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_deadline()

    @property
    def is_waiting(self) -> bool:
        """Whether the client has not yet sent a whole request."""
        return self.conn.their_state in {h11.IDLE, h11.SEND_BODY}

    def _is_of(self, client: tuple[str, int] | None) -> bool:
        return bool(self.client and client and self.client[0] == client[0]) and not self.transport.is_closing()

    def _watch(self) -> None:
        if not self.is_waiting:
            self._end_deadline()
        elif self.deadline is None:
            self.deadline = self.loop.call_later(_REQUEST_SECONDS, self.transport.abort)

    def _end_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


def listen(host: str, port: int) -> socket.socket:
    """Open a socket on the address; port 0 means any free one."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise RunError(f"cannot serve on {host}:{port}: {error.strerror or error}") from error


def serve(studies: LiveStudies, listening: socket.socket, host: str) -> None:
    """Serve until Ctrl-C."""
    config = uvicorn.Config(
        application(studies, host), http=_Connection, log_level="warning", access_log=False, lifespan="off"
    )
    # Seconds to wait for a running export.
    config.timeout_graceful_shutdown = 2
    uvicorn.Server(config).run(sockets=[listening])
