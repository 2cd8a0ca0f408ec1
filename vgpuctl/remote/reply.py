# SPDX-License-Identifier: Apache-2.0
"""Parses the reply of another host: the document of the remote vgpuctl, or why there is none."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from vgpuctl.errors import DeadlineExceeded, Failed, HostCannot, Interrupted, ResultUnknown, Unreachable, VgpuctlError
from vgpuctl.remote.session import ABANDONED, TOO_LONG, TOO_NOISY, RemoteOutput
from vgpuctl.value import Value

SCHEMA = "vgpuctl/1"
EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126
MAX_LINE = 300
MAX_DEPTH = 64
MAX_VALUES = 1_000_000
"""Limits of a document: nesting depth and number of commas. A parsed list takes 20 times the memory of its text."""
SUCCESS_STATUSES: Mapping[str, tuple[int, ...]] = {"fits": (1, 4), "doctor": (6,), "diff": (7,)}
"""Exit statuses besides 0 with which these commands succeed (docs/reference/exit-codes.md)."""
_FAILURE_STATUSES = frozenset({1, 2, 3, 4, 5, 6, 75, 130, 143})
"""Exit statuses of a command that failed (docs/reference/exit-codes.md)."""
_INSTALL_HINT = (
    "vgpuctl --host ssh://HOST install-host --deb FILE brings it there; it is looked for in PATH and /opt/vgpuctl/bin"
)

DIAL_FAILED = Unreachable.status
"""How `vgpuctl agent dial` ends, which a restricted key makes of every command, where no agent answers."""
AGENT_SILENT = "the host agent there does not answer"
AGENT_HINT = (
    "let root there enable the host agent (vgpuctl install-host --agent) and add the user to its group "
    "(usermod -aG vgpuctl USER)"
)

Document = Mapping[str, Any]


class Reply(Value):
    """A host's reply: its document, which reports a failure itself, and the remote exit status."""

    document: Document
    status: int
    warnings: tuple[str, ...] = ()


def parse(output: RemoteOutput, name: str, *, is_change: bool, agent_problem: str | None = None) -> Reply:
    """Return the reply in a command's output. `is_change`: whether the command may have changed the host.

    `agent_problem`: why the host agent there does not answer, if it was looked for.

    Raises:
        HostCannot: vgpuctl or sudo is missing, or it is another version of vgpuctl; `check` names which.
        Unreachable, ResultUnknown, DeadlineExceeded: it is unknown how the command ended there.
        Failed: the output is not a document, or contradicts the exit status.
    """
    if output.noise is None:
        raise _not_started_error(output, name, agent_problem)
    document = _parse_document(output.out)
    if output.is_late:
        raise _deadline_error(output, name, document, is_change=is_change)
    if document is None or output.status is None:
        raise _no_document_error(output, name, is_change=is_change)
    if document.get("schema") != SCHEMA:
        raise HostCannot(
            f"{name}: the vgpuctl there answers in {document.get('schema')!r}, but this one expects {SCHEMA}",
            hint="install the same vgpuctl on both sides",
            check="version",
            schema=document.get("schema"),
        )
    if not _matches_status(document, output.status):
        raise invalid_reply_error(
            name,
            f"is inconsistent: ok is {str(document['ok']).lower()}, and the exit status {output.status}",
            is_change=is_change,
            stderr_line=last_line(output.err),
        )
    return Reply(document, output.status, _warnings(output, name))


def invalid_reply_error(name: str, problem: str, *, is_change: bool, **facts: object) -> VgpuctlError:
    """Return the error for an invalid reply. A change may be complete, partial or not made there."""
    if is_change:
        return _reply_lost_error(name, f"the answer of vgpuctl there {problem}", **facts)
    return Failed(
        f"{name}: the answer of vgpuctl there {problem}",
        hint="ssh HOST vgpuctl --version; a wrapper around vgpuctl there may be wrong, or vgpuctl is broken",
        **facts,
    )


def _matches_status(document: Document, status: int) -> bool:
    if document["ok"]:
        return status == 0 or status in SUCCESS_STATUSES.get(str(document.get("kind")), ())
    return status in _FAILURE_STATUSES


def is_usage_error(reply: Reply) -> bool:
    """Return whether the remote vgpuctl rejected a command line that the local one accepted."""
    error = reply.document.get("error")
    return reply.document.get("ok") is False and isinstance(error, Mapping) and error.get("code") == "usage"


def refuse_other_version(reply: Reply, name: str, remote_version: str | None, local_version: str) -> None:
    """Check whether the remote vgpuctl rejected a command line because it is another version.

    Raises:
        HostCannot: it is another version.
    """
    if remote_version == local_version:
        return
    message = reply.document["error"].get("message", "")
    raise HostCannot(
        f"{name}: its vgpuctl {remote_version or 'of unknown version'} does not accept a command line of "
        f"{local_version} here: {message}",
        hint="install the same vgpuctl on both sides",
        check="version",
        remote_version=remote_version,
        here=local_version,
    )


def parse_version(output: RemoteOutput) -> str | None:
    """Return the version in the output of `vgpuctl --version`."""
    words = output.out.split()
    return words[1] if output.status == 0 and len(words) == 2 and words[0] == "vgpuctl" else None


def _parse_document(out: str) -> Document | None:
    """Return the printed document, None if it is not one or is unusable."""
    try:
        document = json.loads(out) if out.count(",") <= MAX_VALUES else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("ok"), bool) or "schema" not in document:
        return None
    is_complete = "data" in document if document["ok"] else _is_error(document.get("error"))
    return document if is_complete and _is_plain_json(document) else None


