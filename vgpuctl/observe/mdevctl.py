# SPDX-License-Identifier: Apache-2.0
"""Which mdevs mdevctl defines, and whether it creates them when the host boots.

Each definition is a file /etc/mdevctl.d/PARENT/UUID with JSON, in which `start` is `auto` or `manual` (mdevctl's manual
page). libvirt's node devices (virsh nodedev-define) are kept there, too. What cannot be understood counts as `auto`: it
may be there at the next boot.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING

from vgpuctl.errors import unreadable_error
from vgpuctl.model.json_yaml import parse_json

if TYPE_CHECKING:
    from vgpuctl.ports.devices import Sysfs

MDEVCTL_DIRECTORY = "/etc/mdevctl.d"


class MdevctlStart(StrEnum):
    """When mdevctl creates an mdev: when the host boots, or on request."""

    AUTO = "auto"
    MANUAL = "manual"


def find_definition(sysfs: Sysfs, uuid: str) -> MdevctlStart | None:
    """Return how mdevctl defines an mdev; `auto` if one of several definitions says so, None without any.

    Raises:
        FileFailed: the definitions cannot be read.
    """
    path = MDEVCTL_DIRECTORY
    starts: set[MdevctlStart] = set()
    try:
        for parent in _names(sysfs, MDEVCTL_DIRECTORY):
            path = f"{MDEVCTL_DIRECTORY}/{parent}"
            for name in (n for n in _names(sysfs, path) if n.lower() == uuid):
                path = f"{MDEVCTL_DIRECTORY}/{parent}/{name}"
                with suppress(FileNotFoundError):
                    starts.add(_parse_start(sysfs.read(path)))
    except OSError as error:
        raise unreadable_error(path, error) from error
    return next((start for start in MdevctlStart if start in starts), None)


def _names(sysfs: Sysfs, path: str) -> tuple[str, ...]:
    """Return the names in a directory; none where there is no directory."""
    try:
        return sysfs.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _parse_start(text: str) -> MdevctlStart:
    definition = parse_json(text)
    start = definition.get("start", "manual") if isinstance(definition, dict) else "auto"
    return MdevctlStart.MANUAL if start == "manual" else MdevctlStart.AUTO
