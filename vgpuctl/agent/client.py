# SPDX-License-Identifier: Apache-2.0
"""A host whose calls an agent makes: the same methods, results and errors as those of a host that is opened here.

    import vgpuctl

    host = vgpuctl.connect()
    vm = host.create_vm("vdi-001", profile="A100-4C").data

Threads may share it. Each request has a connection of its own; `dial` makes them, to the socket or through SSH.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlencode

from vgpuctl.agent.connection import LOCAL_AGENT, MAX_LINE_BYTES, AgentConnection, Dial, dialer, read_stream
from vgpuctl.agent.protocol import (
    API_VERSION,
    EVENT_STREAM,
    REQUEST_KEY,
    RESULT_EVENT,
    confirmation_key,
    refuse_host_only,
)
from vgpuctl.agent.remote_errors import error_of
from vgpuctl.config.arguments import require_seconds
from vgpuctl.config.vm_spec import NUMBERED_VM_SHAPE, VM_SHAPE, parse_vm_spec
from vgpuctl.errors import (
    FileNeeded,
    Interrupted,
    InvalidInput,
    NeedsConfirmation,
    ResultUnknown,
    Unreachable,
    VgpuctlError,
)
from vgpuctl.host.processes import HostClock
from vgpuctl.library import GpuHost
from vgpuctl.library.call_table import CALLS, LibraryCall
from vgpuctl.library.text_file import read_text
from vgpuctl.model.agent_service import SOCKET_PATH
from vgpuctl.model.documents import read_failure, to_json_value
from vgpuctl.model.event import Event
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
from vgpuctl.model.result_reader import Mismatch, read_result, read_value

Result = TypeVar("Result")
Data = TypeVar("Data")

MAX_FILES = 1000
MAX_ROUNDS = MAX_FILES + 100
MAX_ANSWER_BYTES = 256 << 20
_PLACEHOLDER = re.compile(r"\\\{[^{}]*\\\}")


class AnswerLost(Unreachable):
    """A request was sent, and its answer did not arrive."""


class AgentHost(GpuHost):
    """A host behind an agent. `connect` and `vgpuctl.connect` open one."""

    def __init__(
        self, dial: Dial, settings: CallSettings, name: str, log_out: Callable[[], None] | None = None
    ) -> None:
        self._dial = dial
        self._log_out = log_out
        self._settings = settings
        self._captured_root = None
        self._confirm = settings.confirm
        self._host_name = name
        self._open_again: Any = self._with_settings
        self._begin_call()

    @property
    def name(self) -> str:
        """The name that opened the host."""
        return self._host_name

    def _with_settings(self, settings: CallSettings, _: HostClock) -> Self:
        return type(self)(self._dial, settings, self._host_name)

    def close(self) -> None:
        """Log out at another host. No connection to an agent outlives its request."""
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
        return QueryResult(_read(tuple[Event, ...], answer.get("events")))

    def follow_events(self, after: str | None = None) -> Iterator[Event]:
        """Yield events as they come, from now on or after the event with this id, until the agent ends.

        Raises:
            Unreachable: the agent does not answer, or not any more.
            Busy: too many readers follow already.
        """
        connection = AgentConnection(self._dial)
        try:
            headers = {"Accept": EVENT_STREAM} | ({"Last-Event-ID": after} if after else {})
            connection.request("GET", f"/{API_VERSION}/events", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise error_of(read_failure(json.loads(response.read(MAX_LINE_BYTES))["error"]))
            for fields in read_stream(response):
                if fields is None:
                    self._progress.on_wait()
                else:
                    yield _read(Event, json.loads(fields["data"]))
        except (OSError, ValueError, KeyError) as error:
            raise Unreachable(
                f"the stream of the host agent's events ended: {error}", hint="systemctl status vgpuctl-agent"
            ) from error
        finally:
            connection.close()

    def _query(self, method: Callable[..., Result], args: tuple[Any, ...], named: Mapping[str, Any]) -> Result:
        result: Result = self._make(method, args, named)
        return result

    def _change(
        self,
        command: str,
        about: Literal["vm", "gpu"] | None,
        method: Callable[..., Outcome[Data]],
        args: tuple[Any, ...],
        named: Mapping[str, Any],
    ) -> Outcome[Data]:
        outcome: Outcome[Data] = self._make(method, args, named)
        return outcome

    def _make(self, method: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Send a call; send it again with what the agent asks for: a file's text, or the user's confirmation."""
        refuse_host_only(method.__name__.replace("_", "-"))
        call = CALLS[method.__name__.replace("_", "-")]
        arguments = _arguments_of(method, self, args, named)
        files: dict[str, str] = {}
        confirmed: list[str] = []
        for _ in range(MAX_ROUNDS):
            options = {
                "wait_seconds": self._settings.wait_seconds,
                "ask": True,
                "confirmed": confirmed,
                "files": files,
                "command_line": self._settings.command_line or (),
            }
            document = self._send(call, {**arguments, REQUEST_KEY: options})
            if document.get("ok") is True:
                return _result_in(call, document)
            failure = document.get("error")
            error = error_of(read_failure(failure if isinstance(failure, dict) else {}), call, document)
            path, question = error.facts.get("path"), error.facts.get("question")
            if isinstance(error, FileNeeded) and isinstance(path, str) and path not in files and len(files) < MAX_FILES:
                if not _is_named(path, arguments, files):
                    raise InvalidInput(f"the host agent asks for {path}, which the request does not name", path=path)
                files[path] = read_text(path, str(error.facts.get("file_kind", "spec")))
            elif isinstance(error, NeedsConfirmation) and isinstance(question, str):
                lines = error.facts.get("lines")
                details = tuple(map(str, lines)) if isinstance(lines, list) else ()
                self._confirm(question, details)
                confirmed.append(confirmation_key(question, details))
            else:
                raise error
        raise ResultUnknown(f"{call.name}: the host agent asks again and again")

    def _send(self, call: LibraryCall, body: Mapping[str, object]) -> Mapping[str, Any]:
        """Return the document of a call, of an operation when it has ended."""
        text = json.dumps(to_json_value(body)).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": os.urandom(16).hex()}
        path = f"/{API_VERSION}/{call.name}"
        try:
            status, answer = self._request("POST", path, text, headers)
        except AnswerLost:
            try:  # with the same key it is the same operation, if it has begun
                status, answer = self._request("POST", path, text, headers)
            except Unreachable as error:
                if not call.changes:
                    raise
                raise ResultUnknown(
                    f"{call.name}: the connection to the host agent broke, and whether it began is unknown",
                    hint="vgpuctl log shows what was done; systemctl status vgpuctl-agent",
                ) from error
        if status != 202:
            return answer
        operation = str(answer.get("id"))
        return self._follow(call, operation)

    def _request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, Any]]:
        connection = AgentConnection(self._dial)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            answer = json.loads(response.read(MAX_ANSWER_BYTES))
        except (OSError, ValueError) as error:
            raise AnswerLost(
                f"the host agent's answer to {method} {path} did not arrive: {error}",
                hint="systemctl status vgpuctl-agent; vgpuctl log shows what was done",
            ) from error
        finally:
            connection.close()
        if not isinstance(answer, dict):
            raise AnswerLost(f"the host agent answered {method} {path} with something that is no object")
        return response.status, answer

    def _follow(self, call: LibraryCall, operation: str) -> Mapping[str, Any]:
        """Pass an operation's progress on until it has ended. An interruption cancels it, and its undo is awaited."""
        last = 0
        progress: Progress = self._progress
        while True:
            try:
                for number, kind, data in self._events(operation, last, progress):
                    last = number
                    if kind == RESULT_EVENT:
                        return data if isinstance(data, dict) else {}
                    _pass_on(progress, kind, data)
            except (Interrupted, KeyboardInterrupt):
                progress = self._settings.progress  # the watched one would raise, and so cancel, at each event again
                with suppress(AnswerLost):  # whether the agent is still there shows the stream
                    self._request("DELETE", f"/{API_VERSION}/operations/{operation}")
            except (OSError, KeyError, TypeError, Unreachable) as error:
                if isinstance(error, Unreachable) and not call.changes:
                    raise
                raise ResultUnknown(
                    f"the connection to the host agent broke while {call.name} ran: {error}",
                    hint=f"curl --unix-socket {SOCKET_PATH} http://agent/{API_VERSION}/operations/{operation}",
                    operation=operation,
                ) from error

    def _events(self, operation: str, last: int, progress: Any) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
        """Yield an operation's events after the number `last`.

        Raises:
            OSError: the stream ended before the result.
        """
        connection = AgentConnection(self._dial)
        try:
            headers = {"Accept": EVENT_STREAM, "Last-Event-ID": str(last)}
            connection.request("GET", f"/{API_VERSION}/operations/{operation}/events", headers=headers)
            response = connection.getresponse()
            for fields in read_stream(response):
                if fields is None:
                    progress.on_wait()
                else:
                    yield int(fields["id"]), fields["event"], json.loads(fields["data"])
        except ValueError as error:
            raise OSError(f"it sent {error!r}") from error
        finally:
            connection.close()
        raise OSError("the stream ended early")


