# SPDX-License-Identifier: Apache-2.0
"""Reports every failure of a command as text or JSON and an exit status. Users see a traceback only with -v."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress

import click

from vgpuctl.cli import document, output, run, streams, usage
from vgpuctl.cli.global_options import Settings
from vgpuctl.errors import (
    DeadlineExceeded,
    OutputLost,
    VgpuctlError,
    exception_chain,
    explain_exception,
)
from vgpuctl.model import result_reader
from vgpuctl.model.documents import LEFT_HINT, Failure, failure_document, failure_of
from vgpuctl.model.numbers import count_text
from vgpuctl.model.results.host import DoctorFindingResult
from vgpuctl.value import replace

MULTILINE_FACTS = ("lines", "reasons", "details")
"""Facts that are lists of complete sentences."""

VERBOSE_FACTS = ("call", "cause", "check", "errno", "libvirt_code", "role", "subject", "vm_host", "vm_state")
"""Facts for programs: people see them only with -v."""

DOCTOR_FACT = "doctor"
"""The fact that `add_findings` adds; it is printed on lines of its own."""

MAX_FINDINGS = 2

_EXPLAINABLE_STATUSES = (1, 4, 5, 6, 75)
"""Exit statuses of failures that the host's state may explain. Invalid input and a refusal need no doctor."""

_WITHOUT_DOCTOR = ("doctor", "restore-host")

MAX_FACT_LENGTH = 200


def report(exc: BaseException, settings: Settings, *, signal_status: int = 130) -> int:
    """Report a failure to the user, and return the exit status."""
    failure = failure_from_exception(exc, settings, signal_status=signal_status)
    if settings.json and failure.code != OutputLost.code:
        print_failure(settings, failure, document.text(failure_document(failure, settings.kind), settings.output))
        if failure.traceback:
            streams.write_err(streams.sanitize(failure.traceback))
    else:
        _print_partial_result(settings, failure)
        print_failure(settings, failure, None)
    return failure.status


def _print_partial_result(settings: Settings, failure: Failure) -> None:
    """Print the page of what succeeded, with its notes; a failure to write it is reported with the failure itself."""
    if failure.result is not None:
        try:
            output.print_page(settings, failure.result)
        except OSError as unwritable:
            streams.write_err(f"vgpuctl: the result could not be written: {unwritable.strerror}   [output]")
        run.print_notes(failure.result)


def print_failure(settings: Settings, failure: Failure, document: str | None) -> None:
    """Print a failure's document; print its text on stderr if there is none or stdout cannot be written."""
    try:
        if document is not None:
            streams.write_out(document)
            return
    except OSError as unwritable:
        streams.write_err(f"vgpuctl: the result could not be written: {unwritable.strerror}   [output]")
    streams.write_err("\n".join(text_lines(failure, verbose=settings.verbose)))


def failure_from_exception(exc: BaseException, settings: Settings, *, signal_status: int = 130) -> Failure:
    """Return the failure to report for any exception."""
    exc = explain_exception(exc)
    if isinstance(exc, VgpuctlError):
        return _from_vgpuctl_error(exc, settings)
    if isinstance(exc, click.ClickException):
        message, hint = usage.explain_usage(exc)
        return Failure("usage", message, 2, hint)
    if isinstance(exc, (KeyboardInterrupt, click.Abort)):
        return _from_interrupt(exc, signal_status)
    if isinstance(exc, SystemExit):
        return Failure("bug", f"something called exit({exc.code!r})", 1)
    return _from_unexpected_error(exc, settings)


def _from_vgpuctl_error(exc: VgpuctlError, settings: Settings) -> Failure:
    """Return the failure of a vgpuctl error; -v adds the traceback if the error has a cause."""
    failure = failure_of(exc)
    if settings.verbose and exc.__cause__ is not None:
        return replace(failure, traceback="".join(traceback.format_exception(exc)))
    return failure


