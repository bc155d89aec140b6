"""The live page: the same page on this machine's own address, with its document beside it, and one action.

Reading needs the right host name, so that no foreign page can reach in by a name that it made point here. Exporting
needs, on top of that, the token that only our own page was given, and no foreign origin.
"""

import hashlib
import ipaddress
import json
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from sca_search.dashboard.document import one_detail
from sca_search.dashboard.page import embedded, render_page
from sca_search.dashboard.read import read_run
from sca_search.dashboard.text import status
from sca_search.dashboard.writing import document_of
from sca_search.errors import RunError, ScaError
from sca_search.runs.damage import damage_refused
from sca_search.system.files import stamp_of

Export = Callable[[Path, int], dict[str, Any]]
# Of every answer: always a new one, in no frame of others, taken for nothing else than what it is, and by no one else.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_NUMBER = re.compile(r"[0-9]{1,9}")
# A number in brackets or a name, and perhaps a port.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
_LONGEST_BODY = 1000
_LOCAL = {"127.0.0.1", "localhost", "::1"}


@dataclass
class _Seen:
    """The documents as last made: nothing is made twice."""

    version: str = ""
    body: bytes = b""


class LiveStudies:
    """What the server knows: the runs, the token, and how to export."""

    def __init__(self, runs: Sequence[Path], export: Export, token: str | None = None) -> None:
        self.runs = list(runs)
        self.export = export
        self.token = token or secrets.token_urlsafe(32)
        self._seen = _Seen()
        self._is_exporting = False

    def page(self) -> str:
        documents = [document_of(run) for run in self.runs]
        return render_page(documents, live={"token": self.token, "version": self.version()})

    def version(self) -> str:
        """Changes when there is something new to draw."""
        return hashlib.sha256(repr([_stamps(run) for run in self.runs]).encode()).hexdigest()[:32]

    def status(self) -> dict[str, Any]:
        """What is asked for all the time, and so must be cheap: whether to fetch anew, and what is under way."""
        return {"version": self.version(), "status": [_status(run) for run in self.runs]}

    def data(self) -> bytes:
        """The documents, made when they have changed."""
        version = self.version()
        if version != self._seen.version:
            content = {"version": version, "studies": [document_of(run) for run in self.runs]}
            self._seen = _Seen(version, _encoded(embedded(content)))
        return self._seen.body

    def detail(self, study: int, trial: int) -> dict[str, Any] | None:
        if not 0 <= study < len(self.runs):
            return None
        with damage_refused(self.runs[study], "shown"):
            return one_detail(read_run(self.runs[study]), trial)

    def exported(self, study: int, trial: int) -> dict[str, Any]:
        """One at a time: an export takes all cores and the folder for itself."""
        if self._is_exporting:
            raise RunError("an export is under way; wait for its end")
        self._is_exporting = True
        try:
            return self.export(self.runs[study], trial)
        finally:
            self._is_exporting = False


def _status(run: Path) -> dict[str, str]:
    with damage_refused(run, "shown"):
        files = read_run(run)
        return status(files, files.rows)