def _is_error(value: object) -> bool:
    """Return whether this is a valid error of a document: a code, and lists of what was undone and left."""
    if not isinstance(value, dict) or not isinstance(value.get("code"), str):
        return False
    return all(isinstance(value.get(name, []), list) for name in ("undone", "left"))


def _is_plain_json(value: object) -> bool:
    """Return whether it can be printed as JSON again: not nested too deeply, and only finite numbers."""
    level = [value]
    for _ in range(MAX_DEPTH):
        if not level:
            return True
        if any(isinstance(one, float) and not math.isfinite(one) for one in level):
            return False
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [item for one in inner for item in one]
    return False


def _not_started_error(output: RemoteOutput, name: str, agent_problem: str | None) -> VgpuctlError:
    reported = last_line(output.err) or last_line(output.out)
    if output.is_late:
        return DeadlineExceeded(f"{name}: vgpuctl had not started there at the deadline", reason=output.abandon_reason)
    if output.abandon_reason == ABANDONED:
        return Interrupted(f"{name}: stopped before vgpuctl started there", signal_number=2)
    if output.abandon_reason and output.abandon_reason != TOO_NOISY:
        return Unreachable(f"{name}: vgpuctl did not start there: {output.abandon_reason}", stderr_line=reported)
    if (not output.abandon_reason and "sudo" in output.err) or (output.status == EXIT_NOT_FOUND and not output.out):
        way_of_agent = "" if agent_problem is None else f"; nor does the host agent: {agent_problem}"
        return HostCannot(
            f"{name}: the user there is not root, and sudo does not help: "
            f"{reported or f'exit status {output.status}'}{way_of_agent}",
            hint="log in as root, or let the user run sudo without a password (sudoers: NOPASSWD)"
            + ("" if agent_problem is None else f"; or {AGENT_HINT}"),
            check="sudo",
            exit_status_there=output.status,
        )
    if agent_problem is not None and output.status == DIAL_FAILED:
        return Unreachable(f"{name}: {AGENT_SILENT}: {agent_problem}", hint=AGENT_HINT)
    if output.status == 0:
        return HostCannot(
            f"{name}: cannot run commands there: the login runs something else, as a key for the host agent alone does",
            hint="log in as another user or with another key",
            check="shell",
            exit_status_there=output.status,
        )
    return HostCannot(
        f"{name}: cannot run commands there: {output.abandon_reason or reported or f'exit status {output.status}'}",
        hint="the login's shell must run commands: ssh HOST /bin/sh -c true",
        check="shell",
        exit_status_there=output.status,
    )


def _deadline_error(output: RemoteOutput, name: str, document: Document | None, *, is_change: bool) -> VgpuctlError:
    if document is None and is_change:
        return _reply_lost_error(
            name,
            "it had not finished at the deadline",
            stderr_line=last_line(output.err),
            reason=output.abandon_reason,
        )
    exc = DeadlineExceeded(
        f"{name}: it had not finished at the deadline, and was stopped",
        hint="use a longer --host-deadline SECONDS",
        reason=output.abandon_reason,
    )
    if document is not None:
        error = {} if document["ok"] else document["error"]
        exc.undone, exc.left = list(error.get("undone", ())), list(error.get("left", ()))
        exc.changed = bool(document.get("changed"))
        if document["ok"]:
            exc.facts["document"] = document
    return exc


def _no_document_error(output: RemoteOutput, name: str, *, is_change: bool) -> VgpuctlError:
    reported = last_line(output.err)
    if output.status in (EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE) and not output.out:
        return HostCannot(
            f"{name}: vgpuctl cannot be run there: {reported}",
            hint=_INSTALL_HINT,
            check="vgpuctl",
            exit_status_there=output.status,
        )
    if output.status is None and (is_change or output.abandon_reason == TOO_LONG):
        why = output.abandon_reason or "its end was not reported"
        if is_change:
            return _reply_lost_error(name, why, stderr_line=reported, reason=output.abandon_reason)
        return invalid_reply_error(name, f"is not a document: {why}", is_change=False, stderr_line=reported)
    if output.status is None:
        return Unreachable(
            f"{name}: no answer came: {output.abandon_reason}", hint="run the command again", stderr_line=reported
        )
    what = f"is not one JSON document; it ended with status {output.status}"
    facts = {"printed": output.out[:MAX_LINE], "stderr_line": reported, "exit_status_there": output.status}
    return invalid_reply_error(name, what, is_change=is_change and output.status == 0, **facts)


def _reply_lost_error(name: str, why: str, **facts: object) -> VgpuctlError:
    """Return the error of a lost reply. The command may be complete, undone or partial; it runs on unless killed."""
    exc = ResultUnknown(
        f"{name}: the command was started there, but its outcome is not known: {why}",
        hint="on that host: vgpuctl list-vms, then vgpuctl reconcile-host",
        **facts,
    )
    exc.left = [f"{name}: changes that the command may have made there"]
    exc.changed = True
    return exc


def _warnings(output: RemoteOutput, name: str) -> tuple[str, ...]:
    noise = (output.noise or "").strip()
    if not noise:
        return ()
    return (f"{name}: the shell there prints before any command, as ~/.bashrc may: {noise.splitlines()[0][:MAX_LINE]}",)


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:MAX_LINE] if lines else ""
