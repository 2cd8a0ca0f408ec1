# SPDX-License-Identifier: Apache-2.0
"""vgpuctl gives virtual machines on a KVM host a slice of a GPU or a whole GPU.

`open_host` is the way in for programs. It is imported when it is used: `vgpuctl --help` and libvirt's hook import this
package too, and need none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.version import __version__

if TYPE_CHECKING:
    from vgpuctl.library import GpuHost, open_host

__all__ = ["GpuHost", "__version__", "open_host"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'vgpuctl' has no attribute '{name}'")
    from vgpuctl import library

    return getattr(library, name)
