# SPDX-License-Identifier: Apache-2.0
"""One entry in the host's audit journal for each call that may have changed the host. It never fails a call.

The journal is for people, and only `vgpuctl log` reads it: the host stays the record of what exists.
"""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from vgpuctl.errors import HostCannot, Interrupted, VgpuctlError
from vgpuctl.host.processes import is_secret_key, redact_command, redact_text
from vgpuctl.model.names import is_visible
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.port_values import AuditEntry, AuditQuery
from vgpuctl.model.results.host import LogEntryResult
from vgpuctl.value import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vgpuctl.model.caller import Caller
    from vgpuctl.model.outcome import Outcome, Subjects
    from vgpuctl.ports.host import Host

MAX_TEXT_LENGTH = 4000
MAX_TOLD_LENGTH = 200
UNSET_LOGIN_UID = 2**32 - 1
"""What /proc/self/loginuid contains for a process without a login user (proc(5))."""
_OTHER_FAILURES: dict[type[BaseException], tuple[str, int]] = {KeyboardInterrupt: ("interrupted", 130)}
_BUG = ("bug", 1)


class Call:
    """A call that may change the host; `arguments` is its command line, `subjects` what it changes.

    `caller`: for whom it works; None: for the user that runs this process.
    """

    def __init__(self, command: str, arguments: str, subjects: Subjects, caller: Caller | None = None) -> None:
        self._command = command
        self._arguments = arguments
        self._subjects = subjects
        self._caller = caller
        self._started = time.monotonic()

    def succeeded(self, host: Host, outcome: Outcome[object]) -> None:
        """Write the entry of a call that returned."""
        self._subjects.add_result(outcome.data)
        self._write(host, outcome.steps, changed=outcome.changed)

    def failed(self, host: Host, error: BaseException, steps: tuple[str, ...]) -> None:
        """Write the entry of a call that raised; `steps` were planned. The error may name a VM and a GPU."""
        if isinstance(error, VgpuctlError):
            self._subjects.add_error(error.facts)
        self._write(host, steps, error, changed=isinstance(error, VgpuctlError) and bool(error.changed or error.left))

    def _write(self, host: Host, steps: tuple[str, ...], error: BaseException | None = None, *, changed: bool) -> None:
        if host.audit_log is None:
            return
        for _ in range(2):  # a signal may come while the entry is written; the call is over and keeps its result
            try:
                host.audit_log.write_entry(self._entry(host, steps, error, changed=changed))
            except (Interrupted, KeyboardInterrupt):
                continue
            except Exception:  # noqa: BLE001 - a failure to write the entry must not change the call's result
                return
            return

    def _entry(self, host: Host, steps: tuple[str, ...], error: BaseException | None, *, changed: bool) -> AuditEntry:
        result, status = ("ok", 0) if error is None else _code_and_status(error)
        entry = AuditEntry(
            command=self._command,
            arguments=self._arguments,
            host=host.name,
            uid=os.getuid(),
            login_uid=None,
            sudo_user=None,
            result=result,
            exit_status=status,
            changed=changed,
            duration_seconds=round(time.monotonic() - self._started, 3),
            message=None if error is None else redact_text(str(error), MAX_TEXT_LENGTH),
            plan=steps,
            undone=tuple(error.undone) if isinstance(error, VgpuctlError) else (),
            left=tuple(error.left) if isinstance(error, VgpuctlError) else (),
            vms=tuple(redact_text(name, MAX_TEXT_LENGTH) for name in self._subjects.vms),
            gpus=self._subjects.gpus,
            time=time.time(),
            spec=_spec_text(self._subjects.spec),
        )
        return _by_this_process(entry) if self._caller is None else _by_caller(entry, self._caller)


def _by_this_process(entry: AuditEntry) -> AuditEntry:
    return replace(entry, login_uid=_login_uid(), sudo_user=os.environ.get("SUDO_USER"), user=process_user(entry.uid))