def _read(kind: Any, value: object) -> Any:
    """Return a JSON value of the agent as a type.

    Raises:
        ResultUnknown: it has another form.
    """
    try:
        return read_value(kind, value)
    except Mismatch as mismatch:
        raise ResultUnknown(
            f"the host agent's answer has another form: {mismatch}",
            hint="the agent is of another version: systemctl restart vgpuctl-agent",
        ) from mismatch


def _arguments_of(
    method: Callable[..., Any], host: GpuHost, args: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, object]:
    """Return the arguments of a call by name; fields of a VM are arguments like the others."""
    signature = inspect.signature(method)
    bound = signature.bind(host, *args, **named).arguments
    arguments: dict[str, object] = {}
    for name, value in [*bound.items()][1:]:
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= value
        else:
            arguments[name] = value
    return arguments


def _is_named(path: str, arguments: Mapping[str, object], files: Mapping[str, str]) -> bool:
    """Return whether a request names a file: an argument that takes one, or the spec file that it sent.

    A host that asks for another file is hostile: it would get what only the caller can read.
    """
    named = [arguments.get(name) for name in ("file", "path", "cloud_init", "network_config")]
    file = arguments.get("file")
    if isinstance(file, str) and file in files:
        for shape in (VM_SHAPE, NUMBERED_VM_SHAPE):
            with suppress(VgpuctlError):  # no spec, such as a host.yaml: it names no files
                spec = parse_vm_spec(files[file], file, shape)
                named += [spec.get("cloud_init"), spec.get("network_config")]
    texts = [text for text in named if isinstance(text, str)]
    return any(re.fullmatch(_PLACEHOLDER.sub(r"[0-9]+", re.escape(text)), path) for text in texts)


