# SPDX-License-Identifier: Apache-2.0
"""Adds the doctor's findings to the error of a failed command: it runs the checks that can explain such a failure.

Nothing here may fail a second time or hide the failure: errors during these checks are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.cli import hosts, result_reader, streams
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.results import host as host_results

if TYPE_CHECKING:
    from vgpuctl.cli.settings import Settings

DOCTOR_FACT = "doctor"
MAX_LINES = 2
_EXPLAINABLE_STATUSES = (1, 4, 5, 6, 75)
"""Exit statuses of failures that the host's state may explain. Invalid input and a refusal need no doctor."""
_EXCLUDED_COMMANDS = ("doctor", "restore-host")


def add_findings(exc: BaseException, settings: Settings) -> None:
    """Add the fact `doctor` to an error: the problems found by the checks that explain it. Never raises.

    A signal stops the checks, because libvirt may hang. restore-host never runs them: during a boot libvirt waits for
    it.
    """
    if (
        not isinstance(exc, VgpuctlError)
        or exc.status not in _EXPLAINABLE_STATUSES
        or settings.kind in _EXCLUDED_COMMANDS
    ):
        return
    with suppress(Exception, KeyboardInterrupt):
        findings = hosts.open_host(settings).explain_failure(exc)
        if findings:
            exc.facts[DOCTOR_FACT] = findings


def finding_lines(findings: object, message: str) -> Iterator[str]:
    """Yield the lines of the fact for people: the worst one or two findings, one line each.

    A line has the first piece of evidence, or the fix if the error's message already names the evidence. The fact may
    come from another host, so a value of another shape is ignored.
    """
    try:
        rows: tuple[host_results.DoctorFindingResult, ...] = result_reader.read_value(
            tuple[host_results.DoctorFindingResult, ...], findings
        )
    except result_reader.Mismatch:
        return
    ordered = sorted(rows, key=lambda row: row.verdict != "fail")
    for row in ordered[:MAX_LINES]:
        evidence = next(iter(row.evidence), "")
        paths = [word for word in evidence.split() if word.startswith("/")]
        already_named = row.fix and paths and all(path in message for path in paths)
        yield streams.sanitize(f"doctor: {row.id}: {row.fix if already_named else evidence}")
    if len(rows) > MAX_LINES:
        yield f"doctor: and {len(rows) - MAX_LINES} more: vgpuctl doctor {' '.join(row.id for row in ordered)}"
