# SPDX-License-Identifier: Apache-2.0
"""The library: every command as a call with typed arguments and a typed result.

    import vgpuctl

    host = vgpuctl.open_host("sim:a100-40")
    vm = host.create_vm("vdi-001", profile="A100-4C").data

The command line, and later the agent, call nothing else. A call prints nothing and handles no signal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import require_seconds
from vgpuctl.errors import InvalidInput
from vgpuctl.library.gpus import GpuCalls, VgpuCalls
from vgpuctl.library.guests import GuestCalls
from vgpuctl.library.jobs import JobCalls
from vgpuctl.library.migration import MigrationCalls
from vgpuctl.library.targets import NameCalls, TargetCalls
from vgpuctl.library.vm_disks import DiskCalls
from vgpuctl.library.whole_host import HostCalls
from vgpuctl.model.outcome import DEFAULT_WAIT_SECONDS, CallSettings, NoProgress, confirm_everything, never_cancelled
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.host.processes import HostClock
    from vgpuctl.model.caller import Caller
    from vgpuctl.model.outcome import Confirm, Progress
    from vgpuctl.ports.host import Host

__all__ = ["LOCAL", "GpuHost", "confirm_everything", "never_cancelled", "open_host", "open_ports", "opener"]

LOCAL = "local"
_SIMULATED_PREFIX = "sim:"
_LOCAL_URI = re.compile(r"[a-z][a-z0-9]*(\+unix)?:///.*", re.ASCII)


class GpuHost(MigrationCalls, DiskCalls, GuestCalls, VgpuCalls, GpuCalls, JobCalls, HostCalls, NameCalls, TargetCalls):
    """A KVM host with GPUs. `open_host` opens one."""


def open_host(
    name: str = LOCAL,
    *,
    root: str = "/",
    connect: str | None = None,
    wait_seconds: float = DEFAULT_WAIT_SECONDS,
    progress: Progress | None = None,
    confirm: Confirm = confirm_everything,
    cancelled: Callable[[], bool] = never_cancelled,
    command_line: tuple[str, ...] | None = None,
    caller: Caller | None = None,
    override_controller: bool = False,
) -> GpuHost:
    """Open a host: `local`, a simulated one (`sim:NAME`, `sim:FILE`), or the captured files below `root`.

    `connect`: the URI of a libvirt on this host. `wait_seconds`: for another vgpuctl, a busy device, a guest that shuts
    down. `confirm` is called before something is lost and raises to refuse; without it the answer is yes. `cancelled`
    is called before each step: if it returns True, the work stops and is undone; of several VMs the finished ones
    stay. `command_line`: the command line in the audit journal; default: the process's own. `caller`: the user for whom
    a process of root works; the calls then refuse to change the VMs of others. `override_controller`: desktops of
    pools may be changed without their controller.

    Threads may share the host: each call is an operation of its own. They share `progress`, `confirm` and `cancelled`,
    too. `close` or a `with` block closes it.

    Raises:
        InvalidInput, NotFound: there is no such host, or the arguments contradict each other.
        HostCannot, FileFailed: it cannot be opened.
    """
    settings = CallSettings(wait_seconds, progress or NoProgress(), confirm, cancelled, command_line, caller=caller)
    settings = replace(settings, override_controller=override_controller)
    return opener(name, root=root, connect=connect)(settings, None)


def opener(
    name: str = LOCAL,
    *,
    root: str = "/",
    connect: str | None = None,
    adapt: Callable[[Host], Host] = lambda ports: ports,
) -> Callable[[CallSettings, HostClock | None], GpuHost]:
    """Return what opens a host, named as for `open_host`, for calls with these settings that wait with this clock.

    `adapt`: changes the ports of a host that was opened, as the agent does for calls that change nothing.

    Raises, when it opens:
        InvalidInput, NotFound, HostCannot, FileFailed: as `open_host`.
    """

    def open_with(settings: CallSettings, clock: HostClock | None = None) -> GpuHost:
        require_seconds("wait_seconds", settings.wait_seconds)
        ports = open_ports(name, root=root, connect=connect, clock=clock, wait_seconds=settings.wait_seconds)
        ports = replace(adapt(ports), given_files=settings.files)
        return GpuHost(ports, settings, None if os.path.abspath(root) == "/" else root, open_with)

    return open_with


def open_ports(
    name: str = LOCAL,
    *,
    root: str = "/",
    connect: str | None = None,
    clock: HostClock | None = None,
    wait_seconds: float = DEFAULT_WAIT_SECONDS,
) -> Host:
    """Return the ports of a host. `clock`: with which they wait; `wait_seconds`: for another vgpuctl's writes.

    Raises:
        InvalidInput, NotFound: there is no such host, or the arguments contradict each other.
    """
    from vgpuctl import simulated
    from vgpuctl.host import local_host

    if name.startswith(_SIMULATED_PREFIX):
        scenario = simulated.scenario_of(name, root=root, connect=connect)
        return simulated.open_simulated_host(scenario, clock, wait_seconds)
    if name != LOCAL:
        raise InvalidInput(
            f"--host {name}: there is no such host",
            hint=f"use local, ssh://HOST or {_suggest_simulated(name)}; vgpuctl sim list-scenarios lists the "
            "simulated hosts",
        )
    if connect is not None and not _LOCAL_URI.fullmatch(connect):
        raise InvalidInput(
            f"--connect {connect}: only libvirt on this host can be used",
            hint="use qemu:///system; for another host use --host ssh://HOST",
        )
    return local_host.open_local_host(
        root=os.path.abspath(root), connect=connect, clock=clock, wait_seconds=wait_seconds
    )


def _suggest_simulated(text: str) -> str:
    """Return the simulated host that was probably meant by a name without `sim:`."""
    from vgpuctl import sim

    return f"{_SIMULATED_PREFIX}{text if text in sim.SCENARIOS else 'NAME'}"
