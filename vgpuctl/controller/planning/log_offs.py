# SPDX-License-Identifier: Apache-2.0
"""Whether a desktop's user has logged off: what the helper in its guest says, look after look."""

from __future__ import annotations

from vgpuctl.controller.model import DesktopReport
from vgpuctl.controller.planning.phase import NO_LOGON_SECONDS
from vgpuctl.model.desktop import DesktopMark
from vgpuctl.value import Value

LOGGED_OFF_SECONDS = 30
"""Nobody is logged on twice, so far apart: a log-off, and not a moment of a log-on."""


class LogOff(Value):
    """The fields of a `DesktopReport` about that. `empty_since`: since when nobody is logged on after a log-on."""

    logged_on_seen: bool = False
    empty_since: float | None = None
    logged_off: bool = False
    after_silence: bool = False


def follow_log_off(
    users: tuple[str, ...] | None,
    mark: DesktopMark,
    memory: DesktopReport,
    now: float,
    *,
    powered_off: bool,
    restarts: bool,
) -> LogOff:
    """Return what is known of the log-off of the user whom a desktop's mark names. `users`: who is logged on there.

    The only source is the helper in the guest. A guest that does not answer says nothing, so the time begins again.
    Who shuts his guest down has logged off, too. Who has it boot again has not: nobody is logged on then, and he gets
    the time that he has after an assignment to log on again. Its agent forgets what a helper said when a guest boots,
    so nobody reports from it for a while. `restarts`: the controller has it boot.
    """
    if mark.user is None:
        return LogOff()
    logged_on = memory.logged_on_seen or bool(users)
    if not logged_on or users:
        return LogOff(logged_on, after_silence=restarts and not users)
    after_silence = memory.after_silence or restarts or users is None
    if users is None or restarts:
        return LogOff(logged_on, None, memory.logged_off or powered_off, after_silence)
    since = memory.empty_since if memory.empty_since is not None else now
    seconds = NO_LOGON_SECONDS if after_silence else LOGGED_OFF_SECONDS
    return LogOff(logged_on, since, memory.logged_off or now - since >= seconds, after_silence)
