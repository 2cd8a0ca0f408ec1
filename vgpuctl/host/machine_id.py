# SPDX-License-Identifier: Apache-2.0
"""The machine's id.

A VM's record contains the id of the machine that wrote it, so that vgpuctl does not act on the record of a VM that was
restored on another host. machine-id(5): 32 lower-case hexadecimal digits in /etc/machine-id; D-Bus keeps the same id in
/var/lib/dbus on hosts without systemd. In an image that was never booted the file is empty or has "uninitialized".
"""

from __future__ import annotations

import re

from vgpuctl.host.files import HostFiles

_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def read_machine_id(root: str = "/") -> str | None:
    """Return the id of the machine whose files are under `root`, or None when it has none yet.

    D-Bus's file is mostly an absolute link: under a captured root it leads to the capture's own /etc.
    """
    files = HostFiles(root, lock_held=lambda: False)
    for name in _FILES:
        try:
            text = files.read(name).strip().lower()
        except OSError:
            continue
        if _ID.fullmatch(text):
            return text
    return None
