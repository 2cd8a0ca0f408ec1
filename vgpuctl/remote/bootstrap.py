# SPDX-License-Identifier: Apache-2.0
"""Bootstraps a host without vgpuctl: probes it, copies a local Debian package, and has it installed there.

On the host, `bootstrap_script.py` does the work in one run to its end, even if this side dies. This module decides
whether anything has to be installed, and what a lost reply means. The package is read completely before any connection,
also where there is no dpkg. Its format is deb(5): an ar archive with debian-binary, then control.tar, whose file
`control` has the fields.
"""

from __future__ import annotations

import email.parser
import hashlib
import io
import json
import os
import shlex
import tarfile
from collections.abc import Callable, Mapping, Sequence
from email.message import Message
from pathlib import Path
from typing import Any

from vgpuctl.errors import HostCannot, Interrupted, InvalidInput, NotFound, ResultUnknown, Unreachable, VgpuctlError
from vgpuctl.regular_file import read_regular_file
from vgpuctl.remote import reply as replies
from vgpuctl.remote.reply import Reply
from vgpuctl.remote.session import RemoteCommand, RemoteOutput, RunControl, Session
from vgpuctl.value import Value, replace

PREFIX = "/usr"
"""Where the package has its bin."""
LOCK_PATH = "/run/vgpuctl-bring.lock"
"""Locked on the host during the bootstrap; /run belongs to root and is empty after a boot."""
_PROGRESS_LINES = 4

PROGRAM = "vgpuctl"
MAX_BYTES = 64 << 20
_AR_MAGIC = b"!<arch>\n"
_AR_HEADER_BYTES, _AR_NAME, _AR_SIZE = 60, slice(0, 16), slice(48, 58)
_HINT = "python3 tests/bootstrap.py packages makes one, in dist"


class BootstrapPlan(Value):
    """The version to install and the commands for every host: built once, because it holds the package.

    `report_line` gets a host's name and a line of progress, if the user wants progress.
    """

    version: str
    probe: RemoteCommand
    install: RemoteCommand
    dry_run: bool
    report_line: Callable[[str, str], None] | None


def plan_package(
    package: DebianPackage,
    arguments: Sequence[str],
    *,
    dry_run: bool,
    report_line: Callable[[str, str], None] | None,
) -> BootstrapPlan:
    """Return the plan that installs a package; `arguments` are those of install-host there."""
    file = {"name": package.filename, "bytes": len(package.content), "sha256": package.sha256}
    request = {
        "lock": LOCK_PATH, "version": package.version, "words": arguments, "package": file,
        "progress": report_line is not None, "prefix": PREFIX,
    }  # fmt: skip
    return BootstrapPlan(
        package.version,
        _remote_command("probe", request, b""),
        _remote_command("install", request, package.content),
        dry_run,
        report_line,
    )


def _remote_command(act: str, request: Mapping[str, object], content: bytes) -> RemoteCommand:
    program = Path(__file__).with_name("bootstrap_script.py").read_bytes()
    header = json.dumps({"act": act, **request}).encode()
    return RemoteCommand((), b"".join([program, header, b"\n", content]), len(program))


def bootstrap_host(session: Session, name: str, control: RunControl, plan: BootstrapPlan) -> Reply | None:
    """Return the reply of a host that was (or would be) bootstrapped. None: this vgpuctl is installed there already.

    Raises:
        HostCannot: it has no Python that vgpuctl runs on.
        Unreachable, Interrupted: nothing was changed there; ResultUnknown: it is unknown whether.
    """
    probe_reply = _parse_reply(session.run(plan.probe, control), name, is_change=False)
    if probe_reply.status:
        return probe_reply
    probe_result = probe_reply.document["data"]
    if not _is_probe_result(probe_result):
        raise replies.invalid_reply_error(
            name, f"is not a valid answer to the probe: {probe_result!s:.99}", is_change=False
        )
    if probe_result["present"]:
        if plan.report_line is not None:
            plan.report_line(name, f"vgpuctl {plan.version} is already installed there: nothing is copied")
        return None
    if plan.dry_run:
        return Reply(_dry_run_document(probe_result, plan), 0, probe_reply.warnings)
    progress = _UploadProgress(name, len(plan.install.stdin), plan.report_line)
    try:
        return _parse_reply(session.run(plan.install, replace(control, report_sent=progress)), name, is_change=True)
    except ResultUnknown as exc:
        raise _upload_lost_error(exc, name, progress, control) from exc


def _is_probe_result(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("present"), bool):
        return False
    return isinstance(value.get("was", 0), str | None) and isinstance(value.get("steps"), list)


