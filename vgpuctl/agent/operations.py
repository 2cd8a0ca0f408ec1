# SPDX-License-Identifier: Apache-2.0
"""The agent's operations: the calls that change the host, each in a thread of its own, a few at a time.

An operation waits, runs, and has ended with a document: the one that `--json` would print. Who asks again with the same
key gets the same operation. What has ended is kept on disk (`operation_store`) for some days and over a restart.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock

from vgpuctl.agent.fleet_fence import FleetFence
from vgpuctl.agent.operation import AgentOperation, OperationProgress, stop_waits_of, wait_for_end
from vgpuctl.agent.operation_store import OperationStore, StoredOperation
from vgpuctl.agent.protocol import KeyReused, RequestOptions, StateNotWritable, Stopping, TooMany
from vgpuctl.agent.request import CallRequest
from vgpuctl.errors import Interrupted, NotFound, VgpuctlError, explain_exception
from vgpuctl.host.processes import HostClock
from vgpuctl.library import GpuHost
from vgpuctl.library.call_table import CALLS
from vgpuctl.model.caller import Caller, Rights
from vgpuctl.model.documents import Failure, failure_document, failure_of, success_body, to_json_value
from vgpuctl.model.outcome import CallSettings
from vgpuctl.value import replace

log = logging.getLogger("vgpuctl.agent")

MAX_RUNNING, MAX_WAITING = 8, 200
RENEW_SECONDS = 1.0
"""A request that waited longer is checked again: its user may have left the group, and host.yaml may have changed."""
MAX_OF_ACCOUNT, MAX_KEPT_OF_ACCOUNT = 40, 1000
"""So many operations of an account that is not root's are not over, and so many are kept."""
MAX_RUNNING_WAITS = 32
WAITING_CALLS = frozenset({"wait"})
"""Reads that wait for something on the host: they are operations, with progress, and can be cancelled."""
MAX_IN_MEMORY = 200
"""So many operations that have ended keep their progress; of older ones the document is on disk."""

ROOT = Caller(0, "root", Rights.ROOT)
"""Who asks for what the agent does by itself."""
OpenHost = Callable[[CallSettings, HostClock | None], GpuHost]


