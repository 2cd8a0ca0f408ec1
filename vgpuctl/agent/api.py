# SPDX-License-Identifier: Apache-2.0
"""What the agent answers: an ASGI application. The library says which calls there are, and what they take and return.

A read is `GET /v1/CALL?name=value`, and answers with its document. A change is `POST /v1/CALL` with its arguments as a
JSON object; it is an operation: the answer is 202 with its id, `GET /v1/operations/ID` has its document when it has
ended, and `/v1/operations/ID/events` its progress as server-sent events. A read takes POST, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from vgpuctl.agent import openapi
from vgpuctl.agent.events import EventLog, EventReader
from vgpuctl.agent.fair_threads import FairThreads
from vgpuctl.agent.fleet_api import FleetApi, refuse_request
from vgpuctl.agent.http_input import read_body, read_query, read_seconds, refuse_long
from vgpuctl.agent.image_api import ImageApi, ImagePolicy
from vgpuctl.agent.metrics_text import CONTENT_TYPE
from vgpuctl.agent.operation import AgentOperation, wait_for_end
from vgpuctl.agent.operation_store import SECRET_FIELDS, StoredOperation
from vgpuctl.agent.operations import WAITING_CALLS, AgentOperations, OpenHost
from vgpuctl.agent.protocol import (
    API_CALLS,
    API_VERSION,
    EVENT_STREAM,
    REQUEST_KEY,
    RequestOptions,
    read_options,
    refuse_host_only,
)
from vgpuctl.agent.request import CallRequest
from vgpuctl.agent.snapshot_cache import SnapshotCache
from vgpuctl.agent.vm_streams import VmStreams
from vgpuctl.errors import Busy, InvalidInput, NotFound, NotYours, VgpuctlError, explain_exception, stale_error
from vgpuctl.library.call_table import LibraryCall
from vgpuctl.model.caller import Caller, Rights
from vgpuctl.model.documents import Failure, failure_document, failure_of, success_body, to_json_value
from vgpuctl.model.outcome import CallSettings, Outcome, QueryResult
from vgpuctl.value import replace
from vgpuctl.version import __version__

BEAT_SECONDS = 10.0
"""A stream says at least this often that it lives."""
MAX_WAIT_SECONDS = 60.0
READERS, CHECKERS = 16, 8
"""So many reads are answered at once, and the rights of so many requests are checked."""
NEW_VM_CALLS = frozenset({"create-vm"})
"""Calls that name one VM, which does not exist yet."""

_STATUSES = {0: 200, 2: 400, 3: 409, 4: 409, 5: 500, 6: 501, 7: 200, 75: 503, 130: 409, 143: 409}
"""HTTP's status for an exit status; 500 for any other."""
_STATUSES_OF_CODES = {
    "not-found": 404,
    "not-allowed": 403,
    "not-yours": 403,
    "fence-needed": 403,
    "unknown-fields": 422,
    "key-reused": 409,
    "too-many": 429,
}


class Policy(ImagePolicy, Protocol):
    """Who may do what (`rights.HostRights`). Its methods may read files and ask libvirt: they run in threads."""

    def caller_of(self, uid: int) -> Caller:
        """Return who a user id is.

        Raises:
            NotAllowed: it may do nothing.
        """

    def check(
        self, caller: Caller, call: LibraryCall, arguments: Mapping[str, Any], files: Mapping[str, str]
    ) -> Mapping[str, Any]:
        """Return the arguments that are used, with resolved paths. `files`: the texts that the request sends.

        Raises:
            NotAllowed: the caller may not make this call.
        """


