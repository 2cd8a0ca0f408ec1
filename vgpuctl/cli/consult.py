# SPDX-License-Identifier: Apache-2.0
"""After a command failed: the doctor's checks that explain such a failure look, and what they found is added to it.

Nothing here may fail a second time or hide the failure: whatever goes wrong while looking is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypedDict

from vgpuctl.cli import answer_check, streams
from vgpuctl.cli.failures import DOCTOR_FACT
from vgpuctl.errors import PartlyApplied, VgpuctlError

if TYPE_CHECKING:
    from vgpuctl.cli.settings import Settings

MOST_LINES = 2
_EXPLAINABLE = (1, 4, 5, 6, 75)
_NEVER = ("doctor", "restore-host")
"""Exit statuses of failures that a host's state may explain; what was typed, and a refusal, need no doctor."""


class FoundShape(TypedDict):
    """A finding in the fact `doctor`."""

    id: str
    verdict: str
    evidence: list[str]
    fix: str | None


def add_findings(exc: BaseException, settings: Settings) -> None:
    """Add the fact `doctor` to an error: what the checks that explain it found wrong. Never raises.

    A signal ends the looking: libvirt may hang. Restoring a host never asks: during a boot libvirt waits for it.
    """
    if not isinstance(exc, VgpuctlError) or exc.status not in _EXPLAINABLE or settings.kind in _NEVER:
        return
    with suppress(Exception, KeyboardInterrupt):
        from vgpuctl.doctor import catalogue

        lacking = exc.facts.get("check")
        word = lacking if isinstance(lacking, str) else None
        cause = exc.facts.get("cause")
        code = cause if isinstance(exc, PartlyApplied) and isinstance(cause, str) else exc.code
        if not catalogue.explaining(code, word):
            return
        from vgpuctl.cli import worlds
        from vgpuctl.engine import diagnose

        found = diagnose.explain_failure(worlds.open_world(settings), code, word)
        if found:
            exc.facts[DOCTOR_FACT] = found


def lines(found: object, message: str) -> Iterator[str]:
    """Yield what people read of the fact: the worst one or two findings, each in a line.

    A line has the first value seen, or what to do when the error's message told that value already. Another host may
    have made the fact, so what has not its shape is left out.
    """
    if not isinstance(found, list) or answer_check.misfit(found, list[FoundShape]):
        return
    ordered = sorted(found, key=lambda row: row["verdict"] != "fail")
    for row in ordered[:MOST_LINES]:
        seen = next(iter(row["evidence"]), "")
        paths = [word for word in seen.split() if word.startswith("/")]
        told = row["fix"] and paths and all(path in message for path in paths)
        yield streams.clean(f"doctor: {row['id']}: {row['fix'] if told else seen}")
    if len(found) > MOST_LINES:
        yield f"doctor: and {len(found) - MOST_LINES} more: vgpuctl doctor {' '.join(r['id'] for r in ordered)}"