class _UploadProgress:
    """Reports in a few lines how much has been copied."""

    def __init__(self, name: str, total_bytes: int, report_line: Callable[[str, str], None] | None) -> None:
        self.name = name
        self.total_bytes = total_bytes
        self.report_line = report_line
        self.sent_bytes = 0

    def __call__(self, sent_bytes: int) -> None:
        old_step, new_step = (size * _PROGRESS_LINES // self.total_bytes for size in (self.sent_bytes, sent_bytes))
        self.sent_bytes = sent_bytes
        if self.report_line is not None and new_step > old_step:
            self.report_line(self.name, f"sent {sent_bytes:,} of {self.total_bytes:,} bytes")


def _parse_reply(output: RemoteOutput, name: str, *, is_change: bool) -> Reply:
    if output.noise is not None and output.status == replies.EXIT_NOT_FOUND and not output.out:
        raise HostCannot(
            f"{name}: there is no Python 3.11 or newer: {replies.last_line(output.err)}",
            hint="on that host: apt install python3",
            check="python",
        )
    return replies.parse(output, name, is_change=is_change)


def _dry_run_document(probe_result: Mapping[str, Any], plan: BootstrapPlan) -> dict[str, Any]:
    """Return the document of a dry run: the vgpuctl that would report the steps of install-host is not there yet."""
    data = {
        "files": [], "kept": [], "steps": probe_result["steps"], "notes": ["then install-host runs there"],
        "dry_run": True,
        "brought": {"version": plan.version, "was": probe_result["was"]},
    }  # fmt: skip
    return {"schema": replies.SCHEMA, "kind": "install-host", "ok": True, "changed": True, "data": data, "warnings": []}


def _upload_lost_error(exc: ResultUnknown, name: str, sent: _UploadProgress, control: RunControl) -> VgpuctlError:
    """Return the error of a lost upload: nothing is installed without the whole package (its size and checksum)."""
    if sent.sent_bytes == sent.total_bytes:
        exc.hint = "run the command again: it keeps what is in place and adds the rest"
        return exc
    message = f"{name}: {sent.sent_bytes:,} of {sent.total_bytes:,} bytes were sent, and nothing was installed"
    if control.interrupt_count():
        return Interrupted(message, signal_number=2)
    return Unreachable(
        f"{message}: {exc.facts.get('reason')}", hint="run the command again", reason=exc.facts.get("reason")
    )


class DebianPackage(Value):
    """One .deb file; `version` is the package's, such as 0.2.0-1."""

    path: str
    filename: str
    version: str
    content: bytes

    @property
    def sha256(self) -> str:
        """Return its checksum."""
        return hashlib.sha256(self.content).hexdigest()


def read_package(path: str) -> DebianPackage:
    """Return the Debian package in a file.

    Raises:
        NotFound, InvalidInput: it is not one, or not one of vgpuctl.
    """
    content = _read_file(path)
    try:
        fields = _read_fields(content)
    except (tarfile.TarError, EOFError, KeyError, ValueError, OSError) as exc:
        raise InvalidInput(f"{path} is not a complete Debian package: {exc}", hint=_HINT) from exc
    name, version = fields.get("Package"), fields.get("Version")
    if name != PROGRAM or not version:
        raise InvalidInput(f"{path} is a package of {name}, not of {PROGRAM}", hint=_HINT)
    return DebianPackage(path, os.path.basename(path), version, content)


def _read_file(path: str) -> bytes:
    try:
        return read_regular_file(path, MAX_BYTES)
    except FileNotFoundError as exc:
        raise NotFound(f"Debian package {path} does not exist", hint=_HINT) from exc
    except OSError as exc:
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}", hint=f"ls -la {shlex.quote(path)}") from exc


def _read_fields(content: bytes) -> Message:
    """Return the fields of the package's control file.

    Raises:
        ValueError, KeyError, tarfile.TarError, EOFError, OSError: it is not a package.
    """
    if not content.startswith(_AR_MAGIC):
        raise ValueError("it does not begin as an ar archive")
    offset = len(_AR_MAGIC)
    while offset + _AR_HEADER_BYTES <= len(content):
        header = content[offset : offset + _AR_HEADER_BYTES]
        name, size = header[_AR_NAME].decode("ascii").rstrip(" /"), int(header[_AR_SIZE])
        member = content[offset + _AR_HEADER_BYTES : offset + _AR_HEADER_BYTES + size]
        if name.startswith("control.tar"):
            with tarfile.open(fileobj=io.BytesIO(member)) as archive:
                control = archive.extractfile("./control")
                if control is None:
                    raise ValueError("its control file is a directory")
                return email.parser.HeaderParser().parsestr(control.read().decode())
        offset += _AR_HEADER_BYTES + size + size % 2
    raise ValueError("it has no control.tar")
