# SPDX-License-Identifier: Apache-2.0
"""What a host knows of a controller's desktops: the mark in a VM's record, and which controller the host obeys."""

from __future__ import annotations

import re
from typing import Protocol

from vgpuctl.value import Value

MAX_TEXT_CHARACTERS = 255
MAX_COUNT = 10**18 - 1
"""The largest generation and epoch: the record's numbers have 18 digits at most."""
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


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


class FleetStatus(Value):
    """What the host agent answers about the fleet (`GET /v1/fleet`).

    `incarnation`, `epoch`, `holder`: whom the host obeys; null until a controller has announced itself, and when that
    was `lost`. `adopted`: this incarnation took the host over from another one, or after a loss.
    """

    machine_id: str
    boot_id: str
    agent_version: str
    driver: str | None
    incarnation: str | None
    epoch: int | None
    holder: str | None
    adopted: bool = False
    lost: bool = False


class HostFence(Protocol):
    """What the host remembers of the controllers that change it (`agent.fleet_fence`)."""

    def check(self, fence: Fence) -> bool:
        """Return whether the holder's incarnation has adopted this host.

        Raises:
            Refused: the host obeys another holder, or nobody is known to be the holder.
        """

    def refuse_deleted(self, desktop_id: str) -> None:
        """Refuse to make a desktop that was deleted here.

        Raises:
            Refused: it was, in the last days.
        """

    def note_deletion(self, desktop_id: str) -> None:
        """Remember that a desktop is deleted.

        Raises:
            Temporary: it cannot be remembered, so the desktop must stay.
        """


def check_mark(mark: DesktopMark) -> None:
    """Raise ValueError for a mark that no record may have."""
    if not is_desktop_id(mark.id):
        raise ValueError(f"the desktop's id {mark.id[:60]!a} is not a uuid in lower case")
    check_text("pool", mark.pool)
    check_text("incarnation", mark.incarnation)
    check_count("generation", mark.generation)
    if mark.user is not None:
        check_text("user", mark.user)


def check_fence(fence: Fence) -> None:
    """Raise ValueError for a fence that no controller has."""
    check_text("incarnation", fence.incarnation)
    check_text("holder", fence.holder)
    check_count("epoch", fence.epoch)


def check_fleet(fleet: FleetRequest) -> None:
    """Raise ValueError for a request that no controller sends."""
    check_fence(fleet.fence)
    if fleet.mark is not None:
        check_mark(fleet.mark)
        if fleet.mark.incarnation != fleet.fence.incarnation:
            raise ValueError(f"the mark is of {fleet.mark.incarnation}, and {fleet.fence.incarnation} asks")


def is_desktop_id(text: str) -> bool:
    """Return whether a text has the form of a desktop's id, as libvirt shows it as the VM's uuid."""
    return _ID.fullmatch(text) is not None


def check_text(field: str, text: str) -> None:
    """Raise ValueError for a name that is empty, too long, or has blanks around it or control characters."""
    if not text or len(text) > MAX_TEXT_CHARACTERS or not text.isprintable() or text != text.strip():
        raise ValueError(
            f"{field} {text[:60]!a}: it has 1 to {MAX_TEXT_CHARACTERS} printable characters, and no blank at an end"
        )


def check_count(field: str, number: int) -> None:
    """Raise ValueError for a number that is negative or has more than 18 digits."""
    if not 0 <= number <= MAX_COUNT:
        raise ValueError(f"{field}: it is not a number from 0 to {MAX_COUNT}")
