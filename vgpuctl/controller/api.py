# SPDX-License-Identifier: Apache-2.0
"""The controller's API: an ASGI application. `routes` says which calls there are.

Who comes through the Unix socket is an admin: only its owner and root can connect. Who comes through a port has a
token: `Authorization: Bearer SECRET`. Results and errors are the documents that `--json` prints.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from vgpuctl.agent.http_input import read_body
from vgpuctl.controller import openapi
from vgpuctl.controller.callers import HEADER, Callers, set_cookie
from vgpuctl.controller.database.journal_rows import KnownAnswer
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.desktop_streams import DesktopStreams
from vgpuctl.controller.engine import Engine
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.metrics import metrics_text
from vgpuctl.controller.model import Role
from vgpuctl.controller.policy import Access, FleetDecision, FleetTarget, decide, not_allowed
from vgpuctl.controller.routes import API, CALLS, DRY_RUN, FleetCall
from vgpuctl.controller.sign_in.ways import SignInWays
from vgpuctl.controller.web.app import WebPages
from vgpuctl.errors import InvalidInput, NotFound, VgpuctlError, explain_exception
from vgpuctl.model.documents import Failure, failure_document, failure_of, success_body, to_json_value
from vgpuctl.model.outcome import AnyResult
from vgpuctl.value import replace

log = logging.getLogger("vgpuctl.controller")

THREADS = 16
MAX_KEY_CHARACTERS = 200
_STATUSES = {1: 500, 2: 400, 3: 409, 4: 409, 5: 500, 6: 501, 7: 409, 75: 503}
_STATUSES_OF_CODES = {
    "not-found": 404, "not-allowed": 403, "unknown-fields": 422, "not-signed-in": 401, "stale": 412,
    "wrong-password": 401, "sign-in-refused": 401, "too-many-tries": 429,
}  # fmt: skip


def _without_secret(result: AnyResult) -> AnyResult:
    """Return a result as the database may keep it: a one-time password is answered once."""
    data: Any = result.data
    is_secret = getattr(data, "password", None) is not None
    return replace(result, data=replace(data, password=None)) if is_secret else result


class ControllerApi:
    """The application, and what it answers with. `ways`: to sign in, besides accounts of the controller's own."""

    def __init__(self, store: Store, fleet: FleetService, engine: Engine, ways: SignInWays | None = None) -> None:
        self._store = store
        self._fleet = fleet
        self._engine = engine
        self._callers = Callers(store, ways)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="api")
        routes: list[BaseRoute] = [
            self._route("/healthz", self._health, None),
            self._route("/readyz", self._ready, None),
            self._route("/metrics", self._metrics, Access(Role.VIEWER)),
            self._route(f"{API}/openapi.json", self._openapi, None),
            self._route(f"{API}/session", self._sign_in, None, "POST"),
            self._route(f"{API}/session", self._sign_out, Access(None, myself=True), "DELETE"),
            self._route(f"{API}/me/password", self._change_password, Access(None, myself=True), "POST"),
        ]
        for call in CALLS.values():
            routes.append(Route(API + call.path, self._answer(call), methods=[call.method], name=call.name))
        self.streams = DesktopStreams(store, fleet, self._callers)
        routes += self.streams.routes()
        self.web = WebPages(fleet, self._callers, self._in_thread, store)
        routes += self.web.routes()
        handlers: dict[Any, Any] = {HTTPException: _http_error, Exception: _bug}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    def close(self) -> None:
        """Answer nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._callers.threads.close()
        self.streams.close()

    def _route(
        self, path: str, answer: Callable[[Request], Awaitable[Response]], access: Access | None, method: str = "GET"
    ) -> Route:
        """Return a route that is no call of the table. `access`: who may; None: anybody, also without signing in."""

        async def guarded(request: Request) -> Response:
            try:
                if access is not None:
                    await self._in_thread(lambda: self._refuse_stranger(request, path, access, changes=method != "GET"))
                return await answer(request)
            except VgpuctlError as error:
                return _failure(error, path.rpartition("/")[2])

        return Route(path, guarded, methods=[method])

    def _refuse_stranger(self, request: Request, path: str, access: Access, *, changes: bool) -> None:
        caller = self._callers.find(request, changes=changes)
        if decide(caller, access, FleetTarget()) is not FleetDecision.ALLOW:
            raise not_allowed(path, access, caller)

    async def _in_thread(self, act: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    async def _health(self, _: Request) -> Response:
        """Answer whether the controller does its work."""
        return PlainTextResponse("ok\n") if self._engine.is_alive else PlainTextResponse("the pools wait\n", 503)

    async def _ready(self, _: Request) -> Response:
        """Answer whether the database answers."""
        try:
            await self._in_thread(self._store.now)
        except VgpuctlError as error:
            return PlainTextResponse(f"{error.message}\n", 503)
        return PlainTextResponse("ok\n")

    async def _metrics(self, _: Request) -> Response:
        return PlainTextResponse(await self._in_thread(lambda: metrics_text(self._store)))

    async def _sign_in(self, request: Request) -> Response:
        """Begin a session: answer with its cookie, and with the text for the header of changes."""
        given = await read_body(request)
        session = await self._callers.threads.run(lambda: self._callers.sign_in(request, given))
        response = _json({"user": session.name, "header": HEADER, "token": session.token})
        set_cookie(request, response, session.secret)
        return response

    async def _sign_out(self, request: Request) -> Response:
        await self._in_thread(lambda: self._callers.sign_out(request))
        response = _json({})
        set_cookie(request, response, None)
        return response

    async def _change_password(self, request: Request) -> Response:
        """Change the password of who asks: `old` and `new`; his other sessions end."""
        given = await read_body(request)

        def change() -> None:
            self._fleet.refuse_unconfirmed("set-password")
            self._callers.change_password(request, given)

        await self._callers.threads.run(change)
        return _json({})

    async def _openapi(self, _: Request) -> Response:
        return _json(openapi.document())

    def _answer(self, call: FleetCall) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                body = await read_body(request) if call.method in ("PUT", "POST") else {}
                response: Response = await self._in_thread(lambda: self._call(request, call, body))
                return response
            except Exception as exc:
                error = explain_exception(exc)
                if isinstance(error, VgpuctlError):
                    return _failure(error, call.name)
                raise

        return answer

    def _call(self, request: Request, call: FleetCall, body: Mapping[str, Any]) -> Response:
        """Make a call, or return the answer to the same request before."""
        caller = self._callers.find(request, changes=call.changes)
        query = dict(request.query_params)
        if len(request.query_params.multi_items()) > len(query):
            raise InvalidInput(f"{call.name}: an argument is there twice")
        in_path = {name: request.path_params[name] for name in call.in_path}
        is_dry_run = call.has_dry_run and _is_dry_run(call, query.pop(DRY_RUN, "false"))
        arguments = call.read(query, from_text=True) | call.read(body, from_text=False)
        arguments |= in_path | _generation(request, call)
        if is_dry_run:
            return self._respond(call, call.try_on(self._fleet, caller, arguments))
        key = request.headers.get("idempotency-key") if call.changes else None
        if key is None:
            return self._respond(call, call.on(self._fleet, caller, arguments))
        if not 0 < len(key) <= MAX_KEY_CHARACTERS or not key.isprintable():
            raise InvalidInput(f"Idempotency-Key: 1 to {MAX_KEY_CHARACTERS} printable characters")
        call.check(self._fleet, caller, arguments)
        digest = hashlib.sha256(json.dumps([call.name, arguments], sort_keys=True).encode()).hexdigest()
        known = self._store.answers.find(caller.key, key, digest)
        if known is not None:
            return Response(known.body, known.status, media_type="application/json")
        result = call.on(self._fleet, caller, arguments)
        response = self._respond(call, result)
        if not call.has_secret:
            kept = self._respond(call, _without_secret(result))
            answer = KnownAnswer(digest, kept.status_code, bytes(kept.body).decode())
            self._store.answers.keep(caller.key, key, answer)
        return response

    def _respond(self, call: FleetCall, result: AnyResult) -> Response:
        generation = getattr(result.data, "generation", None)
        headers = {} if generation is None else {"ETag": f'"{generation}"'}
        return _json(success_body(call.name, result), headers=headers)


def _is_dry_run(call: FleetCall, text: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidInput(f"{call.name}: {DRY_RUN} is true or false, not {text[:60]!a}")
    return text == "true"


def _generation(request: Request, call: FleetCall) -> dict[str, int]:
    """Return the generation that a request expects, from If-Match: the ETag that it read; `*` is any."""
    given = request.headers.get("if-match")
    if given is None or given.strip() == "*" or "if_generation" not in call.parameters:
        return {}
    text = given.strip().strip('"')
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidInput(f"If-Match: {given[:60]!a} is no ETag of this API")
    return {"if_generation": int(text)}


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    text = json.dumps(to_json_value(value), ensure_ascii=False, separators=(",", ":"))
    return Response(text + "\n", status, dict(headers or {}), "application/json")


def _failure(error: VgpuctlError, kind: str) -> Response:
    code = "unknown-fields" if "fields" in error.facts else error.code
    status = _STATUSES_OF_CODES.get(code) or _STATUSES.get(error.status, 500)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status in (429, 503):
        headers = {"Retry-After": str(error.facts.get("seconds", 5))}
    return _json(failure_document(failure_of(error), kind), status, headers)


async def _bug(_: Request, exc: Exception) -> Response:
    log.exception("an answer of the API failed with a bug", exc_info=exc)
    hint = "this is a bug in vgpuctl: please report it with: journalctl -u vgpuctl-controller -n 200"
    return _json(failure_document(Failure("bug", f"unexpected {type(exc).__name__}", 1, hint), "controller"), 500)


async def _http_error(_: Request, exc: Exception) -> Response:
    """Return an error of HTTP itself as a document, too."""
    assert isinstance(exc, HTTPException)
    error: VgpuctlError = NotFound(f"there is no such path: GET {API}/openapi.json lists them")
    if exc.status_code != 404:
        error = InvalidInput(str(exc.detail))
    return _json(failure_document(failure_of(error), "controller"), exc.status_code, exc.headers)