def process_user(uid: int) -> str:
    """Return who runs this process of a user, before sudo."""
    login_uid = _login_uid()
    return os.environ.get("SUDO_USER") or _user_name(uid if login_uid is None else login_uid)


def _by_caller(entry: AuditEntry, caller: Caller) -> AuditEntry:
    """Return the entry of a request to the agent, whose own process says nothing about who made it."""
    return replace(
        entry,
        arguments=_one_line(entry.arguments),
        message=None if entry.message is None else _one_line(entry.message),
        vms=tuple(map(_one_line, entry.vms)),
        uid=caller.uid,
        user=caller.account,
        account=caller.account,
        via=_one_line(caller.via),
        address=None if caller.address is None else _one_line(caller.address[:MAX_TOLD_LENGTH]),
        on_behalf_of=None if caller.on_behalf_of is None else _one_line(caller.on_behalf_of[:MAX_TOLD_LENGTH]),
    )


def _one_line(text: str) -> str:
    """Return a text of a client without characters that could forge another line of a log, or control a terminal."""
    return "".join(character if is_visible(character) else "?" for character in text)


def join(words: Sequence[str]) -> str:
    """Return a command line as a shell takes it, without secrets and of bounded length."""
    return redact_command(words, MAX_TEXT_LENGTH)


def _spec_text(fields: Mapping[str, object] | None) -> str | None:
    """Return the fields of a spec as JSON. It names the files for cloud-init, and has nothing of what is in them."""
    if fields is None:
        return None
    return redact_text(json.dumps(_without_secrets(fields), ensure_ascii=False), MAX_TEXT_LENGTH)


def _without_secrets(fields: Mapping[str, object]) -> dict[str, object]:
    return {
        key: "***" if is_secret_key(key) else _without_secrets(value) if isinstance(value, Mapping) else value
        for key, value in fields.items()
    }


def _code_and_status(error: BaseException) -> tuple[str, int]:
    """Return the error code of a failed call and the command's exit status."""
    if isinstance(error, Interrupted):
        return error.code, 128 + error.signal_number
    if isinstance(error, VgpuctlError):
        return error.code, error.status
    return _OTHER_FAILURES.get(type(error), _BUG)


def _login_uid() -> int | None:
    try:
        with open("/proc/self/loginuid", encoding="ascii") as file:
            uid = int(file.read())
    except (OSError, ValueError):
        return None
    return None if uid == UNSET_LOGIN_UID else uid


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


MAX_SEARCHED = 2000
"""So many entries are searched for those of a user, which the journal does not index in a way that can be trusted."""


def read_log(
    host: Host, *, lines: int, vm: str | None, gpu: str | None, since: float | None, user: str | None, failed: bool
) -> QueryResult[tuple[LogEntryResult, ...]]:
    """Return the newest `lines` entries that match everything given, oldest first.

    Raises:
        HostCannot: this host keeps no log, or it cannot be read.
    """
    if host.audit_log is None:
        raise HostCannot(
            f"{host.read_only_reason or host.name}: it has no log of commands",
            hint="omit --root",
            check="journal",
        )
    limit = lines if user is None else max(lines, MAX_SEARCHED)
    read = host.audit_log.read_entries(AuditQuery(limit, vm, gpu, since, failed))
    entries = [entry for entry in read.entries if user in (None, entry.user)]
    warnings = read.warnings
    if user is not None and len(read.entries) == limit:
        warnings = (*warnings, f"only the newest {limit} entries were searched for those of {user}")
    return QueryResult(tuple(_log_entry(entry) for entry in entries[-lines:]), warnings)


def _log_entry(entry: AuditEntry) -> LogEntryResult:
    return LogEntryResult(
        time=datetime.fromtimestamp(entry.time or 0, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        user=entry.user,
        uid=entry.uid,
        command=entry.command,
        arguments=entry.arguments,
        spec=entry.spec,
        vms=entry.vms,
        gpus=entry.gpus,
        result=entry.result,
        exit_status=entry.exit_status,
        changed=entry.changed,
        duration_seconds=entry.duration_seconds,
        error=entry.message,
        left=entry.left,
    )