class AgentOperations:
    """All operations of this agent. Its methods are called in the loop's thread."""

    def __init__(self, open_host: OpenHost, store: OperationStore, fence: FleetFence) -> None:
        self._open_host = open_host
        self._fence = fence
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._queue: list[AgentOperation] = []
        self._running: set[AgentOperation] = set()
        self._threads = ThreadPoolExecutor(MAX_RUNNING + MAX_RUNNING_WAITS + 8, thread_name_prefix="operation")
        self._operations: dict[str, AgentOperation] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._is_stopping = False
        self._unwritten: set[str] = set()
        """Operations whose file is not as they are, for instance on a full disk: memory keeps their results."""
        self._lock = Lock()
        self._is_read_only = False
        self.on_begin: Callable[[StoredOperation], None] = lambda _: None
        self.on_end: Callable[[StoredOperation], None] = lambda _: None
        self.on_read_only: Callable[[OSError | None], None] = lambda _: None
        """Called from any thread when the state directory cannot be written any more, and with None when it can."""
        for stored in store.load():
            self._remember(AgentOperation(stored, self._loop, None))
        self._lost = [self._operations[operation_id] for operation_id in store.lost()]

    def known(self, request: CallRequest) -> AgentOperation | None:
        """Return the operation that the same request with the same key began; None: there is none.

        Raises:
            KeyReused: the key came with another request.
        """
        if request.key is None:
            return None
        known = self._operations.get(self._keys.get((request.caller.account, request.key), ""))
        if known is None or known.stored.digest == request.digest(self._store.secret):
            return known
        raise KeyReused(
            f"the idempotency key {request.key} belongs to another request: operation {known.stored.id}",
            hint="use a new key for each request",
            operation=known.stored.id,
        )

    def begin(self, request: CallRequest) -> AgentOperation:
        """Begin an operation, or return the one that the same request with the same key began.

        Raises:
            KeyReused: the key came with another request.
            TooMany, Stopping: no other one can begin now.
            StateNotWritable: it cannot be written to the disk.
        """
        known = self.known(request)
        if known is not None:
            return known
        if self._is_stopping:
            raise Stopping("the agent stops: it begins nothing new", hint="try again in a few seconds")
        waiting = len(self._queue)
        own = sum(one.stored.account == request.caller.account for one in (*self._queue, *self._running))
        if waiting >= MAX_WAITING or (own >= MAX_OF_ACCOUNT and request.caller.uid != 0):
            raise TooMany(
                f"{waiting} operations wait for their turn, and {MAX_RUNNING} run",
                hint="try again later",
                waiting=waiting,
            )
        stored = StoredOperation(
            id=uuid.uuid4().hex,
            call=request.call.name,
            account=request.caller.account,
            uid=request.caller.uid,
            state="waiting",
            created=time.time(),
            key=request.key,
            digest=request.digest(self._store.secret),
            vm=request.vm,
        )
        try:
            self._write(stored)
        except OSError as error:
            raise _not_writable(error) from error
        operation = AgentOperation(stored, self._loop, request)
        self._remember(operation)
        self._queue.append(operation)
        self._dispatch()
        return operation

    def cancel(self, operation: AgentOperation) -> None:
        """Cancel an operation; one that waits is over at once."""
        operation.cancel()
        self._dispatch()

    def _dispatch(self) -> None:
        """Begin what waits, the oldest first, a few of each account at once: nobody takes all turns."""
        for operation in list(self._queue):
            if operation.signals or self._has_turn(operation.stored):
                self._queue.remove(operation)
                self._running.add(operation)
                done = self._loop.run_in_executor(self._threads, self._perform, operation)
                done.add_done_callback(partial(self._note_done, operation))

    def _note_done(self, operation: AgentOperation, _: object) -> None:
        self._running.discard(operation)
        self._dispatch()

    def _has_turn(self, stored: StoredOperation) -> bool:
        is_wait = stored.call in WAITING_CALLS
        limit = MAX_RUNNING_WAITS if is_wait else MAX_RUNNING
        running = [one.stored for one in self._running if (one.stored.call in WAITING_CALLS) is is_wait]
        if stored.uid == 0:
            return len(running) < limit
        return len(running) < limit - 1 and sum(one.account == stored.account for one in running) < limit // 2

    def recover(self) -> None:
        """Finish or undo what operations of a former agent left, by `reconcile-host`; they name that operation.

        A state directory that cannot be written is reported, and what was left waits until it can.
        """
        try:
            self._store.probe()
        except OSError as error:
            self._note_write(error)
            return
        if not self._lost:
            return
        try:
            reconcile = self.begin(CallRequest(CALLS["reconcile-host"], {}, RequestOptions(), ROOT)).stored.id
        except VgpuctlError as error:  # a full disk, too many operations: the next write, or start, finds them again
            log.error("what the former agent left is not reconciled: %s", error)
            return
        lost, self._lost = self._lost, []
        for operation in lost:
            document = to_json_value(operation.stored.document)
            document["error"]["facts"]["reconcile"] = reconcile
            operation.end(replace(operation.stored, document=document))
            self._keep(operation.stored)

    def find(self, operation_id: str) -> AgentOperation:
        """Return an operation.

        Raises:
            NotFound: there is none with this id, or no longer.
            OSError: its file cannot be read.
        """
        operation = self._operations.get(operation_id)
        if operation is None:
            raise NotFound(f"there is no operation {operation_id}", hint="an operation is kept for 7 days")
        if operation.has_ended and operation.stored.document is None:
            operation = AgentOperation(operation.stored, self._loop, None)
            operation.end(self._store.read(operation_id))
        return operation

    def list(self) -> tuple[StoredOperation, ...]:
        """Return all that are kept, the newest first, without their documents."""
        stored = [replace(operation.stored, document=None) for operation in self._operations.values()]
        return tuple(sorted(stored, key=lambda one: one.created, reverse=True))

    async def stop(self, seconds: float) -> None:
        """Begin nothing new; let the running ones end for so long, then undo them; wait until all have ended."""
        self._is_stopping = True
        for operation in list(self._queue):
            if operation.stored.state == "waiting":
                self.cancel(operation)
        running = [operation for operation in self._operations.values() if not operation.has_ended]
        end = self._loop.time() + seconds
        for operation in running:
            try:
                await asyncio.wait_for(wait_for_end(operation), max(0.0, end - self._loop.time()))
            except TimeoutError:
                operation.cancel()
        for operation in running:
            await wait_for_end(operation)
        self._threads.shutdown()

    def _remember(self, operation: AgentOperation) -> None:
        stored = operation.stored
        self._operations[stored.id] = operation
        if stored.key is not None:
            self._keys[(stored.account, stored.key)] = stored.id
        if stored.document is not None:
            operation.end(stored)

    def _forget_old(self) -> None:
        """Forget what is no longer kept on disk, and of all but the newest operations what is there, too."""
        kept: Counter[str] = Counter()
        too_many: list[str] = []
        for operation in sorted(self._operations.values(), key=lambda one: one.stored.created, reverse=True):
            kept[operation.stored.account] += 1
            if operation.has_ended and kept[operation.stored.account] > MAX_KEPT_OF_ACCOUNT:
                too_many.append(operation.stored.id)
        self._store.remove(too_many)
        for operation_id in (*self._store.remove_old(), *too_many):
            old = self._operations.pop(operation_id, None)
            if old is not None and old.stored.key is not None:
                self._keys.pop((old.stored.account, old.stored.key), None)
        ended = [
            operation
            for operation in self._operations.values()
            if operation.stored.document is not None and operation.stored.id not in self._unwritten
        ]
        for operation in sorted(ended, key=lambda one: one.stored.created)[:-MAX_IN_MEMORY]:
            operation.events.clear()
            operation.stored = replace(operation.stored, document=None)

    def _perform(self, operation: AgentOperation) -> None:
        """Carry out an operation, in a thread of its own."""
        request = operation.take_request()
        document: Mapping[str, object] | None = None
        if not operation.signals:
            running = replace(operation.stored, state="running", started=time.time())
            try:
                self._write(running)  # else nobody would know after a kill that it had begun
            except OSError as error:
                document = failure_document(failure_of(_not_writable(error)), request.call.name)
            else:
                operation.stored = running
                self.on_begin(running)
        document = to_json_value(document or self._document(operation, request))
        stored = replace(operation.stored, state="finished", finished=time.time(), document=document)
        self._keep(stored)
        self.on_end(stored)
        operation.end(stored)
        self._loop.call_soon_threadsafe(self._forget_old)

    def _document(self, operation: AgentOperation, request: CallRequest) -> Mapping[str, object]:
        kind = request.call.name
        try:
            if operation.is_cancelled():
                raise Interrupted("it was cancelled before it began", signal_number=signal.SIGINT)
            if request.renew is not None and time.time() - operation.stored.created > RENEW_SECONDS:
                request = request.renew()
            settings = request.settings(OperationProgress(operation), operation.is_cancelled)
            settings = replace(settings, fence=self._fence)
            if settings.fleet is not None:  # at each begin: another controller may have taken the host just now
                self._fence.check(settings.fleet.fence)
            with self._open_host(settings, HostClock(stop_waits_of(operation))) as host:
                return success_body(kind, request.call.on(host, request.arguments))
        except BaseException as exc:
            error = explain_exception(exc)
            if isinstance(error, VgpuctlError):
                return failure_document(failure_of(error), kind)
            if isinstance(error, KeyboardInterrupt):
                return failure_document(Failure("interrupted", "stopped", 130), kind)
            log.exception("%s failed with a bug", kind, exc_info=exc)
            message = f"unexpected {type(exc).__name__}: {exc}"
            hint = "this is a bug in vgpuctl: please report it with: journalctl -u vgpuctl-agent -n 200"
            return failure_document(Failure("bug", message, 1, hint), kind)

    def _write(self, stored: StoredOperation) -> None:
        """Write an operation's file, from any thread.

        Raises:
            OSError: it cannot be written.
        """
        try:
            self._store.write(stored)
        except OSError as error:
            self._note_write(error)
            raise
        self._note_write(None)

    def _keep(self, stored: StoredOperation) -> None:
        """Write an operation's file; if that fails, memory keeps what would be in it."""
        try:
            self._write(stored)
            self._unwritten.discard(stored.id)
        except OSError as error:
            self._unwritten.add(stored.id)
            log.error("operation %s cannot be written to the disk: %s", stored.id, error)

    def _note_write(self, error: OSError | None) -> None:
        with self._lock:
            is_new = self._is_read_only is (error is None)
            self._is_read_only = error is not None
        if is_new:
            self.on_read_only(error)
            if error is None:
                self._loop.call_soon_threadsafe(self._catch_up)

    def _catch_up(self) -> None:
        """Do what had to wait until the state directory could be written again."""
        for operation_id in [*self._unwritten]:
            operation = self._operations.get(operation_id)
            if operation is not None and operation.has_ended:
                self._keep(operation.stored)
        self.recover()


def _not_writable(error: OSError) -> StateNotWritable:
    """Return why an operation does not begin."""
    explained = explain_exception(error)
    hint = f"{explained.hint}; " if isinstance(explained, VgpuctlError) and explained.hint else ""
    return StateNotWritable(
        f"the host agent begins no operation, because it cannot store it: {explained}",
        hint=f"{hint}as root, sudo vgpuctl works without the agent",
        path=error.filename,
        errno=error.errno,
    )
