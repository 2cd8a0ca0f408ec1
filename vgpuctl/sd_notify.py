# SPDX-License-Identifier: Apache-2.0
"""Tells systemd about this service, by the datagram protocol of sd_notify(3)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

_DEADLINE_SECONDS = 5.0
"""systemd reads its socket soon; a service must not wait for it for ever."""


def notify(*lines: str) -> bool:
    """Send lines such as READY=1 or STATUS=text; False if systemd does not wait for them or does not take them.

    A line break inside a line becomes a space: the text of an error in STATUS must not become another line.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    text = "".join(f"{' '.join(line.splitlines())}\n" for line in lines)
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(_DEADLINE_SECONDS)
        systemd.connect(address.replace("@", "\0", 1) if address.startswith("@") else address)
        systemd.sendall(text.encode(errors="replace"))
        return True
    return False
