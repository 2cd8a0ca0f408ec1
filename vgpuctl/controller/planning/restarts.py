# SPDX-License-Identifier: Apache-2.0
"""Restarts of desktops that somebody asked for: whether one is still to be done, and why one was not.

What is wanted is in the desktop's row. Its host gets the request with a key of its own, so that one which comes twice,
as after a controller that was killed, is carried out once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vgpuctl.controller.model import Desktop, FleetHost, FleetHostState

WITHOUT_RESTART: Mapping[str, Any] = {"restart_at": None, "restart_at_once": False, "restart_error": None}
"""The fields of a desktop of which no restart is wanted."""
RESTARTABLE = frozenset(("ready", "assigned", "connected"))
RESTART_SECONDS = 600.0
"""A restart that is not done after so long is not done any more: nobody waits for it, or somebody works there again."""


def wants_restart(desktop: Desktop, now: float) -> bool:
    """Return whether a desktop is to be restarted, or is being restarted."""
    asked_at = desktop.restart_at
    return asked_at is not None and desktop.restart_error is None and now - asked_at < RESTART_SECONDS


def restart_problem(desktop: Desktop, now: float) -> str | None:
    """Return why the last restart that was asked for failed; None: it did not."""
    if desktop.restart_at is None or wants_restart(desktop, now):
        return None
    return desktop.restart_error or f"its host did not do it within {RESTART_SECONDS / 60:g} minutes"


def why_not_restart(phase: str, host: FleetHost | None, user: str | None) -> str | None:
    """Return why a desktop of this phase cannot be restarted now; None: it can. `user`: whose it is."""
    if phase not in RESTARTABLE:
        return f"it is {phase}, and only a desktop that runs and is ready can"
    if host is not None and (host.held is not None or host.state is FleetHostState.MAINTENANCE):
        return "nothing is changed on its host just now"
    if host is not None and host.state is FleetHostState.DRAINING and user is None:
        return f"{host.name} is drained, and it is nobody's"
    return None


def restart_key(desktop: Desktop) -> str:
    """Return what names one restart to the host."""
    return f"restart-{desktop.id}-{desktop.restart_at}"