class Api:
    """The application, and what it answers with: snapshots for reads, operations for changes, the events."""

    def __init__(
        self,
        open_reader: OpenHost,
        operations: AgentOperations,
        events: EventLog,
        policy: Policy,
        snapshots: SnapshotCache,
        fleet: FleetApi,
        images: ImageApi,
        read_metrics: Callable[[], bytes],
        vm_streams: VmStreams,
    ) -> None:
        """`open_reader`: opens the host with these snapshots. `read_metrics`: the text of the last sample, or empty."""
        self._vm_streams = vm_streams
        self._fleet = fleet
        self._images = images
        self._read_metrics = read_metrics
        self._snapshots = snapshots
        self._reader = open_reader(CallSettings(), None)
        self._operations = operations
        self._events = events
        self._policy = policy
        self._readers = FairThreads(READERS, "read")
        self._checkers = FairThreads(CHECKERS, "check")  # a change does not wait for its turn behind reads
        self._identities = ThreadPoolExecutor(4, thread_name_prefix="identity")  # not behind reads of a slow libvirt
        self._streams: set[asyncio.Task[Any]] = set()
        prefix = f"/{API_VERSION}"
        routes = [
            Route(prefix, self._answer(self._root)),
            Route(f"{prefix}/openapi.json", self._answer(self._openapi)),
            Route(f"{prefix}/events", self._answer(self._read_events)),
            Route(f"{prefix}/fleet", self._answer(self._answer_fleet), methods=["GET", "POST"]),
            Route(f"{prefix}/fleet/room", self._answer(self._answer_room)),
            Route(
                f"{prefix}/images",
                self._answer(partial(images.answer, self._checkers)),
                methods=["GET", "POST", "DELETE"],
            ),
            Route(f"{prefix}/images/ranges", self._answer(partial(images.append, self._checkers)), methods=["PUT"]),
            Route(f"{prefix}/metrics", self._answer(self._metrics)),
            Route(f"{prefix}/operations", self._answer(self._list_operations)),
            Route(f"{prefix}/operations/{{id}}", self._answer(self._show_operation)),
            Route(f"{prefix}/operations/{{id}}", self._answer(self._cancel_operation), methods=["DELETE"]),
            Route(f"{prefix}/operations/{{id}}/events", self._answer(self._follow_operation)),
            *vm_streams.routes(prefix),
            Route(f"{prefix}/{{call}}", self._answer(self._call), methods=["GET", "POST"]),
        ]
        handlers: dict[Any, Any] = {HTTPException: _http_error, Exception: _bug}
        self.app = Starlette(routes=routes, exception_handlers=handlers)

    async def close(self) -> None:
        """End the streams that are open."""
        for stream in self._streams:
            stream.cancel()
        self._vm_streams.close()
        await asyncio.to_thread(self._images.close)
        self._readers.close()
        self._checkers.close()
        self._identities.shutdown(wait=False)
        self._reader.close()

    def _answer(
        self, handle: Callable[[HttpRequest, Caller], Awaitable[Response]]
    ) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def answer(request: HttpRequest) -> Response:
            kind = request.path_params.get("call", "agent")
            try:
                client = request.scope.get("client")
                uid = int(client[0]) if client else -1
                caller = await asyncio.get_running_loop().run_in_executor(self._identities, self._policy.caller_of, uid)
                return await handle(request, caller)
            except Exception as exc:
                error = explain_exception(exc)
                if isinstance(error, VgpuctlError):
                    return _failure(error, kind)
                raise

        return answer

    async def _root(self, _: HttpRequest, caller: Caller) -> Response:
        rights = {"account": caller.account, "rights": caller.rights}
        return _json({"version": __version__, **rights, "calls": sorted(API_CALLS)})

    async def _openapi(self, _: HttpRequest, caller: Caller) -> Response:
        return _json(openapi.document())

    async def _metrics(self, _: HttpRequest, caller: Caller) -> Response:
        """Answer with the metrics for Prometheus, for everybody who may read."""
        text = self._read_metrics()
        if not text:
            raise Busy("the use of GPUs was not read yet", hint="try again in 15 seconds; vgpuctl top")
        return Response(text, media_type=CONTENT_TYPE)

    async def _read_events(self, request: HttpRequest, caller: Caller) -> Response:
        """Answer with the events that are kept, after `since`; or follow them, for who accepts an event stream."""
        since = request.headers.get("last-event-id") or request.query_params.get("since")
        if EVENT_STREAM not in request.headers.get("accept", ""):
            return _json({"events": self._events.since(since), "last": self._events.last_id})
        return StreamingResponse(self._stream_events(self._events.subscribe(since)), media_type=EVENT_STREAM)

    async def _stream_events(self, reader: EventReader) -> AsyncIterator[str]:
        with reader:
            yield ": beat\n\n"
            while True:
                try:
                    events = await asyncio.wait_for(reader.read(), BEAT_SECONDS)
                except TimeoutError:
                    yield ": beat\n\n"
                    continue
                if not events:
                    return
                for event in events:
                    yield f"id: {event.id}\nevent: {event.type}\ndata: {_text(event)}\n\n"

    async def _answer_fleet(self, request: HttpRequest, caller: Caller) -> Response:
        """Answer which controller the host obeys, after taking the one that is announced."""
        if request.method == "POST":
            await self._checkers.run(caller, self._fleet.announce, caller, await read_body(request))
        return _json(await self._readers.run(caller, self._fleet.status))

    async def _answer_room(self, _: HttpRequest, caller: Caller) -> Response:
        return _json(await self._readers.run(caller, self._fleet.room))

    async def _list_operations(self, _: HttpRequest, caller: Caller) -> Response:
        return _json({"operations": [_shown(stored) for stored in self._operations.list()]})

    async def _show_operation(self, request: HttpRequest, caller: Caller) -> Response:
        operation = self._operations.find(request.path_params["id"])
        seconds = min(read_seconds(request.query_params, "wait"), MAX_WAIT_SECONDS)
        if seconds and not operation.has_ended:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wait_for_end(operation), seconds)
        stored = operation.stored
        if not _is_open_to(caller, stored):  # what a guest's agent or a console told is in it, and what it was asked
            stored = replace(stored, document=None, key=None)
        return _json(_shown(stored))

    async def _cancel_operation(self, request: HttpRequest, caller: Caller) -> Response:
        operation = self._own_operation(request, caller)
        self._operations.cancel(operation)
        return _json(_shown(operation.stored), 202)

    async def _follow_operation(self, request: HttpRequest, caller: Caller) -> Response:
        operation = self._own_operation(request, caller)
        last = request.headers.get("last-event-id", "0")
        after = int(last) if last.isascii() and last.isdigit() and len(last) <= 18 else 0
        return StreamingResponse(self._stream(operation, after), media_type=EVENT_STREAM)

    def _own_operation(self, request: HttpRequest, caller: Caller) -> AgentOperation:
        """Return the operation that a request names.

        Raises:
            NotFound, NotYours: there is none, or another account began it.
        """
        operation = self._operations.find(request.path_params["id"])
        if not _is_open_to(caller, operation.stored):
            raise NotYours(
                f"operation {operation.stored.id} is {operation.stored.account}'s",
                hint=f"ask {operation.stored.account} or root",
                account=operation.stored.account,
            )
        return operation

    async def _stream(self, operation: AgentOperation, after: int) -> AsyncIterator[str]:
        task = asyncio.current_task()
        if task is not None:
            self._streams.add(task)
        try:
            async for number, kind, data in operation.read(after, BEAT_SECONDS):
                yield f"id: {number}\nevent: {kind}\ndata: {_text(data)}\n\n" if kind else ": beat\n\n"
        finally:
            self._streams.discard(task) if task is not None else None

    async def _call(self, request: HttpRequest, caller: Caller) -> Response:
        refuse_host_only(request.path_params["call"])
        call = API_CALLS.get(request.path_params["call"])
        if call is None:
            raise NotFound(
                f"there is no call {request.path_params['call']}", hint=f"GET /{API_VERSION} lists the calls"
            )
        if request.method == "POST":
            given = await read_body(request)
            options = read_options(given.pop(REQUEST_KEY, None))
        else:
            if call.changes:
                raise HTTPException(405, f"{call.name} changes the host: use POST", headers={"Allow": "POST"})
            fresh = request.query_params.get("fresh", "0") not in ("", "0", "false")
            given, options = read_query(call, request.query_params), RequestOptions(fresh=fresh)
        refuse_long(given)
        read = call.read_arguments(given)
        arguments = await self._checkers.run(caller, self._policy.check, caller, call, read, options.files)
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= 200:
            raise InvalidInput("Idempotency-Key: 1 to 200 characters")
        caller = replace(caller, address=options.address, on_behalf_of=options.on_behalf_of)
        todo = CallRequest(
            call, arguments, options, caller, key, partial(self._checked_again, call, read, options, caller)
        )
        refuse_request(caller, call, options)
        if self._operations.known(todo) is None:
            if options.fleet is not None:  # not in the loop: it may wait until the fence is on the disk
                await self._checkers.run(caller, self._fleet.check, call, options)
            if options.if_generation is not None:
                await self._readers.run(caller, self._refuse_stale, todo, options.if_generation)
        if call.changes or call.name in WAITING_CALLS:
            operation = self._operations.begin(todo)
            return _json(
                _shown(operation.stored), 202, {"Location": f"/{API_VERSION}/operations/{operation.stored.id}"}
            )
        return await self._readers.run(caller, self._read, todo)

    def _checked_again(
        self, call: LibraryCall, given: Mapping[str, Any], options: RequestOptions, before: Caller
    ) -> CallRequest:
        """Return a request with the rights that its user has now.

        Raises:
            NotAllowed: they have become too few.
        """
        now = replace(self._policy.caller_of(before.uid), address=before.address, on_behalf_of=before.on_behalf_of)
        refuse_request(now, call, options)
        return CallRequest(call, self._policy.check(now, call, given, options.files), options, now)

    def _refuse_stale(self, request: CallRequest, expected: int) -> None:
        """Refuse a request for a VM that was changed since the caller read it; the operation checks that again.

        Raises:
            InvalidInput: the call changes no VM that exists, or more than one.
            NotFound: there is no such VM.
            Stale: its record has another generation.
        """
        name = request.arguments.get("name")
        if request.call.about != "vm" or request.call.name in NEW_VM_CALLS or not isinstance(name, str):
            raise InvalidInput(
                f"{REQUEST_KEY}: if_generation belongs to a change of one VM, which the argument name names",
                hint=f"leave it out of {request.call.name}",
            )
        self._snapshots.begin_read(fresh=True)
        vm = self._reader.show_vm(name).data
        if vm.generation != expected:
            raise stale_error(vm.name, vm.generation, expected)

    def _read(self, request: CallRequest) -> Response:
        """Make a call that changes nothing, in a reader's thread. The header `Age` says how old its snapshot is."""
        self._snapshots.begin_read(fresh=request.options.fresh)
        settings = CallSettings(files=request.options.files, caller=request.caller)
        try:
            result = request.call.on(self._reader.with_settings(settings), request.arguments)
        except VgpuctlError as error:
            return _failure(error, request.call.name)
        age = {"Age": str(round(self._snapshots.age_seconds))}
        return _json(success_body(request.call.name, result_of(result)), headers=age)


