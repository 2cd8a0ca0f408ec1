# SPDX-License-Identifier: Apache-2.0
"""Judges what came back from another host: the document of the vgpuctl there, or why there is none."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from vgpuctl.errors import AnswerLost, Failed, HostCannot, Interrupted, TooSlow, Unreachable, VgpuctlError
from vgpuctl.remote.ran import NOT_WAITED, TOO_LONG, TOO_NOISY, Ran
from vgpuctl.value import Value

SCHEMA = "vgpuctl/1"
NOT_FOUND = 127
CANNOT_RUN = 126
LONGEST = 300
MOST_DEPTH = 64
MOST_VALUES = 1_000_000
"""How deep a document may be nested, and how many commas it may have: a list in it takes 20 times its text."""
BAD_NEWS: Mapping[str, tuple[int, ...]] = {"fits": (1, 4), "doctor": (6,), "diff": (7,), "assert": (7,)}
"""Exit statuses besides 0 with which these commands have worked (docs/exit-codes.md)."""
_FAILED = frozenset({1, 2, 3, 4, 5, 6, 75, 130, 143})
"""Exit statuses of a command that failed (docs/exit-codes.md)."""
_INSTALL = (
    "vgpuctl --host ssh://HOST install-host --wheelhouse DIR brings it there (docs/remote.md); it is looked for in PATH"
    " and /opt/vgpuctl/bin"
)

Document = Mapping[str, Any]


class Answer(Value):
    """What a host answered: its document, which tells of its failure itself, and the exit status there."""

    document: Document
    status: int
    warnings: tuple[str, ...] = ()


def judge(ran: Ran, name: str, *, changes: bool) -> Answer:
    """Return the answer that a command's end is. `changes` says whether the command may have changed the host.

    Raises:
        HostCannot: vgpuctl or sudo is not there, or it is another vgpuctl; `check` names which.
        Unreachable, AnswerLost, TooSlow: it is not known how the command ended there.
        Failed: what came back is no document, or one that contradicts the exit status.
    """
    if ran.noise is None:
        raise _not_begun(ran, name)
    document = _document(ran.out)
    if ran.late:
        raise _late(ran, name, document, changes=changes)
    if document is None or ran.status is None:
        raise _no_document(ran, name, changes=changes)
    if document.get("schema") != SCHEMA:
        raise HostCannot(
            f"{name}: the vgpuctl there answers in {document.get('schema')!r}, and here {SCHEMA} is understood",
            hint="install the same vgpuctl on both sides",
            check="version",
            schema=document.get("schema"),
        )
    if not _agree(document, ran.status):
        raise nonsense(
            name,
            f"contradicts itself: ok is {str(document['ok']).lower()}, and the exit status {ran.status}",
            changes=changes,
            said=last_line(ran.err),
        )
    return Answer(document, ran.status, _warnings(ran, name))


def nonsense(name: str, what: str, *, changes: bool, **facts: object) -> VgpuctlError:
    """Return the error of a host whose answer cannot be believed. A change may be made there, or half, or not."""
    if changes:
        return _lost(name, f"what vgpuctl there answered {what}", **facts)
    return Failed(
        f"{name}: what vgpuctl there answered {what}",
        hint="a wrapper around vgpuctl there may be wrong, or it is broken: ssh HOST vgpuctl --version",
        **facts,
    )


def _agree(document: Document, status: int) -> bool:
    if document["ok"]:
        return status == 0 or status in BAD_NEWS.get(str(document.get("kind")), ())
    return status in _FAILED


def unknown_word(answer: Answer) -> bool:
    """Say whether the vgpuctl there did not understand a line that the one here did."""
    error = answer.document.get("error")
    return answer.document.get("ok") is False and isinstance(error, Mapping) and error.get("code") == "usage"


def other_version(answer: Answer, name: str, there: str | None, here: str) -> VgpuctlError | None:
    """Return why a line was not understood that this vgpuctl understands, or None when both are the same."""
    if there == here:
        return None
    said = answer.document["error"].get("message", "")
    return HostCannot(
        f"{name}: its vgpuctl {there or 'of unknown version'} does not know the line that {here} here knows: {said}",
        hint="install the same vgpuctl on both sides",
        check="version",
        there=there,
        here=here,
    )


def version_of(ran: Ran) -> str | None:
    """Return the version in what `vgpuctl --version` printed."""
    words = ran.out.split()
    return words[1] if ran.status == 0 and len(words) == 2 and words[0] == "vgpuctl" else None


def _document(out: str) -> Document | None:
    """Return the document that was printed, None when it is none, or one that cannot be worked with."""
    try:
        found = json.loads(out) if out.count(",") <= MOST_VALUES else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("ok"), bool) or "schema" not in found:
        return None
    whole = "data" in found if found["ok"] else _is_error(found.get("error"))
    return found if whole and _plain(found) else None


def _is_error(found: object) -> bool:
    """Say whether this is the error of a document: what programs branch on, and lists of what is done."""
    if not isinstance(found, dict) or not isinstance(found.get("code"), str):
        return False
    return all(isinstance(found.get(name, []), list) for name in ("undone", "left"))


def _plain(found: object) -> bool:
    """Say whether it can be printed as JSON again: not nested too deep, and each number one that JSON has."""
    level = [found]
    for _ in range(MOST_DEPTH):
        if not level:
            return True
        if any(isinstance(one, float) and not math.isfinite(one) for one in level):
            return False
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [item for one in inner for item in one]
    return False


def _not_begun(ran: Ran, name: str) -> VgpuctlError:
    said = last_line(ran.err) or last_line(ran.out)
    if ran.late:
        return TooSlow(f"{name}: vgpuctl had not begun there when the deadline passed", reason=ran.gave_up)
    if ran.gave_up == NOT_WAITED:
        return Interrupted(f"{name}: stopped before vgpuctl began there", signal_number=2)
    if ran.gave_up and ran.gave_up != TOO_NOISY:
        return Unreachable(f"{name}: vgpuctl did not begin there: {ran.gave_up}", said=said)
    if (not ran.gave_up and "sudo" in ran.err) or (ran.status == NOT_FOUND and not ran.out):
        return HostCannot(
            f"{name}: the user there is not root, and sudo does not help: {said or f'exit status {ran.status}'}",
            hint="log in as root, or let the user run sudo without a password (sudoers: NOPASSWD)",
            check="sudo",
            exit_status_there=ran.status,
        )
    return HostCannot(
        f"{name}: no command can be run there: {ran.gave_up or said or f'exit status {ran.status}'}",
        hint="the login's shell must run commands: ssh HOST /bin/sh -c true",
        check="shell",
        exit_status_there=ran.status,
    )


def _late(ran: Ran, name: str, document: Document | None, *, changes: bool) -> VgpuctlError:
    if document is None and changes:
        return _lost(name, "it had not finished when the deadline passed", said=last_line(ran.err), reason=ran.gave_up)
    exc = TooSlow(
        f"{name}: it had not finished when the deadline passed, and was stopped",
        hint="give it longer: --host-deadline SECONDS",
        reason=ran.gave_up,
    )
    if document is not None:
        error = {} if document["ok"] else document["error"]
        exc.undone, exc.left = list(error.get("undone", ())), list(error.get("left", ()))
        exc.changed = bool(document.get("changed"))
        if document["ok"]:
            exc.facts["document"] = document
    return exc


def _no_document(ran: Ran, name: str, *, changes: bool) -> VgpuctlError:
    said = last_line(ran.err)
    if ran.status in (NOT_FOUND, CANNOT_RUN) and not ran.out:
        return HostCannot(
            f"{name}: there is no vgpuctl that can be run: {said}",
            hint=_INSTALL,
            check="vgpuctl",
            exit_status_there=ran.status,
        )
    if ran.status is None and (changes or ran.gave_up == TOO_LONG):
        why = ran.gave_up or "its end was not heard"
        if changes:
            return _lost(name, why, said=said, reason=ran.gave_up)
        return nonsense(name, f"is no document: {why}", changes=False, said=said)
    if ran.status is None:
        return Unreachable(f"{name}: no answer came: {ran.gave_up}", hint="run it again", said=said)
    what = f"is not one JSON document; it ended with status {ran.status}"
    facts = {"printed": ran.out[:LONGEST], "said": said, "exit_status_there": ran.status}
    return nonsense(name, what, changes=changes and ran.status == 0, **facts)


def _lost(name: str, why: str, **facts: object) -> VgpuctlError:
    """What was begun there may be done, undone, or half: vgpuctl there goes on without us, unless it was killed."""
    exc = AnswerLost(
        f"{name}: the command was begun there, and how it ended is not known: {why}",
        hint="look there: vgpuctl list-vms, then vgpuctl reconcile",
        **facts,
    )
    exc.left = [f"{name}: whatever the command did there"]
    exc.changed = True
    return exc


def _warnings(ran: Ran, name: str) -> tuple[str, ...]:
    noise = (ran.noise or "").strip()
    if not noise:
        return ()
    return (f"{name}: the shell there prints before any command, as ~/.bashrc may: {noise.splitlines()[0][:LONGEST]}",)


def last_line(text: str) -> str:
    """Return the last line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:LONGEST] if lines else ""
