# SPDX-License-Identifier: Apache-2.0
"""Who may log on in a desktop: what its guest's helper should let in, and what it last confirmed.

Both are one text, so that they are compared: `nobody`, `domain:USER`, or `local:USER` for one with an account that was
made in the guest. Only a refresh of the disk takes an account away, or lets everybody in again.
"""

from __future__ import annotations

from vgpuctl.controller.model import Desktop, DesktopReport, Logon, Pool, PoolKind
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.model.guest_logon import is_same_user

NOBODY = "nobody"
NO_HELPER_CODE = "no-helper"
LOGON_CODE = "logon-refused"
LOGON_CODES = frozenset((NO_HELPER_CODE, LOGON_CODE))
"""Why a desktop's user is not let in; they are no reason to pause the pool while somebody has it."""


def wanted_logon(desktop: Desktop, pool: Pool | None) -> str | None:
    """Return whom a desktop's guest should let in; None: that is not the controller's business.

    A spare desktop lets nobody in: so an image whose helper cannot do that is noticed before anybody gets it.
    """
    if pool is None or pool.spec.logon is None or pool.spec.kind is PoolKind.FIXED:
        return None
    return NOBODY if desktop.user is None else f"{pool.spec.logon}:{desktop.user}"


def is_local(let_in: str) -> bool:
    """Return whether it is a user with an account that is made in the guest."""
    return let_in.startswith(f"{Logon.LOCAL}:")


def user_of(let_in: str) -> str | None:
    """Return the user who is let in; None: nobody."""
    return let_in.partition(":")[2] or None


def is_logon_due(desktop: Desktop, pool: Pool | None, let_in: str | None) -> bool:
    """Return whether a guest must let in another one than it does; or everybody, which a refresh brings back."""
    wanted = wanted_logon(desktop, pool)
    return let_in == NOBODY if wanted is None else let_in != wanted


def remembered(former: DesktopReport, mark: DesktopMark, image: str | None) -> str | None:
    """Return whom a guest lets in, as was confirmed before, if its disk is the same; a mark that is clean again is not.

    Asked again although it is the same disk, a helper does the same once more.
    """
    refreshed = not mark.dirty and (former.dirty or former.generation != mark.generation)
    is_same = former.exists and not refreshed and former.image in (None, image)
    return former.let_in if is_same else None


def others_logged_on(user: str | None, report: DesktopReport | None) -> tuple[str, ...]:
    """Return who is logged on in a desktop that is not theirs."""
    if report is None or user is None or report.user != user:
        return ()
    return tuple(one for one in report.guest_users or () if not is_same_user(one, user))
