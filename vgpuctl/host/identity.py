# SPDX-License-Identifier: Apache-2.0
"""Which machine this is.

A promise names the machine it was made on, so that the record of a VM that was restored on another host is not
acted on. machine-id(5): 32 lower-case hexadecimal digits in /etc/machine-id; D-Bus keeps the same id in
/var/lib/dbus on hosts without systemd. An image that was never booted holds nothing or "uninitialized".
"""

from __future__ import annotations

import re

from vgpuctl.host.files import HostFiles

_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


def machine_id(root: str = "/") -> str | None:
    """Return the id of the machine whose files lie below `root`, or None when it has none yet.

    D-Bus's file mostly is an absolute link: below a captured root it leads to the capture's own /etc.
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
