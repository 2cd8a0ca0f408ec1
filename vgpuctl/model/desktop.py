# SPDX-License-Identifier: Apache-2.0
"""What a host knows of a controller's desktops: the mark in a VM's record, and which controller the host obeys."""

from __future__ import annotations

from vgpuctl.value import Value


class DesktopMark(Value):
    """The element `desktop` in a VM's record: the VM is a desktop of a pool, and a controller decides about it.

    `id`: the desktop's, which is the VM's uuid. `pool`: the pool's name, for people. `incarnation`: of the database
    that wanted it. `generation`: which of the desktop's assignments and refreshes was carried out last; it grows.
    `dirty`: a user was let in since its disk was last made; such a desktop is never given to another user before a
    refresh. `user`: who has it now; None: nobody.
    """

    id: str
    pool: str
    incarnation: str
    generation: int
    dirty: bool = False
    user: str | None = None


class Fence(Value):
    """Who asks for a change of a fleet: the database (`incarnation`), and the holder of the host's lease in it.

    `epoch` grows with each new holder; a host refuses a lower one, and an equal one of another `holder`.
    """

    incarnation: str
    epoch: int
    holder: str


class FleetRequest(Value):
    """What a change by a controller has besides its arguments. `mark`: what the VM's record says afterwards."""

    fence: Fence
    mark: DesktopMark | None = None
