# SPDX-License-Identifier: Apache-2.0
"""The logs on a real host: kernel and service logs since boot, and the audit log of the commands that change it.

The first come from journalctl, else from dmesg for the kernel. An audit entry is one datagram in systemd's "Native
Journal Protocol": `NAME=value` lines, or for a value of several lines NAME, newline, its length as 64 bits little
endian, the value and a newline. The socket's buffer limits a datagram (net.core.wmem_default, usually 208 KiB). Longer
entries would need a sealed memory file, so long fields are truncated with a note. Without a journal nothing is logged,
and vgpuctl still works on a host without systemd.

vgpuctl's own entries are read with `journalctl -o json`, which also works without root. Any local user may write to the
journal. So who ran a command is read from the fields that journald itself adds (_UID, _AUDIT_LOGINUID), and what sudo
said, or the host agent of its users, counts only for a process of root.
"""

from __future__ import annotations

import _socket  # the module socket, which wraps it, takes several milliseconds to import
import json
import os
import pwd
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from vgpuctl.errors import HostCannot
from vgpuctl.host.commands import find_command, run_command
from vgpuctl.model.json_yaml import parse_json
from vgpuctl.model.numbers import parse_integer
from vgpuctl.model.port_values import AuditEntries, AuditEntry, AuditQuery

_AUDIT_DEADLINE_SECONDS = 30.0
_SHOWN_FIELDS = (
    "PRIORITY", "_UID", "_AUDIT_LOGINUID", "VGPUCTL_COMMAND", "VGPUCTL_ARGUMENTS", "VGPUCTL_HOST", "VGPUCTL_SUDO_USER",
    "VGPUCTL_RESULT", "VGPUCTL_EXIT_STATUS", "VGPUCTL_CHANGED", "VGPUCTL_DURATION_SECONDS", "VGPUCTL_ERROR",
    "VGPUCTL_LEFT", "VGPUCTL_VM", "VGPUCTL_GPU", "VGPUCTL_SPEC", "VGPUCTL_UID", "VGPUCTL_ACCOUNT", "VGPUCTL_VIA",
    "VGPUCTL_ADDRESS", "VGPUCTL_ON_BEHALF_OF",
)  # fmt: skip
"""What journalctl prints besides the time: the plan of a command is long, and not shown."""
_WARNING_PRIORITY = "4"
_UNSET_UID = 2**32 - 1
_PARTIAL_VIEW = "currently not seeing messages from other users"
"""The beginning of journalctl's hint to a user who is not in the groups adm and systemd-journal."""

_BOOT = ("-b", "-o", "cat", "--no-pager", "-q")
_KERNEL = (("journalctl", ("-k", *_BOOT)), ("dmesg", ()))
_SERVICE_LINES = 5000
_SERVICE = (("journalctl", (*_BOOT, "-n", str(_SERVICE_LINES))),)
_DEADLINE_SECONDS = 10.0
SOCKET = "/run/systemd/journal/socket"
MESSAGE_ID = "5d1c0c1b0f7a4a3c9b0e6c7f2b7f4f0e"
"""The id by which `journalctl MESSAGE_ID=` finds all entries; generated once at random."""
MAX_FIELD_BYTES = 24 << 10
"""Five fields may be long; with this limit all five fit into one datagram."""
MAX_VMS, MAX_GPUS = 960, 40
"""So many VMs and GPUs of one entry have a field each: journald refuses an entry with more than 1024 fields."""
_MAX_NAME_BYTES = 60 << 10
_NOTICE, _WARNING = "5", "4"


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
        result = run_command([*start, *journal_arguments(message_id, query)], deadline_seconds=_AUDIT_DEADLINE_SECONDS)
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
    account, account_uid = (text("VGPUCTL_ACCOUNT"), number("VGPUCTL_UID")) if uid == 0 else (None, None)
    if account is not None:
        uid, login_uid = uid if account_uid is None else account_uid, None
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
        user=account or (user_name(login_uid) if login_uid is not None else sudo_user or user_name(uid)),
        account=account,
        via=text("VGPUCTL_VIA"),
        address=text("VGPUCTL_ADDRESS"),
        on_behalf_of=text("VGPUCTL_ON_BEHALF_OF"),
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


class HostKernelLog:
    """The logs since boot; implements `ports.SystemLog`.

    `commands`: the commands that print the kernel's log, by absolute path with arguments; `services`: those that print
    a service's, with the service's name added as the last argument. Tests set both.
    """

    def __init__(
        self, commands: Sequence[Sequence[str]] | None = None, services: Sequence[Sequence[str]] | None = None
    ) -> None:
        self._commands = commands
        self._services = services

    def kernel_lines(self, *containing: str) -> tuple[str, ...] | None:
        """Return the lines that contain one of these texts; None when the log is not readable."""
        text = _run_first(_find_commands(_KERNEL) if self._commands is None else self._commands)
        if not text:
            return None
        return tuple(line for line in text.splitlines() if any(t in line for t in containing))

    def service_lines(self, service: str) -> tuple[str, ...] | None:
        """Return the last 5000 lines of a service; a service that does not exist has none."""
        commands = _find_commands(_SERVICE) if self._services is None else self._services
        text = _run_first([[*argv, "-u", f"{service}.service"] for argv in commands])
        return None if text is None else tuple(text.splitlines())


