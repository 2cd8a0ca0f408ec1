# SPDX-License-Identifier: Apache-2.0
"""Checks of a host: what vgpuctl observed -> what is wrong with it. Pure; `operations.diagnose` gathers the input.

A check is a function and its entry in `CHECKS` of its file; `check` says what a check is, and has what they share.
"""

from __future__ import annotations

import difflib
from typing import Protocol, TypeVar

from vgpuctl.doctor import (
    agent,
    amd,
    drawing,
    driver_files,
    gpu_settings,
    gpus,
    live_migration,
    nvidia,
    own_files,
    schedulers,
    vgpu_software,
    virtualization,
    vms,
)
from vgpuctl.doctor.check import Check
from vgpuctl.errors import NotFound


class HasId(Protocol):
    """A check of anything."""

    @property
    def id(self) -> str:
        """Its name."""


AnyCheck = TypeVar("AnyCheck", bound=HasId)

CHECKS: tuple[Check, ...] = (
    *virtualization.CHECKS,
    *gpus.CHECKS,
    *nvidia.CHECKS,
    *amd.CHECKS,
    *vgpu_software.CHECKS,
    *gpu_settings.CHECKS,
    *schedulers.CHECKS,
    *driver_files.CHECKS,
    *live_migration.CHECKS,
    *virtualization.SECURITY_CHECKS,
    *vms.CHECKS,
    *drawing.CHECKS,
    *own_files.CHECKS,
    *agent.CHECKS,
)
"""All checks in the order in which people read them: a check comes after those that it depends on."""


def select_checks(ids: tuple[str, ...]) -> tuple[Check, ...]:
    """Return the checks with these ids in the catalogue's order; all of them when there are no ids.

    Raises:
        NotFound: there is no check of that id.
    """
    return pick_checks(CHECKS, ids, "vgpuctl doctor")


def pick_checks(checks: tuple[AnyCheck, ...], ids: tuple[str, ...], command: str) -> tuple[AnyCheck, ...]:
    """Return the checks with these ids in their order; all of them when there are no ids. `command`: lists them.

    Raises:
        NotFound: there is no check of that id.
    """
    known_ids = {check.id for check in checks}
    for check_id in ids:
        if check_id not in known_ids:
            similar = difflib.get_close_matches(check_id, known_ids, 1)
            raise NotFound(
                f"there is no check '{check_id}'",
                hint=f"did you mean {similar[0]}?" if similar else f"{command} lists the checks",
                value=check_id,
            )
    return tuple(check for check in checks if not ids or check.id in ids)


def find_explaining_checks(code: str, check_fact: str | None) -> tuple[Check, ...]:
    """Return the checks that may explain an error: by its code, or by its fact `check`."""
    return tuple(check for check in CHECKS if code in check.explains or check_fact in check.explains)
