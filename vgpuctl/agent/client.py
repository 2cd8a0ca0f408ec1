# SPDX-License-Identifier: Apache-2.0
"""A host whose calls an agent makes: the same methods, results and errors as those of a host that is opened here.

    import vgpuctl

    host = vgpuctl.connect()
    vm = host.create_vm("vdi-001", profile="A100-4C").data

Threads may share it. Each request has a connection of its own; `dial` makes them, to the socket or through SSH.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

from vgpuctl.agent.answers import pass_on, read_answer, result_in, with_remains
from vgpuctl.agent.call_arguments import names_file
from vgpuctl.agent.channel import AgentChannel, AnswerLost, IdleConnections
from vgpuctl.agent.connection import (
    LOCAL_AGENT,
    LOCAL_LIMITS,
    REMOTE_LIMITS,
    AgentConnection,
    Dial,
    dialer,
    read_stream,
    show_operation_command,
)
from vgpuctl.agent.protocol import (
    API_VERSION,
    REQUEST_KEY,
    RESULT_EVENT,
    confirmation_key,
    refuse_host_only,
)
from vgpuctl.config.arguments import require_seconds
from vgpuctl.errors import (
    DeadlineExceeded,
    FileNeeded,
    Interrupted,
    InvalidInput,
    NeedsConfirmation,
    ResultUnknown,
    Unreachable,
)
from vgpuctl.host.processes import HostClock
from vgpuctl.library import GpuHost
from vgpuctl.library.call_table import CALLS, LibraryCall
from vgpuctl.library.remote_errors import error_of
from vgpuctl.library.sent_calls import SentCalls, arguments_of
from vgpuctl.library.text_file import read_text
from vgpuctl.model.desktop import Fence, FleetStatus
from vgpuctl.model.documents import read_failure, to_json_value
from vgpuctl.model.event import Event
from vgpuctl.model.host_room import HostRoom
from vgpuctl.model.outcome import (
    DEFAULT_WAIT_SECONDS,
    CallSettings,
    Confirm,
    NoProgress,
    Outcome,
    Progress,
    QueryResult,
    confirm_everything,
    never_cancelled,
)
from vgpuctl.value import Value, replace

Result = TypeVar("Result")
Data = TypeVar("Data")

MAX_FILES = 1000
MAX_ROUNDS = MAX_FILES + 100
MAX_STOPS = 3
"""The first stop of the user cancels an operation; at the third nobody waits for its undo any longer."""
_STOPS = (Interrupted, KeyboardInterrupt, DeadlineExceeded)


class AgentHost(SentCalls, GpuHost):
    """A host behind an agent. `connect` and `vgpuctl.connect` open one."""

    def __init__(
        self,
        dial: Dial,
        settings: CallSettings,
        name: str,
        log_out: Callable[[], None] | None = None,
        read_file: Callable[[str, str], str] = read_text,
        idle: IdleConnections | None = None,
    ) -> None:
        """`read_file` returns the text of a file that a call names, and that is of this kind.

        `idle`: where connections wait for the next request; None: each has one.
        """
        self._dial = dial
        self._log_out = log_out
        self._read_file = read_file
        self._idle = idle
        self._settings = settings
        self._captured_root = None
        self._confirm = settings.confirm
        self._host_name = name
        self._limits = REMOTE_LIMITS if name.startswith("ssh://") else LOCAL_LIMITS
        self._channel = AgentChannel(dial, self._limits, idle)
        self._open_again: Any = self._with_settings
        self._begin_call()

    @property
    def name(self) -> str:
        """The name that opened the host."""
        return self._host_name

    def _with_settings(self, settings: CallSettings, _: HostClock) -> Self:
        return type(self)(self._dial, settings, self._host_name, read_file=self._read_file, idle=self._idle)

    def with_settings(self, settings: CallSettings) -> Self:
        """Return this host for calls with other settings, such as those of one change of a fleet."""
        return self._with_settings(settings, HostClock())

    def close(self) -> None:
        """Log out at another host. Connections that wait are those of whoever gave them."""
        if self._log_out is not None:
            self._log_out()

    @contextmanager
    def _one_call(self) -> Iterator[Self]:
        call = copy(self)
        call._begin_call()
        yield call

    def _end_with(self, act: Callable[[], Result]) -> Result:
        return act()

    def _carry_out(self, command: str, named: object, act: Callable[[], Outcome[Data]]) -> Outcome[Data]:
        return act()

    def read_events(self, after: str | None = None) -> QueryResult[tuple[Event, ...]]:
        """Return the events that the agent keeps; `after`: those after the event with this id."""
        path = f"/{API_VERSION}/events"
        if after is not None:
            path += f"?{urlencode({'since': after})}"
        status, answer = self._request("GET", path)
        if status != 200:
            raise error_of(read_failure(answer["error"]))
        return QueryResult(read_answer(tuple[Event, ...], answer.get("events")))

    def read_fleet(self) -> FleetStatus:
        """Return which controller the host obeys, and what a controller compares when it connects."""
        seen: FleetStatus = self._fleet("GET", None)
        return seen

    def announce_fleet(self, fence: Fence, *, adopt: bool = False) -> FleetStatus:
        """Announce the holder of this host's lease. `adopt`: for another incarnation than the host obeyed.

        Raises:
            Refused: the host obeys another holder (`Fenced`), or no longer knows whom (`FenceLost`).
        """
        announced = json.dumps({"fence": to_json_value(fence), "adopt": adopt}).encode()
        seen: FleetStatus = self._fleet("POST", announced)
        return seen

    def read_room(self) -> HostRoom:
        """Return what the host has room for.

        Raises:
            HostCannot: the host does not know, because its libvirt does not answer.
        """
        room: HostRoom = self._fleet("GET", None, "/room", HostRoom)
        return room

    def _fleet(self, method: str, body: bytes | None, path: str = "", kind: type[Value] = FleetStatus) -> Any:
        headers = {"Content-Type": "application/json"}
        status, answer = self._request(method, f"/{API_VERSION}/fleet{path}", body, headers)
        if status != 200:
            raise error_of(read_failure(answer["error"]))
        return read_answer(kind, answer)

    def follow_events(self, after: str | None = None) -> Iterator[Event]:
        """Yield events as they come, from now on or after the event with this id, until the agent ends.

        Raises:
            Unreachable: the agent does not answer, or not any more.
            Busy: too many readers follow already.
        """
        connection = AgentConnection(self._dial)
        try:
            response = connection.open_stream(f"/{API_VERSION}/events", after or None)
            if response.status != 200:
                raise error_of(read_failure(self._limits.parse(response.read(self._limits.line_bytes))["error"]))
            for fields in read_stream(response, self._limits.line_bytes):
                if fields is None:
                    self._progress.on_wait()
                else:
                    yield read_answer(Event, self._limits.parse(fields["data"]))
        except (OSError, http.client.HTTPException, ValueError, KeyError, RecursionError) as error:
            raise Unreachable(
                f"the stream of the host agent's events ended: {error}", hint="systemctl status vgpuctl-agent"
            ) from error
        finally:
            connection.close()

    def _send_call(self, method: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Send a call; send it again with what the agent asks for: a file's text, or the user's confirmation."""
        refuse_host_only(method.__name__.replace("_", "-"))
        call = CALLS[method.__name__.replace("_", "-")]
        arguments = arguments_of(method, self, args, named)
        files: dict[str, str] = {}
        confirmed: list[str] = []
        for _ in range(MAX_ROUNDS):
            options = {
                "wait_seconds": self._settings.wait_seconds,
                "ask": True,
                "confirmed": confirmed,
                "files": files,
                "command_line": self._settings.command_line or (),
                **self._fleet_options(call),
            }
            document = self._send(call, {**arguments, REQUEST_KEY: options})
            if document.get("ok") is True:
                return result_in(call, document)
            failure = document.get("error")
            error = error_of(read_failure(failure if isinstance(failure, dict) else {}), call, document)
            path, question = error.facts.get("path"), error.facts.get("question")
            if isinstance(error, FileNeeded) and isinstance(path, str) and path not in files and len(files) < MAX_FILES:
                if not names_file(path, arguments, files):
                    raise InvalidInput(f"the host agent asks for {path}, which the request does not name", path=path)
                files[path] = self._read_file(path, str(error.facts.get("file_kind", "spec")))
            elif isinstance(error, NeedsConfirmation) and isinstance(question, str):
                lines = error.facts.get("lines")
                details = tuple(map(str, lines)) if isinstance(lines, list) else ()
                self._confirm(question, details)
                confirmed.append(confirmation_key(question, details))
            else:
                raise error
        raise ResultUnknown(f"{call.name}: the host agent asks again and again")

    def _fleet_options(self, call: LibraryCall) -> Mapping[str, object]:
        """Return what a change has besides, if it has any of it: an older agent knows none of it."""
        options = {
            "fleet": self._settings.fleet if call.changes else None,
            "if_generation": self._settings.if_generation if call.changes else None,
            "override_controller": self._settings.override_controller or None,
        }
        return {name: value for name, value in options.items() if value is not None}

    def _send(self, call: LibraryCall, body: Mapping[str, object]) -> Mapping[str, Any]:
        """Return the document of a call, of an operation when it has ended."""
        text = json.dumps(to_json_value(body)).encode()
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": self._settings.request_key or os.urandom(16).hex(),
        }
        path = f"/{API_VERSION}/{call.name}"
        stop: BaseException | None = None
        try:
            status, answer = self._request("POST", path, text, headers)
        except (AnswerLost, *_STOPS) as error:
            if not call.changes and not isinstance(error, AnswerLost):
                raise
            stop = None if isinstance(error, AnswerLost) else error
            try:  # with the same key it is the same operation, if it has begun
                status, answer = self._request("POST", path, text, headers)
            except (Unreachable, *_STOPS) as lost:
                if not call.changes:
                    raise
                raise ResultUnknown(
                    f"{call.name}: the connection to the host agent broke, and whether it began is unknown",
                    hint="vgpuctl log shows what was done; systemctl status vgpuctl-agent",
                ) from lost
        if status != 202:
            return answer
        document, stop = self._follow(call, str(answer.get("id")), stop)
        if isinstance(stop, DeadlineExceeded) and document.get("ok") is not True:
            raise with_remains(stop, document)
        return document

    def _request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, Any]]:
        return self._channel.ask(method, path, body, headers or {})

    def _follow(
        self, call: LibraryCall, operation: str, stop: BaseException | None
    ) -> tuple[Mapping[str, Any], BaseException | None]:
        """Pass an operation's progress on until it has ended; return its document and what has stopped it, if anything.

        A stop cancels it, and its undo is awaited. `stop`: the one that came while it began.
        """
        last, stops, cancelled = 0, int(stop is not None), 0
        progress: Progress = self._progress
        while True:
            try:
                if stops > cancelled:
                    cancelled = stops
                    progress = self._settings.progress  # the watched one would raise, and so cancel, at each event
                    with suppress(AnswerLost):  # whether the agent is still there shows the stream
                        self._request("DELETE", f"/{API_VERSION}/operations/{operation}")
                for number, kind, data in self._events(operation, last, progress):
                    last = number
                    if kind == RESULT_EVENT:
                        return (data if isinstance(data, dict) else {}), stop
                    pass_on(progress, kind, data)
            except _STOPS as another:
                stop, stops = stop or another, stops + 1
                if stops >= MAX_STOPS:
                    raise self._abandoned(call, operation, stop) from another
            except (OSError, KeyError, TypeError, Unreachable) as error:
                if isinstance(error, Unreachable) and not call.changes:
                    raise
                raise ResultUnknown(
                    f"the connection to the host agent broke while {call.name} ran: {error}; "
                    f"unless the agent has ended, {call.name} goes on there",
                    hint=show_operation_command(self._host_name, operation),
                    operation=operation,
                ) from error

    def _abandoned(self, call: LibraryCall, operation: str, stop: BaseException) -> Interrupted:
        error = Interrupted(
            f"{call.name} is no longer waited for; the host agent goes on undoing it",
            signal_number=stop.signal_number if isinstance(stop, Interrupted) else signal.SIGINT,
            hint=show_operation_command(self._host_name, operation),
            operation=operation,
        )
        error.left = [f"what {call.name} made, until the agent has undone it"]
        return error

    def _events(self, operation: str, last: int, progress: Any) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """Yield an operation's events after the number `last`.

        Raises:
            OSError: the stream ended before the result.
        """
        connection = AgentConnection(self._dial)
        try:
            response = connection.open_stream(f"/{API_VERSION}/operations/{operation}/events", str(last))
            for fields in read_stream(response, self._limits.line_bytes):
                if fields is None:
                    progress.on_wait()
                else:
                    yield int(fields["id"]), fields["event"], self._limits.parse(fields["data"])
        except (http.client.HTTPException, ValueError, RecursionError) as error:
            raise OSError(f"it sent {error!r}") from error
        finally:
            connection.close()
        raise OSError("the stream ended early")


def connect(
    name: str = LOCAL_AGENT,
    *,
    wait_seconds: float = DEFAULT_WAIT_SECONDS,
    progress: Progress | None = None,
    confirm: Confirm = confirm_everything,
    cancelled: Callable[[], bool] = never_cancelled,
    command_line: tuple[str, ...] | None = None,
    override_controller: bool = False,
) -> AgentHost:
    """Connect to a host agent: this machine's (`agent`), one at another socket (`agent:PATH`), or `ssh://[USER@]HOST`.

    The other arguments, and what the host can do, are those of `vgpuctl.open_host`; rights are the caller's on that
    host, not root's. Files that a call names are read here and sent.

    Raises:
        InvalidInput: it is not such a name.
        Unreachable, Refused, HostKeyRefused: the host cannot be reached. A socket is first used by the first call.
    """
    require_seconds("wait_seconds", wait_seconds)
    settings = CallSettings(wait_seconds, progress or NoProgress(), confirm, cancelled, command_line)
    settings = replace(settings, override_controller=override_controller)
    dial, log_out = dialer(name)
    return AgentHost(dial, settings, name, log_out)