def _result_in(call: LibraryCall, document: Mapping[str, Any]) -> Any:
    """Return the result in a document, as the library's method would.

    Raises:
        ResultUnknown: it has another form.
    """
    kind = call.result_type
    try:
        if "Outcome" in str(kind) or "QueryResult" in str(kind):
            return read_result(kind, document)
        return _read(kind, document["data"])
    except (Mismatch, KeyError) as mismatch:
        raise ResultUnknown(
            f"{call.name}: the host agent's answer has another form: {mismatch}",
            hint="the agent is of another version: systemctl restart vgpuctl-agent",
        ) from mismatch


def _pass_on(progress: Any, kind: str, data: Mapping[str, Any]) -> None:
    """Report an event of an operation to the caller's progress."""
    if kind == "plan":
        progress.on_plan(tuple(data["steps"]))
    elif kind == "step-start":
        progress.on_step_start(data["number"], data["text"])
    elif kind == "step-progress":
        progress.on_step_progress(data["number"], data["text"], data["percent"])
    elif kind == "step-finish":
        progress.on_step_finish(data["number"], data["text"])
    elif kind == "step-undo":
        progress.on_step_undo(data["text"])
    elif kind == "vm-finish":
        progress.on_vm_finish(data["done"], data["total"], data["failed"], data["text"])


def connect(
    name: str = LOCAL_AGENT,
    *,
    wait_seconds: float = DEFAULT_WAIT_SECONDS,
    progress: Progress | None = None,
    confirm: Confirm = confirm_everything,
    cancelled: Callable[[], bool] = never_cancelled,
    command_line: tuple[str, ...] | None = None,
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
    dial, log_out = dialer(name)
    return AgentHost(dial, settings, name, log_out)