def text_lines(failure: Failure, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines for people."""
    first, *more = streams.sanitize(failure.message).splitlines() or [""]
    yield f"vgpuctl: {first}   [{streams.sanitize(failure.code)}]"
    yield from (f"  {line}" for line in more)
    yield from (f"  {line}" for line in _fact_lines(failure, verbose=verbose))
    yield from _undone_lines(failure, verbose=verbose)
    yield from _list_lines("left", failure.left)
    yield from _doctor_lines(failure)
    if failure.hint:
        yield f"  hint: {streams.sanitize(failure.hint)}"
    if failure.traceback:
        yield streams.sanitize(failure.traceback).rstrip()


def add_findings(exc: BaseException, settings: Settings) -> None:
    """Add the fact `doctor` to an error: the problems found by the checks that explain it. Never raises.

    Nothing here may hide the failure, so errors of these checks are ignored. A signal stops the checks, because libvirt
    may hang. restore-host never runs them: during a boot libvirt waits for it. A deadline is explained by itself.
    """
    if not isinstance(exc, VgpuctlError) or exc.status not in _EXPLAINABLE_STATUSES or settings.kind in _WITHOUT_DOCTOR:
        return
    if isinstance(exc, DeadlineExceeded):
        return
    with suppress(Exception, KeyboardInterrupt):
        findings = run.open_host(settings).explain_failure(exc)
        if findings:
            exc.facts[DOCTOR_FACT] = findings


def finding_lines(findings: object, message: str) -> Iterator[str]:
    """Yield the lines of the fact for people: the worst one or two findings, one line each.

    A line has the first piece of evidence, or the fix if the error's message already names the evidence. The fact may
    come from another host, so a value of another shape is ignored.
    """
    try:
        rows: tuple[DoctorFindingResult, ...] = result_reader.read_value(tuple[DoctorFindingResult, ...], findings)
    except result_reader.Mismatch:
        return
    ordered = sorted(rows, key=lambda row: row.verdict != "fail")
    for row in ordered[:MAX_FINDINGS]:
        evidence = next(iter(row.evidence), "")
        paths = [word for word in evidence.split() if word.startswith("/")]
        already_named = row.fix and paths and all(path in message for path in paths)
        yield streams.sanitize(f"doctor: {row.id}: {row.fix if already_named else evidence}")
    if len(rows) > MAX_FINDINGS:
        yield f"doctor: and {len(rows) - MAX_FINDINGS} more: vgpuctl doctor {' '.join(row.id for row in ordered)}"


def _doctor_lines(failure: Failure) -> Iterator[str]:
    if DOCTOR_FACT in failure.facts:
        yield from (f"  {line}" for line in finding_lines(failure.facts[DOCTOR_FACT], failure.message))


def _list_lines(title: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield f"  {title}:"
        yield from (f"    {streams.sanitize(item)}" for item in items)


def _undone_lines(failure: Failure, *, verbose: bool) -> Iterator[str]:
    """Yield how much was undone; each step was already reported when it happened."""
    number = len(failure.undone)
    if verbose:
        yield from _list_lines("undone", failure.undone)
    elif number:
        how = "only in part" if failure.left else "completely"
        yield f"  undone {how}: {count_text(number, 'step')}"


def _fact_lines(failure: Failure, *, verbose: bool) -> Iterator[str]:
    for name, value in failure.facts.items():
        if name == DOCTOR_FACT:
            continue
        if name in MULTILINE_FACTS and isinstance(value, (list, tuple)):
            yield from (streams.sanitize(str(item)) for item in value)
        elif verbose or (name not in VERBOSE_FACTS and _is_informative(value, failure)):
            yield streams.sanitize(f"{name.replace('_', ' ')}: {_fact_text(value)}")


def _is_informative(value: object, failure: Failure) -> bool:
    """Say whether a fact is short and not already in the message or hint; of a list each item, in any order."""
    if value is None or isinstance(value, bool) or value in ("", [], (), {}):
        return False
    if isinstance(value, dict) or (isinstance(value, (list, tuple)) and isinstance(value[0], dict)):
        return False
    if len(_fact_text(value)) > MAX_FACT_LENGTH:
        return False
    items = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
    shown = f"{failure.message}\n{failure.hint}"
    return not all(re.search(rf"(?<!\w){re.escape(str(item))}(?!\w)", shown) for item in items)


def _fact_text(value: object) -> str:
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(str(item) for item in value)
    return str(value)


def _from_interrupt(exc: BaseException, status: int) -> Failure:
    """Explain a second signal. The errors in its chain list what could not be undone."""
    undone: list[str] = []
    left: list[str] = []
    for error in exception_chain(exc):
        if isinstance(error, VgpuctlError):
            undone += [item for item in error.undone if item not in undone]
            left += [item for item in error.left if item not in left]
    return Failure(
        "interrupted", "stopped", status, LEFT_HINT if left else None, undone=tuple(undone), left=tuple(left)
    )


def _from_unexpected_error(exc: BaseException, settings: Settings) -> Failure:
    text = "".join(traceback.format_exception(exc))
    message_lines = str(exc).strip().splitlines()
    message = f"unexpected {type(exc).__name__}{': ' + message_lines[0] if message_lines else ''}"
    if settings.verbose:
        return Failure("bug", message, 1, "this is a bug in vgpuctl: please report it", traceback=text)
    path = _save_traceback(text)
    advice = f" with the file {path}" if path else "; run it again with -v to see where"
    facts: dict[str, object] = {"traceback": path} if path else {}
    return Failure("bug", message, 1, f"this is a bug in vgpuctl: please report it{advice}", facts)


def _save_traceback(text: str) -> str | None:
    """Write the traceback to a file that only the caller can read, and return its path."""
    try:
        import tempfile  # only here: it takes a thirtieth of a short command's time

        path = os.path.join(tempfile.mkdtemp(prefix="vgpuctl-"), "traceback.txt")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return None
    return path