def _stamps(run: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Whatever changes when a trial ends, or when maps are made of one."""
    names = ("trials.csv", "summary.json", "dense.json", "prior.json", "study.toml", "about.json")
    files = [*(run / name for name in names), *sorted(run.glob("candidates/*/features.json"))]
    return [(str(file), stamp_of(file)) for file in files]


def application(studies: LiveStudies, host: str = "127.0.0.1") -> Starlette:
    """The server's answers. `host` is the address that it listens on."""

    async def page(_request: Request) -> Response:
        return HTMLResponse(_encoded(await run_in_threadpool(studies.page)))

    async def state(_request: Request) -> Response:
        return _json(await run_in_threadpool(studies.status))

    async def data(_request: Request) -> Response:
        return Response(await run_in_threadpool(studies.data), media_type="application/json")

    async def detail(request: Request) -> Response:
        asked = [request.path_params[name] for name in ("study", "trial")]
        is_number = all(_NUMBER.fullmatch(each) for each in asked)
        found = await run_in_threadpool(studies.detail, *map(int, asked)) if is_number else None
        return _json({"error": "no such trial"}, 404) if found is None else _json(found)

    async def export(request: Request) -> Response:
        if not secrets.compare_digest(request.headers.get("x-token", "").encode(), studies.token.encode()):
            return _json({"error": "the token must be that of the page"}, 403)
        study, trial = asked_for(await _short_body(request), len(studies.runs))
        return _json(await run_in_threadpool(studies.exported, study, trial))

    routes = [
        Route("/", page),
        Route("/status.json", state),
        Route("/data.json", data),
        Route("/studies/{study}/trials/{trial}", detail),
        Route("/export", export, methods=["POST"]),
    ]
    guard = Middleware(BaseHTTPMiddleware, dispatch=_guard(host))
    return Starlette(routes=routes, middleware=[guard], exception_handlers={ScaError: _refused})


def asked_for(body: bytes, studies: int) -> tuple[int, int]:
    """Which study and trial a request names."""
    try:
        asked = json.loads(body)
        study, trial = asked["study"], asked["trial"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError("an export must name study and trial as JSON") from error
    if type(study) is not int or type(trial) is not int or not 0 <= study < studies:
        given = f"{repr(study)[:80]} and {repr(trial)[:80]}"
        raise RunError(f"an export must name a study from 0 to {studies - 1} and a trial, got {given}")
    return study, trial


async def _short_body(request: Request) -> bytes:
    """The body as far as one of ours can be long: who sends more is not read on."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST_BODY:
            raise RunError(f"an export must be asked for in at most {_LONGEST_BODY} bytes")
    return body


def _encoded(text: str) -> bytes:
    """Half a character, which JSON can spell and UTF-8 cannot hold, is spelled out again."""
    return text.encode(errors="backslashreplace")


def _json(value: object, status_code: int = 200) -> Response:
    return Response(_encoded(embedded(value)), status_code, media_type="application/json")


async def _refused(_request: Request, error: Exception) -> Response:
    return _json({"error": str(error)}, 400)


def _guard(address: str) -> Callable[[Request, RequestResponseEndpoint], Any]:
    async def dispatch(request: Request, call_next: RequestResponseEndpoint) -> Response:
        host = request.headers.get("host", "")
        if not is_our_host(host, address):
            return PlainTextResponse(f"the host must be the address that was served, got {host!r}", 403)
        origin = request.headers.get("origin")
        if request.method != "GET" and origin is not None and origin != f"http://{host}":
            return PlainTextResponse(f"the origin must be the page itself, got {origin!r}", 403)
        answered = await call_next(request)
        answered.headers.update(_HEADERS)
        return answered

    return dispatch


def is_our_host(header: str, address: str) -> bool:
    """Whether a Host header names this server and not a name that somebody made point here.

    On another address than this machine's own, numbers are accepted beside the name given: only names can be forged.
    """
    found = _HOST.fullmatch(header)
    if found is None:
        return False
    name = found[1] or found[2].lower()
    if address in _LOCAL:
        return name in _LOCAL
    return name == address or name == socket.gethostname() or _is_number(name)


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def listen(host: str, port: int) -> socket.socket:
    """A socket on the address; port 0 takes a free one."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise RunError(f"cannot serve on {host}:{port}: {error.strerror or error}") from error


def serve(studies: LiveStudies, listening: socket.socket, host: str) -> None:
    """Answers until Ctrl-C."""
    config = uvicorn.Config(application(studies, host), log_level="warning", access_log=False, lifespan="off")
    # An export under way is not waited for longer than this.
    config.timeout_graceful_shutdown = 2
    uvicorn.Server(config).run(sockets=[listening])
