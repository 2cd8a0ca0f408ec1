# SPDX-License-Identifier: Apache-2.0
"""All checks in the order in which people read them: what the rest stands on comes first."""

from __future__ import annotations

import difflib

from vgpuctl.doctor import (
    boot,
    confinement,
    gpus,
    guests,
    leftovers,
    memory,
    messages,
    nvidia,
    own_files,
    partition,
    pci,
    scheduler,
    versions,
    virtualization,
    vms,
)
from vgpuctl.doctor.check import Check, Finding, Verdict
from vgpuctl.errors import NotFound

CHECKS: tuple[Check, ...] = (
    *virtualization.CHECKS,
    *versions.CHECKS,
    *gpus.CHECKS,
    *pci.CHECKS,
    *nvidia.CHECKS,
    *guests.CHECKS,
    *messages.CHECKS,
    *partition.CHECKS,
    *scheduler.CHECKS,
    *confinement.CHECKS,
    *vms.CHECKS,
    *memory.CHECKS,
    *leftovers.CHECKS,
    *own_files.CHECKS,
    *boot.CHECKS,
)
_WORST_FIRST = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN, Verdict.OK, Verdict.NOT_APPLICABLE)


def chosen(ids: tuple[str, ...]) -> tuple[Check, ...]:
    """Return the checks of these ids in the catalogue's order; all of them when none is named.

    Raises:
        NotFound: there is no check of that id.
    """
    known = {check.id for check in CHECKS}
    for wanted in ids:
        if wanted not in known:
            near = difflib.get_close_matches(wanted, known, 1)
            raise NotFound(
                f"there is no check '{wanted}'",
                hint=f"did you mean {near[0]}?" if near else "vgpuctl doctor lists the checks",
                value=wanted,
            )
    return tuple(check for check in CHECKS if not ids or check.id in ids)


def explaining(code: str, lacking: str | None) -> tuple[Check, ...]:
    """Return the checks that may explain an error: by its code, or by what its fact `check` says is lacking."""
    return tuple(check for check in CHECKS if code in check.explains or lacking in check.explains)


def worst(findings: tuple[Finding, ...]) -> Verdict:
    """Return how a host is as a whole: as its worst finding."""
    seen = {finding.verdict for finding in findings}
    return next((verdict for verdict in _WORST_FIRST if verdict in seen), Verdict.NOT_APPLICABLE)
