# SPDX-License-Identifier: Apache-2.0
"""vgpuctl gives virtual machines on a KVM host a slice of a GPU or a whole GPU.

`open_host` is the way in for programs that are root on the host, `connect` for the others: its calls go through the
host agent. Both are imported when they are used: `vgpuctl --help` and libvirt's hook import this package too, and need
none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.version import __version__

if TYPE_CHECKING:
    from vgpuctl.agent.client import connect
    from vgpuctl.library import GpuHost, open_host

__all__ = ["GpuHost", "__version__", "connect", "open_host"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'vgpuctl' has no attribute '{name}'")
    if name == "connect":
        from vgpuctl.agent import client

        return client.connect
    from vgpuctl import library

    return getattr(library, name)
