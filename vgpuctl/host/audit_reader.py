# SPDX-License-Identifier: Apache-2.0
"""Reads vgpuctl's entries in systemd's journal with `journalctl -o json`, which also works without root.

Any local user may write to the journal. So who ran a command is read from the fields that journald itself adds (_UID,
_AUDIT_LOGINUID), and what sudo said counts only for a process of root.
"""

from __future__ import annotations

import json
import pwd
from collections.abc import Callable, Iterator, Sequence

from vgpuctl.errors import HostCannot
from vgpuctl.host.commands import find_command, run_command
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.port_values import AuditEntries, AuditEntry, AuditQuery

_DEADLINE_SECONDS = 30.0
_SHOWN_FIELDS = (
    "PRIORITY", "_UID", "_AUDIT_LOGINUID", "VGPUCTL_COMMAND", "VGPUCTL_ARGUMENTS", "VGPUCTL_HOST", "VGPUCTL_SUDO_USER",
    "VGPUCTL_RESULT", "VGPUCTL_EXIT_STATUS", "VGPUCTL_CHANGED", "VGPUCTL_DURATION_SECONDS", "VGPUCTL_ERROR",
    "VGPUCTL_LEFT", "VGPUCTL_VM", "VGPUCTL_GPU", "VGPUCTL_SPEC",
)  # fmt: skip
"""What journalctl prints besides the time: the plan of a command is long, and not shown."""
_WARNING_PRIORITY = "4"
_UNSET_UID = 2**32 - 1
_PARTIAL_VIEW = "currently not seeing messages from other users"
"""The beginning of journalctl's hint to a user who is not in the groups adm and systemd-journal."""


def read_journal(
    message_id: str,
    query: AuditQuery,
    command: Sequence[str] | None = None,
    user_name: Callable[[int], str] | None = None,
) -> AuditEntries:
    """Return the entries with this message id. `command`: journalctl by absolute path, with its first arguments.

    Raises:
        HostCannot: there is no journalctl, or it fails.
    """
    path = find_command("journalctl")
    start = command or (() if path is None else (path,))
    if not start:
        raise HostCannot(
            "this host has no journalctl, and without systemd's journal vgpuctl keeps no log",
            hint="apt install systemd",
            check="journal",
        )
    try:
        result = run_command([*start, *journal_arguments(message_id, query)], deadline_seconds=_DEADLINE_SECONDS)
    except OSError as error:
        raise _unreadable(str(error)) from error
    if result.status != 0:
        raise _unreadable(result.error_line)
    entries = tuple(_parse_entries(result.stdout, user_name or _user_name))
    if _PARTIAL_VIEW in result.stderr:
        return AuditEntries(entries, ("you see your own entries only; root sees those of all users",))
    return AuditEntries(entries, (f"journalctl: {result.error_line}",) if result.stderr.strip() else ())


def _unreadable(reason: str) -> HostCannot:
    return HostCannot(f"the journal cannot be read: {reason}", hint="journalctl -t vgpuctl", check="journal")


def journal_arguments(message_id: str, query: AuditQuery) -> list[str]:
    """Return journalctl's arguments. Matches of different fields must all hold."""
    matches = {
        "MESSAGE_ID": message_id,
        "SYSLOG_IDENTIFIER": "vgpuctl",
        "VGPUCTL_VM": query.vm,
        "VGPUCTL_GPU": query.gpu,
        "PRIORITY": _WARNING_PRIORITY if query.failed else None,
    }
    return [
        *("-o", "json", "--all", "--no-pager", "-n", str(query.limit)),
        f"--output-fields={','.join(_SHOWN_FIELDS)}",
        *([] if query.since is None else [f"--since=@{int(query.since)}"]),
        *(f"{name}={value}" for name, value in matches.items() if value is not None),
    ]


def _parse_entries(text: str, user_name: Callable[[int], str]) -> Iterator[AuditEntry]:
    """Yield the entries of journalctl's output; a line that is no entry of ours is left out."""
    for line in text.splitlines():
        fields = parse_json(line.encode())
        if isinstance(fields, dict):
            entry = _parse_entry({str(name): _texts(value) for name, value in fields.items()}, user_name)
            if entry is not None:
                yield entry


def _texts(value: object) -> tuple[str, ...]:
    """Return the values of a field: text, a list of texts when it has several, numbers for text that is not UTF-8."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        return ()
    if value and all(isinstance(item, int) and 0 <= item < 256 for item in value):
        return (bytes(value).decode(errors="replace"),)
    return tuple(text for item in value for text in _texts(item))


def _parse_entry(fields: dict[str, tuple[str, ...]], user_name: Callable[[int], str]) -> AuditEntry | None:
    def text(name: str) -> str | None:
        return next(iter(fields.get(name, ())), None)

    def number(name: str) -> int | None:
        return parse_integer(text(name) or "")

    uid, microseconds = number("_UID"), number("__REALTIME_TIMESTAMP")
    command, duration = text("VGPUCTL_COMMAND"), text("VGPUCTL_DURATION_SECONDS")
    if uid is None or microseconds is None or command is None:
        return None
    login_uid = number("_AUDIT_LOGINUID")
    login_uid = None if login_uid == _UNSET_UID else login_uid
    sudo_user = text("VGPUCTL_SUDO_USER") if uid == 0 else None
    return AuditEntry(
        command=command,
        arguments=text("VGPUCTL_ARGUMENTS") or "",
        host=text("VGPUCTL_HOST") or "",
        uid=uid,
        login_uid=login_uid,
        sudo_user=sudo_user,
        result=text("VGPUCTL_RESULT") or "",
        exit_status=number("VGPUCTL_EXIT_STATUS") or 0,
        changed=text("VGPUCTL_CHANGED") == "1",
        duration_seconds=_seconds(duration),
        message=text("VGPUCTL_ERROR"),
        left=tuple((text("VGPUCTL_LEFT") or "").splitlines()),
        vms=fields.get("VGPUCTL_VM", ()),
        gpus=fields.get("VGPUCTL_GPU", ()),
        spec=text("VGPUCTL_SPEC"),
        time=microseconds / 1e6,
        user=user_name(login_uid) if login_uid is not None else sudo_user or user_name(uid),
    )


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(json.loads(text or "0")))
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"uid {uid}"
