# SPDX-License-Identifier: Apache-2.0
"""The library: every command as a call with typed arguments and a typed result.

    import vgpuctl

    host = vgpuctl.open_host("sim:a100-40")
    vm = host.create_vm("vdi-001", profile="A100-4C").data

The command line, and later the agent, call nothing else. A call prints nothing and handles no signal.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import require_seconds
from vgpuctl.library.call import DEFAULT_WAIT_SECONDS, CallSettings, confirm_everything, never_cancelled
from vgpuctl.library.gpus import GpuCalls
from vgpuctl.library.names import NameCalls
from vgpuctl.library.opening import LOCAL, open_ports
from vgpuctl.library.vgpus import VgpuCalls
from vgpuctl.library.vms import VmCalls
from vgpuctl.library.whole_host import HostCalls
from vgpuctl.model.outcome import NoProgress

if TYPE_CHECKING:
    from vgpuctl.model.outcome import BatchProgress, Confirm

__all__ = ["LOCAL", "GpuHost", "confirm_everything", "never_cancelled", "open_host", "open_ports"]


class GpuHost(VmCalls, VgpuCalls, GpuCalls, HostCalls, NameCalls):
    """A KVM host with GPUs. `open_host` opens one."""


def open_host(
    name: str = LOCAL,
    *,
    root: str = "/",
    connect: str | None = None,
    wait_seconds: float = DEFAULT_WAIT_SECONDS,
    progress: BatchProgress | None = None,
    confirm: Confirm = confirm_everything,
    cancelled: Callable[[], bool] = never_cancelled,
    command_line: tuple[str, ...] | None = None,
) -> GpuHost:
    """Open a host: `local`, a simulated one (`sim:NAME`, `sim:FILE`), or the captured files below `root`.

    `connect`: the URI of a libvirt on this host. `wait_seconds`: for another vgpuctl, a busy device, a guest that shuts
    down. `confirm` is asked before something is lost and raises to refuse; without it the answer is yes. `cancelled` is
    asked before each step: when it returns True, the work stops and what was done is undone; of several VMs those
    that are finished stay. `command_line`: what the
    audit journal says was called; without it, the process's own.

    One call at a time: open the host once more for another thread.

    Raises:
        InvalidInput, NotFound: there is no such host, or the arguments contradict each other.
        HostCannot, FileFailed: it cannot be opened.
    """
    require_seconds("wait_seconds", wait_seconds)
    ports = open_ports(name, root=root, connect=connect)
    settings = CallSettings(wait_seconds, progress or NoProgress(), confirm, cancelled, command_line)
    return GpuHost(ports, settings, captured_root=None if os.path.abspath(root) == "/" else root)