def _find_commands(commands: Sequence[tuple[str, Sequence[str]]]) -> list[list[str]]:
    paths = ((find_command(name), arguments) for name, arguments in commands)
    return [[path, *arguments] for path, arguments in paths if path is not None]


def _run_first(commands: Sequence[Sequence[str]]) -> str | None:
    """Return the output of the first command that succeeds with output; None when no command succeeds."""
    output: str | None = None
    for argv in commands:
        try:
            result = run_command(argv, deadline_seconds=_DEADLINE_SECONDS)
        except OSError:
            continue
        if result.status == 0 and result.stdout:
            return result.stdout
        output = result.stdout if result.status == 0 else output
    return output


class JournalSocket:
    """systemd's journal; implements `ports.AuditLog`."""

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path

    def write_entry(self, entry: AuditEntry) -> None:
        """Send one entry without blocking; a failure is ignored."""
        if not os.path.exists(self._path):
            return
        with suppress(OSError):
            sender = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)
            try:
                sender.sendto(encode_entry(entry), _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL, self._path)
            finally:
                sender.close()

    def read_entries(self, query: AuditQuery) -> AuditEntries:
        """Read entries with journalctl."""
        return read_journal(MESSAGE_ID, query)


def encode_entry(entry: AuditEntry) -> bytes:
    """Return the datagram of one entry."""
    names = {"VGPUCTL_VM": entry.vms[:MAX_VMS], "VGPUCTL_GPU": entry.gpus[:MAX_GPUS]}
    several = ((field, name) for field, texts in names.items() for name in _within_bytes(texts))
    return b"".join(
        _encode_field(name, value) for name, value in (*journal_fields(entry).items(), *several) if value != ""
    )


def _within_bytes(names: Sequence[str]) -> Iterator[str]:
    """Yield names until they are too long together for the datagram."""
    size = 0
    for name in names:
        size += len(name.encode("utf-8", "replace"))
        if size > _MAX_NAME_BYTES:
            return
        yield name


def journal_fields(entry: AuditEntry) -> dict[str, str]:
    """Return the journal's fields by name, but for VMs and GPUs, of which there may be several.

    The datagram omits empty ones.
    """
    ok = entry.exit_status == 0
    result = (
        f"{entry.result}, exit status {entry.exit_status}" if not ok else "ok" if entry.changed else "nothing to do"
    )
    user = entry.account or entry.sudo_user or f"uid {entry.uid}"
    return {
        "MESSAGE": f"{user}: {entry.arguments}: {result}",
        "MESSAGE_ID": MESSAGE_ID,
        "PRIORITY": _NOTICE if ok else _WARNING,
        "SYSLOG_IDENTIFIER": "vgpuctl",
        "VGPUCTL_COMMAND": entry.command,
        "VGPUCTL_ARGUMENTS": entry.arguments,
        "VGPUCTL_HOST": entry.host,
        "VGPUCTL_UID": str(entry.uid),
        "VGPUCTL_LOGIN_UID": "" if entry.login_uid is None else str(entry.login_uid),
        "VGPUCTL_SUDO_USER": entry.sudo_user or "",
        "VGPUCTL_ACCOUNT": entry.account or "",
        "VGPUCTL_VIA": entry.via or "",
        "VGPUCTL_ADDRESS": entry.address or "",
        "VGPUCTL_ON_BEHALF_OF": entry.on_behalf_of or "",
        "VGPUCTL_RESULT": entry.result,
        "VGPUCTL_EXIT_STATUS": str(entry.exit_status),
        "VGPUCTL_CHANGED": "1" if entry.changed else "0",
        "VGPUCTL_DURATION_SECONDS": f"{entry.duration_seconds:.3f}",
        "VGPUCTL_ERROR": entry.message or "",
        "VGPUCTL_SPEC": entry.spec or "",
        "VGPUCTL_PLAN": _join_lines(entry.plan),
        "VGPUCTL_UNDONE": _join_lines(entry.undone),
        "VGPUCTL_LEFT": _join_lines(entry.left),
    }


def _join_lines(items: Iterable[str]) -> str:
    return "\n".join(item.replace("\n", " ") for item in items)


def _encode_field(name: str, text: str) -> bytes:
    value = text.encode("utf-8", "replace")
    if len(value) > MAX_FIELD_BYTES:
        shortened = value[:MAX_FIELD_BYTES].decode("utf-8", "ignore").encode()
        value = shortened + f" \N{HORIZONTAL ELLIPSIS} [{len(value) - len(shortened)} bytes left out]".encode()
    if b"\n" not in value:
        return name.encode() + b"=" + value + b"\n"
    return name.encode() + b"\n" + len(value).to_bytes(8, "little") + value + b"\n"