def result_of(value: object) -> Outcome[object] | QueryResult[object]:
    """Return what a call returned as a result; a call for completion returns its rows alone."""
    return value if isinstance(value, (Outcome, QueryResult)) else QueryResult(value)


def _is_open_to(caller: Caller, stored: StoredOperation) -> bool:
    """Return whether a user may follow and cancel an operation: his own; an operator those of all but root."""
    if caller.rights is Rights.ROOT or caller.account == stored.account:
        return True
    return caller.rights is Rights.OPERATOR and stored.uid != 0


def _shown(stored: StoredOperation) -> object:
    """Return an operation as the API shows it."""
    record = to_json_value(stored)
    return {name: value for name, value in record.items() if name not in SECRET_FIELDS}


def _text(value: object) -> str:
    return json.dumps(to_json_value(value), ensure_ascii=False, separators=(",", ":"))


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_text(value) + "\n", status, dict(headers or {}), "application/json")


def _failure(error: VgpuctlError, kind: str) -> Response:
    body = failure_document(failure_of(error), kind)
    code = "unknown-fields" if "fields" in error.facts else error.code
    status = _STATUSES_OF_CODES.get(code) or _STATUSES.get(error.status, 500)
    return _json(body, status, {"Retry-After": "5"} if error.status == 75 else None)


async def _bug(_: HttpRequest, exc: Exception) -> Response:
    """Return what nobody foresaw as a document, too; the journal has the traceback."""
    hint = "this is a bug in vgpuctl: please report it with: journalctl -u vgpuctl-agent -n 200"
    return _json(failure_document(Failure("bug", f"unexpected {type(exc).__name__}", 1, hint), "agent"), 500)


async def _http_error(_: HttpRequest, exc: Exception) -> Response:
    """Return an error of HTTP itself as a document, too."""
    assert isinstance(exc, HTTPException)
    codes = {404: NotFound.code}
    error = InvalidInput(str(exc.detail))
    body = failure_document(failure_of(error), "agent")
    if exc.status_code in codes:
        body["error"] = {**dict(body["error"]), "code": codes[exc.status_code]}  # type: ignore[call-overload]
    return _json(body, exc.status_code, exc.headers)
